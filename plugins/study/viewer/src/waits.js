/** Panel "who waits for whom": the graph of waiting ranks of a diagnosed hang, with the culprits. */

import { element, tableRow } from "./dom.js";
import { CanvasPanel } from "./panel.js";
import { fitText } from "./surface.js";

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./format.js").WaitGraph} WaitGraph */
/** @typedef {import("./surface.js").Surface} Surface */

const ROW_HEIGHT = 76;
const LARGEST_TABLE = 500;

export class WaitsPanel extends CanvasPanel {
  /** @param {PageContext} page @param {WaitGraph} graph */
  constructor(page, graph) {
    super(page, "Who waits for whom", "Ranks that wait, with an arrow to the rank that each waits for; squares are culprits. The table lists the same.", 200);
    this.graph = graph;
    this.rows = rowsByDistance(graph);
    this.places = new Map();
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("click", (event) => {
      const rank = this.#rankAt(event);
      if (rank !== null && page.runs[0]?.rankLane.has(rank)) page.state.update({ run: 0, rank, step: null });
    });
    const rows = graph.edges.slice(0, LARGEST_TABLE).map(({ from, to, text }) => tableRow([`rank ${from}`, `rank ${to}`, text]));
    this.body.append(
      element("p", { class: "hint" }, "Square: culprit; circle: waiting; grey circle: unknown. An arrow leads to the awaited rank."));
    if (!rows.length) return;
    this.body.append(
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Waiting ranks" },
        element("table", {}, element("thead", {}, tableRow(["Rank", "Waits for", "Operation"], "th")), element("tbody", {}, ...rows))));
    if (graph.edges.length > LARGEST_TABLE) this.body.append(element("p", {}, `The table shows the first ${LARGEST_TABLE} of ${graph.edges.length} waits.`));
  }

  /** @param {number} width */
  layout(width) {
    this.places = new Map();
    let y = 34;
    for (const row of this.rows) {
      const perLine = Math.max(1, Math.floor((width - 20) / 58));
      for (let begin = 0; begin < row.length; begin += perLine) {
        const line = row.slice(begin, begin + perLine);
        line.forEach((rank, i) => this.places.set(rank, [((i + 0.5) / line.length) * width, y + (line.length > 1 ? (i % 2) * 10 : 0)]));
        y += ROW_HEIGHT;
      }
    }
    this.height = y - 10;
  }

  /** @type {CanvasPanel["paint"]} */
  paint(surface, width) {
    const theme = this.page.theme();
    const { rank: selected } = this.page.state.values;
    for (const { from, to, text } of this.graph.edges) this.#paintEdge(surface, from, to, text);
    for (const { rank, state, text } of this.graph.nodes) {
      const [x, y] = this.places.get(rank) ?? [0, 0];
      const border = rank === selected ? theme.accent : state === "culprit" ? theme.alarm : theme.ink;
      if (state === "culprit") {
        surface.rect(x - 15, y - 15, 30, 30, theme.paper);
        surface.frame(x - 15, y - 15, 30, 30, border, 3.5);
        surface.text(fitText(text ?? "culprit", width - x - 24), x + 20, y, { colour: theme.alarm, bold: true });
      } else surface.circle(x, y, 14, state === "waiting" ? theme.paper : theme.grid, border);
      surface.text(String(rank), x, y, { colour: theme.ink, align: "middle", bold: true });
    }
  }

  /** @param {Surface} surface @param {number} from @param {number} to @param {string} text */
  #paintEdge(surface, from, to, text) {
    const theme = this.page.theme();
    const start = this.places.get(from), end = this.places.get(to);
    if (!start || !end) return;
    const [x1, y1] = start, [x2, y2] = end;
    const length = Math.hypot(x2 - x1, y2 - y1) || 1, ux = (x2 - x1) / length, uy = (y2 - y1) / length;
    const [tx, ty] = [x2 - 17 * ux, y2 - 17 * uy];
    surface.line([x1 + 14 * ux, y1 + 14 * uy, tx, ty], theme.faint, 1.5);
    surface.area([tx, ty, tx - 9 * ux + 4 * uy, ty - 9 * uy - 4 * ux, tx - 9 * ux - 4 * uy, ty - 9 * uy + 4 * ux], theme.faint);
    if (this.graph.edges.length <= 16) surface.text(fitText(text, 160), (x1 + tx) / 2 + 6, (y1 + ty) / 2, { colour: theme.faint });
  }

  /** @type {CanvasPanel["stateChanged"]} */
  stateChanged(changed) {
    if (changed.has("rank")) this.requestDrawing();
  }

  /** @param {MouseEvent} event @returns {number|null} */
  #rankAt(event) {
    const [px, py] = this.position(event);
    for (const [rank, [x, y]] of this.places) if (Math.hypot(x - px, y - py) < 17) return rank;
    return null;
  }

  /** @param {PointerEvent} event */
  #hover(event) {
    const rank = this.#rankAt(event);
    if (rank === null) return this.page.tooltip.hide();
    const node = this.graph.nodes.find((one) => one.rank === rank);
    const waits = this.graph.edges.filter((edge) => edge.from === rank).slice(0, 8);
    const waiting = this.graph.edges.filter((edge) => edge.to === rank).length;
    this.page.tooltip.show(event.clientX, event.clientY, [
      `rank ${rank}: ${node?.state}`, ...(node?.text ? [node.text] : []),
      ...waits.map((edge) => `Waits for rank ${edge.to}: ${edge.text}`), `Ranks that wait for it: ${waiting}`]);
  }
}

/** Ranks by number of waits up to a culprit: culprits first, ranks without a path to one last. @param {WaitGraph} graph @returns {number[][]} */
function rowsByDistance(graph) {
  /** @type {Map<number, number[]>} */
  const waiting = new Map();
  for (const { from, to } of graph.edges) waiting.set(to, [...(waiting.get(to) ?? []), from]);
  const open = new Set(graph.nodes.map(({ rank }) => rank));
  let row = graph.nodes.filter(({ state }) => state === "culprit").map(({ rank }) => rank);
  const rows = [];
  while (row.length) {
    for (const rank of row) open.delete(rank);
    rows.push(row);
    row = [...new Set(row.flatMap((rank) => waiting.get(rank) ?? []))].filter((rank) => open.has(rank));
  }
  if (open.size) rows.push([...open]);
  return rows;
}
