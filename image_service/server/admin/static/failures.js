// Failures, by their cause, with what to do.

import { relative } from "./format.js";
import { parts, showCount } from "./sections.js";
import { Blocks, Table, badge, element, second } from "./table.js";

const sectionParts = parts("failures");
let made = 0;

const COLUMNS = {
  Time: (failure) => [relative(failure.time), second(failure.time)],
  Client: (failure) => [failure.client, second(failure.user_agent)],
  Status: (failure) => [failure.status === null ? "none" : String(failure.status)],
  Reason: (failure) => [failure.reason, second(failure.path)],
  Request: (failure) => [failure.request_id && element("code", "", failure.request_id)],
};

class Cause {
  #title = badge("", "warning");
  #count = element("span", "count");
  #advice = element("p", "advice");
  #latest = element("p", "latest");
  #table;

  constructor() {
    const table = element("table");
    const heading = element("h3", "", this.#title, " ", this.#count);
    made += 1;
    heading.id = `cause-${made}`;
    table.setAttribute("aria-labelledby", heading.id);
    this.#table = new Table(table, COLUMNS);
    const details = element("details", "", element("summary", "", "Requests"), table);
    this.element = element("div", "group", heading, this.#advice, this.#latest, details);
  }

  draw({ cause, count, what_to_do: advice, failures: all }) {
    const [latest] = all;
    const clients = new Set(all.map(({ client }) => client));
    this.#title.textContent = cause;
    this.#count.textContent = `${count} since the start of the service`;
    this.#advice.textContent = advice;
    this.#latest.textContent = latest
      ? `${relative(latest.time)}, by ${latest.client}${clients.size > 1 ? ` and ${clients.size - 1} more` : ""}: `
        + latest.reason
      : "none of the latest";
    this.element.querySelector("details").hidden = latest === undefined;
    this.#table.update(all, ({ key }) => key);
  }
}

const causes = new Blocks(sectionParts.table, () => new Cause());

/** Show each cause with its failures among the latest; those of causes that have failed last come first. */
function draw({ failures: all, causes: counted }) {
  const seen = new Map();
  const keyed = all.toReversed().map((failure) => {
    const content = JSON.stringify(failure);
    seen.set(content, (seen.get(content) ?? 0) + 1);
    return { ...failure, key: `${content} ${seen.get(content)}` };
  });
  const groups = counted.map((cause) => ({
    ...cause,
    failures: keyed.filter((failure) => failure.cause === cause.cause).toReversed(),
  }));
  const time = ({ failures: [latest] }) => latest?.time ?? "";
  groups.sort((a, b) => time(b).localeCompare(time(a)) || b.count - a.count);
  showCount(sectionParts, counted.reduce((sum, { count }) => sum + count, 0));
  causes.update(groups, ({ cause }) => cause);
}

export const failures = { id: "failures", path: "api/v1/failures", draw };
