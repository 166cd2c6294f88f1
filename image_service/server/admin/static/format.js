// Numbers and times as text.

import { now } from "./api.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Return a number with its noun, such as "1 link" or "2 links". */
export function number(count, thing) {
  return `${count} ${thing}${count === 1 ? "" : "s"}`;
}

/** Return a number of bytes, such as "1.5 GiB". */
export function bytes(size) {
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${UNITS[unit]}`;
}

/** Return a part of a whole, such as "45 %"; it is 100 % only at the end. */
export function percent(part, whole) {
  return `${whole ? Math.floor((100 * part) / whole) : 0} %`;
}

/** Return a number of seconds, such as "3 min". */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) {
    return `${whole} s`;
  }
  if (whole < 7200) {
    return `${Math.floor(whole / 60)} min`;
  }
  return whole < 172800 ? `${Math.floor(whole / 3600)} h` : `${Math.floor(whole / 86400)} days`;
}

/** Return how many seconds ago an RFC 3339 time was. */
export const since = (time) => (now() - Date.parse(time)) / 1000;

/** Return the distance of an RFC 3339 time, such as "3 min ago" or "in 2 h". */
export function relative(time) {
  const seconds = since(time);
  return seconds < 0 ? `in ${duration(-seconds)}` : `${duration(seconds)} ago`;
}
