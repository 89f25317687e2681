"""When the nodes of a workload start and end, from durations and dependencies alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collhub_pytorch.job import file_of
from hub_core.columns import Int64Array, csr, group_of_entry
from hub_core.model import InputError, NodeKind, Workload

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
