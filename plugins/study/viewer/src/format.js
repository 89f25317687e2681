/**
 * Types of the data in the page; the Python writer (`collhub_viewer`) produces this structure.
 *
 * @typedef {{column: number, bytes: number, type: "uint"|"int"|"f64", width: number, length: number, delta?: boolean, values?: number[], waits?: "next", rest?: number, ends?: "first"}} ColumnReference
 *   Line of the column block, compressed bytes, element type, bytes per element, number of elements, and
 *   whether the line stores differences. With `values`, the line has places in this table. A column of steps leaves out values: those of waits (`waits`: that of
 *   the next step), of steps without message (`rest`: their value), of the second steps of messages (`ends`).
 * @typedef {ColumnReference | number[]} Column  Reference, or the values themselves for small tables.
 * @typedef {Uint8Array | Uint16Array | Int32Array | Uint32Array | Float64Array} Values
 *
 * @typedef {"send"|"receive"|"reduce"|"copy"|"compute"|"wait"|"collective"|"memory"|"idle"|"other"} StepClass
 * @typedef {{name: string, class: StepClass}} Kind
 *
 * @typedef {object} LaneTable
 * @property {Column} rank  Rank of each lane.
 * @property {string[]} names
 * @property {Column} name  Index into `names` for each lane.
 * @property {Column} first  First step of each lane; one entry more than lanes.
 *
 * @typedef {object} StepTable  Steps sorted by lane, then by start.
 * @property {number} count
 * @property {Column} gap  Ticks from the end of the previous step of the lane to the start.
 * @property {Column} duration  Ticks.
 * @property {Column} kind
 * @property {Column|null} [peer]  Rank at the other end of the message; -1: none.
 * @property {Column|"in order"|null} [partner]  Step at the other end of the message; -1: none. "in order": the
 *   k-th send from one rank to another matches the k-th receive.
 * @property {Column|null} [bytes]
 * @property {Column|null} [chunk]  First chunk; -1: none.
 * @property {Column|null} [chunks]  Number of chunks.
 * @property {Column|null} [number]  Number of the step in its source file.
 * @property {Column|null} [label]  Index into `labels`.
 * @property {string[]} [labels]
 * @property {Column|null} [waits_for]  For each wait: awaited rank minus the peer of the next step.
 *
 * @typedef {object} LinkTable
 * @property {string[]} names
 * @property {Column} from  Topology node (a rank, or a switch after the ranks).
 * @property {Column} to
 * @property {Column} first  First transfer of each link; one entry more than links.
 * @property {Column} gap  Ticks from the end of the previous transfer of the link to the start.
 * @property {Column} duration  Ticks.
 * @property {Column|null} [queued]  Ticks between the request and the start of the transfer.
 * @property {Column|null} [step]  Sending step; -1: none.
 * @property {Column|null} [capacity]  Bytes per second.
 *
 * @typedef {{name: string, kind: string, x: number, y: number}} TopologyNode
 * @typedef {{from: number, to: number, name?: string, bandwidth?: number|null, latency_ns?: number|null}} TopologyLink
 * @typedef {{from: Column, to: Column, name?: string[], names?: string[], bandwidth?: Column|null, latency_ns?: Column|null}} TopologyLinkTable
 * @typedef {{nodes: TopologyNode[], links?: TopologyLinkTable|TopologyLink[]|null}} Topology
 *   `links` is null if the links of the run are the links of the topology, in the same order.
 *
 * @typedef {{step: number, reason: string, start: number, duration: number, text: string}} PathEntry
 * @typedef {{steps: Column, entries: PathEntry[]}} CriticalPath
 * @typedef {{name: string, bytes: number, ranks: number, start: number, duration: number, exposed: number, first_step: number}} CollectiveRow
 * @typedef {{compute: Column, communication: Column, exposed: Column, idle: Column}} RankTotals
 * @typedef {{lane_meaning?: string, channel?: Column|null, source_line?: Column|null, source?: string|null}} Blocks
 * @typedef {{rank: number, state: "culprit"|"waiting"|"unknown", text?: string}} WaitNode
 * @typedef {{nodes: WaitNode[], edges: {from: number, to: number, text: string}[]}} WaitGraph
 *
 * @typedef {object} RunIndex  One input of `collhub view`.
 * @property {string} name
 * @property {[string, string][]} facts
 * @property {number} tick_ps  Picoseconds per tick.
 * @property {number} end  Ticks.
 * @property {number} ranks
 * @property {string[]|null} [rank_names]
 * @property {LaneTable|null} lanes  Null if the run is only a topology.
 * @property {Kind[]} kinds
 * @property {StepTable|null} steps
 * @property {LinkTable|null} [links]
 * @property {Topology|null} [topology]
 * @property {CriticalPath|null} [critical_path]
 * @property {{count?: number, names?: string[]}|null} [chunks]  Names are absent if there are too many.
 * @property {CollectiveRow[]|null} [collectives]
 * @property {RankTotals|null} [rank_totals]
 * @property {Blocks|null} [blocks]
 * @property {WaitGraph|null} [waits]
 *
 * @typedef {{algorithm: number, kind: string, time_ns: (number|null)[], rates?: (number|null)[], low_ns?: (number|null)[]|null, high_ns?: (number|null)[]|null}} Curve
 *   `rates`: bandwidths in bytes per second, if the times are unknown.
 * @typedef {{from_bytes: number, to_bytes: number, algorithm: number|null, text: string}} Winner
 * @typedef {object} Comparison
 * @property {string} title
 * @property {string} collective
 * @property {[string, string][]} [facts]
 * @property {{name: string, facts?: [string, string][]}[]} algorithms
 * @property {number[]} sizes  Bytes, ascending.
 * @property {Curve[]} curves
 * @property {Winner[]} [winners]
 *
 * @typedef {{algorithms: string, network: string, time_ns: number|null, exposed_ns: number|null, speedup: number|null, failure: string|null, is_baseline: boolean}} JobRow
 * @typedef {object} JobComparison  A job with each candidate on each network.
 * @property {string} title
 * @property {[string, string][]} facts
 * @property {JobRow[]} rows
 *
 * @typedef {object} ViewIndex
 * @property {"collhub-view-1"} format
 * @property {string} title
 * @property {string} created_by
 * @property {string[]} notes
 * @property {RunIndex[]} runs
 * @property {Comparison[]} comparisons
 * @property {JobComparison[]} job_comparisons
 * @property {WaitGraph|null} [waits]
 * @property {{name: string, text: string}[]|null} [files]
 */

/** Order of the step classes: index in colour tables and in the time pyramid. @type {StepClass[]} */
export const STEP_CLASSES = [
  "send", "receive", "reduce", "copy", "compute", "wait", "collective", "memory", "idle", "other",
];
