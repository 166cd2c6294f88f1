// Tables whose rows stay while their content changes, so that focus and selection stay, too.

/** Return an element with a class and children, which are elements or text; null ones are left out. */
export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

/** Return a second line of a cell. */
export const second = (text) => element("span", "second", text);

/** Return a state as a badge, whose class is good, warning, bad or none. */
export const badge = (text, className) => element("span", `badge ${className}`, text);

/** Return a button; `label` is its name for screen readers. */
export function button(text, label, act) {
  const made = element("button", "", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

/** Return a bar with a name for screen readers; value null: the end is unknown. */
export function bar(label, value, max, className = "") {
  const made = element("progress", className);
  made.max = max || 1;
  if (value !== null) {
    made.value = value;
  }
  made.setAttribute("aria-label", label);
  return made;
}

/** Return a small line chart, of which the label says all. */
export function sparkline(label, values) {
  const space = "http://www.w3.org/2000/svg";
  const most = Math.max(...values, 1);
  const line = document.createElementNS(space, "polyline");
  line.setAttribute("points", values.map((value, index) => `${index},${(1 - value / most).toFixed(3)}`).join(" "));
  const made = document.createElementNS(space, "svg");
  made.setAttribute("class", "sparkline");
  made.setAttribute("viewBox", `0 0 ${values.length - 1} 1`);
  made.setAttribute("preserveAspectRatio", "none");
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", label);
  made.append(line);
  return made;
}

/** Elements that stay while their content changes, as the rows of a table do. */
export class Blocks {
  #container;
  #make;
  #blocks = new Map();

  /**
   * @param make returns a block of a key: an object with `element` and `draw`, which draws an item.
   */
  constructor(container, make) {
    this.#container = container;
    this.#make = make;
  }

  /** Show items in their order; blocks of equal keys are the same. */
  update(items, keyOf) {
    const keys = new Set(items.map(keyOf));
    for (const [key, block] of this.#blocks) {
      if (!keys.has(key)) {
        block.element.remove();
        this.#blocks.delete(key);
      }
    }
    items.forEach((item, index) => {
      const key = keyOf(item);
      const block = this.#blocks.get(key) ?? this.#make(key);
      this.#blocks.set(key, block);
      block.draw(item);
      const present = this.#container.children[index] ?? null;
      if (present !== block.element) {
        this.#container.insertBefore(block.element, present);
      }
    });
  }
}

export class Table {
  #body = element("tbody");
  #columns;
  #rows = new Map();

  /**
   * @param columns by name: a function that returns the content of a cell, a list of elements and texts.
   */
  constructor(table, columns) {
    this.#columns = Object.entries(columns);
    const heads = this.#columns.map(([name]) => element("th", "", name));
    heads.forEach((head) => head.setAttribute("scope", "col"));
    table.append(element("thead", "", element("tr", "", ...heads)), this.#body);
    // CSS shows rows as blocks on narrow screens, which removes their roles.
    table.setAttribute("role", "table");
    this.#body.setAttribute("role", "rowgroup");
  }

  /** Show items in their order; rows of equal keys are the same. */
  update(items, keyOf) {
    const rows = items.map((item) => this.#row(keyOf(item), item));
    const keys = new Set(items.map(keyOf));
    for (const [key, row] of this.#rows) {
      if (!keys.has(key)) {
        row.remove();
        this.#rows.delete(key);
      }
    }
    rows.forEach((row, index) => {
      if (this.#body.children[index] !== row) {
        this.#body.insertBefore(row, this.#body.children[index] ?? null);
      }
    });
  }

  #row(key, item) {
    let row = this.#rows.get(key);
    if (row === undefined) {
      row = element("tr");
      row.setAttribute("role", "row");
      for (const [name] of this.#columns) {
        const cell = element("td");
        cell.setAttribute("role", "cell");
        cell.dataset.label = name;
        row.append(cell);
      }
      this.#rows.set(key, row);
    }
    this.#columns.forEach(([, content], index) => {
      const made = element("div", "", ...content(item));
      const present = row.children[index].firstChild;
      if (present === null) {
        row.children[index].append(made);
      } else if (!present.isEqualNode(made)) {
        present.replaceWith(made);
      }
    });
    return row;
  }
}
