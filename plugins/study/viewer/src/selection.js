/** Panel "selection": facts about the selected step, and the route of the followed chunk. */

import { button, element, factList } from "./dom.js";
import { stepFacts } from "./facts.js";
import { selectStep } from "./keyboard.js";
import { Panel } from "./panel.js";
import { timeText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */

/** Entries of a route in the list. */
const LARGEST_LIST = 200;

export class SelectionPanel extends Panel {
  /** @param {PageContext} page */
  constructor(page) {
    super(page, "Selection");
    this.content = element("div", { "aria-live": "polite" });
    this.body.append(this.content);
    this.redraw();
  }

  /** @type {Panel["stateChanged"]} */
  stateChanged(changed) {
    if (changed.has("step") || changed.has("rank") || changed.has("chunk") || changed.has("run")) this.redraw();
  }

  redraw() {
    const { run, step, rank, chunk } = this.page.state.values;
    const data = this.page.runs[run];
    this.content.replaceChildren();
    if (data && step !== null) this.#showStep(run, step);
    else if (data && rank !== null) this.content.append(element("p", {}, `Selected: ${data.rankText(rank)}.`));
    else this.content.append(element("p", {}, "Click a step, or search one. Keys: ? for help."));
    if (data && chunk !== null) this.#showRoute(run, chunk);
  }

  /** @param {number} run @param {number} step */
  #showStep(run, step) {
    const { page } = this, data = page.runs[run];
    const tools = element("div", { class: "row" }, button("Show in window", () => page.goToStep(run, step)));
    const partner = data.details.partner?.[step] ?? -1;
    if (partner >= 0) tools.append(button("Other end", () => selectStep(page, run, partner)));
    const first = data.details.chunk?.[step] ?? -1;
    const count = first < 0 ? 0 : Math.min(8, data.details.chunks?.[step] ?? 1);
    for (let chunk = first; chunk < first + count; chunk++) {
      tools.append(button(`Follow ${data.chunkText(chunk)}`, () => page.state.update({ chunk })));
    }
    this.content.append(factList(stepFacts(data, step)), tools);
  }

  /** @param {number} run @param {number} chunk */
  #showRoute(run, chunk) {
    const { page } = this, data = page.runs[run];
    const steps = data.routeOf(chunk, 4000);
    const list = element("ol", { class: "route" });
    for (const step of steps.slice(0, LARGEST_LIST)) {
      const peer = data.details.peer?.[step] ?? -1;
      const stepClass = data.classOf(step);
      const way = peer < 0 ? "" : stepClass === "send" ? ` → ${data.rankText(peer)}` : ` ← ${data.rankText(peer)}`;
      const text = `${timeText(data.startOf(step))}: ${data.rankText(data.laneRank[data.laneOf(step)])} ${data.index.kinds[data.kind[step]].name}${way}`;
      list.append(element("li", {}, button(text, () => selectStep(page, run, step), { class: "link" })));
    }
    this.content.append(
      element("h3", {}, `Route of ${data.chunkText(chunk)}: ${steps.length} steps`),
      button("Stop following", () => page.state.update({ chunk: null })), list);
    if (steps.length > LARGEST_LIST) this.content.append(element("p", {}, `The list shows the first ${LARGEST_LIST} steps.`));
  }
}
