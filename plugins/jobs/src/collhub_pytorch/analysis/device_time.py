"""Computation, communication, waiting and idle times of the ranks, and the straggler ranks.

Definitions are those of HolisticTraceAnalysis (facebookresearch/HolisticTraceAnalysis): kernels of
communication, kernels of computation, and copies or sets of memory are three classes. In each
class, concurrent kernels count once. Overlap is the fraction of the communication time in which a
kernel of computation runs. Copies and sets of memory are not computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_pytorch.analysis.matching import Meetings
from collhub_pytorch.analysis.timeline import Timeline
from collhub_pytorch.calls import ISSUER_NAMESPACES
from collhub_pytorch.job import EXTENSION, fact_list, has_device
from collhub_pytorch.rank_nodes import PASSING_TIME
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import NodeKind, Workload

Intervals = tuple[Int64Array, Int64Array]


@dataclass(frozen=True, slots=True)
class RankTime:
    """Times of one rank in ns.

    `memory_ns`, `idle_ns` (time without work of any class, between the first start and the last
    end): None without a device; then computation is that of host operators. `overlap_percent`: None
    without communication.
    """

    computation_ns: int
    communication_ns: int
    memory_ns: int | None
    idle_ns: int | None
    overlap_percent: float | None


def measure_rank_times(workload: Workload, times: Timeline) -> list[RankTime]:
    """Measure the times in ns in which each rank computes, communicates, moves memory and idles.

    Returns one entry per rank, in order of ranks. Nodes belong to the first class that fits:

    - communication: collectives, sends, receives, and COMPUTE nodes whose names the extension
      lists in `communication_names`
    - memory: COMPUTE nodes whose names the extension lists in `memory_names`
    - computation: other COMPUTE nodes, with the exceptions of `is_computation`, such as
      operators that issue communication
    - all other nodes, such as markers: no work

    The time of a class is the length of the union of its nodes' intervals: overlapping intervals
    count once. Times of different classes may overlap. Idle time is the time without work of any
    class between the first start and the last end of work, 0 without work. Memory and idle time
    are None for a rank whose file records no device, and for workloads of other readers.

    The overlap is the percentage (0 to 100) of communication time during which a computation
    runs, None if the communication time is 0. Raises `InputError` as `has_device`.
    """
    communicates = is_communication(workload)
    on_memory = _is_named(workload, "memory_names") & ~communicates
    computes = is_computation(workload)
    result = []
    for rank, rows in enumerate(
        np.split(np.arange(len(workload.nodes)), workload.nodes.rank_indptr[1:-1])
    ):
        communication = _merge_intervals(times, rows[communicates[rows]])
        computation = _merge_intervals(times, rows[computes[rows]])
        memory = _merge_intervals(times, rows[on_memory[rows]])
        any_work = _merge_intervals(times, rows[(communicates | computes | on_memory)[rows]])
        total = _length(communication)
        hidden = _measure_overlap_ns(communication, computation)
        is_device = has_device(workload, rank)
        idle = int(any_work[1][-1] - any_work[0][0]) - _length(any_work) if len(any_work[0]) else 0
        result.append(
            RankTime(
                _length(computation),
                total,
                _length(memory) if is_device else None,
                idle if is_device else None,
                100 * hidden / total if total else None,
            )
        )
    return result


def overlap_percent(workload: Workload, times: Timeline) -> list[float | None]:
    """Return per rank the percentage of the communication time with computation, or None."""
    return [rank_times.overlap_percent for rank_times in measure_rank_times(workload, times)]


def is_communication(workload: Workload) -> BoolArray:
    """Mark the nodes that communicate: bool[nodes].

    These are all collectives, sends and receives, and nodes of kind COMPUTE whose name is in the
    list `communication_names` of the plugin's extension: calls that a workload cannot express.
    """
    kinds = NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV
    mask: BoolArray = workload.nodes.is_kind(*kinds) | _is_named(workload, "communication_names")
    return mask


def is_computation(workload: Workload) -> BoolArray:
    """Mark nodes of computation: bool[nodes].

    These are the nodes of kind COMPUTE, with these exceptions:

    - communication that is expressed as COMPUTE, and operations on memory (copies, sets)
    - operators that issue communication: names that begin with a prefix in
      `ISSUER_NAMESPACES`, such as `c10d::`
    - entries during which only time passes: names in `PASSING_TIME`
    - nodes without a name, if the workload was read from profiles
    """
    is_work = [
        not name.startswith(ISSUER_NAMESPACES) and name not in PASSING_TIME
        for name in workload.names
    ]
    # Readers of profiles name the work of ranks; other jobs may have computations without a name.
    is_unnamed_work = EXTENSION not in workload.extensions
    named = np.array([*is_work, is_unnamed_work], np.bool_)[workload.nodes.name]
    is_other = is_communication(workload) | _is_named(workload, "memory_names")
    mask: BoolArray = named & workload.nodes.is_kind(NodeKind.COMPUTE) & ~is_other
    return mask


def _is_named(workload: Workload, fact: str) -> BoolArray:
    """Mark COMPUTE nodes whose name is in a list of the plugin's extension: bool[nodes].

    `fact`: name of the list, such as `memory_names`. All False if the list does not exist.
    """
    listed = set(map(str, fact_list(workload, fact)))
    named = np.array([*(name in listed for name in workload.names), False], np.bool_)
    mask: BoolArray = named[workload.nodes.name] & workload.nodes.is_kind(NodeKind.COMPUTE)
    return mask


def _merge_intervals(times: Timeline, rows: Int64Array) -> Intervals:
    """Merge the times of the nodes `rows` to disjoint ascending intervals in ns.

    The result is (start times, end times), two arrays. Intervals that overlap or touch
    are merged. A node without duration gives an interval of length 0, unless it touches
    another one. The rows may have any order. Without rows, both arrays are empty.
    """
    order = np.argsort(times.start[rows], kind="stable")
    start, end = times.start[rows][order], times.end[rows][order]
    if not len(rows):
        return start, end
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    return start[first], reach[np.append(first[1:] - 1, len(rows) - 1)]


def _length(intervals: Intervals) -> int:
    return int((intervals[1] - intervals[0]).sum())


def _measure_overlap_ns(first: Intervals, second: Intervals) -> int:
    """Return the time in ns during which an interval of each of both sets is active.

    Each set is an array of starts and one of ends, in ns. The intervals of one set must be
    disjoint, in any order. Intervals that only touch have no overlap. The result is 0 if a
    set is empty.
    """
    starts, ends = np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
    moments = np.concatenate([starts, ends])
    change = np.concatenate([np.ones(len(starts), np.int64), np.full(len(ends), -1)])
    order = np.argsort(moments, kind="stable")
    depth = np.cumsum(change[order])[:-1]
    lengths = np.diff(moments[order])
    return int(lengths[depth == 2].sum())


@dataclass(frozen=True, slots=True, eq=False)
class WaitingTimes:
    """Waiting and transfer times, int64[nodes] in ns, 0 for nodes without communication.

    `waiting`: from the start on this rank to the start on the last rank. `transferring`: from then
    to the end on this rank, 0 if it ended before. Their sum is the measured duration. `last_start`:
    start on the last rank, -1 without communication.
    """

    waiting: Int64Array
    transferring: Int64Array
    last_start: Int64Array


def measure_waiting(times: Timeline, meetings: Meetings) -> WaitingTimes:
    """Split the duration of every communication node into waiting and transfer: int64[nodes], ns.

    `meetings`: for each communication its nodes on all ranks. Let S be the latest start of the
    nodes of a communication. For each of its nodes:

    - The node ends at or before S: all of its time is waiting.
    - Otherwise: the time from S to its end is transfer, the time before S is waiting.

    The result also has S per node. Nodes of no communication have 0 for both times and S = -1.
    """
    last_start = np.full(len(times.start), -1, np.int64)
    rows, of_node = meetings.rows, meetings.of_node
    if len(rows):
        # Every communication has at least one node.
        last = np.maximum.reduceat(times.start[rows], meetings.indptr[:-1])
        last_start[rows] = last[of_node[rows]]
    waiting, transferring = np.zeros((2, len(times.start)), np.int64)
    since = np.maximum(times.start[rows], last_start[rows])
    transferring[rows] = np.maximum(times.end[rows] - since, 0)
    waiting[rows] = times.end[rows] - times.start[rows] - transferring[rows]
    return WaitingTimes(waiting, transferring, last_start)


@dataclass(frozen=True, slots=True, eq=False)
class Stragglers:
    """Stragglers per communication, int64[meetings].

    `rank`: the only rank that started last, -1 if several ranks did or fewer than two are measured.
    `caused_ns`: waiting time summed over the measured ranks. `measured`: number of ranks with a
    file.
    """

    rank: Int64Array
    caused_ns: Int64Array
    measured: Int64Array


def is_measured(workload: Workload) -> BoolArray:
    """Mark the nodes of ranks that have their own file: bool[nodes].

    False for ranks that are assumed to be copies of another rank, by the list
    `assumed_ranks` of the plugin's extension. All True if the list is missing, as in a
    workload of another reader. Raise `InputError` for an entry of the list that is no
    integer.
    """
    assumed = [int(str(rank)) for rank in fact_list(workload, "assumed_ranks")]
    mask: BoolArray = ~np.isin(workload.nodes.rank, np.array(assumed, np.int64))
    return mask


def find_stragglers(
    workload: Workload, times: Timeline, meetings: Meetings, waits: WaitingTimes
) -> Stragglers:
    """Find the straggler of every communication: the measured rank whose node starts last.

    A rank is measured unless the list `assumed_ranks` of the workload names it, because it has no
    trace file. Nodes of other ranks are ignored, even if they start later. The result has three
    arrays int64[communications], in the order of `meetings`:

    - `rank`: the straggler; -1 if fewer than two nodes are of measured ranks, or if several of
      them start at the same last time
    - `caused_ns`: sum of the waiting times in `waits` of all nodes of measured ranks, in ns, also
      if `rank` is -1; 0 without such nodes
    - `measured`: number of nodes of measured ranks

    Raises `InputError` (`invalid-json`) for an entry of `assumed_ranks` that is no integer.
    """
    measured_rows = is_measured(workload)
    rank, caused, measured = np.full((3, len(meetings)), -1, np.int64)
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        rows = rows[measured_rows[rows]]
        measured[meeting] = len(rows)
        caused[meeting] = waits.waiting[rows].sum()
        if len(rows) < 2:
            continue
        start = times.start[rows]
        latest = np.flatnonzero(start == start.max())
        if len(latest) == 1:
            rank[meeting] = workload.nodes.rank[rows[int(latest[0])]]
    return Stragglers(rank, caused, measured)
