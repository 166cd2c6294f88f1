// Machines: the mounts of each infra-env, with the steps of their boots.

import { bytes, duration, number, percent, relative, since } from "./format.js";
import { notify } from "./notifications.js";
import { parts, showCount } from "./sections.js";
import { Blocks, Table, badge, bar, element, second, sparkline } from "./table.js";

const MAX_MOUNTS = 100;
const STAGES = ["probed", "firmware", "boot loader", "kernel", "initrd", "ignition", "root file system"];
const SHORT_STAGES = { "root file system": "rootfs" };
const BOOTED_PERCENT = 10; // of the root file system; a machine that has read less may hang
const STATES = ["stalled", "reading", "quiet", "done", "aborted"];
const ARTIFACTS = "artifacts";
const HASH = "#mounts/"; // before the key of a group

const sectionParts = parts("mounts");
const filter = document.getElementById("mounts-filter");
const chosen = document.getElementById("mounts-chosen");

// A mount

/** Return what is known of a mount, as text and a class: what was read, and no more. */
function mountState({ state, stage, rootfs_percent: part, bytes_read: read, size, last_read: last }) {
  const quiet = `for ${duration(since(last))}`;
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

function progress(mount) {
  const [text, className] = mountState(mount);
  const { stage, last_stage: last, stage_since: begun } = mount;
  if (stage === null) {
    return [badge(text, className), bar(text, mount.bytes_read, mount.size, className)];
  }
  const step = STAGES.indexOf(stage);
  const shown = STAGES.slice(0, Math.max(step, STAGES.indexOf(last)) + 1);
  const steps = shown.map((name, index) => {
    const item = element("li", index <= step ? `reached ${className}` : "", SHORT_STAGES[name] ?? name);
    if (index === step) {
      item.setAttribute("aria-current", "step");
    }
    return item;
  });
  const list = element("ol", "steps", ...steps);
  list.setAttribute("aria-label", `boot stage: ${text}, ${step + 1} of ${shown.length}`);
  return [badge(text, className), list, second(`in this step for ${duration(since(begun))}`)];
}

function rate({ rate: present, rates }) {
  const highest = Math.max(...rates, present);
  const label = `rate of the last 5 min: ${bytes(present)}/s now, ${bytes(highest)}/s at most`;
  return [highest > 0 && sparkline(label, [...rates, present]), second(`${bytes(present)}/s`)].filter(Boolean);
}

const COLUMNS = {
  Client: (mount) => [mount.client ?? "unknown", second(mount.address), second(mount.user_agent)],
  Image: (mount) => [
    mount.kind,
    second(mount.version),
    mount.previous_infra_env && second(`before: ${mount.previous_infra_env}`),
  ],
  Progress: progress,
  Read: (mount) => [`${bytes(mount.bytes_read)} of ${bytes(mount.size)}`, ...rate(mount)],
  "Last read": (mount) => [relative(mount.last_read), second(`begun ${relative(mount.since)}`)],
};

const mountKey = (mount) => `${mount.infra_env} ${mount.version} ${mount.kind} ${mount.address} ${mount.since}`;

// Groups

class Group {
  #link = element("a");
  #id = second("");
  #states = element("span", "count");
  #table;

  constructor(key) {
    const table = element("table");
    const heading = element("h3", "", this.#link, " ", this.#states, this.#id);
    heading.id = `mounts-of-${key}`;
    table.setAttribute("aria-labelledby", heading.id);
    this.#link.href = HASH + key;
    this.#table = new Table(table, COLUMNS);
    this.element = element("div", "group", heading, table);
  }

  draw({ name, id, mounts: all }) {
    const counts = STATES.map((state) => [all.filter((mount) => mount.state === state).length, state]);
    this.#link.textContent = name;
    this.#id.textContent = id === name ? "" : id;
    this.#states.textContent = counts.filter(([count]) => count).map((each) => each.join(" ")).join(", ");
    this.#table.update(all, mountKey);
  }
}

const groups = new Blocks(sectionParts.table, (key) => new Group(key));
let only = null; // the key of the group that the page's URL names

/** Return what is shown together: the mounts of each infra-env, and with them the artifacts of its machines. */
function grouped(all) {
  const infraEnvs = new Map(); // of each address, those whose images it reads
  for (const { address, infra_env: infraEnv } of all) {
    if (infraEnv !== null) {
      infraEnvs.set(address, (infraEnvs.get(address) ?? new Set()).add(infraEnv));
    }
  }
  const found = new Map();
  for (const mount of all) {
    const ofAddress = infraEnvs.get(mount.address) ?? new Set();
    const key = mount.infra_env ?? (ofAddress.size === 1 ? [...ofAddress][0] : ARTIFACTS);
    const group = found.get(key) ?? { key, name: key, id: key, mounts: [] };
    if (key === ARTIFACTS) {
      Object.assign(group, { name: "Boot artifacts", id: "of machines whose infra-env is not known" });
    }
    group.name = mount.infra_env_name ?? group.name;
    group.mounts.push(mount);
    found.set(key, group);
  }
  return [...found.values()];
}

const rank = ({ state }) => STATES.indexOf(state);
const worst = (group) => Math.min(...group.mounts.map(rank));
const fields = ({ name, id }, { address, client, user_agent: agent, version, kind, stage, state }) =>
  [name, id, address, client, agent, version, kind, stage, state].join("\n").toLowerCase();

/** Return the first mounts of groups, so many as the page shows, in groups. */
function limited(all) {
  let room = MAX_MOUNTS;
  return all
    .map((group) => {
      const mounts = group.mounts.slice(0, room);
      room -= mounts.length;
      return { ...group, mounts };
    })
    .filter(({ mounts }) => mounts.length);
}

/** Show one group if the page's URL names it. */
function choose() {
  const named = location.hash.startsWith(HASH) ? location.hash.slice(HASH.length) : null;
  if (named !== null && named !== only) {
    document.getElementById("mounts").scrollIntoView();
  }
  only = named;
}

let reading = []; // mounts that are being read

/** Return how many clients read a base image now. */
export function readers({ version, cpu_architecture: architecture }) {
  const found = reading.filter((mount) => mount.version === version && mount.cpu_architecture === architecture);
  return new Set(found.map(({ address }) => address)).size;
}

function draw({ mounts: all }) {
  reading = all.filter((mount) => mount.state === "reading");
  notify(all, mountKey);
  const text = filter.value.trim().toLowerCase();
  choose();
  const every = grouped(all);
  const found = every
    .filter(({ key }) => only === null || key === only)
    .map((group) => ({ ...group, mounts: group.mounts.filter((mount) => fields(group, mount).includes(text)) }))
    .filter((group) => group.mounts.length)
    .sort((a, b) => worst(a) - worst(b) || a.name.localeCompare(b.name));
  found.forEach(({ mounts }) => mounts.sort((a, b) => rank(a) - rank(b) || b.since.localeCompare(a.since)));
  const count = found.reduce((sum, { mounts }) => sum + mounts.length, 0);
  showCount(sectionParts, count);
  if (text || only !== null) {
    sectionParts.count.textContent = `(${count} of ${all.length})`;
  }
  sectionParts.empty.textContent = all.length
    ? "No machine matches."
    : "No machine has read an image in the last hour. A machine appears here with its first request: give its"
      + " firmware the URL of an ISO, or boot it by iPXE or HTTP.";
  sectionParts.more.hidden = count <= MAX_MOUNTS;
  sectionParts.more.textContent = `${number(count - MAX_MOUNTS, "more mount")}; the filter finds them.`;
  chosen.hidden = only === null;
  chosen.querySelector("strong").textContent = every.find(({ key }) => key === only)?.name ?? only ?? "";
  groups.update(limited(found), ({ key }) => key);
}

export const mounts = { id: "mounts", path: "api/v1/mounts", draw };
