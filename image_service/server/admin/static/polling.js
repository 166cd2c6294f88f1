// Asks the API periodically for what the sections of a page show, and at once when something has changed.

import { request } from "./api.js";
import { isWaiting } from "./login.js";

const POLL_MS = 10_000;
const EVENT_MS = 1_000; // between two requests, however many events there are
const DRAW_MS = 1_000; // ages grow between two requests

class Section {
  #content = null;
  #drawn;
  #loading = false;
  #lost = null;

  /**
   * @param description of a section: its element's id, the path of its JSON, the function that draws it, and the
   *   one that says for how many seconds and why it was not answered.
   */
  constructor({ id, path, draw, drawLost = () => {} }) {
    this.path = path;
    this.draw = draw;
    this.drawLost = drawLost;
    this.problem = document.querySelector(`#${id} > .problem:not([role])`);
  }

  async load() {
    if (this.#loading) {
      return;
    }
    this.#loading = true;
    try {
      this.#content = await request(this.path);
      this.problem.hidden = true;
      this.#lost = null;
    } catch (error) {
      this.problem.textContent = `${this.path}: ${error.message}`;
      this.problem.hidden = false;
      this.#lost = { since: performance.now(), ...this.#lost, problem: error.message };
    }
    this.#loading = false;
    this.redraw();
  }

  redraw() {
    if (this.#content !== null) {
      this.draw(this.#content);
    }
    if (this.#lost !== null) {
      this.drawLost((performance.now() - this.#lost.since) / 1000, this.#lost.problem);
    }
  }
}

/**
 * Show sections, once the page may ask for their content.
 *
 * @param descriptions see `Section`.
 * @param isWanted returns whether the page asks in the background, too.
 */
export function poll(descriptions, isWanted = () => false) {
  const sections = descriptions.map((each) => new Section(each));
  let latest = -Infinity;
  let scheduled = false;

  function load() {
    if (isWaiting()) {
      return;
    }
    latest = performance.now();
    scheduled = false;
    sections.forEach((section) => section.load());
  }

  function loadSoon() {
    if (!scheduled && (!document.hidden || isWanted())) {
      scheduled = true;
      setTimeout(load, Math.max(0, latest + EVENT_MS - performance.now()));
    }
  }

  function redraw() {
    if (!document.hidden && !isWaiting()) {
      sections.forEach((section) => section.redraw());
    }
  }

  document.addEventListener("entered", load);
  document.addEventListener("changed", load);
  document.addEventListener("visibilitychange", loadSoon);
  setInterval(loadSoon, POLL_MS);
  setInterval(redraw, DRAW_MS);
  return { loadSoon, redraw };
}
