// What the doctor finds in an image: whether a machine would boot from its URL.

import { request } from "./api.js";
import { badge, button, element, second } from "./table.js";

const CLASSES = { fail: "bad", warn: "warning", ok: "good", skip: "good" };
const ORDER = Object.keys(CLASSES); // the worst first

async function examine(url) {
  const { verdict, checks } = await request("api/v1/examinations", "POST", { url });
  const worst = ORDER.find((status) => checks.some((check) => check.status === status));
  const told = checks
    .filter(({ status }) => ["fail", "warn"].includes(status))
    .sort((a, b) => ORDER.indexOf(a.status) - ORDER.indexOf(b.status));
  return [badge(verdict, CLASSES[worst]), ...told.map(({ name, detail }) => second(`${name}: ${detail}`))];
}

/** Return a button that has an image checked, and the place that shows the result. */
export function examinationOf(label, url) {
  const result = element("span", "examination");
  result.setAttribute("role", "status");
  const asked = button("Check", `Check ${label}`, async () => {
    asked.disabled = true;
    result.textContent = "reading the image as firmware does …";
    try {
      result.replaceChildren(...(await examine(url)));
    } catch (error) {
      result.textContent = error.message;
    }
    asked.disabled = false;
  });
  return [asked, result];
}
