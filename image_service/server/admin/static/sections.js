// What all sections have, and the one about the service.

import { request } from "./api.js";
import { duration, number, relative } from "./format.js";
import { badge, element, second } from "./table.js";

const LOOPBACK = new Set(["localhost", "127.0.0.1", "[::1]"]);
const LOST_SECONDS = 15; // without a response; what the page shows is grey then

/** Return the elements of a section by their use. */
export function parts(id) {
  const find = (selector) => document.querySelector(`#${id} > ${selector}`);
  return { table: find(":is(table, .groups)"), empty: find(".empty"), more: find(".more"), count: find("h2 > .count") };
}

/** Show how many items there are, and the table only if there are some. */
export function showCount({ table, empty, count }, number) {
  count.textContent = number ? `(${number})` : "";
  table.hidden = number === 0;
  empty.hidden = number !== 0;
}

// Service

const facts = document.querySelector("#service > .facts");
const summary = document.getElementById("summary");

function upstreamFact({ standalone, upstream }) {
  const { url, answered_at: answered, failed_at: failed, failure, failures: failedCalls } = upstream;
  const isFailing = failedCalls > 0 && (answered === null || failed > answered);
  const state = isFailing ? badge("failing", "bad") : answered ? badge("answers", "good") : badge("not asked yet", "");
  if (standalone && !isFailing) {
    return [badge("standalone", "good"), second("infra-envs are made on this page, without assisted-service")];
  }
  return [
    state,
    second(url),
    answered && second(`last answer ${relative(answered)}`),
    failed && second(`last failure ${relative(failed)}: ${failure}`),
  ];
}

/** Return how clients reach the service, and which setting decides that. */
function clientsFact({ base_url: base, base_address: choice, connections, requests }) {
  const isOwn = LOOPBACK.has(new URL(base).hostname);
  const { decided_by: setting, chosen, is_present: isPresent } = choice;
  const remedy = {
    null: "choose another",
    LISTEN_ADDRESS: "LISTEN_ADDRESS=0.0.0.0 serves others",
    IMAGE_SERVICE_BASE_URL: "IMAGE_SERVICE_BASE_URL chooses another address",
  }[setting];
  return [
    number(connections, "connection"),
    second(`${number(requests, "request")} in progress`),
    second(`URLs begin with ${base}`),
    isOwn ? second(`which only this machine reaches: ${remedy}`) : setting && second(`${setting} decides that`),
    isPresent ? null : second(`${chosen}, which was chosen, is not an address of this machine now`),
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

function replicaFact({ host, state, is_own: isOwn, machines, connections, age_seconds: age }) {
  const title = isOwn ? `${host} (this page)` : host;
  const does = state === "away"
    ? `away for ${duration(age)}`
    : `${number(machines, "machine")}, ${number(connections, "connection")}`;
  return [badge(title, state === "away" ? "bad" : "good"), second(does)];
}

function streamFact({ name, refreshed_at: refreshed, failures: failed }) {
  const state = failed ? badge(number(failed, "failed attempt"), "warning") : badge("refreshed", "good");
  return [state, second(`${name}, ${relative(refreshed)}`)];
}

/** Show the sentence about the service. */
export function drawVerdict({ text, level }) {
  document.body.classList.remove("lost");
  summary.textContent = text;
  summary.className = { good: "good", impaired: "warning", failing: "bad" }[level];
}

const level = document.getElementById("log-level");

/** Show the log's level, unless somebody chooses one; another observer of the log decides it itself. */
function drawLevel(present) {
  document.getElementById("log-level-choice").hidden = present === null;
  if (document.activeElement !== level) {
    level.value = present;
  }
}

level?.addEventListener("change", async () => {
  const told = document.getElementById("log-level-told");
  try {
    await request("api/v1/log-level", "PUT", { level: level.value });
    told.textContent = `the log has lines of ${level.value} and above`;
  } catch (error) {
    told.textContent = error.message;
  }
  document.dispatchEvent(new Event("changed"));
});

const baseAddress = document.getElementById("base-address");

/** Offer the machine's addresses, unless a setting decides or somebody chooses one. */
function drawAddresses({ decided_by: setting, chosen, addresses }) {
  document.getElementById("base-address-choice").hidden = setting !== null;
  if (setting !== null || document.activeElement === baseAddress) {
    return;
  }
  const offered = addresses.map(({ address, interface: name }) => new Option(`${address} (${name})`, address));
  if (chosen !== null && !addresses.some(({ address }) => address === chosen)) {
    offered.push(new Option(`${chosen} (not this machine's now)`, chosen));
  }
  const texts = offered.map((option) => option.text).join();
  if (baseAddress.dataset.offered !== texts) {
    baseAddress.dataset.offered = texts; // a list that is open stays as it is
    baseAddress.replaceChildren(new Option("that of the default route", ""), ...offered);
  }
  baseAddress.value = chosen ?? "";
}

baseAddress?.addEventListener("change", async () => {
  const told = document.getElementById("base-address-told");
  try {
    await request("api/v1/base-address", "PUT", { address: baseAddress.value || null });
    told.textContent = "URLs and new images have it from now on; an image that is being read keeps its own";
  } catch (error) {
    told.textContent = error.message;
  }
  document.dispatchEvent(new Event("changed"));
});

function drawService(status) {
  drawVerdict(status.verdict);
  drawLevel(status.log_level);
  drawAddresses(status.base_address);
  const shown = {
    "assisted-service": upstreamFact(status),
    Clients: clientsFact(status),
    Process: [
      `version ${status.version}`,
      second(`serving processes: ${status.workers}`),
      second(`started ${relative(status.started_at)}`),
    ],
  };
  if (status.database !== null) {
    shown.Database = databaseFact(status.database);
  }
  if (status.replicas.length) {
    shown.Replicas = status.replicas.flatMap(replicaFact);
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

/** Show that the status is old. */
export function drawLost(seconds, problem) {
  document.body.classList.toggle("lost", seconds >= LOST_SECONDS);
  summary.textContent = `reconnecting for ${duration(seconds)}: ${problem}`;
  summary.className = "warning";
}

export const service = { id: "service", path: "api/v1/status", draw: drawService, drawLost };
