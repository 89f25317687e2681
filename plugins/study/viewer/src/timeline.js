/** Panel "ranks x time": the lanes of all runs on one time axis, with hovering, panning and zooming. */

import { button, element } from "./dom.js";
import { stepFacts } from "./facts.js";
import { STEP_CLASSES } from "./format.js";
import { LARGEST_RECTANGLE_COUNT, drawLanes, stepText, visibleLanes } from "./lanes.js";
import { CanvasPanel } from "./panel.js";
import { Pyramid } from "./pyramid.js";
import { fitText } from "./surface.js";
import { axisTicks, timeText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./surface.js").Surface} Surface */
/** @typedef {import("./run.js").Run} Run */
/** @typedef {{run: number, step: number}} StepPlace */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */

export const AXIS_HEIGHT = 26;
const RUN_HEADER = 20;
const LARGEST_LANE_HEIGHT = 40;
/** Steps of a chunk's route that are drawn. */
const LARGEST_ROUTE = 4000;

export class TimelinePanel extends CanvasPanel {
  /** @param {PageContext} page @param {Pyramid[]} pyramids */
  constructor(page, pyramids) {
    super(page, "Ranks over time", "Steps of each rank over time. Use the keys listed in the help (?) or the search field.", 300);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.pyramids = pyramids;
    this.top = 0;
    /** Pixels per lane; 0 fits all lanes into the panel. */
    this.laneHeight = 0;
    /** @type {StepPlace|null} */
    this.hovered = null;
    /** Pointer time in picoseconds. @type {number|null} */
    this.pointerTime = null;
    /** Steps that carry the followed chunk, for each run. @type {number[][]} */
    this.routes = [];
    /** Steps without counterpart in the other run, for each run. @type {(Uint8Array|null)[]} */
    this.unmatched = [];
    /** Text about differences, for each run. @type {string[]} */
    this.runNotes = [];
    /** Drawing method of each run in the last frame. @type {string[]} */
    this.methods = [];
    /** @type {{x: number, y: number, from: number, to: number, top: number, range: boolean, moved: boolean}|null} */
    this.drag = null;
    /** Visible steps up to which rectangles with text are drawn. */
    this.rectangleLimit = LARGEST_RECTANGLE_COUNT;
    this.gutter = 120;
    this.area = 200;
    this.tools.prepend(
      button("+", () => page.state.zoom(0.5), { "aria-label": "Magnify time", title: "Magnify time (+)" }),
      button("−", () => page.state.zoom(2), { "aria-label": "Reduce time", title: "Reduce time (-)" }),
      button("Whole run", () => page.state.update({ from: 0, to: page.state.end }), { title: "Show the whole run (0)" }));
    this.body.prepend(this.#legend());
    this.body.append(element("p", { class: "hint" },
      "Ctrl + wheel magnifies time, Shift + wheel or dragging moves, Shift + dragging selects a window, Alt + wheel changes the height of lanes; ? lists all keys."));
    this.#listen();
  }

  #legend() {
    const list = element("ul", { class: "legend", "aria-label": "Colours of steps" });
    /** @type {Map<string, Set<string>>} */
    const names = new Map();
    for (const run of this.page.runs) {
      for (const [number, kind] of run.index.kinds.entries()) {
        if (!run.usedKinds[number]) continue;
        const stepClass = STEP_CLASSES.includes(kind.class) ? kind.class : "other";
        names.set(stepClass, (names.get(stepClass) ?? new Set()).add(kind.name));
      }
    }
    for (const [stepClass, kinds] of names) {
      list.append(element("li", {}, element("span", { class: `swatch ${stepClass}` }), [...kinds].slice(0, 6).join(", ")));
    }
    return list;
  }

  /** Heights of the panel and of lanes for the number of lanes and runs. @param {number} width */
  layout(width) {
    this.gutter = gutterWidth(width);
    const runs = Math.max(1, this.page.runs.length);
    const lanes = this.laneLimit();
    const room = Math.max(220, (window.innerHeight * 0.62 - AXIS_HEIGHT) / runs - this.header());
    if (!this.laneHeight) this.laneHeight = Math.min(26, room / Math.max(1, lanes));
    this.area = Math.min(room, Math.max(24, Math.ceil(lanes * this.laneHeight)));
    this.top = Math.min(Math.max(0, this.top), Math.max(0, lanes - this.area / this.laneHeight));
    this.height = Math.ceil(AXIS_HEIGHT + runs * (this.area + this.header()) + 6);
  }

  header() {
    return this.page.runs.length > 1 ? RUN_HEADER : 0;
  }

  laneLimit() {
    return Math.max(1, ...this.page.runs.map((run) => run.laneCount));
  }

  /** Part of the surface that shows a run, with the window in its ticks. @param {number} index @param {number} [width] */
  view(index, width = this.width) {
    const run = this.page.runs[index];
    const { from, to } = this.page.state.values;
    // A run with fewer lanes than the others has higher lanes; all runs scroll by the same share.
    const share = Math.max(1, run.laneCount) / this.laneLimit();
    const laneHeight = Math.min(Math.max(26, this.laneHeight), this.laneHeight / share);
    return {
      x: this.gutter, y: AXIS_HEIGHT + index * (this.area + this.header()) + this.header(),
      width: width - this.gutter - 4, height: this.area, from: from / run.tick, to: to / run.tick,
      top: this.top * share, laneHeight,
    };
  }

  /** @type {CanvasPanel["paint"]} */
  paint(surface, width, height) {
    const theme = this.page.theme();
    paintTimeAxis(surface, this.page, this.gutter, width, height);
    this.methods = this.page.runs.map((run, index) => {
      const view = this.view(index, width);
      if (this.header()) {
        const note = this.runNotes[index] ? ` — ${this.runNotes[index]}` : "";
        surface.text(fitText(`${run.index.name}: ${timeText(run.end)}${note}`, width - 8, 12), 4, view.y - RUN_HEADER / 2, { colour: theme.ink, size: 12, bold: true });
      }
      surface.clip(view.x, view.y, view.width, view.height);
      const method = drawLanes(surface, run, this.pyramids[index], view, theme, this.rectangleLimit);
      if (method === "rectangles" && this.unmatched[index]) this.#markUnmatched(surface, index);
      const end = this.timeX(run.end);
      surface.line([end, view.y, end, view.y + view.height], theme.mark, 1.5, [6, 3]);
      surface.unclip();
      this.#paintLaneNames(surface, run, view);
      return method;
    });
  }

  /** @param {Surface} surface @param {Run} run @param {ReturnType<TimelinePanel["view"]>} view */
  #paintLaneNames(surface, run, view) {
    const { ink, faint, accent } = this.page.theme();
    const { first, last } = visibleLanes(run, view);
    const small = view.laneHeight < 12, size = Math.min(12, Math.max(10, view.laneHeight - 2));
    let free = -Infinity;
    surface.clip(0, view.y, this.gutter, view.height);
    for (let lane = first; lane <= last; lane++) {
      const rank = run.laneRank[lane], starts = run.laneRank[lane - 1] !== rank;
      const selected = rank === this.page.state.values.rank;
      const y = view.y + (lane + 0.5 - view.top) * view.laneHeight;
      if (selected) surface.rect(0, y - view.laneHeight / 2, 3, Math.max(3, view.laneHeight), accent);
      // Small lanes have the name of their rank only, where there is room for it.
      if (small && (!starts || (y < free && !selected))) continue;
      const text = small ? run.rankText(rank) : starts || this.gutter < 100 ? run.laneText(lane) : `   ${run.index.lanes?.names[run.laneName[lane]] ?? ""}`;
      surface.text(fitText(text, this.gutter - 10), 6, Math.max(y, view.y + 7), { colour: selected ? ink : faint, size, bold: selected });
      free = Math.max(y, view.y + 7) + 12;
    }
    surface.unclip();
  }

  /** Mark steps without counterpart in the other run by a bar at their lower edge. @param {Surface} surface @param {number} index */
  #markUnmatched(surface, index) {
    const run = this.page.runs[index], view = this.view(index);
    const unmatched = this.unmatched[index];
    const { first, last } = visibleLanes(run, view);
    for (let lane = first; lane <= last; lane++) {
      for (let i = run.firstStepAfter(lane, view.from); i < run.laneFirst[lane + 1] && run.start[i] < view.to; i++) {
        if (!unmatched?.[i]) continue;
        const box = this.stepBox(index, i), bar = Math.min(4, box.height / 4);
        surface.rect(box.x, box.y + box.height - bar - 1, box.width, bar, this.page.theme().accent);
      }
    }
  }

  /** Horizontal position of a moment. @param {number} picoseconds */
  timeX(picoseconds) {
    const { from, to } = this.page.state.values;
    return this.gutter + ((picoseconds - from) / (to - from)) * (this.width - this.gutter - 4);
  }

  /** Moment at a horizontal position. @param {number} x */
  timeAt(x) {
    const { from, to } = this.page.state.values;
    return from + ((x - this.gutter) / (this.width - this.gutter - 4)) * (to - from);
  }

  /** Rectangle of a step; may lie outside the view. @param {number} index @param {number} step @returns {Box} */
  stepBox(index, step) {
    const run = this.page.runs[index], view = this.view(index);
    const x = this.timeX(run.startOf(step));
    return {
      x, y: view.y + (run.laneOf(step) - view.top) * view.laneHeight,
      width: Math.max(1, this.timeX(run.endOf(step)) - x), height: Math.max(1, view.laneHeight),
    };
  }

  /** Step under a position, or null. @param {number} x @param {number} y @returns {StepPlace|null} */
  stepAtPosition(x, y) {
    const place = this.laneAtPosition(x, y);
    if (!place || x < this.gutter) return null;
    const run = this.page.runs[place.run];
    const pixel = (this.timeAt(x + 1) - this.timeAt(x)) / run.tick;
    const step = run.stepAt(place.lane, this.timeAt(x) / run.tick, pixel);
    return step < 0 ? null : { run: place.run, step };
  }

  /** @param {number} _x @param {number} y */
  laneAtPosition(_x, y) {
    for (let index = 0; index < this.page.runs.length; index++) {
      const view = this.view(index);
      if (y < view.y || y >= view.y + view.height) continue;
      const lane = Math.floor(view.top + (y - view.y) / view.laneHeight);
      return lane < this.page.runs[index].laneCount ? { run: index, lane } : null;
    }
    return null;
  }

  /** @type {CanvasPanel["paintOverlay"]} */
  paintOverlay(surface, width, height) {
    const theme = this.page.theme();
    const { cursor, run, step, chunk } = this.page.state.values;
    surface.clip(this.gutter, 0, width - this.gutter - 4, height);
    if (chunk !== null) this.routes.forEach((steps, index) => this.#paintRoute(surface, index, steps));
    if (step !== null && this.page.runs[run]) this.#paintStepMarks(surface, { run, step }, theme.accent, 2.5);
    if (this.hovered) this.#paintStepMarks(surface, this.hovered, theme.mark, 1.5);
    if (cursor !== null) {
      const x = this.timeX(cursor);
      surface.line([x, AXIS_HEIGHT - 6, x, height], theme.accent, 1.5);
      const text = timeText(cursor, 9);
      surface.rect(x + 1, 1, text.length * 7 + 8, AXIS_HEIGHT - 6, theme.paper);
      surface.text(text, x + 4, 10, { colour: theme.accent, bold: true });
    }
    if (this.pointerTime !== null) {
      const x = this.timeX(this.pointerTime);
      surface.line([x, AXIS_HEIGHT - 4, x, height], theme.faint, 1, [2, 3]);
    }
    if (this.drag?.range && this.pointerTime !== null) {
      const x = this.timeX(this.pointerTime);
      surface.frame(Math.min(x, this.drag.x), AXIS_HEIGHT, Math.abs(x - this.drag.x), height - AXIS_HEIGHT - 2, theme.accent, 2);
    }
    surface.unclip();
  }

  /** Outline a step and connect it with the other end of its message, or with the rank it waits for. @param {Surface} surface @param {StepPlace} place @param {string} colour @param {number} stroke */
  #paintStepMarks(surface, { run, step }, colour, stroke) {
    const data = this.page.runs[run];
    const box = this.stepBox(run, step);
    surface.frame(box.x, box.y, box.width, Math.max(2, box.height - 1), colour, stroke);
    const partner = data.details.partner?.[step] ?? -1;
    if (partner >= 0) {
      const other = this.stepBox(run, partner);
      surface.frame(other.x, other.y, other.width, Math.max(2, other.height - 1), colour, stroke);
      const sends = data.classOf(step) === "send";
      this.#paintArrow(surface, sends ? box : other, sends ? other : box, colour, stroke);
    } else if (data.classOf(step) === "wait") {
      const awaited = data.rankLane.get(data.details.waits_for?.[step] ?? -1);
      if (awaited === undefined) return;
      const view = this.view(run);
      const y = view.y + (awaited + 0.5 - view.top) * view.laneHeight;
      const x = Math.min(box.x + box.width, this.width - 8);
      surface.line([x, box.y + box.height / 2, x, y], colour, stroke, [5, 3]);
      surface.circle(x, y, 4, colour);
    }
  }

  /** Arrow from the middle of one box to the end of another. @param {Surface} surface @param {Box} from @param {Box} to @param {string} colour @param {number} stroke */
  #paintArrow(surface, from, to, colour, stroke) {
    const x1 = from.x + from.width / 2, y1 = from.y + from.height / 2;
    const x2 = to.x + to.width, y2 = to.y + to.height / 2;
    surface.line([x1, y1, x2, y2], colour, stroke);
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
    surface.area([x2, y2, x2 - 8 * ux + 4 * uy, y2 - 8 * uy - 4 * ux, x2 - 8 * ux - 4 * uy, y2 - 8 * uy + 4 * ux], colour);
  }

  /** Fade all steps except those that carry the chunk, and connect them. @param {Surface} surface @param {number} index @param {number[]} steps */
  #paintRoute(surface, index, steps) {
    const theme = this.page.theme(), view = this.view(index), run = this.page.runs[index];
    surface.clip(view.x, view.y, view.width, view.height);
    surface.rect(view.x, view.y, view.width, view.height, theme.veil);
    for (const step of steps) {
      const box = this.stepBox(index, step);
      if (box.x > this.width || box.x + box.width < view.x) continue;
      surface.rect(box.x, box.y, Math.max(2, box.width), Math.max(2, box.height - 1), theme.classes[run.kindClass[run.kind[step]]]);
    }
    for (const step of steps) {
      const partner = run.details.partner?.[step] ?? -1;
      if (partner < 0 || run.classOf(step) !== "send") continue;
      this.#paintArrow(surface, this.stepBox(index, step), this.stepBox(index, partner), theme.mark, 1.5);
    }
    surface.unclip();
  }

  /** @type {CanvasPanel["stateChanged"]} */
  stateChanged(changed) {
    if (changed.has("chunk")) {
      const { chunk } = this.page.state.values;
      this.routes = chunk === null ? [] : this.page.runs.map((run) => run.routeOf(chunk, LARGEST_ROUTE));
    }
    if (changed.has("step") || changed.has("rank")) this.#scrollToSelection();
    if (changed.has("from") || changed.has("to") || changed.has("rank") || changed.has("step")) this.requestDrawing();
    else this.drawOverlay();
  }

  /** Scroll the lanes so that the selected step or rank is visible. */
  #scrollToSelection() {
    const { run, step, rank } = this.page.state.values;
    const data = this.page.runs[run];
    const lane = step !== null ? data?.laneOf(step) : rank !== null ? data?.rankLane.get(rank) : undefined;
    if (lane === undefined || !this.laneHeight) return;
    const visible = this.area / this.laneHeight;
    if (lane < this.top || lane + 1 > this.top + visible) this.top = lane - visible / 2;
  }

  /** Multiply the height of lanes, and keep a lane in place. @param {number} factor @param {number} [share] Position in the visible lanes, 0 to 1. */
  scaleLanes(factor, share = 0.5) {
    const anchor = this.top + (share * this.area) / this.laneHeight;
    const smallest = Math.min(26, this.area / this.laneLimit());
    this.laneHeight = Math.min(LARGEST_LANE_HEIGHT, Math.max(smallest, this.laneHeight * factor));
    this.top = anchor - (share * this.area) / this.laneHeight;
    this.requestDrawing();
  }

  /** @param {number} lanes */
  scrollLanes(lanes) {
    this.top += lanes;
    this.requestDrawing();
  }

  #listen() {
    const { canvas, page } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const [x, y] = this.position(event);
      const { from, to } = page.state.values;
      this.drag = { x, y, from, to, top: this.top, range: event.shiftKey, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.#pointerMoved(event));
    canvas.addEventListener("pointerup", (event) => this.#pointerReleased(event));
    canvas.addEventListener("pointerleave", () => {
      this.hovered = null;
      this.pointerTime = null;
      this.drawOverlay();
    });
    canvas.addEventListener("dblclick", (event) => {
      const place = this.stepAtPosition(...this.position(event));
      if (place) page.goToStep(place.run, place.step);
    });
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
  }

  /** @param {PointerEvent} event */
  #pointerMoved(event) {
    const [x, y] = this.position(event);
    this.pointerTime = x >= this.gutter ? this.timeAt(x) : null;
    if (this.drag && Math.hypot(x - this.drag.x, y - this.drag.y) > 3) this.drag.moved = true;
    if (this.drag?.moved && !this.drag.range) {
      const { drag } = this;
      const shift = ((drag.x - x) / (this.width - this.gutter - 4)) * (drag.to - drag.from);
      this.top = drag.top + (drag.y - y) / this.laneHeight;
      this.page.state.update({ from: drag.from + shift, to: drag.to + shift });
      this.requestDrawing();
      return;
    }
    this.hovered = this.stepAtPosition(x, y);
    this.drawOverlay();
    this.#showTooltip(event);
  }

  /** @param {PointerEvent} event */
  #showTooltip(event) {
    if (!this.hovered) return this.page.tooltip.hide();
    const { run, step } = this.hovered;
    const data = this.page.runs[run];
    const lines = stepFacts(data, step).map(([label, text]) => `${label}: ${text}`);
    if (this.page.runs.length > 1) lines.push(`Run: ${data.index.name}`);
    if (this.unmatched[run]?.[step]) lines.push("No counterpart in the other run");
    this.page.tooltip.show(event.clientX, event.clientY, [stepText(data, step), ...lines]);
  }

  /** @param {PointerEvent} event */
  #pointerReleased(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    const [x, y] = this.position(event);
    if (drag.range && drag.moved) {
      const [from, to] = [this.timeAt(drag.x), this.timeAt(x)].sort((a, b) => a - b);
      this.page.state.update({ from, to });
    } else if (!drag.moved) {
      const place = this.stepAtPosition(x, y), lane = this.laneAtPosition(x, y);
      this.page.state.update({
        run: lane?.run ?? this.page.state.values.run, step: place?.step ?? null,
        rank: lane ? this.page.runs[lane.run].laneRank[lane.lane] : null,
        cursor: x >= this.gutter ? this.timeAt(x) : this.page.state.values.cursor,
      });
    }
  }

  /** @param {WheelEvent} event */
  #wheel(event) {
    const [x, y] = this.position(event);
    const distance = event.deltaY || event.deltaX;
    if (event.ctrlKey || event.metaKey) this.page.state.zoom(Math.exp(distance / 300), this.timeAt(Math.max(this.gutter, x)));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.page.state.pan(distance / 800);
    else if (event.altKey) this.scaleLanes(Math.exp(-distance / 300), Math.min(1, Math.max(0, (y - AXIS_HEIGHT) / this.area)));
    else if (this.laneLimit() * this.laneHeight > this.area + 1) {
      const before = this.top;
      const largest = this.laneLimit() - this.area / this.laneHeight;
      this.top = Math.min(Math.max(0, before + distance / this.laneHeight), largest);
      if (this.top === before) return;
      this.requestDrawing();
    } else return;
    event.preventDefault();
  }
}

/** Width of the names beside the time axis, equal in all panels over time. @param {number} width */
export function gutterWidth(width) {
  return width < 700 ? 84 : 150;
}

/**
 * Draw the time axis with grid lines; tick texts have as many digits as the window needs.
 * @param {Surface} surface @param {PageContext} page @param {number} left @param {number} width @param {number} height
 */
export function paintTimeAxis(surface, page, left, width, height) {
  const { from, to } = page.state.values;
  const theme = page.theme();
  const ticks = axisTicks(from, to, Math.max(2, Math.floor((width - left) / 110)));
  const digits = Math.min(15, 3 + Math.max(0, Math.ceil(Math.log10(Math.max(Math.abs(from), Math.abs(to)) / (to - from)))));
  for (const tick of ticks) {
    const x = left + ((tick - from) / (to - from)) * (width - left - 4);
    surface.line([x, AXIS_HEIGHT - 8, x, height], theme.grid, 1);
    if (width - x > 34) surface.text(timeText(tick, digits), x + 3, 9, { colour: theme.faint });
  }
  surface.line([left, AXIS_HEIGHT - 2, width, AXIS_HEIGHT - 2], theme.faint, 1);
}
