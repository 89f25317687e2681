/** Program of the page that `collhub view` writes: read the data, create the panels, connect them. */

import { ColumnBlock } from "./columns.js";
import { compareRuns } from "./differences.js";
import { button, element, factList } from "./dom.js";
import { createHelp, listenToKeys, selectStep, toggleHelp } from "./keyboard.js";
import { createPanels } from "./panels.js";
import { CanvasPanel } from "./panel.js";
import { Pyramid } from "./pyramid.js";
import { Run } from "./run.js";
import { createSearchField } from "./search.js";
import { SelectionPanel } from "./selection.js";
import { ViewState } from "./state.js";
import { DARK, LIGHT } from "./theme.js";
import { TimelinePanel } from "./timeline.js";
import { Tooltip } from "./tooltip.js";

/** @typedef {import("./format.js").ViewIndex} ViewIndex */
/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./panel.js").Panel} Panel */

/** State of the page for tests and for embedding pages: `collhubView.page`, `collhubView.timeline`. */
const exposed = /** @type {{page?: PageContext, timeline?: TimelinePanel, panels?: Panel[]}} */ ({});
Object.assign(globalThis, { collhubView: exposed });

const root = document.getElementById("collhub-app") ?? document.body.appendChild(element("div", { id: "collhub-app" }));

start().catch((error) => {
  root.prepend(element("p", { role: "alert", class: "failure" }, `The page cannot be shown: ${error.message}`));
  document.documentElement.dataset.state = "failed";
});

async function start() {
  const index = readIndex();
  const block = new ColumnBlock(document.getElementById("collhub-columns")?.textContent ?? "");
  const runs = await Promise.all(index.runs.map((run) => Run.load(run, block)));
  let theme = chosenTheme();
  const state = new ViewState(Math.max(0, ...runs.map((run) => run.end)));
  const tooltip = new Tooltip();
  /** @type {PageContext} */
  const page = {
    state, runs, tooltip, index, theme: () => theme,
    goToStep: (run, step) => showStep(page, run, step),
  };
  const setTheme = (/** @type {typeof LIGHT} */ next) => {
    theme = next;
    document.documentElement.dataset.theme = next.name;
    for (const panel of panels) panel.redraw();
  };
  /** @type {Panel[]} */
  const panels = [];
  document.documentElement.dataset.theme = theme.name;
  const searchField = createSearchField(page);
  const toggleTheme = () => setTheme(theme.name === "dark" ? LIGHT : DARK);
  root.replaceChildren(createHeader(index, page, searchField.element, toggleTheme));
  const main = element("main");
  root.append(main, tooltip.element, createHelp());
  const timeline = runs.some((run) => run.laneCount) ? new TimelinePanel(page, runs.map((run) => new Pyramid(run))) : null;
  if (timeline) panels.push(timeline, new SelectionPanel(page));
  const path = { entry: -1 };
  listenToKeys(page, timeline, {
    focusSearch: () => searchField.input.focus(), toggleTheme,
    stepOnPath: (direction) => selectOnPath(page, path, direction),
    play: () => void document.getElementById("play")?.click(),
  });
  main.append(...panels.map((panel) => panel.element));
  Object.assign(exposed, { page, panels, ...(timeline ? { timeline } : {}) });
  for (const panel of panels) panel.redraw();
  connect(page, panels, setTheme);
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  performance.mark("collhub-first-picture");
  for (const run of runs) await run.loadDetails(block);
  const others = await createPanels(page, block);
  panels.push(...others);
  main.append(...others.map((panel) => panel.element));
  if (timeline) markDifferences(timeline, runs);
  state.update(validAddress(state.fromAddress(location.hash.slice(1)), page));
  for (const panel of panels) panel.redraw();
  document.documentElement.dataset.state = "ready";
  performance.mark("collhub-ready");
}

/** @returns {ViewIndex} */
function readIndex() {
  const index = JSON.parse(document.getElementById("collhub-view")?.textContent ?? "{}");
  if (index.format !== "collhub-view-1") throw new Error(`data format '${index.format}' is not 'collhub-view-1'`);
  return index;
}

function chosenTheme() {
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? DARK : LIGHT;
}

/** @param {ViewIndex} index @param {PageContext} page @param {HTMLElement} search @param {() => void} toggleTheme */
function createHeader(index, page, search, toggleTheme) {
  document.title = index.title;
  const tools = element("div", { class: "row" },
    button("Light / dark", toggleTheme, { title: "Change between light and dark mode (t)" }),
    button("Help", toggleHelp, { title: "Keys and mouse (?)" }));
  const header = element("header", { class: "page" },
    element("h1", {}, index.title), ...(page.runs.some((run) => run.laneCount) ? [search] : []), tools);
  for (const run of page.runs) {
    if (!run.index.facts.length) continue;
    const name = page.runs.length > 1 ? [element("h2", {}, run.index.name)] : [];
    header.append(element("div", { class: "run-facts" }, ...name, factList(run.index.facts)));
  }
  if (index.notes.length) {
    header.append(element("ul", { class: "notes", "aria-label": "Notes" }, ...index.notes.map((note) => element("li", {}, note))));
  }
  return header;
}

/**
 * Select a step and choose a window of twelve times its duration around it, or keep the window
 * if it is smaller.
 * @param {PageContext} page @param {number} run @param {number} step
 */
function showStep(page, run, step) {
  const data = page.runs[run];
  const start = data.startOf(step), end = data.endOf(step);
  const half = Math.max(500, (end - start) * 6);
  page.state.update({
    run, step, rank: data.laneRank[data.laneOf(step)], cursor: start,
    from: (start + end) / 2 - half, to: (start + end) / 2 + half,
  });
}

/** @param {PageContext} page @param {{entry: number}} path @param {number} direction */
function selectOnPath(page, path, direction) {
  const { run } = page.state.values;
  const entries = page.runs[run]?.index.critical_path?.entries ?? [];
  if (!entries.length) return;
  path.entry = Math.min(entries.length - 1, Math.max(0, path.entry + direction));
  selectStep(page, run, entries[path.entry].step);
}

/** Values of the address that exist in the data. @param {Partial<import("./state.js").ViewValues>} change @param {PageContext} page */
function validAddress(change, page) {
  const run = page.runs[change.run ?? 0];
  if (!run) return {};
  if (change.step != null && change.step >= run.stepCount) delete change.step;
  if (change.rank != null && !run.rankLane.has(change.rank)) delete change.rank;
  if (change.link != null && change.link >= (run.index.links?.names.length ?? 0)) delete change.link;
  const { from, to } = { ...page.state.values, ...change };
  if (!(to > from)) {
    delete change.from;
    delete change.to;
  }
  return change;
}

/** @param {TimelinePanel} timeline @param {Run[]} runs */
function markDifferences(timeline, runs) {
  runs.forEach((run, index) => {
    if (index === 0) return;
    const { own, other } = compareRuns(run, runs[0]);
    timeline.unmatched[index] = own.unmatched;
    timeline.runNotes[index] = own.text;
    const known = timeline.unmatched[0];
    if (other && known) other.forEach((mark, step) => (known[step] |= mark));
    else if (other) timeline.unmatched[0] = other;
  });
}

/** Pass changes of the state to the panels and the address, and those of the window to the page. @param {PageContext} page @param {Panel[]} panels @param {(theme: typeof LIGHT) => void} setTheme */
function connect(page, panels, setTheme) {
  let timer = 0;
  page.state.listeners.push((changed) => {
    for (const panel of panels) panel.stateChanged(changed);
    clearTimeout(timer);
    timer = setTimeout(() => writeAddress(page), 200);
  });
  window.addEventListener("hashchange", () => {
    if (location.hash.slice(1) === page.state.toAddress()) return;
    page.state.update(validAddress(page.state.fromAddress(location.hash.slice(1)), page));
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches ? DARK : LIGHT));
  /** @type {typeof LIGHT|null} */
  let screenTheme = null;
  window.addEventListener("beforeprint", () => {
    screenTheme = page.theme();
    setTheme(LIGHT);
  });
  window.addEventListener("afterprint", () => screenTheme && setTheme(screenTheme));
  window.addEventListener("resize", () => {
    for (const panel of panels) if (panel instanceof CanvasPanel) panel.requestDrawing();
  });
}

/** @param {PageContext} page */
function writeAddress(page) {
  try {
    history.replaceState(null, "", `#${page.state.toAddress()}`);
  } catch {
    // A page without an address of its own (an iframe with srcdoc) cannot store the view.
  }
}
