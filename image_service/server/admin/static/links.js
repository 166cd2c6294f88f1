// Short links: a form that makes one, and the table of all.

import { attempt } from "./attempt.js";
import { lastUse } from "./activity.js";
import { request } from "./api.js";
import { copyOf } from "./clipboard.js";
import { relative } from "./format.js";
import { nameOf } from "./infra_envs.js";
import { qrButton } from "./qr_code.js";
import { parts, showCount } from "./sections.js";
import { Table, button, second } from "./table.js";

const PATH = "api/v1/links";
const form = document.getElementById("link-form");
const problem = document.getElementById("link-problem");
const made = document.getElementById("link-made");
const url = document.getElementById("link-url");
const copied = document.getElementById("link-copied");

form.addEventListener("submit", (event) => {
  event.preventDefault();
  made.hidden = true; // it would be taken for the new one if that is refused
  attempt(problem, async () => {
    const fields = new FormData(form);
    const link = await request(PATH, "POST", {
      url: fields.get("url"),
      expires_in: Number(fields.get("expires_in")),
      label: fields.get("label"),
      pinned: fields.has("pinned"),
    });
    form.reset();
    url.value = link.url;
    copied.textContent = "";
    document.getElementById("link-code").replaceChildren(qrButton(url, "the new link", copied));
    made.hidden = false;
    url.focus();
    url.select();
  });
});

document.getElementById("link-copy").addEventListener("click", async () => {
  copied.textContent = (await copyOf(url)) ? "copied" : "press Ctrl+C";
});

function revokeButton(link) {
  const name = link.label || link.id;
  return button("Revoke", `Revoke ${name}`, () => {
    if (confirm(`Revoke ${name}? Machines that boot from it cannot read on.`)) {
      attempt(problem, () => request(`${PATH}/${encodeURIComponent(link.id)}`, "DELETE"));
    }
  });
}

const UNREADABLE = "cannot be read with the present secret";
const opened = ({ version, architecture, pinned }) =>
  `${version} ${architecture}, ${pinned ? "pinned to the version at its making" : "the newest version"}`;
const linkParts = parts("links");
const table = new Table(linkParts.table, {
  Link: (link) => [link.readable ? link.label || "no label" : UNREADABLE, second(link.id)],
  Image: (link) => (link.readable ? [`${link.kind} of ${nameOf(link.infra_env)}`, second(opened(link))] : []),
  Expires: (link) => [relative(link.expires_at), second(link.expires_at)],
  "Last use": (link) => {
    const at = lastUse(link);
    return at ? [relative(at), second(at)] : ["not since the service started"];
  },
  Action: (link) => [revokeButton(link)],
});

function draw({ links: all }) {
  showCount(linkParts, all.length);
  table.update(all, (link) => link.id);
}

export const links = { id: "links", path: PATH, draw };
