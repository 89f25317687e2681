/**
 * Draw the lanes of a run over a time window, in one of three ways: by the time pyramid (wide views),
 * by one search per pixel (middle), or as rectangles with text (at most 5000 visible steps).
 */

import { STEP_CLASSES } from "./format.js";
import { EMPTY } from "./pyramid.js";
import { fitText } from "./surface.js";
import { colourParts, textColourOn } from "./theme.js";
import { timeText } from "./units.js";

/** @typedef {import("./run.js").Run} Run */
/** @typedef {import("./pyramid.js").Pyramid} Pyramid */
/** @typedef {import("./surface.js").Surface} Surface */
/** @typedef {import("./theme.js").Theme} Theme */

/**
 * @typedef {object} LaneView  Rectangle of the surface that shows lanes of a run.
 * @property {number} x @property {number} y @property {number} width @property {number} height
 * @property {number} from  Start of the window in ticks of the run.
 * @property {number} to
 * @property {number} top  First visible lane; may be fractional.
 * @property {number} laneHeight  Pixels; below 1, several lanes share a row of pixels.
 */

/** Visible steps up to which each step is drawn as a rectangle with text. */
export const LARGEST_RECTANGLE_COUNT = 5000;
const WAIT_CLASS = STEP_CLASSES.indexOf("wait");

/** Canvas that receives the pixels of pyramid and pixel views; reused between frames. */
const raster = { canvas: /** @type {HTMLCanvasElement|null} */ (null), image: /** @type {ImageData|null} */ (null) };

/**
 * Draw the lanes and return the method ("rectangles", "pixels" or "pyramid").
 * @param {Surface} surface @param {Run} run @param {Pyramid} pyramid @param {LaneView} view @param {Theme} theme
 * @param {number} limit  Visible steps up to which rectangles are drawn.
 */
export function drawLanes(surface, run, pyramid, view, theme, limit) {
  const { first, last } = visibleLanes(run, view);
  if (view.laneHeight >= 3 && countSteps(run, view, first, last, limit) <= limit) {
    drawRectangles(surface, run, view, theme, first, last);
    return "rectangles";
  }
  const width = Math.max(1, Math.round(view.width));
  const height = Math.max(1, Math.min(Math.round(view.height), Math.ceil((run.laneCount - view.top) * view.laneHeight)));
  const { canvas, image } = rasterOf(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(packed(colourParts(theme.paper)));
  const level = pyramid.levelFor((view.to - view.from) / width);
  const table = colourTable(theme);
  let row = 0;
  while (row < height) {
    const lane = Math.floor(view.top + (row + 0.5) / view.laneHeight);
    if (lane >= run.laneCount) break;
    const nextRow = Math.min(height, Math.max(row + 1, Math.round((lane + 1 - view.top) * view.laneHeight)));
    if (level) paintBins(pixels, row * width, width, level, lane, view, pyramid.end, table);
    else paintSteps(pixels, row * width, width, run, lane, view, table);
    const gap = nextRow - row >= 4 ? 1 : 0;
    for (let copy = row + 1; copy < nextRow - gap; copy++) {
      pixels.copyWithin(copy * width, row * width, row * width + width);
    }
    row = nextRow;
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.putImageData(image, 0, 0);
  surface.image(canvas, view.x, view.y, width, height);
  return level ? "pyramid" : "pixels";
}

/** Lanes whose rectangle intersects the view. @param {Run} run @param {LaneView} view */
export function visibleLanes(run, view) {
  return {
    first: Math.max(0, Math.floor(view.top)),
    last: Math.min(run.laneCount - 1, Math.ceil(view.top + view.height / view.laneHeight) - 1),
  };
}

/** Visible steps, counted up to the limit. @param {Run} run @param {LaneView} view @param {number} first @param {number} last @param {number} limit */
function countSteps(run, view, first, last, limit) {
  let count = 0;
  for (let lane = first; lane <= last && count <= limit; lane++) {
    count += run.firstStartFrom(lane, view.to) - run.firstStepAfter(lane, view.from);
  }
  return count;
}

/**
 * @param {Surface} surface @param {Run} run @param {LaneView} view @param {Theme} theme
 * @param {number} first @param {number} last
 */
function drawRectangles(surface, run, view, theme, first, last) {
  const scale = view.width / (view.to - view.from);
  const height = view.laneHeight >= 4 ? view.laneHeight - 1 : view.laneHeight;
  const ink = theme.classes.map(textColourOn);
  for (let lane = first; lane <= last; lane++) {
    const y = view.y + (lane - view.top) * view.laneHeight;
    for (let i = run.firstStepAfter(lane, view.from); i < run.laneFirst[lane + 1] && run.start[i] < view.to; i++) {
      const left = Math.max(-2, (run.start[i] - view.from) * scale);
      const right = Math.min(view.width + 2, (run.start[i] + run.duration[i] - view.from) * scale);
      const width = right - left, x = view.x + left;
      const stepClass = run.kindClass[run.kind[i]];
      surface.rect(x, y, Math.max(1, width > 3 ? width - 0.5 : width), height, theme.classes[stepClass]);
      if (stepClass === WAIT_CLASS && width > 5) hatch(surface, x, y, width, height, theme);
      if (width < 24 || height < 9) continue;
      const text = fitText(stepText(run, i), width - 6);
      if (text) surface.text(text, Math.max(view.x, x) + 3, y + height / 2, { colour: ink[stepClass], size: Math.min(11, height) });
    }
  }
}

/** Diagonal lines that tell waiting from work without colour. @param {Surface} surface @param {number} x @param {number} y @param {number} width @param {number} height @param {Theme} theme */
function hatch(surface, x, y, width, height, theme) {
  const colour = theme.name === "dark" ? "#666d76" : "#b4b4b4";
  const distance = Math.max(7, width / 30);
  for (let offset = distance - height; offset < width; offset += distance) {
    const left = Math.max(0, offset), right = Math.min(width, offset + height);
    surface.line([x + left, y + height - (left - offset), x + right, y + height - (right - offset)], colour, 1);
  }
}

/** Short text inside a step's rectangle. @param {Run} run @param {number} step */
export function stepText(run, step) {
  const { peer, waits_for: waitsFor, label } = run.details;
  const name = run.index.kinds[run.kind[step]].name;
  const stepClass = run.classOf(step);
  if (stepClass === "wait" && waitsFor && waitsFor[step] >= 0) return `waits for ${run.rankText(waitsFor[step])}`;
  if (peer && peer[step] >= 0) {
    const arrow = stepClass === "send" ? "→" : stepClass === "receive" || stepClass === "reduce" ? "←" : "·";
    return `${name} ${arrow} ${run.rankText(peer[step])}`;
  }
  const text = label ? run.index.steps?.labels?.[label[step]] : undefined;
  return text || `${name} ${timeText(run.duration[step] * run.tick, 4)}`;
}

/** @param {number} width @param {number} height */
function rasterOf(width, height) {
  raster.canvas ??= document.createElement("canvas");
  if (!raster.image || raster.canvas.width !== width || raster.canvas.height !== height) {
    raster.canvas.width = width;
    raster.canvas.height = height;
    raster.image = new ImageData(width, height);
  }
  return { canvas: raster.canvas, image: raster.image };
}

/** @type {Map<string, Uint32Array>} */
const colourTables = new Map();

/**
 * Colour of class * 256 + share as a pixel: the class colour, faded to the paper for small shares.
 * Computed once per theme.
 * @param {Theme} theme
 */
function colourTable(theme) {
  const known = colourTables.get(theme.name);
  if (known) return known;
  const paper = colourParts(theme.paper);
  const table = new Uint32Array(65536).fill(packed(paper));
  theme.classes.forEach((colour, index) => {
    const parts = colourParts(colour);
    for (let share = 1; share < 256; share++) {
      const weight = 0.25 + (0.75 * share) / 255;
      const mixed = parts.map((part, k) => Math.round(paper[k] + (part - paper[k]) * weight));
      table[(index << 8) | share] = packed(/** @type {[number, number, number]} */ (mixed));
    }
  });
  colourTables.set(theme.name, table);
  return table;
}

/** Pixel of a little-endian RGBA image. @param {[number, number, number]} parts */
function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/**
 * @param {Uint32Array} pixels @param {number} offset @param {number} width
 * @param {{bins: number, cells: Uint16Array}} level @param {number} lane @param {LaneView} view
 * @param {number} end @param {Uint32Array} table
 */
function paintBins(pixels, offset, width, level, lane, view, end, table) {
  const scale = level.bins / end;
  const stride = ((view.to - view.from) / width) * scale;
  const base = lane * level.bins;
  let bin = (view.from + (view.to - view.from) / width / 2) * scale;
  for (let x = 0; x < width; x++, bin += stride) {
    if (bin < 0 || bin >= level.bins) continue;
    const cell = level.cells[base + (bin | 0)];
    if (cell >> 8 !== EMPTY) pixels[offset + x] = table[cell];
  }
}

/**
 * Paint one row by a walk over the steps: each pixel takes the step that covers its middle, or the
 * first step that starts in it. Cost: visible steps of the lane plus pixels.
 * @param {Uint32Array} pixels @param {number} offset @param {number} width
 * @param {Run} run @param {number} lane @param {LaneView} view @param {Uint32Array} table
 */
function paintSteps(pixels, offset, width, run, lane, view, table) {
  const { start, duration, kind, kindClass } = run;
  const scale = width / (view.to - view.from);
  const last = run.laneFirst[lane + 1];
  for (let i = run.firstStepAfter(lane, view.from); i < last && start[i] < view.to; i++) {
    const left = Math.max(0, Math.floor((start[i] - view.from) * scale));
    const right = Math.min(width, Math.max(left + 1, Math.round((start[i] + duration[i] - view.from) * scale)));
    pixels.fill(table[(kindClass[kind[i]] << 8) | 255], offset + left, offset + right);
  }
}
