// The page of the documents: shows the one that the URL names, as it was written, with headings and links.

import { address } from "./api.js";
import { element } from "./table.js";

const FIRST = "status-page.md";
const article = document.getElementById("document");
const problem = document.querySelector(".problem");
const listed = new Map(
  [...document.querySelectorAll("#documents a")].map((link) => [link.getAttribute("href").slice(1), link]),
);

const nameOf = (target) => target.split("#")[0];

/** Return text in which links to documents of the list are links; all else stays. */
function linked(text) {
  const made = element("pre", "document");
  let end = 0;
  for (const { 0: source, 1: label, 2: target, index } of text.matchAll(/\[([^\]]+)\]\(([^)\s]+)\)/g)) {
    if (listed.has(nameOf(target))) {
      const link = element("a", "", label);
      link.href = `#${nameOf(target)}`;
      made.append(text.slice(end, index), link);
      end = index + source.length;
    }
  }
  made.append(text.slice(end));
  return made;
}

/** Return the elements of a document in Markdown. */
function elementsOf(markdown) {
  return markdown.split(/^(```[^]*?^```)$/m).flatMap((part) => {
    const pieces = part.startsWith("```") ? [part] : part.split(/^(#{1,3} .*)$/m);
    return pieces
      .filter((piece) => piece.trim())
      .map((piece) => {
        const heading = pieces.length > 1 && piece.match(/^(#{1,3}) (.*)$/);
        return heading
          ? element(`h${heading[1].length + 1}`, "", heading[2].replaceAll("`", ""))
          : linked(piece.replace(/^\n+|\s+$/g, ""));
      });
  });
}

async function read(name) {
  const response = await fetch(address(`documents/${name}`));
  if (!response.ok) {
    throw new Error(`status ${response.status}`);
  }
  return response.text();
}

async function draw() {
  const name = listed.has(location.hash.slice(1)) ? location.hash.slice(1) : FIRST;
  listed.forEach((link, each) => link.setAttribute("aria-current", each === name ? "page" : "false"));
  try {
    article.replaceChildren(...elementsOf(await read(name)));
    problem.hidden = true;
  } catch (error) {
    problem.textContent = `${name} cannot be shown: ${error.message}`;
    problem.hidden = false;
  }
  document.title = `image-service: ${listed.get(name).textContent}`;
  if (location.hash) {
    article.focus();
    article.scrollIntoView();
  }
}

addEventListener("hashchange", draw);
draw();
