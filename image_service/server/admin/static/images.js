// Base images: their states, and a button that tries again at once.

import { request } from "./api.js";
import { copyText } from "./clipboard.js";
import { bytes, duration, number, percent, relative, since } from "./format.js";
import { readers } from "./mounts.js";
import { parts, showCount } from "./sections.js";
import { Table, badge, bar, button, element, second } from "./table.js";

const PATH = "api/v1/images";
const RETRIED_STATES = new Set(["failed", "refused"]);
const CLASSES = { ready: "good", failed: "bad", refused: "bad" };

const sectionParts = parts("images");
const problem = document.getElementById("images-problem");
const told = document.getElementById("images-told");

const name = (image) => `${image.openshift_version || image.version} ${image.cpu_architecture}`;

async function retry(image) {
  const { version, cpu_architecture: architecture, type } = image;
  problem.hidden = true;
  told.textContent = "";
  try {
    await request(`${PATH}/retries`, "POST", { version, cpu_architecture: architecture, type });
    told.textContent = `${name(image)}: the next attempt has begun`;
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
  document.dispatchEvent(new Event("changed"));
}

async function copyDigest(image) {
  told.textContent = (await copyText(image.sha256))
    ? `SHA-256 of ${name(image)}: copied`
    : `SHA-256 of ${name(image)}: ${image.sha256}`;
}

function state(image) {
  const { bytes_done: done, bytes_total: total } = image;
  const isPartial = image.state === "downloading" || (image.remote && total !== null && done < total);
  const progress = total === null ? bytes(done) : `${percent(done, total)} of ${bytes(total)}`;
  return [
    badge(image.state, CLASSES[image.state] ?? "warning"),
    image.state_since && ` for ${duration(since(image.state_since))}`,
    isPartial && bar(`download: ${progress}`, total === null ? null : done, total),
    isPartial && second(progress),
    image.reason && second(image.reason),
    image.retry_at && second(`next attempt ${relative(image.retry_at)}`),
  ].filter(Boolean);
}

function actions(image) {
  const isRetried = image.retry_at || RETRIED_STATES.has(image.state);
  const made = [
    isRetried && button("Try again now", `Try again now: ${name(image)}`, () => retry(image)),
    image.sha256 && button("Copy SHA-256", `Copy SHA-256 of ${name(image)}`, () => copyDigest(image)),
  ].filter(Boolean);
  return made.length ? [element("span", "actions", ...made)] : [];
}

const table = new Table(sectionParts.table, {
  Image: (image) => [name(image), second(image.version)],
  State: state,
  "Read by": (image) => [number(readers(image), "client")],
  Size: (image) => [image.size === null ? "" : bytes(image.size)],
  Origin: (image) => [image.remote ? "remote" : image.url.startsWith("file:") ? "local" : "downloaded", second(image.url)],
  Actions: actions,
});

function draw({ images: all }) {
  showCount(sectionParts, all.length);
  table.update(all, (image) => `${image.openshift_version} ${image.version} ${image.cpu_architecture} ${image.type}`);
}

export const images = { id: "images", path: PATH, draw };
