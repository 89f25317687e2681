/** Colours of the page in light and dark mode; the class colours are Okabe and Ito's, safe for colour-blind readers. */

import { STEP_CLASSES } from "./format.js";

/** @typedef {import("./format.js").StepClass} StepClass */

/** @type {Record<StepClass, string>} */
const CLASS_COLOURS = {
  send: "#0072b2", receive: "#56b4e9", reduce: "#e69f00", copy: "#009e73", compute: "#cc79a7",
  wait: "#d0d0d0", collective: "#d55e00", memory: "#f0e442", idle: "#eeeeee", other: "#777777",
};

/**
 * @typedef {object} Theme
 * @property {"light"|"dark"} name
 * @property {string} paper @property {string} ink @property {string} faint  Secondary text.
 * @property {string} grid @property {string} accent @property {string} mark @property {string} alarm
 * @property {string} veil  Covers what is not on the route of a followed chunk.
 * @property {string[]} classes  Colour of each entry of `STEP_CLASSES`.
 * @property {string[]} series  Colours of curves.
 */

/** @type {Theme} */
export const LIGHT = {
  name: "light", paper: "#ffffff", ink: "#1b1b1b", faint: "#555555", grid: "#dddddd",
  accent: "#b3005e", mark: "#000000", alarm: "#b3261e", veil: "rgba(255,255,255,0.78)",
  classes: STEP_CLASSES.map((name) => CLASS_COLOURS[name]),
  series: ["#0072b2", "#d55e00", "#009e73", "#a8487f", "#8a6a00", "#3a87b7", "#444444"],
};

/** @type {Theme} */
export const DARK = {
  name: "dark", paper: "#15181c", ink: "#ececec", faint: "#aeb4bb", grid: "#363c44",
  accent: "#ff8ac4", mark: "#ffffff", alarm: "#ff9c94", veil: "rgba(21,24,28,0.8)",
  classes: STEP_CLASSES.map((name) =>
    name === "wait" ? "#4a5058" : name === "idle" ? "#23282e" : CLASS_COLOURS[name]),
  series: ["#56b4e9", "#ff9a52", "#35c99d", "#e39cc5", "#f0e442", "#8fb8ff", "#c8c8c8"],
};

/** @param {string} colour Hexadecimal. @returns {[number, number, number]} */
export function colourParts(colour) {
  const value = parseInt(colour.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** Black or white, whichever has more contrast on the colour. @param {string} colour */
export function textColourOn(colour) {
  const [red, green, blue] = colourParts(colour).map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000000" : "#ffffff";
}

/** Corner colours of the load scale (cividis: readable in grey and for colour-blind readers). */
const LOAD_STOPS = [[0, 34, 78], [63, 77, 107], [124, 123, 120], [187, 174, 110], [254, 232, 56]];

/**
 * Colour of a load or of a share of the maximum.
 * @param {number} share Between 0 and 1; limited to this range.
 * @param {Theme} theme Light mode reverses the scale, so that a high load is dark on white.
 * @returns {[number, number, number]}
 */
export function loadParts(share, theme) {
  const limited = Math.min(1, Math.max(0, share));
  const position = (theme.name === "dark" ? limited : 1 - limited) * (LOAD_STOPS.length - 1);
  const index = Math.min(LOAD_STOPS.length - 2, Math.floor(position));
  const [low, high] = [LOAD_STOPS[index], LOAD_STOPS[index + 1]];
  const mix = (/** @type {number} */ k) => Math.round(low[k] + (high[k] - low[k]) * (position - index));
  return [mix(0), mix(1), mix(2)];
}

/** @param {number} share @param {Theme} theme */
export function loadColour(share, theme) {
  return `rgb(${loadParts(share, theme).join(",")})`;
}
