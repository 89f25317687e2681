/** Panels of text: thread blocks with source lines, and the files of a folder. */

import { button, element, tableRow } from "./dom.js";
import { selectStep } from "./keyboard.js";
import { stepText } from "./lanes.js";
import { Panel } from "./panel.js";
import { timeText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */

const LARGEST_INSTRUCTION_COUNT = 300;
const LARGEST_LINE_COUNT = 5000;

/** Lines of a text with numbers; `mark` selects a line and scrolls to it. @param {string} text @param {string} label */
function numberedText(text, label) {
  const lines = text.split("\n");
  const digits = String(lines.length).length;
  const code = element("pre", {}, ...lines.slice(0, LARGEST_LINE_COUNT).map((line, i) =>
    element("span", { class: "line" }, `${String(i + 1).padStart(digits)}  ${line}\n`)));
  const box = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, code);
  return {
    box,
    /** @param {number} number */
    mark(number) {
      code.querySelector(".selected")?.classList.remove("selected");
      const line = /** @type {HTMLElement|undefined} */ (code.children[number - 1]);
      if (!line) return;
      line.classList.add("selected");
      box.scrollTop = Math.max(0, line.offsetTop - box.offsetTop - 120);
    },
  };
}

/** Thread blocks of the selected rank with their channel, and the instructions of the selected block. */
export class BlocksPanel extends Panel {
  /** @param {PageContext} page @param {number} run */
  constructor(page, run) {
    const name = page.runs.length > 1 ? `: ${page.runs[run].index.name}` : "";
    super(page, `Thread blocks and channels${name}`);
    this.run = run;
    this.content = element("div");
    this.body.append(this.content);
    const source = page.runs[run].index.blocks?.source ?? "";
    // The writer may give only the name of the source.
    this.source = source.includes("\n") ? numberedText(source, "Source of the program") : null;
    this.sourceName = source && !this.source ? source : "line";
    if (this.source) this.body.append(element("h3", {}, "Source"), this.source.box);
    this.#show();
  }

  /** @type {Panel["stateChanged"]} */
  stateChanged(changed) {
    if (changed.has("step") || changed.has("rank") || changed.has("run")) this.#show();
  }

  #show() {
    const { page } = this, data = page.runs[this.run];
    const { step, rank, run } = page.state.values;
    const current = run === this.run ? step : null;
    const chosenRank = (run === this.run ? rank : null) ?? data.laneRank[0] ?? 0;
    const chosenLane = current !== null ? data.laneOf(current) : data.rankLane.get(chosenRank) ?? 0;
    const blocks = element("tbody");
    for (let lane = 0; lane < data.laneCount; lane++) {
      if (data.laneRank[lane] !== chosenRank) continue;
      const first = data.laneFirst[lane], count = data.laneFirst[lane + 1] - first;
      const link = button(data.laneText(lane), () => count > 0 && selectStep(page, this.run, first), { class: "link" });
      const row = tableRow([link, data.blockColumns?.channel ? String(data.blockColumns.channel[lane]) : "–", String(count)]);
      if (lane === chosenLane) row.classList.add("selected");
      blocks.append(row);
    }
    const instructions = element("tbody"), lines = data.blockColumns?.sourceLine;
    const first = data.laneFirst[chosenLane], last = data.laneFirst[chosenLane + 1];
    const begin = current === null ? first : Math.max(first, Math.min(current - 20, last - LARGEST_INSTRUCTION_COUNT));
    for (let i = begin; i < Math.min(last, begin + LARGEST_INSTRUCTION_COUNT); i++) {
      if (data.classOf(i) === "wait") continue;
      const line = lines && lines[i] > 0 ? `${this.sourceName}:${lines[i]}` : "–";
      const row = tableRow([button(`${data.stepNumber(i)} ${stepText(data, i)}`, () => selectStep(page, this.run, i), { class: "link" }), timeText(data.startOf(i)), line]);
      if (i === current) row.classList.add("selected");
      instructions.append(row);
    }
    this.content.replaceChildren(
      element("p", {}, `Blocks of ${data.rankText(chosenRank)}; select another rank in the time panel.`),
      scrollTable("Thread blocks", ["Block", "Channel", "Steps"], blocks),
      element("h3", {}, `Instructions of ${data.laneText(chosenLane)}`),
      scrollTable("Instructions", ["Instruction", "Start", "Source line"], instructions));
    if (current !== null && lines) this.source?.mark(lines[current]);
  }
}

/** @param {string} label @param {string[]} columns @param {HTMLElement} rows */
function scrollTable(label, columns, rows) {
  return element("div", { class: "scroll short", tabindex: "0", role: "region", "aria-label": label },
    element("table", {}, element("thead", {}, tableRow(columns, "th")), rows));
}

/** Files of a folder with their lines. */
export class FilesPanel extends Panel {
  /** @param {PageContext} page @param {{name: string, text: string}[]} files */
  constructor(page, files) {
    super(page, "Files");
    this.element.classList.add("wide");
    files.forEach(({ name, text }, i) => {
      const lines = text.split("\n").length;
      const details = element("details", i === 0 ? { open: true } : {}, element("summary", {}, `${name} (${lines} lines)`), numberedText(text, name).box);
      this.body.append(details);
      if (lines > LARGEST_LINE_COUNT) details.append(element("p", {}, `The page shows the first ${LARGEST_LINE_COUNT} lines.`));
    });
  }
}
