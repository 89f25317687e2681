"""Where the time of a simulated job goes: utilisation, collectives, groups, the critical path.

All is computed from the columns of starts and ends. Exposed is the time of a node in which nothing
is computed on its rank; nodes that are exposed at once are all counted. A receipt takes the time
from when its message is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hub_core.cli.jobs.job_path import PathNode, critical_path, job_partners
from hub_core.cli.jobs.workloads import collective_name
from hub_core.columns import Int64Array, distinct
from hub_core.model import JobCollective, NodeKind, Workload

if TYPE_CHECKING:
    from hub_core.model import JsonValue

LISTED_NODES = 20
# Messages are sorts behind those of collectives.
_FIRST_MESSAGE = int(max(JobCollective)) + 1
_COMMUNICATION = (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV)


@dataclass(frozen=True, slots=True)
class Spent:
    """Calls of one sort on all ranks: how long they took, and how much of that was exposed.

    `kind`: of the collective or message. `ranks`: of the groups, 2 for messages. `most_ns`: exposed
    on the rank that has most. `waiting_ns`: until the last member of the call had begun, or the
    message was sent.
    """

    kind: str
    ranks: int
    bytes: int
    calls: int
    time_ns: int
    exposed_ns: int
    most_ns: int
    waiting_ns: int


@dataclass(frozen=True, slots=True)
class JobReport:
    """The report; `path` in the order of time, `rank_compute_ns` without overlaps."""

    rank_compute_ns: tuple[int, ...]
    spent: tuple[Spent, ...]
    groups: tuple[tuple[str, Spent], ...]
    path: tuple[PathNode, ...]


def job_report(workload: Workload, start: Int64Array, end: Int64Array) -> JobReport:
    """The report of a run; `start`, `end`: int64 by row in ns, -1 for never."""
    covered = _Covered(workload, start, end)
    rows = np.flatnonzero(workload.nodes.is_kind(*_COMMUNICATION) & (end >= 0))
    begin = start[rows]
    others = start[job_partners(workload, start, end)[rows]]
    others = np.clip(others, begin, end[rows])
    # A receipt may be asked for long before its message is sent.
    is_receipt = workload.nodes.kind[rows] == NodeKind.RECV
    waiting = others - begin
    begin = np.where(is_receipt, others, begin)
    exposed = end[rows] - begin - covered.within(rows, begin, end[rows])
    table = _Table(workload, rows, end[rows] - begin, exposed, waiting)
    path = tuple(critical_path(workload, start, end))
    return JobReport(covered.by_rank(), table.by_sort(), table.by_group(), path)


class _Covered:
    """The union of the computations of every rank, all ranks one behind the other on one axis."""

    def __init__(self, workload: Workload, start: Int64Array, end: Int64Array) -> None:
        nodes = workload.nodes
        self._rank, self._count = nodes.rank.astype(np.int64), workload.num_ranks
        self._span = int(end.max(initial=0)) + 1
        rows = np.flatnonzero(nodes.is_kind(NodeKind.COMPUTE) & ~nodes.on_host & (end >= 0))
        # One axis for all ranks: that of a rank begins where the last end of all could be.
        base = self._rank[rows] * self._span
        moments = np.concatenate([base + start[rows], base + end[rows]])
        steps = np.repeat(np.array([1, -1]), len(rows))
        # Of equal moments the ends go first: only lengths count.
        order = np.lexsort((steps, moments))
        self._moments = np.concatenate([[0], moments[order]])
        depth = np.cumsum(steps[order])
        lengths = np.diff(self._moments, append=self._moments[-1])
        busy = np.concatenate([[0], depth > 0]) * lengths
        self._busy = busy
        self._before = np.cumsum(busy) - busy

    def within(self, rows: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
        """Nanoseconds of computation between moments, on the rank of each row."""
        base = self._rank[rows] * self._span
        return self._until(base + end) - self._until(base + start)

    def by_rank(self) -> tuple[int, ...]:
        """Nanoseconds of computation of every rank."""
        edges = self._until(np.arange(self._count + 1) * self._span)
        return tuple(np.diff(edges).tolist())

    def _until(self, moment: Int64Array) -> Int64Array:
        """Nanoseconds of computation before moments of the axis."""
        at = np.searchsorted(self._moments, moment, side="right") - 1
        # Within a busy stretch the part before the moment counts.
        since = np.minimum(moment - self._moments[at], self._busy[at])
        covered: Int64Array = self._before[at] + since
        return covered


class _Table:
    """Communication nodes with their times, to be summed by what they are."""

    def __init__(
        self,
        workload: Workload,
        rows: Int64Array,
        time_ns: Int64Array,
        exposed_ns: Int64Array,
        waiting_ns: Int64Array,
    ) -> None:
        nodes = workload.nodes
        self._workload, self._rank = workload, nodes.rank[rows]
        self._time_ns, self._exposed_ns, self._waiting_ns = time_ns, exposed_ns, waiting_ns
        is_collective = nodes.kind[rows] == NodeKind.COLLECTIVE
        messages = _FIRST_MESSAGE + nodes.kind[rows].astype(np.int64)
        self._sort = np.where(is_collective, nodes.collective[rows], messages)
        self._bytes = nodes.bytes[rows].clip(0)
        self._group = np.where(is_collective, nodes.group[rows], -2)
        members = [len(workload.members(group)) for group in range(-1, len(workload.groups))]
        sizes = np.asarray([2, *members], np.int64)
        self._ranks = sizes[self._group + 2]

    def by_sort(self) -> tuple[Spent, ...]:
        """By kind, group size and bytes; what is exposed most goes first."""
        found = self._summed(self._sort, self._ranks, self._bytes)
        spent = [self._spent(members, number) for members, number in found]
        return tuple(sorted(spent, key=lambda one: (-one.exposed_ns, -one.time_ns)))

    def by_group(self) -> tuple[tuple[str, Spent], ...]:
        """Of every group, by kind of collective; those of all ranks are named by nothing."""
        found = []
        groups = self._workload.groups
        for members, number in self._summed(self._group, self._sort):
            group = int(self._group[members[0]])
            if group > -2:
                name = groups[group].name if group >= 0 else ""
                found.append((name, self._spent(members, number)))
        return tuple(found)

    def _summed(self, *keys: Int64Array) -> list[tuple[Int64Array, int]]:
        """(rows of this table, number) of every combination of keys."""
        order = np.lexsort(keys[::-1])
        table = np.stack([key[order] for key in keys])
        is_new = np.any(np.diff(table, axis=1) != 0, axis=0)
        parts = np.split(order, np.flatnonzero(is_new) + 1)
        return [(part, len(part)) for part in parts if len(part)]

    def _spent(self, members: Int64Array, calls: int) -> Spent:
        first = members[0]
        exposed = self._exposed_ns[members]
        per_rank = np.bincount(self._rank[members], exposed)
        # A size that is not the same everywhere is not stated.
        sizes = distinct(self._bytes[members])
        return Spent(
            _sort_name(int(self._sort[first])),
            int(self._ranks[first]),
            int(sizes[0]) if len(sizes) == 1 else -1,
            calls,
            int(self._time_ns[members].sum()),
            int(exposed.sum()),
            int(per_rank.max(initial=0)),
            int(self._waiting_ns[members].sum()),
        )


def _sort_name(number: int) -> str:
    """The name of a collective, or of a kind of message."""
    if number >= _FIRST_MESSAGE:
        return NodeKind(number - _FIRST_MESSAGE).name.lower()
    return collective_name(number)


def path_shares(workload: Workload, path: Sequence[PathNode]) -> dict[str, int]:
    """Nanoseconds of the path by what takes them, most first."""
    shares: dict[str, int] = {}
    for node in path:
        name = node_sort(workload, node.row)
        shares[name] = shares.get(name, 0) + node.duration_ns
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


def node_sort(workload: Workload, row: int) -> str:
    """A node as the report calls it: `compute`, `all-reduce`, `send`."""
    nodes = workload.nodes
    if nodes.kind[row] == NodeKind.COLLECTIVE:
        return collective_name(int(nodes.collective[row]))
    return NodeKind(nodes.kind[row]).name.lower()


def node_name(workload: Workload, row: int) -> str:
    """The name that the job gives a node, or its id."""
    nodes = workload.nodes
    name = int(nodes.name[row])
    return workload.names[name] if name >= 0 else f"node {nodes.identity[row]}"


def report_object(workload: Workload, report: JobReport) -> dict[str, JsonValue]:
    """The report as `collhub/report-simulate-workload-1` carries it."""
    top = sorted(report.path, key=lambda node: -node.duration_ns)[:LISTED_NODES]
    return {
        "rank_compute_ns": list(report.rank_compute_ns),
        "communication": [_spent_object(one) for one in report.spent],
        "groups": [{"group": name, **_spent_object(one)} for name, one in report.groups],
        "critical_path": {
            "nodes": len(report.path),
            "ranks": len({int(workload.nodes.rank[node.row]) for node in report.path}),
            "ns_by_kind": {**path_shares(workload, report.path)},
            "longest": [_node_object(workload, node) for node in top],
        },
    }


def _spent_object(spent: Spent) -> dict[str, JsonValue]:
    return {
        "kind": spent.kind,
        "ranks": spent.ranks,
        "bytes": spent.bytes if spent.bytes >= 0 else None,
        "calls": spent.calls,
        "time_ns": spent.time_ns,
        "exposed_ns": spent.exposed_ns,
        "most_exposed_ns": spent.most_ns,
        "waiting_ns": spent.waiting_ns,
    }


def _node_object(workload: Workload, node: PathNode) -> dict[str, JsonValue]:
    nodes = workload.nodes
    return {
        "rank": int(nodes.rank[node.row]),
        "node": int(nodes.identity[node.row]),
        "name": node_name(workload, node.row),
        "kind": node_sort(workload, node.row),
        "start_ns": node.start_ns,
        "end_ns": node.end_ns,
    }
