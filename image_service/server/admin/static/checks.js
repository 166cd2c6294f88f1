// Checks of texts, while one types: the service says where a text is wrong, or how long it may be.

import { request } from "./api.js";
import { bytes } from "./format.js";

const CHECK_MS = 400;

/**
 * Return the check of a field, whose result an output shows a moment after the last change.
 *
 * @param describe returns the body of the request.
 * @param tell is called with the result.
 */
export function checkOf(field, output, describe, tell = () => {}) {
  let calls = 0;

  async function check() {
    calls += 1;
    const own = calls;
    await new Promise((resolve) => setTimeout(resolve, CHECK_MS));
    if (own !== calls) {
      return;
    }
    const found = await request("api/v1/config-checks", "POST", describe()).catch(({ message }) => ({ fault: message }));
    if (own === calls) {
      const size = found.max_size ? `${bytes(found.size)} of at most ${bytes(found.max_size)}` : "";
      tell(found);
      output.textContent = field.value ? (found.fault ?? `valid, ${size}`) : "";
      output.className = found.fault ? "check-result fault" : "check-result valid";
    }
  }

  function forget() {
    calls += 1;
    output.textContent = "";
  }

  /** Write the text of a file into the field. */
  async function load(file) {
    try {
      field.value = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch {
      output.textContent = "not text: use image-service infra-env create";
      output.className = "check-result fault";
      return;
    }
    field.dispatchEvent(new Event("input"));
  }

  field.addEventListener("input", check);
  field.addEventListener("dragover", (event) => event.preventDefault());
  field.addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length) {
      event.preventDefault();
      load(event.dataTransfer.files[0]);
    }
  });
  return { check, forget, load };
}
