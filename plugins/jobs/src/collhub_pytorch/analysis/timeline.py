"""Start and end times of the nodes of a workload, with the clocks of the ranks aligned."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collhub_pytorch.analysis.matching import Meetings
from collhub_pytorch.job import file_of, is_host_group
from hub_core.columns import Int64Array, csr, first_positions, group_of_entry
from hub_core.model import (
    InputError,
    JobCollective,
    Location,
    NodeKind,
    Workload,
    format_ranks,
    format_time,
)

# (rows, arrival times) of the members of a communication -> their end times.
ComputeEnds = Callable[[Sequence[int], Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Start and end of every node: int64[nodes], in ns from the start of the first rank."""

    start: Int64Array
    end: Int64Array

    def span_ns(self, rows: Int64Array) -> int:
        """Return the time from the first start to the last end of these nodes."""
        return int(self.end[rows].max() - self.start[rows].min()) if len(rows) else 0


def measured_timeline(workload: Workload) -> Timeline:
    """Compute start and end of all nodes in ns from the recorded durations.

    A node starts when all of its parents have ended, at 0 without parents, and takes its
    duration (0 for a marker without one). This also holds for communications: they do not
    wait for other ranks, because their durations contain the measured waiting times. Raise
    `InputError` for another node without a duration (`no-times`), and for cyclic
    dependencies (`deadlock`).
    """
    no_communication = np.full(len(workload.nodes), -1, np.int64)
    return timeline(workload, no_communication, np.empty(0, np.int64), lambda rows, starts: ())


def has_times(workload: Workload) -> bool:
    """Return whether every node except markers has a duration; True without nodes."""
    nodes = workload.nodes
    return not bool(((nodes.duration_ns < 0) & ~nodes.is_kind(NodeKind.MARKER)).any())


def timeline(
    workload: Workload,
    meeting: Int64Array,
    sizes: Int64Array,
    compute_ends: ComputeEnds,
    lane: Int64Array | None = None,
) -> Timeline:
    """Compute start and end (ns) of each node; a node starts when all of its parents have ended.

    Nodes without parents start at 0. A node without a communication ends after its duration;
    markers without a duration take no time.

    - `meeting`: number of the communication of each node, -1 without one
    - `sizes`: number of nodes of each communication
    - `compute_ends(rows, starts)`: returns the ends in ns of the nodes `rows` of a
      communication, in their order. It is called once per communication, when all of its nodes
      can start. Starts may differ.
    - `lane`: lane of each node, -1 for none. Nodes of one lane without communication run one at
      a time, in the order in which they can start, then by row; a node may then start later
      than its parents' ends. None: no lanes, all run at once.

    Raises `InputError` for a node other than a marker with neither a duration nor a
    communication (`no-times`), and for nodes that wait for each other (`deadlock`).
    """
    _check_durations(workload, meeting)
    nodes = workload.nodes
    indptr, children, open_parents = _build_children(workload)
    # Arrays take a fifth of the memory of lists of numbers. Markers take no time.
    duration, of_node = _to_array(nodes.duration_ns.clip(0)), _to_array(meeting)
    start, end = array("q", bytes(8 * len(nodes))), array("q", bytes(8 * len(nodes)))
    arrived: list[list[int]] = [[] for _ in range(len(sizes))]
    missing = sizes.tolist()
    first = [row for row, count in enumerate(open_parents) if not count]
    ready: list[int] | _ReadyNodes = first if lane is None else _ReadyNodes(start, first)
    lane_of_row = None if lane is None else _to_array(lane)
    free_at: dict[int, int] = {}
    done = 0
    while ready:
        row = ready.pop()
        communication = of_node[row]
        if communication < 0:
            ended = [row]
            number = -1 if lane_of_row is None else lane_of_row[row]
            if number >= 0:
                start[row] = max(start[row], free_at.get(number, 0))
                free_at[number] = start[row] + duration[row]
            end[row] = start[row] + duration[row]
        else:
            arrived[communication].append(row)
            missing[communication] -= 1
            if missing[communication]:
                continue
            ended = arrived[communication]
            for ended_row, moment in zip(
                ended, compute_ends(ended, [start[r] for r in ended]), strict=True
            ):
                end[ended_row] = moment
        done += len(ended)
        for parent in ended:
            moment = end[parent]
            for child in children[indptr[parent] : indptr[parent + 1]]:
                if moment > start[child]:
                    start[child] = moment
                open_parents[child] -= 1
                if not open_parents[child]:
                    ready.append(child)
    if done < len(nodes):
        raise _deadlock_error(workload, next(r for r, count in enumerate(open_parents) if count))
    return Timeline(np.array(start, np.int64), np.array(end, np.int64))


class _ReadyNodes:
    """Rows that can start; `pop` returns the one with the earliest start, then the first row."""

    def __init__(self, start: array[int], rows: Sequence[int]) -> None:
        self._start = start
        self._heap = [(start[row], row) for row in rows]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def append(self, row: int) -> None:
        heapq.heappush(self._heap, (self._start[row], row))

    def pop(self) -> int:
        return heapq.heappop(self._heap)[1]


def _to_array(column: Int64Array) -> array[int]:
    return array("q", np.ascontiguousarray(column, np.int64).tobytes())


def _build_children(workload: Workload) -> tuple[array[int], array[int], array[int]]:
    """Return the children of every node as CSR (indptr, children), and its number of parents.

    Node i has the children `children[indptr[i]:indptr[i + 1]]`: first those of its data edges, then
    those of its control edges, ascending in each. Both kinds count equally; a pair with both is
    contained twice, and counts as two parents. All three are arrays of Python's module `array`.
    """
    nodes = workload.nodes
    tables = [
        (nodes.data_indptr, nodes.data_indices), (nodes.control_indptr, nodes.control_indices)
    ]  # fmt: skip
    parents = np.concatenate([indices for _, indices in tables])
    children = np.concatenate([group_of_entry(indptr) for indptr, _ in tables])
    indptr, ordered = csr(parents, children, len(nodes))
    counts = np.bincount(children, minlength=len(nodes))
    return _to_array(indptr), _to_array(ordered), _to_array(counts)


def _check_durations(workload: Workload, meeting: Int64Array) -> None:
    """Raise `InputError` (`no-times`) for the first node without duration and communication.

    `meeting`: number of the communication of each node, -1 for none. A duration below 0 is unknown;
    0 is a known duration. Markers need no duration. The first node is the one with the lowest row;
    the error has its location in the file of its rank. Nothing is returned.
    """
    nodes = workload.nodes
    bad = (nodes.duration_ns < 0) & (meeting < 0) & ~nodes.is_kind(NodeKind.MARKER)
    if bad.any():
        row = int(np.argmax(bad))
        location = nodes.location(row, file_of(workload, int(nodes.rank[row])))
        message = "a node has no measured time"
        cure = "name Kineto profiles, or a job whose computations have durations"
        raise InputError(message, location=location, cure=cure, code="no-times")


def _deadlock_error(workload: Workload, row: int) -> InputError:
    location = workload.nodes.location(row, file_of(workload, int(workload.nodes.rank[row])))
    message = "this node never starts: what it waits for waits for it"
    return InputError(message, location=location, code="deadlock")


# In rooted collectives, a sender may end before the receivers start.
_ROOTED = (
    JobCollective.BROADCAST, JobCollective.REDUCE, JobCollective.GATHER, JobCollective.SCATTER,
)  # fmt: skip
_ROUNDS = 20


@dataclass(frozen=True, slots=True, eq=False)
class ClockFit:
    """Offset of each rank's clock from the common clock, and the remaining error.

    `residual_ns`: maximum difference between an end of a collective and the median of its ends.
    """

    offset_ns: Int64Array
    residual_ns: int


def fit_clocks(
    workload: Workload, times: Timeline, meetings: Meetings, max_residual_ns: float
) -> ClockFit:
    """Find the offset of each clock for which collectives end at the same time on all ranks.

    Each trace file has one clock, shared by its ranks. The corrected end of a node is its end minus
    the offset of its clock. Only the ends that `_select_common_ends` selects are used. The first
    offsets come from `_propagate_offsets`. Then at most `_ROUNDS` (20) rounds follow, until no
    offset changes; a median of an even number of values is the lower middle one:

    - The common end of each communication is the median of the corrected ends of its nodes.
    - Each offset increases by the median of corrected end minus common end, over all ends of its
      clock.

    Returns an offset per rank in ns, relative to that of rank 0, and the residual: the largest
    distance in ns of a corrected end from its common end, 0 without ends. Raises `InputError`
    (`clocks`) if a clock is not linked to that of rank 0 by communications, or if the residual is
    above `max_residual_ns`.
    """
    rows, of_row = _select_common_ends(workload, meetings)
    # One clock per file: assumed ranks share the clock of their file.
    numbers: dict[str | None, int] = {}
    files = [file_of(workload, rank) for rank in range(workload.num_ranks)]
    clock_of_rank = np.array([numbers.setdefault(file, len(numbers)) for file in files], np.int64)
    clock = clock_of_rank[workload.nodes.rank[rows]]
    end = times.end[rows]
    offset = _propagate_offsets(workload, clock_of_rank, clock, of_row, end)
    for _ in range(_ROUNDS):
        middle = _compute_medians(of_row, end - offset[clock], len(meetings))
        change = _compute_medians(clock, end - offset[clock] - middle[of_row], len(offset))
        offset += change
        if not change.any():
            break
    middle = _compute_medians(of_row, end - offset[clock], len(meetings))
    distance = np.abs(end - offset[clock] - middle[of_row])
    residual = int(distance.max(initial=0))
    if residual > max_residual_ns:
        row = int(rows[int(np.argmax(distance))])
        file = file_of(workload, int(workload.nodes.rank[row]))
        location = workload.nodes.location(row, file)
        message = (
            "the clocks cannot be aligned: with the best offsets this collective still ends "
            f"{format_time(residual)} from where it does on other ranks"
        )
        cure = "profile the same iteration on all ranks, or allow more with -O clock_residual=TIME"
        raise InputError(message, location=location, cure=cure, code="clocks")
    return ClockFit((offset - offset[0])[clock_of_rank], residual)


def _select_common_ends(workload: Workload, meetings: Meetings) -> tuple[Int64Array, Int64Array]:
    """Select the communication nodes that should end at the same time on all ranks.

    Returns the rows of the nodes, and for each row the number of its communication in `meetings`.
    Both are ordered by this number. Only communications with several nodes are considered. The
    first of these sets that is not empty is returned:

    1. Collectives without a root whose process group is not one of a host library (`gloo`, `mpi`,
       `ucc`).
    2. All collectives without a root.
    3. All communications, also messages.

    Broadcast, reduce, gather and scatter have a root. Barriers and collectives of unknown kind have
    none. Both arrays are empty if no communication has several nodes.
    """
    nodes = workload.nodes
    of_row = group_of_entry(meetings.indptr)
    rows = meetings.rows
    is_several = np.diff(meetings.indptr)[of_row] > 1
    is_rooted = np.isin(nodes.collective[rows], np.array(_ROOTED, np.int64))
    is_common = is_several & nodes.is_kind(NodeKind.COLLECTIVE)[rows] & ~is_rooted
    # Host threads end when they get a core: collectives of the device are more exact.
    is_exact = is_common & ~is_host_group(workload)[rows]
    if is_exact.any():
        is_common = is_exact
    if not is_common.any():
        is_common = is_several
    return rows[is_common], of_row[is_common]


def _propagate_offsets(
    workload: Workload,
    clock_of_rank: Int64Array,
    clock: Int64Array,
    meeting: Int64Array,
    end: Int64Array,
) -> Int64Array:
    """Return a first estimate of the offset of each clock in ns, with offset 0 for clock 0.

    The result is int64[clocks]; the corrected time is the time minus the offset. `clock_of_rank`:
    clock of each rank; the highest one gives the number of clocks. `clock`, `meeting`, `end`:
    int64[entries], clock, communication and end in ns of each entry. `workload` gives the file for
    an error. The median of an even number of values is the lower middle one.

    At first only clock 0 is known. Each round has these steps, until all clocks are known:

    1. The common end of a communication is the median of the corrected ends of its entries on
       known clocks.
    2. An unknown clock with entries in such communications becomes known. Its offset is the median,
       over these entries, of end minus common end.

    Raises `InputError` (`clocks`), which lists the ranks of all unknown clocks, if no clock becomes
    known in a round.
    """
    count = int(clock_of_rank.max()) + 1
    meeting_count = int(meeting.max(initial=-1)) + 1
    offset, is_known = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    is_known[0] = True
    while not is_known.all():
        # A communication with a known clock determines the common time of its end.
        known = is_known[clock]
        middle = _compute_medians(meeting[known], end[known] - offset[clock[known]], meeting_count)
        is_timed = np.zeros(len(middle), np.bool_)
        is_timed[meeting[known]] = True
        new = ~known & is_timed[meeting]
        if not new.any():
            ranks = np.flatnonzero(~is_known[clock_of_rank]).tolist()
            message = (
                f"the clocks of ranks {format_ranks(ranks)} cannot be aligned: "
                "they share no collective with the others"
            )
            cure = "give -O clocks=stated if all ranks have one clock"
            location = Location(file_of(workload, ranks[0]))
            raise InputError(message, location=location, cure=cure, code="clocks")
        medians = _compute_medians(clock[new], end[new] - middle[meeting[new]], count)
        reached = np.unique(clock[new])
        offset[reached] = medians[reached]
        is_known[reached] = True
    return offset


def _compute_medians(group: Int64Array, values: Int64Array, count: int) -> Int64Array:
    """Return the lower median of the values of each group: int64[count], 0 for empty groups.

    `group`: number of the group of each value, 0 to `count` - 1, in any order. The lower median of
    n sorted values is number (n - 1) // 2, from 0. For example, 5 and 9 give 5, and 1, 2 and 7 give
    2.
    """
    medians = np.zeros(count, np.int64)
    order = np.lexsort((values, group))
    sizes = np.bincount(group, minlength=count)
    first = first_positions(sizes)
    has_some = np.flatnonzero(sizes)
    medians[has_some] = values[order][first[has_some] + (sizes[has_some] - 1) // 2]
    return medians
