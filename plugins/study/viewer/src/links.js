/** Panel "links over time": when each link transfers, and how long transfers queue before they start. */

import { element } from "./dom.js";
import { CanvasPanel } from "./panel.js";
import { fitText } from "./surface.js";
import { loadColour } from "./theme.js";
import { AXIS_HEIGHT, gutterWidth, paintTimeAxis } from "./timeline.js";
import { percentText, rateText, timeText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./run.js").LinkColumns} LinkColumns */

const ROW_HEIGHT = 16;
const LARGEST_ROW_COUNT = 28;
/** Transfers of a row up to which each is drawn as a rectangle; above, each pixel shows its busy share. */
const LARGEST_TRANSFER_COUNT = 300;

/**
 * First transfer of a link that starts at or after the moment.
 * @param {LinkColumns} links @param {number} link @param {number} ticks
 */
export function firstTransferFrom(links, link, ticks) {
  let low = links.first[link], high = links.first[link + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (links.start[middle] < ticks) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Ticks in which the link transfers in a window; transfers of a link are sorted by start.
 * Transfers that overlap count once each, so a shared link can exceed the window.
 * @param {LinkColumns} links @param {number} link @param {number} from @param {number} to
 */
export function busyTicks(links, link, from, to) {
  let busy = 0;
  for (let i = Math.max(links.first[link], firstTransferFrom(links, link, from) - 1); i < links.first[link + 1] && links.start[i] < to; i++) {
    busy += Math.max(0, Math.min(to, links.start[i] + links.duration[i]) - Math.max(from, links.start[i]));
  }
  return busy;
}

export class LinksPanel extends CanvasPanel {
  /** @param {PageContext} page @param {number} run */
  constructor(page, run) {
    const name = page.runs.length > 1 ? `: ${page.runs[run].index.name}` : "";
    super(page, `Links over time${name}`, "Transfers and queues of each link over time. The table of links is in the search field.", 200);
    this.run = run;
    this.top = 0;
    this.gutter = 110;
    this.element.classList.add("wide");
    const legend = [["send", "transfer"], ...(this.links.queued ? [["reduce", "queued before the transfer"]] : [])];
    this.body.prepend(element("ul", { class: "legend", "aria-label": "Colours of links" }, ...legend.map(([swatch, text]) =>
      element("li", {}, element("span", { class: `swatch ${swatch}` }), text))));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("click", (event) => this.#select(event));
    this.canvas.addEventListener("wheel", (event) => {
      const before = this.top;
      if (event.ctrlKey || event.shiftKey) return;
      this.#scroll(Math.sign(event.deltaY) * 2);
      if (this.top !== before) event.preventDefault();
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => {
      const lines = event.key === "ArrowDown" ? 2 : event.key === "ArrowUp" ? -2 : 0;
      if (!lines) return;
      event.stopPropagation();
      event.preventDefault();
      this.#scroll(lines);
    });
  }

  get data() {
    return this.page.runs[this.run];
  }

  get links() {
    return /** @type {LinkColumns} */ (this.data.links);
  }

  /** @param {number} lines */
  #scroll(lines) {
    this.top = Math.min(Math.max(0, this.top + lines), Math.max(0, this.links.from.length - LARGEST_ROW_COUNT));
    this.requestDrawing();
  }

  /** @param {number} width */
  layout(width) {
    this.gutter = gutterWidth(width);
    this.height = AXIS_HEIGHT + ROW_HEIGHT * Math.min(LARGEST_ROW_COUNT, Math.max(1, this.links.from.length)) + 4;
  }

  /** @type {CanvasPanel["paint"]} */
  paint(surface, width, height) {
    const theme = this.page.theme(), { state } = this.page;
    paintTimeAxis(surface, this.page, this.gutter, width, height);
    const from = state.values.from / this.data.tick, to = state.values.to / this.data.tick;
    const scale = (width - this.gutter - 4) / (to - from);
    const rows = Math.min(LARGEST_ROW_COUNT, this.links.from.length - this.top);
    for (let row = 0; row < rows; row++) {
      const link = this.top + row, y = AXIS_HEIGHT + row * ROW_HEIGHT;
      const selected = state.values.link === link && state.values.run === this.run;
      if (selected) surface.rect(0, y, 3, ROW_HEIGHT - 2, theme.accent);
      surface.text(fitText(this.data.index.links?.names[link] ?? "", this.gutter - 10), 6, y + ROW_HEIGHT / 2, { colour: selected ? theme.ink : theme.faint, bold: selected });
      surface.clip(this.gutter, y, width - this.gutter - 4, ROW_HEIGHT);
      const first = Math.max(this.links.first[link], firstTransferFrom(this.links, link, from) - 1);
      const last = firstTransferFrom(this.links, link, to);
      if (last - first <= LARGEST_TRANSFER_COUNT) this.#paintTransfers(surface, first, last, y, from, scale);
      else this.#paintShares(surface, link, y, from, to, width - this.gutter - 4);
      surface.unclip();
    }
  }

  /** Transfers as blue bars; queued time as a thin orange bar before them. @param {import("./surface.js").Surface} surface @param {number} first @param {number} last @param {number} y @param {number} from @param {number} scale */
  #paintTransfers(surface, first, last, y, from, scale) {
    const [send, , queue] = this.page.theme().classes;
    const { start, duration, queued } = this.links;
    for (let i = first; i < last; i++) {
      const x = this.gutter + (start[i] - from) * scale;
      const width = Math.max(1, duration[i] * scale);
      if (queued && queued[i] > 0) {
        const length = queued[i] * scale;
        surface.rect(x - length, y + ROW_HEIGHT / 2 - 2, length, 4, queue);
      }
      surface.rect(x, y + 1, width > 3 ? width - 0.5 : width, ROW_HEIGHT - 3, send);
    }
  }

  /** Busy share of the link in each pair of pixels. @param {import("./surface.js").Surface} surface @param {number} link @param {number} y @param {number} from @param {number} to @param {number} width */
  #paintShares(surface, link, y, from, to, width) {
    const theme = this.page.theme(), { links } = this;
    const count = Math.floor(width / 2), span = (to - from) / count;
    const busy = new Float64Array(count);
    for (let i = Math.max(links.first[link], firstTransferFrom(links, link, from) - 1); i < links.first[link + 1] && links.start[i] < to; i++) {
      const begin = Math.max(0, (links.start[i] - from) / span), end = Math.min(count, (links.start[i] + links.duration[i] - from) / span);
      for (let bin = Math.floor(begin); bin < end; bin++) busy[bin] += Math.min(end, bin + 1) - Math.max(begin, bin);
    }
    for (let bin = 0; bin < count; bin++) {
      if (busy[bin] > 0) surface.rect(this.gutter + bin * 2, y + 1, 2, ROW_HEIGHT - 3, loadColour(busy[bin], theme));
    }
  }

  /** @type {CanvasPanel["paintOverlay"]} */
  paintOverlay(surface, width, height) {
    const { cursor, from, to } = this.page.state.values;
    if (cursor === null || cursor < from || cursor > to) return;
    const x = this.gutter + ((cursor - from) / (to - from)) * (width - this.gutter - 4);
    surface.line([x, AXIS_HEIGHT - 6, x, height], this.page.theme().accent, 1.5);
  }

  /** @type {CanvasPanel["stateChanged"]} */
  stateChanged(changed) {
    const { link, run } = this.page.state.values;
    if (changed.has("link") && link !== null && run === this.run && (link < this.top || link >= this.top + LARGEST_ROW_COUNT)) {
      this.top = Math.min(link, Math.max(0, this.links.from.length - LARGEST_ROW_COUNT));
    }
    if (changed.has("from") || changed.has("to") || changed.has("link")) this.requestDrawing();
    else if (changed.has("cursor")) this.drawOverlay();
  }

  /** Link and transfer under an event; transfer -1 between transfers. @param {MouseEvent} event */
  #placeOf(event) {
    const [x, y] = this.position(event);
    const link = this.top + Math.floor((y - AXIS_HEIGHT) / ROW_HEIGHT);
    if (y < AXIS_HEIGHT || link >= this.links.from.length) return null;
    const { from, to } = this.page.state.values;
    const time = from + ((x - this.gutter) / (this.width - this.gutter - 4)) * (to - from);
    const transfer = firstTransferFrom(this.links, link, time / this.data.tick) - 1;
    const inside = transfer >= this.links.first[link] && time / this.data.tick < this.links.start[transfer] + this.links.duration[transfer];
    return { link, time, transfer: inside ? transfer : -1 };
  }

  /** @param {PointerEvent} event */
  #hover(event) {
    const place = this.#placeOf(event);
    if (!place) return this.page.tooltip.hide();
    const { data, links } = this, { link, transfer } = place;
    const { from, to } = this.page.state.values;
    const busy = busyTicks(links, link, from / data.tick, to / data.tick) * data.tick;
    const lines = [`Link ${data.index.links?.names[link]}`, `Busy in the window: ${percentText(busy / (to - from))}`];
    if (links.capacity) lines.push(`Capacity: ${rateText(links.capacity[link])}`);
    if (transfer >= 0) {
      lines.push(`Transfer starts: ${timeText(links.start[transfer] * data.tick, 9)}`, `Duration: ${timeText(links.duration[transfer] * data.tick)}`);
      if (links.queued) lines.push(`Queued before: ${timeText(links.queued[transfer] * data.tick)}`);
      const step = links.step?.[transfer] ?? -1;
      if (step >= 0) lines.push(`Sending step: ${data.stepNumber(step)} of ${data.laneText(data.laneOf(step))}`);
    }
    this.page.tooltip.show(event.clientX, event.clientY, lines);
  }

  /** @param {MouseEvent} event */
  #select(event) {
    const place = this.#placeOf(event);
    if (!place) return;
    const step = place.transfer >= 0 ? this.links.step?.[place.transfer] ?? -1 : -1;
    this.page.state.update({
      run: this.run, link: place.link, cursor: place.time,
      ...(step >= 0 ? { step, rank: this.data.laneRank[this.data.laneOf(step)] } : {}),
    });
  }
}
