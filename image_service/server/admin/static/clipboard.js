// Copying.

/** Select the text of an input, and copy it; return whether that was possible. */
export async function copyOf(input) {
  input.select();
  // Pages of plain HTTP beyond this machine have no clipboard, but the older command.
  return navigator.clipboard
    ? navigator.clipboard.writeText(input.value).then(() => true, () => false)
    : document.execCommand("copy");
}

/** Copy a text that no input shows; return whether that was possible. */
export async function copyText(text) {
  const input = document.createElement("input");
  const focused = document.activeElement;
  input.value = text;
  document.body.append(input);
  const isCopied = await copyOf(input);
  input.remove();
  focused.focus();
  return isCopied;
}
