// The page of the API: the operations of the OpenAPI document, as text.

import { request } from "./api.js";
import { enter } from "./login.js";
import { badge, element, second } from "./table.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const operations = document.getElementById("operations");
const problem = document.querySelector("#api > .problem");
const summary = document.getElementById("summary");

const schemaName = (content) => content?.schema?.$ref?.split("/").at(-1);

/** Return the JSON of a named schema and of those that it refers to, by name. */
function schemasOf(name, all, found = {}) {
  if (name !== undefined && !(name in found)) {
    found[name] = all[name];
    for (const [, inner] of JSON.stringify(all[name]).matchAll(/"#\/components\/schemas\/(\w+)"/g)) {
      schemasOf(inner, all, found);
    }
  }
  return found;
}

function schemaDetails(title, name, all) {
  if (name === undefined) {
    return null;
  }
  const text = element("pre", "log", JSON.stringify(schemasOf(name, all), null, 2));
  text.tabIndex = 0; // it scrolls
  return element("details", "", element("summary", "", `${title}: ${name}`), text);
}

function drawOperation(path, method, operation, all) {
  const { summary: text, parameters = [], requestBody: body, responses } = operation;
  const replies = Object.entries(responses).filter(([status]) => status.startsWith("2"));
  const [content] = replies.flatMap(([, reply]) => Object.values(reply.content ?? {}));
  const named = parameters.map(({ name, in: place, description }) =>
    second(`${name} (${place})${description ? `: ${description}` : ""}`),
  );
  return element(
    "div",
    "group",
    element("h3", "", badge(method.toUpperCase(), ""), " ", element("code", "", path)),
    element("p", "advice", text),
    ...named,
    schemaDetails("Content", schemaName(body?.content?.["application/json"]), all),
    schemaDetails(`Reply ${replies.map(([status]) => status).join(", ")}`, schemaName(content), all),
  );
}

document.addEventListener("entered", async () => {
  try {
    const { info, paths, components } = await request("openapi.json");
    summary.textContent = `${info.title} ${info.version}`;
    const made = Object.entries(paths).flatMap(([path, item]) =>
      METHODS.filter((method) => method in item).map((method) =>
        drawOperation(path, method, item[method], components.schemas),
      ),
    );
    operations.replaceChildren(...made);
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
});
enter();
