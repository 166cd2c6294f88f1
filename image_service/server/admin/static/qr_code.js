// QR codes, which the service encodes.

import { request } from "./api.js";
import { button } from "./table.js";

const SPACE = "http://www.w3.org/2000/svg";
const QUIET = 4; // modules around a code, which readers need

function made(name, attributes) {
  const each = document.createElementNS(SPACE, name);
  Object.entries(attributes).forEach(([attribute, value]) => each.setAttribute(attribute, value));
  return each;
}

async function draw(url, label) {
  const { rows } = await request("api/v1/qr-codes", "POST", { url });
  const runs = rows.flatMap((row, y) => [...row.matchAll(/1+/g)].map(({ index, 0: run }) => [index, y, run.length]));
  const path = runs.map(([x, y, length]) => `M${x} ${y}h${length}v1h-${length}z`).join("");
  const side = rows.length + 2 * QUIET;
  const box = `${-QUIET} ${-QUIET} ${side} ${side}`;
  const code = made("svg", { class: "qr-code", viewBox: box, role: "img", "aria-label": label });
  code.append(made("rect", { x: -QUIET, y: -QUIET, width: side, height: side }), made("path", { d: path }));
  return code;
}

/** Return a button that shows the code of the URL in an input behind itself, and removes it. */
export function qrButton(input, label, told) {
  let code = null;
  const shown = button("QR code", `QR code of ${label}`, async () => {
    if (code !== null && code.isConnected) {
      code.remove();
      return;
    }
    try {
      code = await draw(input.value, `QR code of ${label}`);
      shown.after(code);
    } catch (error) {
      told.textContent = error.message;
    }
  });
  return shown;
}
