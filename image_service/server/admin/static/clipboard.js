// Copying what an input shows.

/** Select the text of an input, and copy it; return whether that was possible. */
export async function copyOf(input) {
  input.select();
  // Pages of plain HTTP beyond this machine have no clipboard, but the older command.
  return navigator.clipboard
    ? navigator.clipboard.writeText(input.value).then(() => true, () => false)
    : document.execCommand("copy");
}
