/** Panel "bytes from rank to rank": data that the visible window's sends carry, as a matrix. */

import { CanvasPanel } from "./panel.js";
import { colourParts, loadParts } from "./theme.js";
import { axisTicks, bytesText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */

/** Matrices of more ranks are summed in blocks of ranks. */
const LARGEST_SIDE = 512;
const MARGIN = 40;
/** Milliseconds without change of the window after which the matrix is computed again. */
const QUIET_MS = 150;

export class MatrixPanel extends CanvasPanel {
  /** @param {PageContext} page @param {number} run */
  constructor(page, run) {
    const name = page.runs.length > 1 ? `: ${page.runs[run].index.name}` : "";
    super(page, `Bytes from rank to rank${name}`, "Matrix: rows are senders, columns are receivers.", 360);
    this.run = run;
    const { ranks } = page.runs[run].index;
    /** Ranks per row and column. */
    this.block = Math.ceil(ranks / LARGEST_SIDE);
    this.side = Math.ceil(ranks / this.block);
    this.bytes = new Float64Array(this.side * this.side);
    this.largest = 0;
    this.cell = 1;
    this.timer = 0;
    this.raster = document.createElement("canvas");
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("click", (event) => {
      const place = this.#placeOf(event);
      if (place) page.state.update({ run, rank: place.source * this.block, step: null });
    });
    this.compute();
  }

  /** Sum the bytes of the sends that start in the window. */
  compute() {
    const run = this.page.runs[this.run];
    const { peer, bytes } = run.details;
    if (!peer || !bytes) return;
    const { from, to } = this.page.state.values;
    const first = from / run.tick, last = to / run.tick;
    const isSend = run.index.kinds.map((kind) => kind.class === "send");
    this.bytes.fill(0);
    for (let lane = 0; lane < run.laneCount; lane++) {
      const row = Math.floor(run.laneRank[lane] / this.block) * this.side;
      const end = run.firstStartFrom(lane, last);
      for (let i = run.firstStartFrom(lane, first); i < end; i++) {
        if (isSend[run.kind[i]] && peer[i] >= 0) this.bytes[row + Math.floor(peer[i] / this.block)] += bytes[i];
      }
    }
    this.largest = this.bytes.reduce((a, b) => Math.max(a, b), 0);
  }

  /** @param {number} width */
  layout(width) {
    const room = Math.min(width - MARGIN - 70, 460);
    this.cell = Math.min(28, room / this.side);
    this.height = Math.max(80, Math.ceil(this.cell * this.side)) + MARGIN + 16;
  }

  /** @type {CanvasPanel["paint"]} */
  paint(surface) {
    const theme = this.page.theme(), { side, cell } = this;
    this.raster.width = this.raster.height = side;
    const context = /** @type {CanvasRenderingContext2D} */ (this.raster.getContext("2d"));
    const image = context.createImageData(side, side);
    const empty = colourParts(theme.paper);
    for (let i = 0; i < this.bytes.length; i++) {
      const parts = this.bytes[i] > 0 ? loadParts(0.1 + (0.9 * this.bytes[i]) / this.largest, theme) : empty;
      image.data.set([...parts, 255], i * 4);
    }
    context.putImageData(image, 0, 0);
    surface.image(this.raster, MARGIN, MARGIN, side * cell, side * cell);
    surface.frame(MARGIN, MARGIN, side * cell, side * cell, theme.faint);
    for (const tick of axisTicks(0, side - 1, Math.max(1, Math.min(side - 1, Math.floor((side * cell) / 34))))) {
      if (!Number.isInteger(tick)) continue;
      const middle = MARGIN + (tick + 0.5) * cell, text = String(tick * this.block);
      surface.text(text, middle, MARGIN - 8, { colour: theme.faint, align: "middle" });
      surface.text(text, MARGIN - 5, middle, { colour: theme.faint, align: "end" });
    }
    surface.text("to rank", MARGIN, 12, { colour: theme.faint });
    surface.text("from", 10, MARGIN + (side * cell) / 2, { colour: theme.faint, turn: -90, align: "middle" });
    this.#paintScale(surface, MARGIN + side * cell + 14);
  }

  /** @param {import("./surface.js").Surface} surface @param {number} x */
  #paintScale(surface, x) {
    const theme = this.page.theme();
    const height = Math.max(40, Math.min(120, this.side * this.cell));
    for (let y = 0; y < height; y += 2) {
      surface.rect(x, MARGIN + y, 10, 2, `rgb(${loadParts(0.1 + 0.9 * (1 - y / height), theme).join(",")})`);
    }
    surface.text(this.largest ? bytesText(this.largest) : "no data", x, MARGIN - 8, { colour: theme.faint });
    surface.text("0 B", x, MARGIN + height + 8, { colour: theme.faint });
  }

  /** Mark the row and the column of the selected rank. @type {CanvasPanel["paintOverlay"]} */
  paintOverlay(surface) {
    const { rank, run } = this.page.state.values;
    if (rank === null || run !== this.run) return;
    const place = MARGIN + Math.floor(rank / this.block) * this.cell, size = this.side * this.cell;
    const { accent } = this.page.theme();
    surface.frame(MARGIN, place, size, Math.max(2, this.cell), accent, 1.5);
    surface.frame(place, MARGIN, Math.max(2, this.cell), size, accent, 1.5);
  }

  /** @type {CanvasPanel["stateChanged"]} */
  stateChanged(changed) {
    if (changed.has("rank") || changed.has("run")) this.drawOverlay();
    if (!changed.has("from") && !changed.has("to")) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.compute();
      this.requestDrawing();
    }, QUIET_MS);
  }

  /** @param {MouseEvent} event */
  #placeOf(event) {
    const [x, y] = this.position(event);
    const target = Math.floor((x - MARGIN) / this.cell), source = Math.floor((y - MARGIN) / this.cell);
    const inside = target >= 0 && source >= 0 && target < this.side && source < this.side;
    return inside ? { source, target } : null;
  }

  /** @param {PointerEvent} event */
  #hover(event) {
    const place = this.#placeOf(event);
    if (!place) return this.page.tooltip.hide();
    const run = this.page.runs[this.run];
    const name = (/** @type {number} */ part) => {
      const first = part * this.block, last = Math.min(first + this.block, run.index.ranks) - 1;
      return first === last ? run.rankText(first) : `ranks ${first} to ${last}`;
    };
    const bytes = this.bytes[place.source * this.side + place.target];
    this.page.tooltip.show(event.clientX, event.clientY, [`${name(place.source)} → ${name(place.target)}`, `Sent in the window: ${bytesText(bytes)}`]);
  }
}
