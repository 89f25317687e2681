/** Keys of the page, and the help that lists them. */

import { button, element } from "./dom.js";

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./timeline.js").TimelinePanel} TimelinePanel */
/**
 * @typedef {object} Actions  What the page offers to keys besides the shared state.
 * @property {() => void} focusSearch
 * @property {() => void} toggleTheme
 * @property {(direction: number) => void} stepOnPath  Next or previous entry of the critical path.
 * @property {() => void} play
 */

/** Keys, their names in the help, and their effect. @type {{keys: string[], shown: string, effect: string, run: (page: PageContext, timeline: TimelinePanel, actions: Actions) => void}[]} */
export const KEYS = [
  { keys: ["?"], shown: "?", effect: "Show or hide this help", run: (_p, _t, _a) => toggleHelp() },
  { keys: ["/"], shown: "/", effect: "Search", run: (_p, _t, actions) => actions.focusSearch() },
  { keys: ["w", "+", "="], shown: "w or +", effect: "Magnify time around the cursor", run: (page) => page.state.zoom(0.5) },
  { keys: ["s", "-"], shown: "s or −", effect: "Reduce time", run: (page) => page.state.zoom(2) },
  { keys: ["a", "ArrowLeft"], shown: "a or ←", effect: "Move to earlier time", run: (page) => page.state.pan(-0.2) },
  { keys: ["d", "ArrowRight"], shown: "d or →", effect: "Move to later time", run: (page) => page.state.pan(0.2) },
  { keys: ["ArrowUp"], shown: "↑", effect: "Scroll to earlier lanes", run: (_p, timeline) => timeline.scrollLanes(-2) },
  { keys: ["ArrowDown"], shown: "↓", effect: "Scroll to later lanes", run: (_p, timeline) => timeline.scrollLanes(2) },
  { keys: ["h"], shown: "h", effect: "Make lanes higher", run: (_p, timeline) => timeline.scaleLanes(1.5) },
  { keys: ["l"], shown: "l", effect: "Make lanes lower", run: (_p, timeline) => timeline.scaleLanes(1 / 1.5) },
  { keys: ["0"], shown: "0", effect: "Show the whole run", run: (page) => page.state.update({ from: 0, to: page.state.end }) },
  { keys: ["f"], shown: "f", effect: "Show the selected step in the window", run: (page) => showSelected(page) },
  { keys: ["."], shown: ".", effect: "Select the next step of the lane", run: (page) => selectNeighbour(page, 1) },
  { keys: [","], shown: ",", effect: "Select the previous step of the lane", run: (page) => selectNeighbour(page, -1) },
  { keys: ["m"], shown: "m", effect: "Select the other end of the message", run: (page) => selectPartner(page) },
  { keys: ["c"], shown: "c", effect: "Follow the chunk of the selected step, or stop following", run: (page) => followChunk(page) },
  { keys: ["]"], shown: "]", effect: "Select the next entry of the critical path", run: (_p, _t, actions) => actions.stepOnPath(1) },
  { keys: ["["], shown: "[", effect: "Select the previous entry of the critical path", run: (_p, _t, actions) => actions.stepOnPath(-1) },
  { keys: [" "], shown: "Space", effect: "Start or stop the animation of the time cursor", run: (_p, _t, actions) => actions.play() },
  { keys: ["t"], shown: "t", effect: "Change between light and dark mode", run: (_p, _t, actions) => actions.toggleTheme() },
  { keys: ["Escape"], shown: "Esc", effect: "Close the help, or clear selection, cursor and followed chunk", run: (page) => clear(page) },
];

/** @type {HTMLDialogElement|null} */
let help = null;

/** Create the help as a dialog. */
export function createHelp() {
  const rows = KEYS.map(({ shown, effect }) =>
    element("tr", {}, element("th", { scope: "row" }, element("kbd", {}, shown)), element("td", {}, effect)));
  const dialog = element("dialog", { id: "help", "aria-labelledby": "help-title" },
    element("h2", { id: "help-title" }, "Keys and mouse"),
    element("table", {}, element("tbody", {}, ...rows)),
    element("p", {}, "Mouse in the time panel: Ctrl + wheel magnifies time, Shift + wheel or dragging moves, Shift + dragging selects a window, Alt + wheel changes the height of lanes, a click selects, a double click shows the step in the window."),
    element("p", {}, "The address of the page contains the view (for example #rank=3&t=12.5us): copy it to share the view."),
    button("Close", () => dialog.close()));
  help = dialog;
  return dialog;
}

export function toggleHelp() {
  if (help?.open) help.close();
  else help?.showModal();
}

/**
 * Handle the keys of the page, except in fields. A page without runs has the keys for help and theme only.
 * @param {PageContext} page @param {TimelinePanel|null} timeline @param {Actions} actions
 */
export function listenToKeys(page, timeline, actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = /** @type {HTMLElement} */ (event.target);
    if (["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName)) return;
    if (target.tagName === "BUTTON" && (event.key === " " || event.key === "Enter")) return;
    if (help?.open && event.key !== "?") return;
    const entry = KEYS.find(({ keys }) => keys.includes(event.key));
    if (!entry || (!timeline && !["?", "t"].includes(event.key))) return;
    event.preventDefault();
    entry.run(page, /** @type {TimelinePanel} */ (timeline), actions);
  });
}

/** @param {PageContext} page */
function showSelected(page) {
  const { run, step } = page.state.values;
  if (step !== null) page.goToStep(run, step);
}

/** @param {PageContext} page @param {number} direction */
function selectNeighbour(page, direction) {
  const { run, step, rank } = page.state.values;
  const data = page.runs[run];
  if (!data) return;
  if (step === null) {
    const lane = data.rankLane.get(rank ?? data.laneRank[0]);
    if (lane !== undefined && data.laneFirst[lane] < data.laneFirst[lane + 1]) selectStep(page, run, data.laneFirst[lane]);
    return;
  }
  const lane = data.laneOf(step), next = step + direction;
  if (next >= data.laneFirst[lane] && next < data.laneFirst[lane + 1]) selectStep(page, run, next);
}

/** Select a step; the window moves only if it does not show the step. @param {PageContext} page @param {number} run @param {number} step */
export function selectStep(page, run, step) {
  const data = page.runs[run];
  const { from, to } = page.state.values;
  const start = data.startOf(step), end = data.endOf(step);
  const shift = start < from || end > to ? (start + end) / 2 - (from + to) / 2 : 0;
  page.state.update({ run, step, rank: data.laneRank[data.laneOf(step)], cursor: start, from: from + shift, to: to + shift });
}

/** @param {PageContext} page */
function selectPartner(page) {
  const { run, step } = page.state.values;
  const partner = step === null ? -1 : page.runs[run]?.details.partner?.[step] ?? -1;
  if (partner >= 0) selectStep(page, run, partner);
}

/** @param {PageContext} page */
function followChunk(page) {
  const { run, step, chunk } = page.state.values;
  const first = step === null ? -1 : page.runs[run]?.details.chunk?.[step] ?? -1;
  page.state.update({ chunk: chunk !== null || first < 0 ? null : first });
}

/** @param {PageContext} page */
function clear(page) {
  page.state.update({ step: null, rank: null, link: null, chunk: null, cursor: null });
}
