/** Panel "critical path": the steps that determine the duration; each entry jumps to its step. */

import { button, element, tableRow } from "./dom.js";
import { Panel } from "./panel.js";
import { percentText, timeText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */

const PAGE_LENGTH = 300;

export class CriticalPathPanel extends Panel {
  /** @param {PageContext} page @param {number} run @param {import("./format.js").CriticalPath} path */
  constructor(page, run, path) {
    const name = page.runs.length > 1 ? `: ${page.runs[run].index.name}` : "";
    super(page, `Critical path${name}`);
    this.run = run;
    this.entries = path.entries;
    this.rows = element("tbody");
    /** Row of each step of the list. @type {Map<number, HTMLElement>} */
    this.rowOfStep = new Map();
    this.more = button("Show more entries", () => this.#addRows());
    const head = element("thead", {}, tableRow(["Start", "Duration", "Why", "Step"], "th"));
    this.body.append(
      element("p", {}, this.#summary()),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Entries of the critical path" },
        element("table", {}, head, this.rows), this.more));
    this.#addRows();
  }

  /** Time of the path by reason. */
  #summary() {
    /** @type {Map<string, number>} */
    const sums = new Map();
    for (const { reason, duration } of this.entries) sums.set(reason, (sums.get(reason) ?? 0) + duration);
    const total = [...sums.values()].reduce((a, b) => a + b, 0) || 1;
    const shares = [...sums].sort((a, b) => b[1] - a[1]).map(([reason, sum]) => `${reason} ${percentText(sum / total)}`);
    return `${this.entries.length} steps; time by reason: ${shares.join(", ")}.`;
  }

  #addRows() {
    const { page, run } = this, data = page.runs[run];
    const shown = this.rows.children.length;
    for (const entry of this.entries.slice(shown, shown + PAGE_LENGTH)) {
      const lane = entry.step >= 0 && entry.step < data.stepCount ? data.laneOf(entry.step) : -1;
      const named = lane < 0 || entry.text.startsWith(data.rankText(data.laneRank[lane]));
      const text = named ? entry.text : `${data.laneText(lane)}: ${entry.text}`;
      const row = tableRow([
        timeText(entry.start * data.tick), timeText(entry.duration * data.tick), entry.reason,
        button(text, () => entry.step >= 0 && page.goToStep(run, entry.step), { class: "link" }),
      ]);
      this.rows.append(row);
      this.rowOfStep.set(entry.step, row);
    }
    this.more.hidden = this.rows.children.length >= this.entries.length;
  }

  /** @type {Panel["stateChanged"]} */
  stateChanged(changed) {
    if (!changed.has("step") && !changed.has("run")) return;
    const { step, run } = this.page.state.values;
    for (const row of this.rows.querySelectorAll(".selected")) row.classList.remove("selected");
    const row = run === this.run && step !== null ? this.rowOfStep.get(step) : undefined;
    row?.classList.add("selected");
  }
}

