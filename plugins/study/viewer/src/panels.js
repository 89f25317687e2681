/** Choose the panels for the data of the page. */

import { CurvesPanel, TimesPanel } from "./comparison.js";
import { CriticalPathPanel } from "./critical_path.js";
import { CollectivesPanel, JobTimesPanel, RankTotalsPanel } from "./job.js";
import { LinksPanel } from "./links.js";
import { MatrixPanel } from "./matrix.js";
import { BlocksPanel, FilesPanel } from "./texts.js";
import { TopologyPanel } from "./topology.js";
import { WaitsPanel } from "./waits.js";

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./panel.js").Panel} Panel */
/** @typedef {import("./columns.js").ColumnBlock} ColumnBlock */
/** @typedef {import("./run.js").Run} Run */

/**
 * Create the panels below the time panel, in their order on the page.
 * @param {PageContext} page
 * @param {ColumnBlock} block
 * @returns {Promise<Panel[]>}
 */
export async function createPanels(page, block) {
  const { index } = page;
  /** @type {Panel[]} */
  const panels = [];
  const waits = index.waits ?? index.runs.find((run) => run.waits)?.waits;
  if (waits) panels.push(new WaitsPanel(page, waits));
  for (const comparison of index.comparisons) panels.push(new CurvesPanel(page, comparison), new TimesPanel(page, comparison));
  for (const comparison of index.job_comparisons) panels.push(new JobTimesPanel(page, comparison));
  for (let run = 0; run < page.runs.length; run++) panels.push(...(await panelsOfRun(page, run, block)));
  if (index.files?.length) panels.push(new FilesPanel(page, index.files));
  return panels;
}

/** @param {PageContext} page @param {number} run @param {ColumnBlock} block */
async function panelsOfRun(page, run, block) {
  const data = page.runs[run];
  const { critical_path: path, collectives, rank_totals: totals, blocks, topology } = data.index;
  /** @type {Panel[]} */
  const panels = [];
  if (path?.entries.length) panels.push(new CriticalPathPanel(page, run, path));
  if (blocks) panels.push(new BlocksPanel(page, run));
  if (totals) {
    const [compute, communication, exposed, idle] = await Promise.all(
      [totals.compute, totals.communication, totals.exposed, totals.idle].map((column) => block.read(column)));
    panels.push(new RankTotalsPanel(page, run, { compute, communication, exposed, idle }));
  }
  if (collectives?.length) panels.push(new CollectivesPanel(page, run, collectives));
  if (topology?.nodes.length) {
    const edges = await edgesOf(data, topology, block);
    if (edges) panels.push(new TopologyPanel(page, run, edges, edges.from.length === data.links?.from.length));
  }
  if (data.details.peer && data.details.bytes && data.index.kinds.some((kind, i) => kind.class === "send" && data.usedKinds[i])) {
    panels.push(new MatrixPanel(page, run));
  }
  if (data.links?.from.length) panels.push(new LinksPanel(page, run));
  return panels;
}

/**
 * Links between the nodes: those of the topology, or those of the transfers if the topology has no list.
 * @param {Run} data @param {import("./format.js").Topology} topology @param {ColumnBlock} block
 * @returns {Promise<import("./topology.js").Edges|null>}
 */
async function edgesOf(data, topology, block) {
  const { links } = topology;
  if (Array.isArray(links)) {
    return {
      from: links.map((link) => link.from), to: links.map((link) => link.to),
      names: links.map((link) => link.name ?? ""), bandwidth: links.map((link) => link.bandwidth ?? 0),
    };
  }
  if (links) {
    return {
      from: await block.read(links.from), to: await block.read(links.to), names: links.names ?? links.name ?? [],
      bandwidth: links.bandwidth ? await block.read(links.bandwidth) : null,
    };
  }
  if (!data.links) return { from: [], to: [], names: [], bandwidth: null };
  return { from: data.links.from, to: data.links.to, names: data.index.links?.names ?? [], bandwidth: data.links.capacity };
}
