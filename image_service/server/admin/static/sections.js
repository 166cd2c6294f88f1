// The sections, and the functions that draw the API's JSON in them.

import { now } from "./api.js";
import { bytes, duration, number, percent, relative } from "./format.js";
import { Table, bar, element } from "./table.js";

const MAX_MOUNTS = 100;
const LOST_SECONDS = 15; // without a response; what the page shows is grey then
const STAGES = [
  "probed",
  "firmware",
  "boot loader",
  "kernel",
  "initrd",
  "ignition",
  "root file system",
];
const BOOTED_PERCENT = 10; // of the root file system; a machine that has read less may hang
const ORDER_OF_STATES = ["stalled", "reading", "quiet", "done", "aborted"];
const GOOD_STATES = new Set(["ready"]);
const BAD_STATES = new Set(["failed", "refused"]);

/** Return the elements of a section by their use. */
export function parts(id) {
  const find = (selector) => document.querySelector(`#${id} > ${selector}`);
  return { table: find("table"), empty: find(".empty"), more: find(".more"), count: find("h2 > .count") };
}

/** Show how many items there are, and the table only if there are some. */
export function showCount({ table, empty, count }, number) {
  count.textContent = number ? `(${number})` : "";
  table.hidden = number === 0;
  empty.hidden = number !== 0;
}

const second = (text) => element("span", "second", text);
const badge = (text, className) => element("span", `badge ${className}`, text);

// Service

const facts = document.querySelector("#service > .facts");
const summary = document.getElementById("summary");

function upstreamFact({ url, answered_at: answered, failed_at: failed, failure, failures: failedCalls }) {
  const isFailing = failedCalls > 0 && (answered === null || failed > answered);
  const state = isFailing ? badge("failing", "bad") : answered ? badge("answers", "good") : badge("not asked yet", "");
  return [
    state,
    second(url),
    answered && second(`last answer ${relative(answered)}`),
    failed && second(`last failure ${relative(failed)}: ${failure}`),
  ];
}

function databaseFact({ was_reached: wasReached, failing_seconds: failing, round_trip_seconds: roundTrip }) {
  if (failing !== null) {
    return [badge("unreachable", "bad"), second(`for ${duration(failing)}`)];
  }
  return [badge("answers", wasReached ? "good" : ""), roundTrip && second(`in ${(1000 * roundTrip).toFixed(1)} ms`)];
}

function certificateFact({ file, not_after: end, state }) {
  const className = { valid: "good", ending: "warning", ended: "bad" }[state];
  return [badge(`${state === "ended" ? "ended" : "ends"} ${relative(end)}`, className), second(`${file}, ${end}`)];
}

function streamFact({ name, refreshed_at: refreshed, failures: failed }) {
  const state = failed ? badge(number(failed, "failed attempt"), "warning") : badge("refreshed", "good");
  return [state, second(`${name}, ${relative(refreshed)}`)];
}

function drawService(status) {
  document.body.classList.remove("lost");
  summary.textContent = status.verdict.text;
  summary.className = { good: "good", impaired: "warning", failing: "bad" }[status.verdict.level];
  const shown = {
    "assisted-service": upstreamFact(status.upstream),
    Clients: [number(status.connections, "connection"), second(`${number(status.requests, "request")} in progress`)],
    Process: [
      `version ${status.version}`,
      second(`serving processes: ${status.workers}, since ${status.started_at}`),
    ],
  };
  if (status.database !== null) {
    shown.Database = databaseFact(status.database);
  }
  if (status.certificates.length) {
    shown.Certificate = status.certificates.flatMap(certificateFact);
  }
  if (status.streams.length) {
    shown.Streams = status.streams.flatMap(streamFact);
  }
  const made = Object.entries(shown).map(([name, content]) =>
    element("div", "", element("dt", "", name), element("dd", "", ...content)),
  );
  facts.replaceChildren(...made);
}

/** Show that the status is that of some time ago. */
function drawLost(seconds, problem) {
  document.body.classList.toggle("lost", seconds >= LOST_SECONDS);
  summary.textContent = `reconnecting for ${duration(seconds)}: ${problem}`;
  summary.className = "warning";
}

export const service = { id: "service", path: "api/v1/status", draw: drawService, drawLost };

// Base images

const imageParts = parts("images");
const imageTable = new Table(imageParts.table, {
  Image: (image) => [`${image.openshift_version} ${image.cpu_architecture}`, second(image.version)],
  State: imageState,
  Size: (image) => [image.size === null ? "" : bytes(image.size), image.sha256 && second(`sha256 ${image.sha256}`)],
  Origin: (image) => [image.remote ? "remote" : image.url.startsWith("file:") ? "local" : "downloaded", second(image.url)],
});

function imageState(image) {
  const className = GOOD_STATES.has(image.state) ? "good" : BAD_STATES.has(image.state) ? "bad" : "warning";
  const { bytes_done: done, bytes_total: total } = image;
  const isPartial = image.state === "downloading" || (image.remote && total !== null && done < total);
  const progress = total === null ? bytes(done) : `${percent(done, total)} of ${bytes(total)}`;
  return [
    badge(image.state, className),
    isPartial && bar(`download: ${progress}`, total === null ? null : done, total),
    isPartial && second(progress),
    image.reason && second(image.reason),
    image.retry_at && second(`next attempt ${relative(image.retry_at)}`),
  ].filter(Boolean);
}

function drawImages({ images: all }) {
  showCount(imageParts, all.length);
  imageTable.update(all, (image) => `${image.openshift_version} ${image.version} ${image.cpu_architecture} ${image.type}`);
}

export const images = { id: "images", path: "api/v1/images", draw: drawImages };

// Mounts

const mountParts = parts("mounts");
const filter = document.getElementById("mounts-filter");
const mountTable = new Table(mountParts.table, {
  Client: (mount) => [mount.client ?? "unknown", second(mount.address), second(mount.user_agent ?? "")],
  Image: (mount) => [
    mount.kind,
    second(mount.infra_env),
    second(mount.version),
    mount.previous_infra_env && second(`before: ${mount.previous_infra_env}`),
  ],
  Stage: mountStage,
  Read: (mount) => [`${bytes(mount.bytes_read)} of ${bytes(mount.size)}`, second(`${bytes(mount.rate)}/s`)],
  "Last read": (mount) => [relative(mount.last_read), second(`begun ${relative(mount.since)}`)],
});

/** Return what is known of a mount, as text and a class: what was read, and no more. */
function mountState({ state, stage, rootfs_percent: part, bytes_read: read, size, last_read: last }) {
  const quiet = `for ${duration((now() - Date.parse(last)) / 1000)}`;
  const isRootfs = stage === "root file system" && part !== null;
  const share = isRootfs ? `rootfs ${Math.floor(part)} %` : (stage ?? `${percent(read, size)} read`);
  switch (state) {
    case "stalled":
      return [`${share}, stalled ${quiet}`, "bad"];
    case "quiet":
      return isRootfs && part < BOOTED_PERCENT
        ? [`quiet ${quiet} at ${Math.floor(part)} % of the rootfs`, "warning"]
        : [`${share}, quiet ${quiet}`, ""];
    case "done":
      return ["done", "good"];
    case "aborted":
      return [`aborted at ${percent(read, size)}`, ""];
    default:
      return [share, ""];
  }
}

function mountStage(mount) {
  const [text, className] = mountState(mount);
  if (mount.stage === null) {
    return [badge(text, className), bar(text, mount.bytes_read, mount.size, className)];
  }
  const step = STAGES.indexOf(mount.stage) + 1;
  const label = `boot stage: ${text}, ${step} of ${STAGES.length}`;
  return [badge(text, className), bar(label, step, STAGES.length, className)];
}

const mountKey = (mount) => `${mount.infra_env} ${mount.version} ${mount.kind} ${mount.address} ${mount.since}`;

const rank = (mount) => ORDER_OF_STATES.indexOf(mount.state);

function drawMounts({ mounts: all }) {
  const text = filter.value.trim().toLowerCase();
  const matches = ({ address, client, user_agent: agent, infra_env: infraEnv, version, kind, stage, state }) =>
    [address, client, agent, infraEnv, version, kind, stage, state]
      .join("\n")
      .toLowerCase()
      .includes(text);
  const found = all
    .filter(matches)
    .sort((a, b) => rank(a) - rank(b) || b.last_read.localeCompare(a.last_read) || b.since.localeCompare(a.since));
  showCount(mountParts, found.length);
  mountParts.count.textContent = text ? `(${found.length} of ${all.length})` : mountParts.count.textContent;
  mountParts.empty.textContent = all.length ? "No mount matches the filter." : "Nothing is mounted.";
  mountParts.more.hidden = found.length <= MAX_MOUNTS;
  mountParts.more.textContent = `${found.length - MAX_MOUNTS} more; the filter finds them.`;
  mountTable.update(found.slice(0, MAX_MOUNTS), mountKey);
}

export const mounts = { id: "mounts", path: "api/v1/mounts", draw: drawMounts };

// Failures

const failureParts = parts("failures");
const failureTable = new Table(failureParts.table, {
  Time: (failure) => [relative(failure.time), second(failure.time)],
  Client: (failure) => [failure.client],
  Status: (failure) => [failure.status === null ? badge("aborted", "warning") : String(failure.status)],
  Reason: (failure) => [failure.reason, second(failure.path)],
});

function drawFailures({ failures: all }) {
  showCount(failureParts, all.length);
  const newest = all.toSorted((a, b) => b.time.localeCompare(a.time));
  failureTable.update(newest, (failure) => all.indexOf(failure));
}

export const failures = { id: "failures", path: "api/v1/failures", draw: drawFailures };
