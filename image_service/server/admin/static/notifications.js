// Notifications of the browser about machines, while the page is open.

const STATES = new Set(["quiet", "stalled", "done"]);
const MAX_SHOWN = 3; // at a time; more of them are one notification

const choice = document.getElementById("notify");
const told = document.getElementById("notify-told");
let known = null; // the state of each mount; null: no mounts were seen yet

/** Return whether the user wants notifications: then the page asks in the background, too. */
export const isWanted = () => choice.checked;

choice.addEventListener("change", async () => {
  told.textContent = "";
  if (!choice.checked) {
    return;
  }
  const isPossible = "Notification" in window && isSecureContext;
  if (!isPossible || (await Notification.requestPermission()) !== "granted") {
    choice.checked = false;
    told.textContent = isPossible
      ? "the browser does not permit this page to show notifications"
      : "browsers show notifications of pages over HTTPS and on localhost only";
  }
});

function show(title, body) {
  new Notification(title, { body });
}

/** Show a notification of each mount that has become quiet, stalled or done since the last call. */
export function notify(mounts, keyOf) {
  const before = known;
  known = new Map(mounts.map((mount) => [keyOf(mount), mount.state]));
  if (before === null || !choice.checked) {
    return;
  }
  const changed = mounts.filter((mount) => STATES.has(mount.state) && before.get(keyOf(mount)) !== mount.state);
  if (changed.length > MAX_SHOWN) {
    show("image-service", `${changed.length} machines are quiet, stalled or done`);
    return;
  }
  for (const { state, address, client, infra_env_name: name, kind, stage } of changed) {
    show(`${name ?? kind}: ${state}`, [`${address} (${client ?? "unknown client"})`, stage].filter(Boolean).join(", "));
  }
}
