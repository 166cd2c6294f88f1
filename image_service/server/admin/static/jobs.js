// The page of the jobs role: composes, newest first, with their jobs.

import { attempt } from "./attempt.js";
import { address, request } from "./api.js";
import { number, percent, relative } from "./format.js";
import { enter } from "./login.js";
import { poll } from "./polling.js";
import { drawLost, drawVerdict, parts, showCount } from "./sections.js";
import { Blocks, Table, badge, bar, button, element, second } from "./table.js";

const PATH = "api/v1/composes";
const CLASSES = { success: "good", finished: "good", failure: "bad", failed: "bad", cancelled: "warning" };

const sectionParts = parts("composes");
const problem = document.getElementById("composes-problem");

function progress({ phase, done, total }) {
  if (!total) {
    return phase ? [second(phase)] : [];
  }
  const text = [phase, percent(done, total)].filter(Boolean).join(" ");
  return [bar(text, done, total), second(text)];
}

const COLUMNS = {
  Step: (job) => [job.step, second(job.id)],
  State: (job) => [
    badge(job.state, CLASSES[job.state] ?? ""),
    job.attempt > 1 && second(`attempt ${job.attempt}`),
    job.reason && second(job.reason),
  ].filter(Boolean),
  Progress: progress,
  Worker: (job) => [job.worker],
  Time: (job) => [
    job.started_at && second(`begun ${relative(job.started_at)}`),
    job.finished_at && second(`ended ${relative(job.finished_at)}`),
  ].filter(Boolean),
};

class Compose {
  #id;
  #title = element("span");
  #state = element("span");
  #facts = element("p", "latest");
  #reason = element("p", "advice");
  #actions = element("p", "actions");
  #log = element("pre", "log");
  #table;

  constructor(id) {
    const table = element("table");
    const heading = element("h3", "", this.#title, " ", this.#state, second(id));
    heading.id = `compose-${id}`;
    table.setAttribute("aria-labelledby", heading.id);
    this.#id = id;
    this.#log.hidden = true;
    this.#log.tabIndex = 0; // it scrolls
    this.#log.setAttribute("aria-label", `Log of ${id}`);
    this.#table = new Table(table, COLUMNS);
    this.element = element("div", "group", heading, this.#facts, this.#reason, this.#actions, this.#log, table);
  }

  draw(compose) {
    const { tenant, what, state, reason, created_at: created, finished_at: finished, uploads, jobs } = compose;
    this.#title.textContent = what;
    this.#state.replaceChildren(badge(state, CLASSES[state] ?? ""));
    const times = [`tenant ${tenant}`, `made ${relative(created)}`, finished && `ended ${relative(finished)}`];
    this.#facts.textContent = [...times, ...uploads].filter(Boolean).join(", ");
    this.#reason.textContent = reason ?? "";
    this.#drawActions(compose);
    this.#table.update(jobs, ({ id }) => id);
  }

  #drawActions({ can_be_cancelled: canBeCancelled, has_image: hasImage }) {
    const key = `${canBeCancelled} ${hasImage}`;
    if (this.#actions.dataset.key === key) {
      return; // the focus stays
    }
    this.#actions.dataset.key = key;
    const made = [button("Log", `Log of ${this.#id}`, () => this.#toggleLog())];
    if (hasImage) {
      const download = element("a", "", "Download the image");
      download.href = address(`${PATH}/${this.#id}/image`);
      download.setAttribute("aria-label", `Download the image of ${this.#id}`);
      made.push(download);
    }
    if (canBeCancelled) {
      made.push(button("Cancel", `Cancel ${this.#id}`, () => this.#cancel()));
    }
    this.#actions.replaceChildren(...made);
  }

  #cancel() {
    if (confirm(`Cancel ${this.#title.textContent} (${this.#id})? Its work is lost.`)) {
      attempt(problem, () => request(`${PATH}/${this.#id}/cancellation`, "POST"));
    }
  }

  #toggleLog() {
    if (!this.#log.hidden) {
      this.#log.hidden = true;
      return;
    }
    attempt(problem, async () => {
      const { image_builds: builds } = await request(`${PATH}/${this.#id}/logs`);
      const steps = builds.flatMap((build) => build.steps);
      this.#log.textContent = steps.map(({ step, log }) => `${step}:\n${log || "no log yet"}`).join("\n\n")
        || "no job yet";
      this.#log.hidden = false;
    });
  }
}

const composes = new Blocks(sectionParts.table, (id) => new Compose(id));

function draw({ verdict, total, composes: newest }) {
  drawVerdict(verdict);
  showCount(sectionParts, total);
  sectionParts.more.hidden = total <= newest.length;
  sectionParts.more.textContent = `${number(total - newest.length, "older compose")}; composer's API lists them.`;
  composes.update(newest, ({ id }) => id);
}

poll([{ id: "composes", path: PATH, draw, drawLost }]);
enter();
