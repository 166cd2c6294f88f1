// The form that asks for the token, where the service needs one. A session is a cookie, which no script can read.

import { request } from "./api.js";

const PATH = "api/v1/session";
const form = document.getElementById("login");
const problem = document.getElementById("login-problem");
const signOut = document.getElementById("sign-out");
const { token } = form.elements;

/** Return whether the page waits for the token. */
export const isWaiting = () => !form.hidden;

/** Show the form in the place of the content, or the content. */
function show(isAsking) {
  if (isAsking && form.hidden) {
    document.getElementById("summary").textContent = "sign in to see the state of the service";
  }
  form.hidden = !isAsking;
  signOut.hidden = true;
  document.querySelectorAll("main > section, nav, .skip").forEach((each) => { each.hidden = isAsking; });
}

/** Begin to show the content if the service needs no token, or this browser has a session. */
export async function enter() {
  try {
    const { expires_in: left } = await request(PATH);
    show(false);
    signOut.hidden = left === null;
  } catch {
    // The form asks for a token; the sections show any other error.
  }
  if (!isWaiting()) {
    document.dispatchEvent(new Event("entered"));
  }
}

document.addEventListener("unauthorized", () => {
  if (form.hidden) {
    show(true);
    token.focus();
  }
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = token.value.trim();
  form.reset();
  problem.hidden = true;
  try {
    await request(PATH, "POST", undefined, { Authorization: `Bearer ${given}` });
    await enter();
    if (isWaiting()) {
      throw new Error("this browser or another replica does not know the session: allow cookies, and reach one replica");
    }
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
    token.focus();
  }
});

signOut.addEventListener("click", async () => {
  try {
    await request(PATH, "DELETE");
    location.reload(); // nothing of what the page has shown remains in it
  } catch (error) {
    document.getElementById("summary").textContent = `not signed out: ${error.message}`;
  }
});
