"""Start and end times of the nodes of a workload, with the clocks of the ranks aligned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collhub_pytorch.analysis.matching import Meetings
from collhub_pytorch.job import file_of, is_host_group
from hub_core.columns import Int64Array, csr, group_of_entry
from hub_core.model import (
    InputError,
    JobCollective,
    Location,
    NodeKind,
    Workload,
    format_ranks,
    format_time,
)

# Ends of the members of a communication, by the times at which they reach it.
Ends = Callable[[Sequence[int], Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Start and end of every node: int64[nodes], ns from the begin of the first rank."""

    start: Int64Array
    end: Int64Array

    def span_ns(self, rows: Int64Array) -> int:
        """From the first start to the last end of these nodes."""
        return int(self.end[rows].max() - self.start[rows].min()) if len(rows) else 0


def measured_timeline(workload: Workload) -> Timeline:
    """The times of the profile: every node lasts as long as was measured, waiting included.

    Raises `InputError` where a node has no time, and for dependencies that form a cycle.
    """
    alone = np.full(len(workload.nodes), -1, np.int64)
    return timeline(workload, alone, np.empty(0, np.int64), lambda rows, starts: ())


def has_times(workload: Workload) -> bool:
    """Whether every node has a measured time."""
    nodes = workload.nodes
    return not bool(((nodes.duration_ns < 0) & ~nodes.is_kind(NodeKind.MARKER)).any())


def timeline(workload: Workload, meeting: Int64Array, sizes: Int64Array, ends: Ends) -> Timeline:
    """The times where each node starts as soon as all that it waits for has ended.

    `meeting`: the communication of each node, -1 for none; it takes place when all of its `sizes`
    nodes are reached, and `ends(rows, starts)` tells when it ends for each. Cost: linear. Raises
    `InputError` as `measured_timeline`.
    """
    _check_durations(workload, meeting)
    nodes = workload.nodes
    indptr, children, open_parents = _children(workload)
    duration, of_node = nodes.duration_ns.tolist(), meeting.tolist()
    start, end = [0] * len(nodes), [0] * len(nodes)
    here: list[list[int]] = [[] for _ in range(len(sizes))]
    missing = sizes.tolist()
    ready = [row for row, count in enumerate(open_parents) if not count]
    done = 0
    while ready:
        row = ready.pop()
        own = of_node[row]
        if own < 0:
            ended = [row]
            end[row] = start[row] + duration[row]
        else:
            here[own].append(row)
            missing[own] -= 1
            if missing[own]:
                continue
            ended = here[own]
            for one, moment in zip(ended, ends(ended, [start[r] for r in ended]), strict=True):
                end[one] = moment
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
        raise _never_ends(workload, next(r for r, count in enumerate(open_parents) if count))
    return Timeline(np.array(start, np.int64), np.array(end, np.int64))


def _children(workload: Workload) -> tuple[list[int], list[int], list[int]]:
    """The nodes that wait for each, as (indptr, children), and how many each waits for."""
    nodes = workload.nodes
    tables = [
        (nodes.data_indptr, nodes.data_indices), (nodes.control_indptr, nodes.control_indices)
    ]  # fmt: skip
    parents = np.concatenate([indices for _, indices in tables])
    children = np.concatenate([group_of_entry(indptr) for indptr, _ in tables])
    indptr, found = csr(parents, children, len(nodes))
    counts = np.bincount(children, minlength=len(nodes))
    return indptr.tolist(), found.tolist(), counts.tolist()


def _check_durations(workload: Workload, meeting: Int64Array) -> None:
    """Raise `InputError` where neither a duration nor a communication tells a node's time."""
    nodes = workload.nodes
    bad = (nodes.duration_ns < 0) & (meeting < 0) & ~nodes.is_kind(NodeKind.MARKER)
    if bad.any():
        row = int(np.argmax(bad))
        place = nodes.location(row, file_of(workload, int(nodes.rank[row])))
        message = "a node has no measured time"
        cure = "name Kineto profiles; execution traces state no times"
        raise InputError(message, location=place, cure=cure, code="no-times")


def _never_ends(workload: Workload, row: int) -> InputError:
    place = workload.nodes.location(row, file_of(workload, int(workload.nodes.rank[row])))
    message = "this node never starts: what it waits for waits for it"
    return InputError(message, location=place, code="deadlock")


# Whoever only gives may end before the others have begun.
_ROOTED = (
    JobCollective.BROADCAST, JobCollective.REDUCE, JobCollective.GATHER, JobCollective.SCATTER,
)  # fmt: skip
_ROUNDS = 20


@dataclass(frozen=True, slots=True, eq=False)
class ClockFit:
    """What each rank's clock shows more than the common one, and what remains.

    `residual_ns`: the most by which an end of a collective differs from the median of its ends.
    """

    offset_ns: Int64Array
    residual_ns: int


def fitted_clocks(
    workload: Workload, times: Timeline, meetings: Meetings, most_residual_ns: float
) -> ClockFit:
    """Offsets by which the ends of every collective fall together as well as they can.

    First along shared collectives from clock to clock, then by medians in turn: of a collective
    over its ranks, of a clock over its collectives. Raises `InputError` where ranks share no
    collective with the others, and where ends remain further apart than `most_residual_ns`.
    """
    rows, of_row = _common_ends(workload, meetings)
    clock_of_rank = _clocks(workload)
    clock = clock_of_rank[workload.nodes.rank[rows]]
    end = times.end[rows]
    offset = _along_collectives(workload, clock, of_row, end)
    for _ in range(_ROUNDS):
        middle = _medians(of_row, end - offset[clock], len(meetings))
        change = _medians(clock, end - offset[clock] - middle[of_row], len(offset))
        offset += change
        if not change.any():
            break
    middle = _medians(of_row, end - offset[clock], len(meetings))
    apart = np.abs(end - offset[clock] - middle[of_row])
    residual = int(apart.max(initial=0))
    if residual > most_residual_ns:
        raise _not_aligned(workload, int(rows[int(np.argmax(apart))]), residual)
    return ClockFit((offset - offset[0])[clock_of_rank], residual)


def _clocks(workload: Workload) -> Int64Array:
    """The clock of each rank, numbered by first use: ranks that are assumed have their file's."""
    numbers: dict[str | None, int] = {}
    files = [file_of(workload, rank) for rank in range(workload.num_ranks)]
    return np.array([numbers.setdefault(file, len(numbers)) for file in files], np.int64)


def _common_ends(workload: Workload, meetings: Meetings) -> tuple[Int64Array, Int64Array]:
    """The nodes whose ends fall together, and the communication of each."""
    nodes = workload.nodes
    of_row = group_of_entry(meetings.indptr)
    rows = meetings.rows
    is_several = np.diff(meetings.indptr)[of_row] > 1
    is_rooted = np.isin(nodes.collective[rows], np.array(_ROOTED, np.int64))
    is_common = is_several & nodes.is_kind(NodeKind.COLLECTIVE)[rows] & ~is_rooted
    # Threads of the host end when they get a core: the device's collectives are more exact.
    is_exact = is_common & ~is_host_group(workload)[rows]
    if is_exact.any():
        is_common = is_exact
    if not is_common.any():
        is_common = is_several
    return rows[is_common], of_row[is_common]


def _along_collectives(
    workload: Workload, clock: Int64Array, meeting: Int64Array, end: Int64Array
) -> Int64Array:
    """Offsets found by going from clock 0 to all that share a collective with those known."""
    count = int(_clocks(workload).max()) + 1
    meeting_count = int(meeting.max(initial=-1)) + 1
    offset, is_known = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    is_known[0] = True
    while not is_known.all():
        # Communications with a clock that is known tell the common time of their end.
        known = is_known[clock]
        middle = _medians(meeting[known], end[known] - offset[clock[known]], meeting_count)
        is_told = np.zeros(len(middle), np.bool_)
        is_told[meeting[known]] = True
        new = ~known & is_told[meeting]
        if not new.any():
            raise _not_connected(workload, is_known)
        found = _medians(clock[new], end[new] - middle[meeting[new]], count)
        reached = np.unique(clock[new])
        offset[reached] = found[reached]
        is_known[reached] = True
    return offset


def _medians(group: Int64Array, values: Int64Array, count: int) -> Int64Array:
    """The lower median of the values of each group, 0 for groups without."""
    found = np.zeros(count, np.int64)
    order = np.lexsort((values, group))
    sizes = np.bincount(group, minlength=count)
    first = np.cumsum(sizes) - sizes
    has_some = np.flatnonzero(sizes)
    found[has_some] = values[order][first[has_some] + (sizes[has_some] - 1) // 2]
    return found


def _not_connected(workload: Workload, is_known: np.typing.NDArray[np.bool_]) -> InputError:
    """The error for clocks that no collective ties to clock 0, at the first such rank's file."""
    others = np.flatnonzero(~is_known[_clocks(workload)]).tolist()
    message = (
        f"the clocks of ranks {format_ranks(others)} cannot be aligned: "
        "they share no collective with the others"
    )
    cure = "give -O clocks=stated if all ranks have one clock"
    place = Location(file_of(workload, others[0]))
    return InputError(message, location=place, cure=cure, code="clocks")


def _not_aligned(workload: Workload, row: int, residual_ns: int) -> InputError:
    nodes = workload.nodes
    place = nodes.location(row, file_of(workload, int(nodes.rank[row])))
    message = (
        "the clocks cannot be aligned: with the best offsets this collective still ends "
        f"{format_time(residual_ns)} from where it does on other ranks"
    )
    cure = "profile the same iteration on all ranks, or allow more with -O clock_residual=TIME"
    return InputError(message, location=place, cure=cure, code="clocks")
