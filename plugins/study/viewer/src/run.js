/** One run of the page: its columns as typed arrays, and queries on lanes and steps. */

import { STEP_CLASSES } from "./format.js";
import { ROLE, awaitedRanks, expandValues, matchInOrder, partnersOf, startsOf } from "./step_columns.js";

/** @typedef {import("./format.js").RunIndex} RunIndex */
/** @typedef {import("./format.js").Values} Values */
/** @typedef {import("./format.js").StepClass} StepClass */
/** @typedef {import("./columns.js").ColumnBlock} ColumnBlock */
/** @typedef {Record<"peer"|"partner"|"bytes"|"chunk"|"chunks"|"number"|"label"|"waits_for", Values|null>} StepDetails */
/** @typedef {Record<"from"|"to"|"first"|"start"|"duration", Values> & Record<"queued"|"step"|"capacity", Values|null>} LinkColumns */

const DETAILS = /** @type {("bytes"|"chunk"|"chunks"|"number"|"label")[]} */ (
  ["bytes", "chunk", "chunks", "number", "label"]);

export class Run {
  /**
   * @param {RunIndex} index
   * @param {Record<"rank"|"name"|"first"|"start"|"duration"|"kind", Values>} columns
   */
  constructor(index, columns) {
    this.index = index;
    /** Picoseconds per tick. */
    this.tick = index.tick_ps;
    /** Last moment of the run in picoseconds. */
    this.end = index.end * index.tick_ps;
    this.laneRank = columns.rank;
    this.laneName = columns.name;
    this.laneFirst = columns.first;
    this.laneCount = columns.rank.length;
    this.start = columns.start;
    this.duration = columns.duration;
    this.kind = columns.kind;
    this.stepCount = index.steps?.count ?? 0;
    /** Index into `STEP_CLASSES` of each kind. */
    this.kindClass = Uint8Array.from(index.kinds, (kind) =>
      Math.max(0, STEP_CLASSES.indexOf(STEP_CLASSES.includes(kind.class) ? kind.class : "other")));
    /** 1 for each kind that a step has. */
    this.usedKinds = new Uint8Array(256);
    for (let i = 0; i < this.stepCount; i++) this.usedKinds[this.kind[i]] = 1;
    /** @type {StepDetails} */
    this.details = {
      peer: null, partner: null, bytes: null, chunk: null, chunks: null, number: null, label: null,
      waits_for: null,
    };
    /** @type {LinkColumns|null} */
    this.links = null;
    /** Columns of thread blocks. @type {{channel: Values|null, sourceLine: Values|null}|null} */
    this.blockColumns = null;
    /** Longest step of each lane whose steps overlap; 0 for lanes without overlap. */
    this.overlap = this.#overlapOfLanes();
    /** First lane of each rank. @type {Map<number, number>} */
    this.rankLane = new Map();
    for (let lane = this.laneCount - 1; lane >= 0; lane--) this.rankLane.set(this.laneRank[lane], lane);
  }

  /** Read the columns that the first picture needs; a topology alone has no lanes. @param {RunIndex} index @param {ColumnBlock} block */
  static async load(index, block) {
    const { lanes, steps } = index;
    if (!lanes || !steps) {
      const none = new Uint32Array(0);
      return new Run(index, { rank: none, name: none, first: new Uint32Array(1), start: none, duration: none, kind: none });
    }
    const [rank, name, first, gap, duration, kind] = await Promise.all(
      [lanes.rank, lanes.name, lanes.first, steps.gap, steps.duration, steps.kind].map((c) => block.read(c)));
    return new Run(index, { rank, name, first, start: startsOf(gap, duration, first), duration, kind });
  }

  /** Read the other columns of steps and links. @param {ColumnBlock} block */
  async loadDetails(block) {
    const role = this.#rolesOfSteps();
    await this.#loadMessages(block, role);
    // At the same time: the browser inflates outside of this thread.
    await Promise.all(DETAILS.map(async (name) => {
      const column = this.index.steps?.[name];
      if (!column) return;
      this.details[name] = expandValues(await block.read(column), column, role, this.details.partner);
    }));
    const optional = (/** @type {import("./format.js").Column|null|undefined} */ column) =>
      column ? block.read(column) : null;
    const blocks = this.index.blocks;
    if (blocks) {
      this.blockColumns = {
        channel: await optional(blocks.channel), sourceLine: await optional(blocks.source_line),
      };
    }
    const links = this.index.links;
    if (!links) return;
    const first = await block.read(links.first), duration = await block.read(links.duration);
    this.links = {
      from: await block.read(links.from), to: await block.read(links.to),
      first, duration, start: startsOf(await block.read(links.gap), duration, first), queued: await optional(links.queued),
      step: await optional(links.step), capacity: await optional(links.capacity),
    };
  }

  /** Read peers, matching steps and awaited ranks. @param {ColumnBlock} block @param {Uint8Array} role */
  async #loadMessages(block, role) {
    const { peer, partner, waits_for: awaited } = this.index.steps ?? {};
    if (!peer) return;
    const peers = expandValues(await block.read(peer), peer, role, null);
    this.details.peer = peers;
    if (partner === "in order") this.details.partner = matchInOrder(peers, this.laneFirst, this.laneRank, role);
    else if (partner) {
      const values = await block.read(partner);
      this.details.partner = !Array.isArray(partner) && partner.ends ? partnersOf(values) : values;
    }
    if (awaited) this.details.waits_for = awaitedRanks(await block.read(awaited), peers, role);
  }

  /** Role of each step in messages. */
  #rolesOfSteps() {
    const ofClass = /** @type {Partial<Record<StepClass, number>>} */ (
      { wait: ROLE.wait, send: ROLE.send, receive: ROLE.receive, reduce: ROLE.receive });
    const ofKind = Uint8Array.from(this.index.kinds, (kind) => ofClass[kind.class] ?? ROLE.none);
    const roles = new Uint8Array(this.stepCount);
    for (let i = 0; i < roles.length; i++) roles[i] = ofKind[this.kind[i]];
    return roles;
  }

  #overlapOfLanes() {
    const overlap = new Float64Array(this.laneCount);
    for (let lane = 0; lane < this.laneCount; lane++) {
      let overlaps = false, longest = 0;
      for (let i = this.laneFirst[lane]; i < this.laneFirst[lane + 1]; i++) {
        if (this.duration[i] > longest) longest = this.duration[i];
        if (i > this.laneFirst[lane] && this.start[i] < this.start[i - 1] + this.duration[i - 1]) overlaps = true;
      }
      if (overlaps) overlap[lane] = longest;
    }
    return overlap;
  }

  /**
   * First step of the lane that can end after the moment: binary search on the end, which is
   * sorted in a lane without overlap; otherwise on the start minus the longest duration.
   * @param {number} lane @param {number} ticks
   */
  firstStepAfter(lane, ticks) {
    let low = this.laneFirst[lane], high = this.laneFirst[lane + 1];
    const longest = this.overlap[lane];
    while (low < high) {
      const middle = (low + high) >> 1;
      const end = this.start[middle] + (longest || this.duration[middle]);
      if (end <= ticks) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** First step of the lane that starts at or after the moment. @param {number} lane @param {number} ticks */
  firstStartFrom(lane, ticks) {
    let low = this.laneFirst[lane], high = this.laneFirst[lane + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[middle] < ticks) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /**
   * Last step of the lane that covers the moment, or -1. A step also covers `slack` ticks on both
   * sides, so that steps narrower than a pixel can be pointed at.
   * @param {number} lane @param {number} ticks @param {number} slack
   */
  stepAt(lane, ticks, slack) {
    const last = this.laneFirst[lane + 1];
    let best = -1;
    for (let i = this.firstStepAfter(lane, ticks - slack); i < last && this.start[i] <= ticks + slack; i++) {
      if (this.start[i] <= ticks && ticks < this.start[i] + this.duration[i]) best = i;
      else if (best < 0) best = i;
      if (this.start[i] > ticks && best >= 0) break;
    }
    if (best >= 0 && this.start[best] + this.duration[best] < ticks - slack) return -1;
    return best;
  }

  /** Lane of a step. @param {number} step */
  laneOf(step) {
    let low = 0, high = this.laneCount - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.laneFirst[middle] <= step) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** @param {number} step @returns {StepClass} */
  classOf(step) {
    return STEP_CLASSES[this.kindClass[this.kind[step]]];
  }

  /** Start of a step in picoseconds. @param {number} step */
  startOf(step) {
    return this.start[step] * this.tick;
  }

  /** End of a step in picoseconds. @param {number} step */
  endOf(step) {
    return (this.start[step] + this.duration[step]) * this.tick;
  }

  /** @param {number} rank */
  rankText(rank) {
    return this.index.rank_names?.[rank] ?? `rank ${rank}`;
  }

  /** Name of a lane; the lane's own name follows if the rank has several lanes. @param {number} lane */
  laneText(lane) {
    const rank = this.laneRank[lane];
    const single = this.laneRank[lane - 1] !== rank && this.laneRank[lane + 1] !== rank;
    const name = this.index.lanes?.names[this.laneName[lane]];
    return single || !name ? this.rankText(rank) : `${this.rankText(rank)} ${name}`;
  }

  /** @param {number} chunk */
  chunkText(chunk) {
    return this.index.chunks?.names?.[chunk] ?? `chunk ${chunk}`;
  }

  /** Number of the step in its source, or its index. @param {number} step */
  stepNumber(step) {
    return this.details.number?.[step] ?? step;
  }

  /** Whether the step carries the chunk. @param {number} step @param {number} chunk */
  carries(step, chunk) {
    const first = this.details.chunk?.[step] ?? -1;
    return first >= 0 && first <= chunk && chunk < first + (this.details.chunks?.[step] ?? 1);
  }

  /** Steps that carry the chunk, by start; at most `limit`. @param {number} chunk @param {number} limit */
  routeOf(chunk, limit) {
    const { chunk: first, chunks } = this.details;
    /** @type {number[]} */
    const steps = [];
    if (!first) return steps;
    for (let i = 0; i < this.stepCount && steps.length < limit; i++) {
      if (first[i] >= 0 && first[i] <= chunk && chunk < first[i] + (chunks ? chunks[i] : 1)) steps.push(i);
    }
    return steps.sort((a, b) => this.start[a] - this.start[b] || a - b);
  }
}
