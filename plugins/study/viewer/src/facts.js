/** Facts about steps as texts, for hovering and for the selection panel. */

import { bytesText, rateText, timeText } from "./units.js";

/** @typedef {import("./run.js").Run} Run */

/** Facts of a step as pairs of label and text. @param {Run} run @param {number} step @returns {[string, string][]} */
export function stepFacts(run, step) {
  const { peer, bytes, chunk, chunks, label, waits_for: waitsFor, partner } = run.details;
  const lane = run.laneOf(step);
  const kind = run.index.kinds[run.kind[step]];
  const stepClass = run.classOf(step);
  const duration = run.duration[step] * run.tick;
  /** @type {[string, string][]} */
  const facts = [
    ["Step", `${run.stepNumber(step)} · ${kind.name}`],
    ["Lane", run.laneText(lane)],
    ["Start", timeText(run.startOf(step), 9)],
    ["End", timeText(run.endOf(step), 9)],
    ["Duration", timeText(duration)],
  ];
  const text = label ? run.index.steps?.labels?.[label[step]] : "";
  if (text) facts.splice(1, 0, ["Label", text]);
  if (peer && peer[step] >= 0) {
    facts.push([stepClass === "send" ? "To" : stepClass === "receive" || stepClass === "reduce" ? "From" : "Peer", run.rankText(peer[step])]);
  }
  if (stepClass === "wait") {
    const rank = waitsFor?.[step] ?? -1;
    facts.push(["Waits for", rank >= 0 ? run.rankText(rank) : "unknown"]);
  }
  if (bytes && bytes[step] > 0) {
    facts.push(["Bytes", bytesText(bytes[step])]);
    if (duration > 0) facts.push(["Rate", rateText(bytes[step] / (duration * 1e-12))]);
  }
  if (chunk && chunk[step] >= 0) {
    const count = chunks?.[step] ?? 1;
    facts.push(["Chunks", count > 1
      ? `${run.chunkText(chunk[step])} to ${run.chunkText(chunk[step] + count - 1)}` : run.chunkText(chunk[step])]);
  }
  if (partner && partner[step] >= 0) {
    const other = partner[step];
    facts.push(["Other end", `step ${run.stepNumber(other)} of ${run.laneText(run.laneOf(other))}, ends at ${timeText(run.endOf(other), 9)}`]);
  }
  const blocks = run.index.blocks;
  if (blocks && run.blockColumns?.channel) facts.push(["Channel", String(run.blockColumns.channel[lane])]);
  const line = run.blockColumns?.sourceLine?.[step] ?? 0;
  if (line > 0) facts.push(["Source line", String(line)]);
  return facts;
}
