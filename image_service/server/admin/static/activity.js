// What the service has done in the last hour, and when short links were used.

import { bytes, number } from "./format.js";
import { element, second, sparkline } from "./table.js";

const facts = document.querySelector("#activity > .facts");
const uses = new Map(); // of links, by identifier

/** Return when a link was used last; undefined: not since the service started. */
export const lastUse = ({ id }) => uses.get(id);

function draw({ minutes, link_uses: used }) {
  uses.clear();
  used.forEach(({ id, used_at: at }) => uses.set(id, at));
  const total = (name) => minutes.reduce((sum, minute) => sum + minute[name], 0);
  const most = (name) => Math.max(...minutes.map((minute) => minute[name]));
  const shown = [
    ["Requests", number(total("requests"), "request"), "requests", (value) => `${value} in a minute at most`],
    ["Sent", bytes(total("bytes_sent")), "bytes_sent", (value) => `${bytes(value)} in a minute at most`],
    ["Machines", `${most("machines")} at a time at most`, "machines", () => ""],
  ];
  const made = shown.map(([title, text, name, describe]) => {
    const label = `${title} of each minute of the last hour: ${text}`;
    const chart = sparkline(label, minutes.map((minute) => minute[name]));
    const content = element("dd", "", text, chart, second(describe(most(name))));
    return element("div", "", element("dt", "", title), content);
  });
  facts.replaceChildren(...made);
}

export const activity = { id: "activity", path: "api/v1/activity", draw };
