/** What all panels share: time window, time cursor and selection; and its form in the address. */

import { addressTime, parseTime } from "./units.js";

/**
 * @typedef {object} ViewValues
 * @property {number} from  Start of the visible window in picoseconds.
 * @property {number} to
 * @property {number|null} cursor  Common time cursor in picoseconds.
 * @property {number} run  Selected run.
 * @property {number|null} step  Selected step of the run.
 * @property {number|null} rank  Selected rank.
 * @property {number|null} link  Selected link of the run.
 * @property {number|null} chunk  Chunk whose route is followed.
 */

/** Shortest window: one tenth of a nanosecond. */
const SHORTEST_PS = 100;

export class ViewState {
  /** @param {number} end Last moment of all runs in picoseconds. */
  constructor(end) {
    this.end = Math.max(1, end);
    /** @type {ViewValues} */
    this.values = {
      from: 0, to: this.end, cursor: null, run: 0, step: null, rank: null, link: null, chunk: null,
    };
    /** @type {((changed: Set<keyof ViewValues>) => void)[]} */
    this.listeners = [];
  }

  /** Change values and notify the listeners once, if a value differs. @param {Partial<ViewValues>} change */
  update(change) {
    const next = { ...this.values, ...change };
    if (change.from !== undefined || change.to !== undefined) Object.assign(next, this.#limited(next.from, next.to));
    /** @type {Set<keyof ViewValues>} */
    const changed = new Set();
    for (const key of /** @type {(keyof ViewValues)[]} */ (Object.keys(next))) {
      if (next[key] !== this.values[key]) changed.add(key);
    }
    this.values = next;
    if (changed.size > 0) for (const listener of this.listeners) listener(changed);
  }

  /** Window inside the run with a margin of 2 %. @param {number} from @param {number} to */
  #limited(from, to) {
    const margin = this.end * 0.02;
    let width = Math.min(Math.max(to - from, SHORTEST_PS), this.end + 2 * margin);
    const centre = (from + to) / 2;
    const start = Math.min(Math.max(centre - width / 2, -margin), this.end + margin - width);
    return { from: start, to: start + width };
  }

  /** Scale the window around a moment. @param {number} factor Below 1 magnifies. @param {number} [centre] */
  zoom(factor, centre = this.#zoomCentre()) {
    const { from, to } = this.values;
    const width = Math.max(SHORTEST_PS, (to - from) * factor);
    const start = centre - ((centre - from) / (to - from)) * width;
    this.update({ from: start, to: start + width });
  }

  #zoomCentre() {
    const { from, to, cursor } = this.values;
    return cursor !== null && cursor > from && cursor < to ? cursor : (from + to) / 2;
  }

  /** Move the window. @param {number} share Of its width; positive is later. */
  pan(share) {
    const { from, to } = this.values;
    this.update({ from: from + share * (to - from), to: to + share * (to - from) });
  }

  /** Text after `#` that restores the view. */
  toAddress() {
    const { from, to, cursor, run, step, rank, link, chunk } = this.values;
    const parts = [];
    if (run) parts.push(`run=${run}`);
    for (const [name, value] of Object.entries({ rank, step, link, chunk })) {
      if (value !== null) parts.push(`${name}=${value}`);
    }
    if (cursor !== null) parts.push(`t=${addressTime(cursor)}`);
    if (from > 0 || to < this.end) parts.push(`from=${addressTime(from)}`, `to=${addressTime(to)}`);
    return parts.join("&");
  }

  /**
   * Values that an address states; other parts of the address are ignored.
   * A moment outside the window moves the window.
   * @param {string} text Text after `#`.
   * @returns {Partial<ViewValues>}
   */
  fromAddress(text) {
    /** @type {Partial<ViewValues>} */
    const change = {};
    for (const part of text.split("&")) {
      const [name, value = ""] = part.split("=").map((piece) => safeDecode(piece));
      if (["run", "rank", "step", "link", "chunk"].includes(name) && /^\d+$/.test(value)) {
        change[/** @type {"run"} */ (name)] = Number(value);
      } else if (["t", "from", "to"].includes(name)) {
        const time = parseTime(value);
        if (time !== null) change[/** @type {"from"} */ (name === "t" ? "cursor" : name)] = time;
      }
    }
    return change;
  }
}

/** @param {string} text */
function safeDecode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
