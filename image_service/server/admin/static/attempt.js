// Work that a person has asked for, with the error that it ends with.

/** Run work; show its error in an element, and reload the page's content at its end. */
export async function attempt(problem, work) {
  problem.hidden = true;
  try {
    await work();
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
  document.dispatchEvent(new Event("changed"));
}
