/**
 * Time pyramid of a run: for each lane and time bin, the step class that occupies the largest part of
 * the bin, and the occupied share. Wide views read one bin per pixel instead of all steps.
 */

import { STEP_CLASSES } from "./format.js";

/** @typedef {import("./run.js").Run} Run */

/** Class of a bin without a step. */
export const EMPTY = 255;

/** Largest number of bins of the finest level, over all lanes. */
const LARGEST_CELL_COUNT = 17_000_000;

export class Pyramid {
  /** @param {Run} run */
  constructor(run) {
    const lanes = Math.max(1, run.laneCount);
    let bins = 16384;
    while (bins > 512 && bins * lanes > LARGEST_CELL_COUNT) bins /= 2;
    this.end = Math.max(1, run.index.end);
    /** Levels from fine to coarse: bins per lane, and class * 256 + share of each lane and bin. @type {{bins: number, cells: Uint16Array}[]} */
    this.levels = [{ bins, cells: finestCells(run, bins, this.end) }];
    while (bins > 256) {
      this.levels.push({ bins: bins / 2, cells: halvedCells(this.levels[this.levels.length - 1].cells) });
      bins /= 2;
    }
  }

  /** Coarsest level whose bins are at most this long, or null. @param {number} ticks */
  levelFor(ticks) {
    for (let i = this.levels.length - 1; i >= 0; i--) {
      if (this.end / this.levels[i].bins <= ticks) return this.levels[i];
    }
    return null;
  }
}

/**
 * Cells of the finest level. A step writes the bins that it covers completely, and adds its share to
 * the first and the last one; only those bins are evaluated afterwards. Cost: steps plus bins.
 * @param {Run} run @param {number} bins @param {number} end
 */
function finestCells(run, bins, end) {
  const cells = new Uint16Array(run.laneCount * bins).fill(EMPTY << 8);
  const classes = STEP_CLASSES.length;
  const shares = new Float32Array(bins * classes), touched = new Int32Array(bins), isTouched = new Uint8Array(bins);
  const scale = bins / end;
  const { start, duration, kind, kindClass, laneFirst } = run;
  for (let lane = 0; lane < run.laneCount; lane++) {
    const base = lane * bins, lastStep = laneFirst[lane + 1];
    let count = 0;
    for (let i = laneFirst[lane]; i < lastStep; i++) {
      const from = start[i] * scale, to = from + duration[i] * scale;
      const column = kindClass[kind[i]];
      const first = Math.max(0, Math.min(bins - 1, from | 0)), last = Math.min(bins - 1, to | 0);
      if (!isTouched[first]) {
        isTouched[first] = 1;
        touched[count++] = first;
      }
      if (first === last) {
        shares[first * classes + column] += to - from;
        continue;
      }
      shares[first * classes + column] += first + 1 - from;
      const full = (column << 8) | 255;
      for (let cell = base + first + 1; cell < base + last; cell++) cells[cell] = full;
      if (!isTouched[last]) {
        isTouched[last] = 1;
        touched[count++] = last;
      }
      shares[last * classes + column] += to - last;
    }
    for (let k = 0; k < count; k++) {
      const bin = touched[k], cell = largestShare(shares, bin * classes, classes);
      isTouched[bin] = 0;
      if (cells[base + bin] >> 8 === EMPTY) cells[base + bin] = cell;
    }
  }
  return cells;
}

/** Class with the largest share, and the sum of shares, as a cell; clears the shares. @param {Float32Array} shares @param {number} offset @param {number} classes */
function largestShare(shares, offset, classes) {
  let best = EMPTY, most = 0, sum = 0;
  for (let column = 0; column < classes; column++) {
    const share = shares[offset + column];
    if (share === 0) continue;
    shares[offset + column] = 0;
    sum += share;
    if (share > most) {
      most = share;
      best = column;
    }
  }
  return (best << 8) | (best === EMPTY ? 0 : Math.max(1, Math.min(255, Math.round(sum * 255))));
}

/** Unite pairs of bins: the class with the larger share, and the mean share. @param {Uint16Array} cells */
function halvedCells(cells) {
  const half = new Uint16Array(cells.length / 2);
  for (let i = 0; i < half.length; i++) {
    const a = cells[2 * i], b = cells[2 * i + 1];
    const shareA = a & 255, shareB = b & 255;
    half[i] = ((shareB > shareA ? b : a) & 0xff00) | ((shareA + shareB + 1) >> 1);
  }
  return half;
}
