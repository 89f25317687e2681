/** Panels of a comparison: bandwidth over size with winner bands, and a table of all times. */

import { button, element, factList } from "./dom.js";
import { CanvasPanel, Panel } from "./panel.js";
import { sortableTable } from "./sortable_table.js";
import { fitText } from "./surface.js";
import { bytesText, rateText, timeText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./format.js").Comparison} Comparison */
/** @typedef {import("./format.js").Curve} Curve */

const LEFT = 66;
const BOTTOM = 54;
/** Simulated curves up to which all are drawn at first. */
const LARGEST_CURVE_COUNT = 7;

/** Lines by kind of curve, so that kinds differ without colour. @type {Record<string, number[]>} */
const DASHES = { simulated: [], bound: [2, 4], measured: [], runtime: [9, 4] };

/** Bandwidth of a curve at the size with a number, in bytes per second. @param {Comparison} comparison @param {Curve} curve @param {number} i */
function rateOf(comparison, curve, i) {
  return curve.rates ? curve.rates[i] : bandwidth(comparison.sizes[i], curve.time_ns[i]);
}

/** Bandwidth in bytes per second: size divided by time. @param {number} size @param {number|null|undefined} timeNs */
function bandwidth(size, timeNs) {
  return timeNs ? size / (timeNs * 1e-9) : null;
}

/**
 * Bandwidths of the grid lines: 1, 2 and 5 times powers of ten, from at most the smallest to at least the
 * largest value; only powers of ten beyond three decades.
 * @param {number} smallest @param {number} largest
 */
function gridRates(smallest, largest) {
  const first = Math.floor(Math.log10(smallest)), last = Math.ceil(Math.log10(largest));
  const factors = last - first > 3 ? [1] : [1, 2, 5];
  /** @type {number[]} */
  const rates = [];
  for (let power = first; power <= Math.max(last, first + 1); power++) rates.push(...factors.map((factor) => factor * 10 ** power));
  const begin = Math.max(0, rates.findLastIndex((rate) => rate <= smallest)), end = rates.findIndex((rate) => rate >= largest && rate > rates[begin]);
  return rates.slice(begin, end < 0 ? undefined : end + 1);
}

export class CurvesPanel extends CanvasPanel {
  /** @param {PageContext} page @param {Comparison} comparison */
  constructor(page, comparison) {
    super(page, comparison.title || "Bandwidth over size", `Bandwidth over size of ${comparison.algorithms.length} algorithms; the table below has all values.`, 400);
    this.comparison = comparison;
    this.element.classList.add("wide");
    /** Curves that are not shown. @type {Set<number>} */
    this.hidden = new Set();
    /** @type {{curve: number, point: number}|null} */
    this.hovered = null;
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("pointerleave", () => {
      this.hovered = null;
      this.drawOverlay();
    });
    const simulated = comparison.curves.filter(({ kind }) => kind === "simulated").length;
    const winners = new Set((comparison.winners ?? []).map(({ algorithm }) => algorithm));
    if (simulated > LARGEST_CURVE_COUNT && winners.size) {
      comparison.curves.forEach((curve, i) => {
        if (curve.kind === "simulated" && !winners.has(curve.algorithm)) this.hidden.add(i);
      });
    }
    /** Algorithms in the order of colours: the visible ones first. */
    this.order = [...new Set([...comparison.curves.keys()].sort((a, b) => Number(this.hidden.has(a)) - Number(this.hidden.has(b))).map((i) => comparison.curves[i].algorithm))];
    /** Check box of each curve. @type {HTMLInputElement[]} */
    this.boxes = [];
    this.legend = element("ul", { class: "legend", "aria-label": "Curves" });
    this.swatches = comparison.curves.map((curve, i) => {
      const box = element("input", { type: "checkbox", checked: !this.hidden.has(i), id: `${this.id}curve${i}` });
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(i);
        else this.hidden.add(i);
        this.requestDrawing();
      });
      this.boxes.push(box);
      const swatch = element("span", { class: "swatch" });
      this.legend.append(element("li", {}, box, element("label", { for: `${this.id}curve${i}` }, swatch, this.#curveName(curve))));
      return swatch;
    });
    if (comparison.facts?.length) this.body.prepend(factList(comparison.facts));
    if (this.hidden.size) {
      this.body.append(element("div", { class: "row" },
        element("span", { class: "hint" }, "Only the fastest algorithms are drawn at first."),
        button("Draw all", () => this.#drawAll())));
    }
    this.body.append(this.legend, element("p", { class: "hint" }, "Bandwidth: size divided by time. Dotted: bound; dashed: choice of a runtime; squares: measured, with the range of repetitions."));
  }

  /** @param {Curve} curve */
  #curveName(curve) {
    const name = this.comparison.algorithms[curve.algorithm]?.name ?? "";
    return name.toLowerCase().includes(curve.kind) ? name : `${name} (${curve.kind})`;
  }

  #drawAll() {
    this.hidden.clear();
    for (const box of this.boxes) box.checked = true;
    this.requestDrawing();
  }

  /** @param {number} curve */
  #colour(curve) {
    return this.#algorithmColour(this.comparison.curves[curve].algorithm);
  }

  /** @param {number|null} algorithm */
  #algorithmColour(algorithm) {
    const { series, faint } = this.page.theme();
    return algorithm === null ? faint : series[Math.max(0, this.order.indexOf(algorithm)) % series.length];
  }

  /** Ranges of the axes: logarithms of sizes and of bandwidths, and the bandwidths with a line. */
  #ranges() {
    const { sizes, curves } = this.comparison;
    const values = curves.flatMap((curve) => sizes.map((_, i) => rateOf(this.comparison, curve, i))).filter((value) => value !== null && value > 0);
    const largest = Math.max(1, .../** @type {number[]} */ (values)), smallest = Math.min(largest, .../** @type {number[]} */ (values));
    const lines = gridRates(smallest, largest);
    return { size: [Math.log2(sizes[0] || 1), Math.log2(sizes[sizes.length - 1] || 2)], rate: [Math.log10(lines[0]), Math.log10(lines[lines.length - 1])], lines };
  }

  /** Position of a size and a bandwidth. @param {number} size @param {number} rate */
  #place(size, rate) {
    const { size: [s0, s1], rate: [r0, r1] } = this.#ranges();
    return [
      LEFT + ((Math.log2(size || 1) - s0) / (s1 - s0 || 1)) * (this.width - LEFT - 16),
      10 + (1 - (Math.log10(rate) - r0) / (r1 - r0 || 1)) * (this.height - BOTTOM - 10),
    ];
  }

  /** @type {CanvasPanel["paint"]} */
  paint(surface, width, height) {
    const theme = this.page.theme(), { sizes, curves } = this.comparison;
    this.swatches.forEach((swatch, i) => {
      swatch.style.background = this.#colour(i);
    });
    const { lines } = this.#ranges(), lowest = lines[0];
    for (const rate of lines) {
      const y = this.#place(1, rate)[1];
      surface.line([LEFT, y, width - 16, y], theme.grid);
      surface.text(rateText(rate), LEFT - 6, y, { colour: theme.faint, align: "end" });
    }
    let lastLabel = -100;
    for (const size of sizes) {
      const x = this.#place(size, lowest)[0];
      surface.line([x, 10, x, height - BOTTOM], theme.grid);
      if (x - lastLabel < 62) continue;
      lastLabel = x;
      surface.text(bytesText(size), Math.min(x, width - 26), height - BOTTOM + 12, { colour: theme.faint, align: "middle" });
    }
    this.#paintWinners(surface, height - 30);
    curves.forEach((_, i) => !this.hidden.has(i) && this.#paintCurve(surface, i));
  }

  /** Horizontal range of a winner: half of the way to the neighbouring sizes. @param {import("./format.js").Winner} winner */
  #winnerRange(winner) {
    const { sizes } = this.comparison;
    const x = (/** @type {number} */ size) => this.#place(size, 1)[0];
    const first = Math.max(0, sizes.findIndex((size) => size >= winner.from_bytes));
    let last = sizes.findLastIndex((size) => size <= winner.to_bytes);
    if (last < first) last = first;
    return [(x(sizes[first]) + x(sizes[Math.max(0, first - 1)])) / 2, (x(sizes[last]) + x(sizes[Math.min(sizes.length - 1, last + 1)])) / 2];
  }

  /** Bands of the fastest algorithm. @param {import("./surface.js").Surface} surface @param {number} y */
  #paintWinners(surface, y) {
    for (const winner of this.comparison.winners ?? []) {
      const [x1, x2] = this.#winnerRange(winner);
      surface.rect(x1, y, Math.max(3, x2 - x1 - 1), 8, this.#algorithmColour(winner.algorithm));
      surface.text(fitText(winner.text, Math.max(0, x2 - x1)), x1, y + 17, { colour: this.page.theme().ink });
    }
  }

  /** @param {import("./surface.js").Surface} surface @param {number} index */
  #paintCurve(surface, index) {
    const { sizes, curves } = this.comparison, curve = curves[index], colour = this.#colour(index);
    /** @type {number[]} */
    let points = [];
    const flush = () => {
      if (points.length > 2) surface.line(points, colour, 2, DASHES[curve.kind] ?? []);
      points = [];
    };
    sizes.forEach((size, i) => {
      const rate = rateOf(this.comparison, curve, i);
      if (rate === null) return flush();
      const [x, y] = this.#place(size, rate);
      points.push(x, y);
      if (curve.kind === "measured") surface.rect(x - 3, y - 3, 6, 6, colour);
      else if (curve.kind === "simulated") surface.circle(x, y, 2.5, colour);
      const low = bandwidth(size, curve.high_ns?.[i]), high = bandwidth(size, curve.low_ns?.[i]);
      if (low === null || high === null) return;
      const [y1, y2] = [this.#place(size, low)[1], this.#place(size, high)[1]];
      surface.line([x, y1, x, y2], colour, 1.5);
      surface.line([x - 4, y1, x + 4, y1], colour, 1.5);
      surface.line([x - 4, y2, x + 4, y2], colour, 1.5);
    });
    flush();
  }

  /** @type {CanvasPanel["paintOverlay"]} */
  paintOverlay(surface) {
    if (!this.hovered) return;
    const { curve, point } = this.hovered, size = this.comparison.sizes[point];
    const rate = rateOf(this.comparison, this.comparison.curves[curve], point);
    if (rate === null) return;
    const [x, y] = this.#place(size, rate);
    surface.circle(x, y, 6, this.#colour(curve), this.page.theme().mark);
  }

  /** @param {PointerEvent} event */
  #hover(event) {
    const [px, py] = this.position(event), { sizes, curves } = this.comparison;
    this.hovered = null;
    let nearest = 18;
    curves.forEach((curve, index) => {
      if (this.hidden.has(index)) return;
      sizes.forEach((_, point) => {
        const rate = rateOf(this.comparison, curve, point);
        if (rate === null) return;
        const [x, y] = this.#place(sizes[point], rate);
        const distance = Math.hypot(x - px, y - py);
        if (distance < nearest) [nearest, this.hovered] = [distance, { curve: index, point }];
      });
    });
    this.drawOverlay();
    const place = /** @type {{curve: number, point: number}|null} */ (this.hovered);
    const winner = py < this.height - 34 ? undefined : this.comparison.winners?.find((one) => {
      const [x1, x2] = this.#winnerRange(one);
      return px >= x1 && px < x2;
    });
    if (winner) return this.page.tooltip.show(event.clientX, event.clientY, ["Fastest", winner.text, `Sizes: ${bytesText(winner.from_bytes)} to ${bytesText(winner.to_bytes)}`]);
    if (!place) return this.page.tooltip.hide();
    const curve = curves[place.curve], size = sizes[place.point], time = curve.time_ns[place.point] ?? 0;
    const range = curve.low_ns?.[place.point] != null && curve.high_ns?.[place.point] != null
      ? [`Range: ${timeText((curve.low_ns[place.point] ?? 0) * 1000)} to ${timeText((curve.high_ns[place.point] ?? 0) * 1000)}`] : [];
    this.page.tooltip.show(event.clientX, event.clientY, [
      this.#curveName(curve), `Size: ${bytesText(size)}`, ...(time ? [`Time: ${timeText(time * 1000)}`] : []),
      `Bandwidth: ${rateText(rateOf(this.comparison, curve, place.point) ?? 0)}`, ...range]);
  }
}

/** Times of all algorithms and sizes, with filters by text, kind and size. */
export class TimesPanel extends Panel {
  /** @param {PageContext} page @param {Comparison} comparison */
  constructor(page, comparison) {
    super(page, page.index.comparisons.length > 1 ? `Times: ${comparison.title}` : "Times");
    this.element.classList.add("wide");
    const { sizes, curves, algorithms } = comparison;
    const rows = curves.flatMap((curve) => sizes.map((_, i) => {
      const time = curve.time_ns[i] ?? null, rate = rateOf(comparison, curve, i);
      const best = Math.max(...curves.filter(({ kind }) => kind === "simulated").map((other) => rateOf(comparison, other, i) ?? 0));
      const ratio = rate && best ? best / rate : null;
      const name = algorithms[curve.algorithm]?.name ?? "";
      return {
        values: [name, curve.kind, sizes[i], time, rate, ratio],
        texts: [name, curve.kind, bytesText(sizes[i]), time === null ? "–" : timeText(time * 1000), rate === null ? "–" : rateText(rate), ratio === null ? "–" : ratio.toFixed(2)],
      };
    }));
    const select = (/** @type {string} */ label, /** @type {[string, string][]} */ options) => {
      const field = element("select", { "aria-label": label }, ...options.map(([value, text]) => element("option", { value }, text)));
      field.addEventListener("change", () => table.refresh?.());
      return field;
    };
    const kind = select("Kind of curve", [["", "all kinds"], ...[...new Set(curves.map((curve) => curve.kind))].map((name) => /** @type {[string, string]} */ ([name, name]))]);
    const size = select("Size", [["", "all sizes"], ...sizes.map((value) => /** @type {[string, string]} */ ([String(value), bytesText(value)]))]);
    const table = sortableTable({
      label: "Times", columns: ["Algorithm", "Kind", "Size", "Time", "Bandwidth", "Time / best simulated"], rows,
      accepts: ({ values }) => (!kind.value || values[1] === kind.value) && (!size.value || values[2] === Number(size.value)),
    });
    this.body.append(element("div", { class: "row" }, kind, size), table);
    const facts = algorithms.filter((algorithm) => algorithm.facts?.length);
    if (!facts.length) return;
    this.body.append(element("details", {}, element("summary", {}, "Facts about the algorithms"), ...facts.map(({ name, facts: list }) =>
      element("p", {}, element("strong", {}, name), `: ${(list ?? []).map((fact) => fact.join(": ")).join("; ")}`))));
  }
}
