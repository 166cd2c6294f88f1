// Infra-envs of standalone mode: a form that makes images of a config, and the table of all.
//
// Configs, keys and networks go to the service, which does not send them back; the form forgets them when it is sent.

import { request } from "./api.js";
import { checkOf } from "./checks.js";
import { copyOf } from "./clipboard.js";
import { examinationOf } from "./examination.js";
import { bytes, number, relative } from "./format.js";
import { makeTable } from "./infra_env_tables.js";
import { qrButton } from "./qr_code.js";
import { parts, showCount } from "./sections.js";
import { Table, button, element, second } from "./table.js";

const PATH = "api/v1/infra-envs";
const SERVED_STATES = new Set(["ready", "degraded"]);
const CONFIGS = new Set(["ignition_config_override", "family_config"]);
const SIZED = new Set(["iso", "config_iso", "minimal_iso", "kernel", "initrd", "rootfs"]);
const SIZE_MS = 2_000; // between two requests for the size of an image that is being made
const LINKED = new Set(["iso", "minimal_iso", "ipxe_script", "initrd"]);
const MEDIA = new Set(["iso", "minimal_iso"]);
const LABELS = {
  iso: "ISO",
  iso_sha256: "SHA-256 of the ISO",
  config_iso: "Config ISO",
  minimal_iso: "Minimal ISO",
  minimal_iso_sha256: "SHA-256 of the minimal ISO",
  ipxe_script: "iPXE script",
  kernel: "Kernel",
  initrd: "Initrd",
  rootfs: "Root file system",
};

const find = (id) => document.getElementById(id);
const form = find("infra-env-form");
const { name, base, hostname, config, ssh_keys: keys, kernel_arguments: kargs, clear } = form.elements;
const { keyfiles, networks, table: machines, table_files: machineFiles } = form.elements;
const kinds = find("infra-env-kinds");
const problem = find("infra-env-problem");
const result = find("infra-env-result");
const told = find("infra-env-copied");

const families = new Map(); // of base images, as far as they are known
let edited = null; // the infra-env that the form changes; null: it makes one

function tell(target, error) {
  target.textContent = error.message;
  target.hidden = false;
}

/** Empty the form, and with it all that may be secret. */
function forget() {
  form.reset();
  expectTable(false);
  problem.hidden = true;
  checks.forEach((check) => check.forget());
}

// Base images

const baseKey = ({ openshift_version: version, cpu_architecture: architecture }) => JSON.stringify([version, architecture]);

async function offerBases() {
  const images = (await request("api/v1/images")).images.filter(({ state }) => SERVED_STATES.has(state));
  const offered = images.map((image) => ({ ...image, openshift_version: image.openshift_version || image.version }));
  if (edited !== null && !offered.some((image) => baseKey(image) === baseKey(edited))) {
    offered.push(edited);
  }
  offered.forEach((image) => families.set(baseKey(image), image.family));
  base.replaceChildren(
    ...offered.map((image) => {
      const option = element("option", "", `${image.openshift_version} ${image.cpu_architecture}`);
      option.value = baseKey(image);
      return option;
    }),
  );
  if (edited !== null) {
    base.value = baseKey(edited);
  }
  configCheck.check();
  if (!offered.length) {
    throw new Error("no base image is ready");
  }
}

async function open(infraEnv) {
  forget();
  edited = infraEnv;
  result.hidden = true;
  find("infra-env-title").textContent = edited ? `Change ${edited.name}` : "New image";
  form.querySelector("[type=submit]").textContent = edited ? "Change the image" : "Make the image";
  find("infra-env-clear").hidden = edited === null;
  find("infra-env-many").hidden = edited !== null;
  for (const field of [config, keys, networks]) {
    field.placeholder = edited ? "unchanged, if this is empty" : "";
  }
  if (edited !== null) {
    name.value = edited.name;
    hostname.value = edited.hostname ?? "";
    kargs.value = added(edited).map(({ value }) => value).join("\n");
  }
  form.hidden = false;
  name.focus();
  await offerBases().catch((error) => tell(problem, error));
}

const added = (infraEnv) => infraEnv.kernel_arguments.filter(({ operation }) => operation === "append");

function close() {
  forget();
  form.hidden = true;
  find("new-image").focus();
}

find("new-image").addEventListener("click", () => open(null));
find("infra-env-cancel").addEventListener("click", close);

// Checks

function describeConfig() {
  const body = { config: config.value };
  if (base.value) {
    [body.openshift_version, body.cpu_architecture] = JSON.parse(base.value);
  }
  return body;
}

function nameLanguage({ language = "Config" }) {
  find("config-language").textContent = `${language[0].toUpperCase()}${language.slice(1)}`;
}

const configCheck = checkOf(config, find("config-check"), describeConfig, nameLanguage);
const networksCheck = checkOf(networks, find("networks-check"), () => ({ static_network_config: networks.value }));
const tableCheck = checkOf(machines, find("table-check"), () => ({ table: machines.value }));
const checks = [configCheck, networksCheck, tableCheck];

base.addEventListener("change", configCheck.check);
find("config-file").addEventListener("change", ({ target }) => target.files.length && configCheck.load(target.files[0]));
machines.addEventListener("input", () => expectTable(machines.value.trim() !== ""));

/** Ask for what the result needs: a table has names of its own, and its result lists the ISOs alone. */
function expectTable(isTable) {
  name.required = !isTable;
  kinds.hidden = isTable;
}

/** Return the names of the URLs that the result lists. */
function chosenUrls() {
  const chosen = [...kinds.querySelectorAll(":checked")];
  if (!chosen.length) {
    throw new Error("choose at least one of what the result lists");
  }
  return new Set(chosen.flatMap(({ value }) => value.split(" ")));
}

// Sending

async function fields() {
  const [version, architecture] = JSON.parse(base.value);
  const lines = kargs.value.split("\n").map((line) => line.trim()).filter((line) => line);
  const kept = edited ? edited.kernel_arguments.filter(({ operation }) => operation !== "append") : [];
  const given = {
    name: name.value,
    openshift_version: version,
    cpu_architecture: architecture,
    hostname: hostname.value || null,
    kernel_arguments: [...kept, ...lines.map((value) => ({ operation: "append", value }))],
  };
  const files = {};
  for (const file of keyfiles.files) {
    files[file.name] = await file.text();
  }
  const isCoreos = (families.get(base.value) ?? "coreos") === "coreos";
  const secret = {
    ignition_config_override: (isCoreos && config.value) || null,
    family_config: isCoreos ? null : config.value, // an empty one is not a config
    ssh_authorized_key: keys.value || null,
    network_keyfiles: keyfiles.files.length ? files : null,
    static_network_config: networks.value || null,
  };
  if (edited !== null && !clear.checked) {
    const isKept = (each) => (CONFIGS.has(each) ? !config.value : secret[each] === null);
    Object.keys(secret).filter(isKept).forEach((each) => delete secret[each]);
  }
  return { ...given, ...secret };
}

async function send() {
  const listed = kinds.hidden ? null : chosenUrls();
  const given = await fields();
  if (edited !== null) {
    showResult(await request(`${PATH}/${edited.id}`, "PATCH", given), listed);
  } else if (machines.value.trim()) {
    if (!given.name) {
      delete given.name;
    }
    const title = await makeTable(machines.value, machineFiles.files, given);
    show(title, []);
  } else {
    showResult(await request(PATH, "POST", given), listed);
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.hidden = true;
  const submit = form.querySelector("[type=submit]");
  submit.disabled = true;
  try {
    await send();
    forget();
    form.hidden = true;
  } catch (error) {
    tell(problem, error);
  }
  submit.disabled = false;
  document.dispatchEvent(new Event("changed"));
});

// The result

function shown(label, url) {
  const input = element("input");
  input.readOnly = true;
  input.value = url;
  input.setAttribute("aria-label", label);
  return input;
}

function copyButton(label, input) {
  return button("Copy", `Copy ${label}`, async () => {
    told.textContent = (await copyOf(input)) ? `${label}: copied` : "press Ctrl+C";
  });
}

/** Show how large an image is, once the service has made it. */
async function showSize(target, url, attempts = 10) {
  try {
    const { size } = await request("api/v1/image-sizes", "POST", { url });
    target.textContent = bytes(size);
  } catch (error) {
    target.title = error.message;
    if (attempts > 1 && target.isConnected) {
      setTimeout(() => showSize(target, url, attempts - 1), SIZE_MS);
    }
  }
}

function urlItem(infraEnv, kind, url) {
  const label = LABELS[kind] ?? kind;
  const input = shown(label, url);
  const download = element("a", "", "Download");
  download.href = url;
  download.setAttribute("aria-label", `Download ${label}`);
  const size = element("span", "size");
  const item = element("li", "", element("span", "label", label, size), input, copyButton(label, input), download);
  if (SIZED.has(kind)) {
    showSize(size, url);
  }
  if (MEDIA.has(kind)) {
    item.append(...examinationOf(label, url));
  }
  if (LINKED.has(kind)) {
    item.append(
      button("Short link", `Short link to ${label}`, async () => {
        try {
          const expires = Number(find("infra-env-expires").value);
          const body = { url, expires_in: expires, label: infraEnv.name };
          const link = await request("api/v1/links", "POST", body);
          const linked = shown(`Short link to ${label}`, link.url);
          item.querySelector(".made")?.remove();
          const shortLink = `short link to ${label}`;
          const copy = copyButton(shortLink, linked);
          const end = element("span", "size", `ends ${relative(link.expires_at)}`);
          const title = element("span", "label", "Short link", end);
          item.append(element("span", "made", title, linked, copy, qrButton(linked, shortLink, told)));
          told.textContent = "this short link is not shown again";
        } catch (error) {
          told.textContent = error.message;
        }
        document.dispatchEvent(new Event("changed"));
      }),
    );
  }
  return item;
}

function commandItem(label, text) {
  const command = shown(label, text);
  return element("li", "", element("span", "label", label), command, copyButton(label, command));
}

function show(title, items) {
  find("infra-env-result-title").textContent = title;
  find("infra-env-urls").replaceChildren(...items);
  told.textContent = "";
  result.hidden = false;
  find("infra-env-result-title").focus();
}

/** Show the URLs of an infra-env's images, those in `listed` alone if it is given. */
function showResult(infraEnv, listed = null) {
  const urls = Object.entries(infraEnv.image_urls).filter(([kind]) => listed?.has(kind) ?? true);
  const items = urls.map(([kind, url]) => urlItem(infraEnv, kind, url));
  const [, medium] = urls.find(([kind]) => MEDIA.has(kind)) ?? [];
  if (medium) {
    items.push(
      commandItem("Download by curl", `curl -fo ${medium.split("/").at(-1)} '${medium}'`),
      commandItem("Boot by Redfish", `image-service boot '${medium}' --redfish BMC`),
    );
  }
  if (!items.length) {
    items.push(element("li", "", "The base image has no image of the chosen kinds."));
  }
  find("infra-env-rows").hidden = true;
  show(`Images of ${infraEnv.name}`, items);
}

// The table

const sectionParts = parts("infra-envs");
const sectionProblem = document.querySelector("#infra-envs > .problem");

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    tell(sectionProblem, error);
    return;
  }
  document.dispatchEvent(new Event("changed"));
}

function actions(infraEnv) {
  const named = infraEnv.name;
  const path = `${PATH}/${infraEnv.id}`;
  // A row stays while it looks the same, and with it its buttons: they ask for what the infra-env is now.
  return [
    button("URLs", `URLs of ${named}`, () =>
      attempt(async () => {
        const present = await request(path);
        form.hidden = true;
        forget();
        showResult(present);
      }),
    ),
    button("Edit", `Edit ${named}`, () => attempt(async () => open(await request(path)))),
    button("Copy", `Copy ${named}`, () =>
      attempt(() => request(`${path}/copies`, "POST", { name: `Copy of ${named}`.slice(0, 128) })),
    ),
    button("Delete", `Delete ${named}`, () => {
      if (confirm(`Delete ${named}? Its images are then refused.`)) {
        attempt(() => request(path, "DELETE"));
      }
    }),
  ];
}

function content(infraEnv) {
  const has = [
    infraEnv.config_set && "config",
    infraEnv.ssh_keys && number(infraEnv.ssh_keys, "SSH key"),
    infraEnv.hostname && `host name ${infraEnv.hostname}`,
    infraEnv.kernel_arguments.length && number(infraEnv.kernel_arguments.length, "kernel argument"),
    infraEnv.keyfiles && number(infraEnv.keyfiles, "keyfile"),
    infraEnv.static_networks && number(infraEnv.static_networks, "static network"),
  ];
  return has.filter((each) => each).join(", ") || "nothing yet";
}

const table = new Table(sectionParts.table, {
  Name: (each) => [each.name, second(each.id)],
  "Base image": (each) => [`${each.openshift_version} ${each.cpu_architecture}`],
  Has: (each) => [content(each)],
  Changed: (each) => [relative(each.updated_at)],
  Actions: (each) => [element("span", "actions", ...actions(each))],
});

const names = new Map();

/** Return the name of an infra-env, or its identifier if this service has not made it. */
export const nameOf = (id) => names.get(id) ?? id;

function draw({ infra_envs: all, made_at: elsewhere }) {
  (all ?? []).forEach(({ id, name: named }) => names.set(id, named));
  find("new-image").hidden = all === null;
  find("infra-envs-elsewhere").hidden = all !== null;
  find("infra-envs-elsewhere").textContent =
    `Infra-envs are made at ${elsewhere}; the URLs of their images come from there.`;
  showCount(sectionParts, (all ?? []).length);
  sectionParts.empty.hidden ||= all === null;
  table.update(all ?? [], ({ id }) => id);
}

export const infraEnvs = { id: "infra-envs", path: PATH, draw };
