// Requests to the API.

let clockOffset = 0;

/** Return the time of the server, in ms since the epoch. */
export function now() {
  return Date.now() + clockOffset;
}

/** Return the URL of a path relative to the page: without the credentials that the page's URL may have. */
export function address(path) {
  return new URL(path, location.origin + location.pathname);
}

/** Return the JSON of a response, or null if it has none; throw an Error with the detail of a problem. */
export async function request(path, method = "GET", body = undefined, fields = {}) {
  const init = { method, cache: "no-store", headers: { Accept: "application/json", ...fields } };
  if (body !== undefined) {
    init.headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(address(path), init);
  } catch {
    throw new Error("the service does not respond");
  }
  const date = Date.parse(response.headers.get("Date"));
  if (!Number.isNaN(date)) {
    clockOffset = date - Date.now();
  }
  const text = await response.text();
  const isJson = /json/.test(response.headers.get("Content-Type"));
  const content = isJson && text ? JSON.parse(text) : null;
  if (response.status === 401) {
    document.dispatchEvent(new Event("unauthorized"));
  }
  if (!response.ok) {
    throw new Error(content?.detail ?? `status ${response.status}`);
  }
  return content;
}
