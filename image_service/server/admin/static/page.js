// The status page of a service that serves images.

import { address } from "./api.js";
import { activity } from "./activity.js";
import { failures } from "./failures.js";
import { images } from "./images.js";
import { infraEnvs } from "./infra_envs.js";
import { links } from "./links.js";
import { enter } from "./login.js";
import { mounts } from "./mounts.js";
import { isWanted } from "./notifications.js";
import { poll } from "./polling.js";
import { service } from "./sections.js";

const { loadSoon, redraw } = poll([service, activity, images, infraEnvs, mounts, links, failures], isWanted);
let events = null;

document.addEventListener("entered", () => {
  events?.close();
  events = new EventSource(address("api/v1/events"));
  events.onmessage = loadSoon;
});
document.getElementById("mounts-filter").addEventListener("input", redraw);
addEventListener("hashchange", redraw);
enter();
