// Many infra-envs from a table in CSV, with the fields that the form of a new image has for all of them.

import { request } from "./api.js";
import { copyOf } from "./clipboard.js";
import { Table, badge, button, element, second } from "./table.js";

const told = document.getElementById("infra-env-copied");
const results = document.getElementById("infra-env-rows");

function image({ name, fault, infra_env: infraEnv }) {
  if (fault !== null) {
    return [badge("not made", "bad"), second(fault)];
  }
  const input = element("input");
  input.readOnly = true;
  input.setAttribute("value", infraEnv.image_urls.iso); // the attribute: tables compare elements by it
  input.setAttribute("aria-label", `ISO of ${name}`);
  const copy = button("Copy", `Copy ISO of ${name}`, async () => {
    told.textContent = (await copyOf(input)) ? `ISO of ${name}: copied` : "press Ctrl+C";
  });
  return [element("span", "made", input, copy)];
}

const table = new Table(results, {
  Line: ({ line }) => [String(line)],
  Name: ({ name }) => [name ?? "none"],
  MAC: ({ mac }) => [mac],
  ISO: image,
});

function textOf(name, bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${name} is not text in UTF-8`);
  }
}

/** Make an infra-env of each line, and return the title of the result. */
export async function makeTable(text, chosen, common) {
  const files = {};
  for (const file of chosen) {
    files[file.name] = textOf(file.name, await file.arrayBuffer());
  }
  const { rows } = await request("api/v1/infra-env-tables", "POST", { table: text, files, common });
  table.update(rows, ({ line }) => line);
  results.hidden = false;
  const made = rows.filter(({ fault }) => fault === null).length;
  return `${made} of ${rows.length} images were made`;
}
