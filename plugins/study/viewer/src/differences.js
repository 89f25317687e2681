/**
 * Differences between two runs: steps of one run without a counterpart in the other. The k-th step of a
 * rank with the same kind, peer, chunk and bytes in both runs is the same step; waiting is not compared.
 */

import { timeText } from "./units.js";

/** @typedef {import("./run.js").Run} Run */

/** Runs with more steps are not compared step by step. */
const LARGEST_STEP_COUNT = 1_000_000;

/**
 * @typedef {object} Differences
 * @property {Uint8Array|null} unmatched  1 for each step without counterpart in the first run; null: not compared.
 * @property {number} count
 * @property {string} text
 */

/**
 * Compare a run with the first run of the page.
 * @param {Run} run @param {Run} first
 * @returns {{own: Differences, other: Uint8Array|null}}  `other`: steps of the first run without counterpart.
 */
export function compareRuns(run, first) {
  const change = run.end - first.end;
  const share = first.end ? `, ${change >= 0 ? "+" : "−"}${Number(((100 * Math.abs(change)) / first.end).toPrecision(3))} %` : "";
  const end = change === 0 ? "ends at the same time" :
    `ends ${timeText(Math.abs(change), 4)} ${change > 0 ? "later" : "earlier"}${share}`;
  if (run.stepCount > LARGEST_STEP_COUNT || first.stepCount > LARGEST_STEP_COUNT) {
    return { own: { unmatched: null, count: 0, text: end }, other: null };
  }
  const open = stepsByKey(first);
  const unmatched = new Uint8Array(run.stepCount);
  let count = 0;
  for (const [key, steps] of stepsByKey(run)) {
    const partners = open.get(key)?.length ?? 0;
    for (const step of steps.slice(partners)) {
      unmatched[step] = 1;
      count++;
    }
    if (partners) open.set(key, open.get(key)?.slice(steps.length) ?? []);
  }
  const other = new Uint8Array(first.stepCount);
  let missing = 0;
  for (const steps of open.values()) {
    for (const step of steps) {
      other[step] = 1;
      missing++;
    }
  }
  const text = count + missing === 0 ? "same steps" : `${count} steps only in this run, ${missing} only in the first`;
  return { own: { unmatched, count, text: `${end}; ${text}` }, other };
}

/** Steps other than waiting by rank, kind, peer, chunk and bytes, in order. @param {Run} run */
function stepsByKey(run) {
  /** @type {Map<string, number[]>} */
  const steps = new Map();
  const { peer, chunk, bytes } = run.details;
  for (let lane = 0; lane < run.laneCount; lane++) {
    for (let i = run.laneFirst[lane]; i < run.laneFirst[lane + 1]; i++) {
      const stepClass = run.classOf(i);
      if (stepClass === "wait" || stepClass === "idle") continue;
      const key = `${run.laneRank[lane]} ${run.index.kinds[run.kind[i]].name} ${peer?.[i]} ${chunk?.[i]} ${bytes?.[i]}`;
      const list = steps.get(key);
      if (list) list.push(i);
      else steps.set(key, [i]);
    }
  }
  return steps;
}
