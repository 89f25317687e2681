/** Panel "topology": links coloured by load, and data in flight at the time cursor. */

import { button, element } from "./dom.js";
import { busyTicks, firstTransferFrom } from "./links.js";
import { CanvasPanel } from "./panel.js";
import { fitText } from "./surface.js";
import { loadColour } from "./theme.js";
import { percentText, rateText, timeText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./run.js").LinkColumns} LinkColumns */
/** @typedef {{from: ArrayLike<number>, to: ArrayLike<number>, names: string[], bandwidth: ArrayLike<number>|null}} Edges */

/** Links that are drawn; the first ones of the list. */
const LARGEST_LINK_COUNT = 20_000;
/** Transfers up to which the loads follow the window in every frame. */
const LIVE_TRANSFER_COUNT = 50_000;
const QUIET_MS = 150;
const SLIDER_STEPS = 1000;
const ANIMATION_MS = 12_000;

export class TopologyPanel extends CanvasPanel {
  /**
   * @param {PageContext} page @param {number} run
   * @param {Edges} edges  Links between the topology's nodes.
   * @param {boolean} sameOrder  The edges are the links of the run's transfers.
   */
  constructor(page, run, edges, sameOrder) {
    const name = page.runs.length > 1 ? `: ${page.runs[run].index.name}` : "";
    super(page, `Topology${name}`, "Network with links coloured by load and data in flight at the time cursor.", 420);
    this.run = run;
    this.edges = edges;
    this.transfers = sameOrder ? page.runs[run].links : null;
    this.loads = new Float64Array(edges.from.length);
    this.playing = 0;
    this.timer = 0;
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("click", (event) => {
      const link = this.#linkAt(...this.position(event)), node = this.#nodeAt(...this.position(event));
      if (node >= 0 && page.runs[run].rankLane.has(node)) page.state.update({ run, rank: node, step: null });
      else if (link >= 0) page.state.update({ run, link });
    });
    this.time = element("output", { class: "time" });
    this.slider = element("input", {
      type: "range", min: "0", max: String(SLIDER_STEPS), value: "0", step: "1", "aria-label": "Time cursor",
    });
    this.slider.addEventListener("input", () =>
      page.state.update({ cursor: (Number(this.slider.value) / SLIDER_STEPS) * page.state.end }));
    this.play = button("Play", () => this.togglePlay(), { title: "Move the time cursor through the window (Space)" });
    if (!document.getElementById("play")) this.play.id = "play";
    if (this.transfers) {
      this.body.prepend(element("div", { class: "row slider" }, this.play, this.slider, this.time));
      this.body.append(element("p", { class: "hint" }, "Colour of a link: share of the visible window in which it transfers, 0 % ", element("span", { class: "load-scale", role: "img", "aria-label": "scale of colours" }), " 100 %. Dots: messages in flight at the cursor."));
    }
    this.#computeLoads();
  }

  get nodes() {
    return this.page.runs[this.run].index.topology?.nodes ?? [];
  }

  #computeLoads() {
    if (!this.transfers) return;
    const { tick } = this.page.runs[this.run];
    const { from, to } = this.page.state.values;
    for (let link = 0; link < this.loads.length; link++) {
      this.loads[link] = busyTicks(this.transfers, link, from / tick, to / tick) / ((to - from) / tick);
    }
  }

  /** Compute the loads: at once for few transfers, otherwise when the window rests. */
  #windowChanged() {
    clearTimeout(this.timer);
    const compute = () => {
      this.#computeLoads();
      this.requestDrawing();
    };
    if ((this.transfers?.start.length ?? 0) <= LIVE_TRANSFER_COUNT) compute();
    else this.timer = setTimeout(compute, QUIET_MS);
  }

  /** Start or stop the movement of the cursor through the visible window. */
  togglePlay() {
    this.play.textContent = this.playing ? "Play" : "Stop";
    if (this.playing) {
      cancelAnimationFrame(this.playing);
      this.playing = 0;
      return;
    }
    const { state } = this.page;
    let last = performance.now();
    const advance = (/** @type {number} */ now) => {
      const { from, to, cursor } = state.values;
      const next = Math.max(from, cursor ?? from) + ((now - last) / ANIMATION_MS) * (to - from);
      last = now;
      state.update({ cursor: next >= to ? from : next });
      this.playing = requestAnimationFrame(advance);
    };
    this.playing = requestAnimationFrame(advance);
  }

  /** Positions of the nodes on the surface. */
  positions() {
    const { nodes } = this;
    const xs = nodes.map((node) => node.x), ys = nodes.map((node) => node.y);
    const left = Math.min(...xs), top = Math.min(...ys);
    const wide = Math.max(...xs) - left, high = Math.max(...ys) - top;
    const margin = 44;
    return nodes.map((node) => [
      margin + (wide ? (node.x - left) / wide : 0.5) * (this.width - 2 * margin),
      margin + (high ? (node.y - top) / high : 0.5) * (this.height - 2 * margin),
    ]);
  }

  /** Ends of a link, moved aside so that both directions are visible. @param {number[][]} places @param {number} link */
  ends(places, link) {
    const [x1, y1] = places[this.edges.from[link]] ?? [0, 0], [x2, y2] = places[this.edges.to[link]] ?? [0, 0];
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const [dx, dy] = [(-(y2 - y1) / length) * 3, ((x2 - x1) / length) * 3];
    return [x1 + dx, y1 + dy, x2 + dx, y2 + dy];
  }

  /** @type {CanvasPanel["paint"]} */
  paint(surface) {
    const theme = this.page.theme(), places = this.positions(), { nodes, edges } = this;
    const { link: selected, run } = this.page.state.values;
    const count = Math.min(LARGEST_LINK_COUNT, edges.from.length);
    for (let link = 0; link < count; link++) {
      const load = this.loads[link];
      const chosen = link === selected && run === this.run;
      surface.line(this.ends(places, link), chosen ? theme.accent : load > 0 ? loadColour(load, theme) : this.transfers ? theme.grid : theme.faint, chosen ? 4 : load > 0 ? 2.5 : 1);
    }
    const names = nodes.length <= 80;
    const radius = nodes.length <= 40 ? 13 : nodes.length <= 200 ? 7 : 3;
    nodes.forEach((node, i) => {
      const [x, y] = places[i];
      const ring = i === this.page.state.values.rank ? theme.accent : theme.ink;
      if (node.kind === "switch") {
        surface.rect(x - radius, y - radius * 0.7, 2 * radius, 1.4 * radius, theme.paper);
        surface.frame(x - radius, y - radius * 0.7, 2 * radius, 1.4 * radius, ring, 1.5);
      } else surface.circle(x, y, radius, theme.paper, ring);
      if (!names) return;
      if (radius > 10 && node.kind !== "switch") surface.text(String(i), x, y, { colour: theme.ink, align: "middle", bold: true });
      const text = fitText(node.name, 110, 10);
      if (radius > 10 && node.name === String(i)) return;
      surface.text(text, x, y + radius + 9, { colour: theme.ink, size: 10, align: "middle", halo: theme.paper });
    });
  }

  /** Messages in flight at the cursor. @type {CanvasPanel["paintOverlay"]} */
  paintOverlay(surface) {
    const { cursor } = this.page.state.values;
    if (cursor === null || !this.transfers) return;
    const theme = this.page.theme(), places = this.positions(), { transfers } = this;
    const ticks = cursor / this.page.runs[this.run].tick;
    const count = Math.min(LARGEST_LINK_COUNT, this.loads.length);
    for (let link = 0; link < count; link++) {
      const i = firstTransferFrom(transfers, link, ticks + 1e-9) - 1;
      if (i < transfers.first[link] || ticks >= transfers.start[i] + transfers.duration[i]) continue;
      const [x1, y1, x2, y2] = this.ends(places, link);
      const share = (ticks - transfers.start[i]) / transfers.duration[i];
      surface.circle(x1 + (x2 - x1) * share, y1 + (y2 - y1) * share, 5, theme.accent, theme.paper);
    }
  }

  /** @type {CanvasPanel["stateChanged"]} */
  stateChanged(changed) {
    if (changed.has("from") || changed.has("to")) this.#windowChanged();
    else if (changed.has("rank") || changed.has("link")) this.requestDrawing();
    if (!changed.has("cursor")) return;
    const { cursor } = this.page.state.values;
    this.time.textContent = cursor === null ? "" : timeText(cursor, 7);
    this.slider.value = String(Math.round(((cursor ?? 0) / this.page.state.end) * SLIDER_STEPS));
    this.slider.setAttribute("aria-valuetext", this.time.textContent);
    this.drawOverlay();
  }

  /** @param {number} x @param {number} y */
  #nodeAt(x, y) {
    return this.positions().findIndex(([px, py]) => Math.hypot(x - px, y - py) < 13);
  }

  /** Nearest link within six pixels, or -1. @param {number} x @param {number} y */
  #linkAt(x, y) {
    const places = this.positions();
    let best = -1, nearest = 6;
    for (let link = 0; link < Math.min(LARGEST_LINK_COUNT, this.edges.from.length); link++) {
      const [x1, y1, x2, y2] = this.ends(places, link);
      const length = (x2 - x1) ** 2 + (y2 - y1) ** 2 || 1;
      const share = Math.min(1, Math.max(0, ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / length));
      const distance = Math.hypot(x - x1 - share * (x2 - x1), y - y1 - share * (y2 - y1));
      if (distance < nearest) [best, nearest] = [link, distance];
    }
    return best;
  }

  /** @param {PointerEvent} event */
  #hover(event) {
    const place = this.position(event), node = this.#nodeAt(...place);
    const { tooltip } = this.page;
    if (node >= 0) return tooltip.show(event.clientX, event.clientY, [this.nodes[node].name, `Kind: ${this.nodes[node].kind}`]);
    const link = this.#linkAt(...place);
    if (link < 0) return tooltip.hide();
    const { from, to, names, bandwidth } = this.edges;
    const name = (/** @type {number} */ i) => this.nodes[i]?.name ?? String(i);
    const lines = [names[link] || "Link", `${name(from[link])} → ${name(to[link])}`];
    if (this.transfers) lines.push(`Busy in the window: ${percentText(this.loads[link])}`);
    if (bandwidth && bandwidth[link] > 0) lines.push(`Bandwidth: ${rateText(bandwidth[link])}`);
    tooltip.show(event.clientX, event.clientY, lines);
  }
}
