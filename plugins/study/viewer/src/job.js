/** Panels of jobs: time of each rank by use, collectives by exposed cost, comparison of candidates. */

import { element, factList } from "./dom.js";
import { CanvasPanel, Panel } from "./panel.js";
import { sortableTable } from "./sortable_table.js";
import { fitText } from "./surface.js";
import { axisTicks, bytesText, percentText, timeText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./format.js").Values} Values */

const LEFT = 64;

/**
 * Bars per rank: compute, exposed communication (waited for, not covered by compute), idle. The rest of
 * communication runs at the same time as compute and is stated on hover.
 */
export class RankTotalsPanel extends CanvasPanel {
  /** @param {PageContext} page @param {number} run @param {Record<"compute"|"communication"|"exposed"|"idle", Values>} totals */
  constructor(page, run, totals) {
    const name = page.runs.length > 1 ? `: ${page.runs[run].index.name}` : "";
    super(page, `Time by rank${name}`, "Compute, exposed communication and idle time of each rank.", 240);
    this.run = run;
    this.totals = totals;
    this.canvas.addEventListener("pointermove", (event) => {
      const rank = this.#rankAt(event);
      if (rank < 0) return page.tooltip.hide();
      const data = page.runs[run];
      const line = (/** @type {string} */ label, /** @type {Values} */ values) =>
        `${label}: ${timeText(values[rank] * data.tick)} (${percentText((values[rank] * data.tick) / data.end)})`;
      page.tooltip.show(event.clientX, event.clientY, [
        data.rankText(rank), line("Compute", totals.compute), line("Communication", totals.communication),
        line("Exposed communication", totals.exposed), line("Idle", totals.idle)]);
    });
    this.canvas.addEventListener("click", (event) => {
      const rank = this.#rankAt(event);
      if (rank >= 0) page.state.update({ run, rank, step: null });
    });
    const legend = [["compute", "compute"], ["collective", "exposed communication"], ["idle", "idle"]];
    this.body.prepend(element("ul", { class: "legend", "aria-label": "Colours of bars" }, ...legend.map(([swatch, text]) =>
      element("li", {}, element("span", { class: `swatch ${swatch}` }), text))));
  }

  /** @param {MouseEvent} event */
  #rankAt(event) {
    const [x] = this.position(event), count = this.totals.compute.length;
    const rank = Math.floor(((x - LEFT) / (this.width - LEFT - 8)) * count);
    return rank >= 0 && rank < count ? rank : -1;
  }

  /** @type {CanvasPanel["paint"]} */
  paint(surface, width, height) {
    const theme = this.page.theme(), run = this.page.runs[this.run];
    const { compute, exposed, idle } = this.totals, count = compute.length;
    const top = 8, bottom = height - 22;
    let largest = run.index.end || 1;
    for (let rank = 0; rank < count; rank++) largest = Math.max(largest, compute[rank] + exposed[rank] + idle[rank]);
    for (const tick of axisTicks(0, largest * run.tick, 4)) {
      const y = bottom - (tick / (largest * run.tick)) * (bottom - top);
      surface.line([LEFT, y, width - 8, y], theme.grid);
      surface.text(timeText(tick, 4), LEFT - 6, y, { colour: theme.faint, align: "end" });
    }
    const bar = (width - LEFT - 8) / count;
    const colours = [theme.classes[4], theme.classes[6], theme.classes[8]];
    for (let rank = 0; rank < count; rank++) {
      let y = bottom;
      [compute, exposed, idle].forEach((values, k) => {
        const length = (values[rank] / largest) * (bottom - top);
        surface.rect(LEFT + rank * bar, y - length, bar > 3 ? bar - 1 : Math.max(0.5, bar), length, colours[k]);
        y -= length;
      });
    }
    for (const tick of axisTicks(0, count - 1, Math.min(count - 1, 16))) {
      if (Number.isInteger(tick)) surface.text(String(tick), LEFT + (tick + 0.5) * bar, height - 10, { colour: theme.faint, align: "middle" });
    }
  }

  /** @type {CanvasPanel["paintOverlay"]} */
  paintOverlay(surface, width, height) {
    const { rank, run } = this.page.state.values;
    if (rank === null || run !== this.run) return;
    const bar = (width - LEFT - 8) / this.totals.compute.length;
    surface.frame(LEFT + rank * bar, 8, Math.max(2, bar), height - 30, this.page.theme().accent, 2);
  }

  /** @type {CanvasPanel["stateChanged"]} */
  stateChanged(changed) {
    if (changed.has("rank") || changed.has("run")) this.drawOverlay();
  }
}

/** Table of collectives; a row jumps to the collective's first step. */
export class CollectivesPanel extends Panel {
  /** @param {PageContext} page @param {number} run @param {import("./format.js").CollectiveRow[]} collectives */
  constructor(page, run, collectives) {
    const name = page.runs.length > 1 ? `: ${page.runs[run].index.name}` : "";
    super(page, `Collectives by exposed cost${name}`);
    const { tick } = page.runs[run];
    this.body.append(sortableTable({
      label: "Collectives", sortedBy: 3, descending: true,
      columns: ["Collective", "Start", "Duration", "Exposed", "Bytes", "Ranks"],
      rows: collectives.map((row) => ({
        values: [row.name, row.start * tick, row.duration * tick, row.exposed * tick, row.bytes, row.ranks],
        texts: [row.name, timeText(row.start * tick), timeText(row.duration * tick), timeText(row.exposed * tick), bytesText(row.bytes), String(row.ranks)],
        action: row.first_step >= 0 ? () => page.goToStep(run, row.first_step) : null,
      })),
    }));
  }
}

const BAR_HEIGHT = 20;
/** Bars up to which the candidates are drawn; the table has all of them. */
const LARGEST_BAR_COUNT = 40;

/** Time of a job with each candidate on each network: bars with the exposed communication, and a table. */
export class JobTimesPanel extends CanvasPanel {
  /** @param {PageContext} page @param {import("./format.js").JobComparison} comparison */
  constructor(page, comparison) {
    super(page, `Time of the job by algorithms: ${comparison.title}`, "Time of the job with each candidate; the table below has all values.", 60);
    this.element.classList.add("wide");
    this.rows = comparison.rows.filter((row) => row.time_ns !== null).slice(0, LARGEST_BAR_COUNT);
    const legend = [["compute", "computation"], ["collective", "exposed communication"]];
    this.body.prepend(factList(comparison.facts), element("ul", { class: "legend", "aria-label": "Colours of bars" }, ...legend.map(([swatch, text]) =>
      element("li", {}, element("span", { class: `swatch ${swatch}` }), text))));
    const time = (/** @type {number|null} */ value) => (value === null ? "–" : timeText(value * 1000));
    this.body.append(sortableTable({
      label: "Times of the job", sortedBy: 2,
      columns: ["Algorithms", "Network", "Time", "Exposed", "Speedup", "Reason without time"],
      rows: comparison.rows.map((row) => ({
        values: [row.algorithms, row.network, row.time_ns, row.exposed_ns, row.speedup, row.failure ?? ""],
        texts: [row.algorithms, row.network, time(row.time_ns), time(row.exposed_ns), speedupText(row), row.failure ?? ""],
      })),
    }));
    this.canvas.addEventListener("pointermove", (event) => {
      const row = this.rows[Math.floor(this.position(event)[1] / BAR_HEIGHT)];
      if (!row) return page.tooltip.hide();
      page.tooltip.show(event.clientX, event.clientY, [
        `${row.algorithms} on ${row.network}`, `Time: ${time(row.time_ns)}`, `Exposed communication: ${time(row.exposed_ns)}`, `Speedup: ${speedupText(row)}`]);
    });
  }

  layout() {
    this.height = BAR_HEIGHT * this.rows.length + 4;
  }

  /** @type {CanvasPanel["paint"]} */
  paint(surface, width) {
    const theme = this.page.theme(), left = Math.min(260, width / 3);
    const largest = Math.max(1, ...this.rows.map((row) => row.time_ns ?? 0));
    this.rows.forEach((row, i) => {
      const y = i * BAR_HEIGHT, total = row.time_ns ?? 0, exposed = Math.min(total, row.exposed_ns ?? 0);
      const scale = (width - left - 100) / largest;
      surface.text(fitText(`${row.algorithms}, ${row.network}`, left - 12, row.is_baseline ? 13 : 11), 0, y + BAR_HEIGHT / 2, { colour: theme.ink, bold: row.is_baseline });
      surface.rect(left, y + 2, (total - exposed) * scale, BAR_HEIGHT - 5, theme.classes[4]);
      surface.rect(left + (total - exposed) * scale, y + 2, exposed * scale, BAR_HEIGHT - 5, theme.classes[6]);
      surface.text(timeText(total * 1000), left + total * scale + 6, y + BAR_HEIGHT / 2, { colour: theme.ink });
    });
  }
}

/** @param {import("./format.js").JobRow} row */
function speedupText(row) {
  return row.is_baseline ? "baseline" : row.speedup === null ? "–" : row.speedup.toFixed(2);
}
