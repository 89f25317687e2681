/** Texts of quantities, and their inverse for the search field and the address. */

/** Picoseconds per unit, in ascending order. @type {[string, number][]} */
const TIME_UNITS = [["ps", 1], ["ns", 1e3], ["µs", 1e6], ["ms", 1e9], ["s", 1e12]];

/** @param {number} value @param {number} digits Significant digits. */
function roundedText(value, digits) {
  const text = Number(value.toPrecision(digits));
  return Math.abs(text) >= 1e15 ? text.toExponential() : String(text);
}

/**
 * Duration or moment as text with the largest unit that leaves at least 1 ("1.25 µs").
 * @param {number} picoseconds
 * @param {number} [digits] Significant digits, 6 by default.
 */
export function timeText(picoseconds, digits = 6) {
  if (picoseconds === 0) return "0 ns";
  const size = Math.abs(picoseconds);
  let [name, factor] = TIME_UNITS[0];
  for (const [unit, scale] of TIME_UNITS) if (size >= scale) [name, factor] = [unit, scale];
  return `${roundedText(picoseconds / factor, digits)} ${name}`;
}

/** Number of bytes with a binary unit ("1.5 MiB"). @param {number} bytes */
export function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit++;
  }
  return `${roundedText(bytes, 4)} ${units[unit]}`;
}

/** @param {number} bytesPerSecond */
export function rateText(bytesPerSecond) {
  return `${roundedText(bytesPerSecond / 1e9, 4)} GB/s`;
}

/** @param {number} share Between 0 and 1. */
export function percentText(share) {
  return `${roundedText(share * 100, 3)} %`;
}

/** @param {number} count */
export function countText(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/**
 * Picoseconds of a text such as "12.5us"; a number without unit is in nanoseconds.
 * @param {string} text
 * @returns {number|null} Null if the text is no time.
 */
export function parseTime(text) {
  const match = /^\s*(-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*(ps|ns|us|µs|μs|ms|s)?\s*$/i.exec(text);
  if (!match) return null;
  const unit = (match[2] ?? "ns").toLowerCase().replace("us", "µs").replace("μs", "µs");
  return Number(match[1]) * (TIME_UNITS.find(([name]) => name === unit)?.[1] ?? 1e3);
}

/** Time without loss for the address, in nanoseconds with unit. @param {number} picoseconds */
export function addressTime(picoseconds) {
  return `${Number((picoseconds / 1000).toPrecision(15))}ns`;
}

/**
 * Round positions for the ticks of an axis: steps of 1, 2 or 5 times a power of ten.
 * @param {number} from @param {number} to @param {number} count Largest number of ticks.
 */
export function axisTicks(from, to, count) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw) ?? 10);
  const ticks = [];
  for (let k = Math.ceil(from / step); k * step <= to; k++) ticks.push(k * step);
  return ticks;
}
