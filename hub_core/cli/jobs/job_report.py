"""Time report of a simulated job: utilisation, collectives, groups, critical path, JSON records.

All figures are computed from the columns of starts and ends. The exposed time of a node is its time
without computation on its rank; if several nodes are exposed at the same time, each counts. A
receive takes time from the sending of its message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import structs

from hub_core.cli.jobs.job_path import PathNode, critical_path, job_partners
from hub_core.columns import Int64Array, RankIntervals, distinct, run_starts
from hub_core.model import JobCollective, NodeKind, Workload
from hub_core.reports import (
    UNSET,
    AnyJson,
    Count,
    Finding,
    JobChangeItem,
    Machine,
    Meta,
    Record,
    Report,
    TimingNote,
    UnsetType,
)

LISTED_NODES = 20
# Codes of messages follow those of collectives.
_FIRST_MESSAGE = int(max(JobCollective)) + 1
_COMMUNICATION = (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV)


@dataclass(frozen=True, slots=True)
class Spent:
    """Time of the calls of one kind on all ranks, and the exposed part of it.

    `kind`: collective, or kind of message. `ranks`: ranks of the groups, 2 for messages. `most_ns`:
    maximum exposed time of a rank. `waiting_ns`: time until the last member of the call began, or
    the message was sent.
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
    """The report.

    `path`: in order of time. `rank_compute_ns`: time of computation without overlaps.
    """

    rank_compute_ns: tuple[int, ...]
    spent: tuple[Spent, ...]
    groups: tuple[tuple[str, Spent], ...]
    path: tuple[PathNode, ...]


def job_report(workload: Workload, start: Int64Array, end: Int64Array) -> JobReport:
    """Compute where the time of a run goes: computation, communication, critical path.

    `start`, `end`: int64 by node in ns, -1 for never. Nodes without an end are ignored.

    - `rank_compute_ns`: per rank, the time in which at least one computation runs, except on the
      host.
    - `spent`: sums of sends, receives and collectives by kind, group size and bytes, sorted by
      `_Table.by_sort`. `groups`: sums of collectives by group and kind, in the order of the groups;
      "" is the group of all ranks. `path`: the critical path in order of time.

    The waiting of a node is from its start to that of its partner, at most to its end: the send of
    a receive, or the member of a collective that begins last. Waiting is 0 for sends, and if the
    partner began earlier or is unknown. The time of a receive excludes its waiting; that of a send
    or collective includes it. Exposed is the part of this time in which the rank does not compute.
    """
    nodes = workload.nodes
    # Overlapping computations of a rank count once.
    computing = np.flatnonzero(nodes.is_kind(NodeKind.COMPUTE) & ~nodes.on_host & (end >= 0))
    covered = RankIntervals(
        nodes.rank[computing], start[computing], end[computing], workload.num_ranks
    )
    rows = np.flatnonzero(workload.nodes.is_kind(*_COMMUNICATION) & (end >= 0))
    begin = start[rows]
    partner_start = start[job_partners(workload, start, end)[rows]]
    partner_start = np.clip(partner_start, begin, end[rows])
    # A receive may begin long before its message is sent.
    is_receipt = workload.nodes.kind[rows] == NodeKind.RECV
    waiting = partner_start - begin
    begin = np.where(is_receipt, partner_start, begin)
    exposed = end[rows] - begin - covered.within(nodes.rank[rows], begin, end[rows])
    table = _Table(workload, rows, end[rows] - begin, exposed, waiting)
    path = tuple(critical_path(workload, start, end))
    return JobReport(covered.by_rank(), table.by_sort(), table.by_group(), path)


class _Table:
    """Communication nodes with their times, to be summed by kind, group or size."""

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
        """Sum the calls by kind, group size and bytes, the longest exposed time first.

        Exposed is the time in which the rank does not compute. Ties are ordered by total time,
        longest first, then by the number of the kind (unknown collectives, collectives,
        messages), group size and bytes. A call counts once per rank that takes part; different
        groups of equal size are summed. Unknown bytes count as 0. Empty without communication.
        """
        groups = self._group_rows(self._sort, self._ranks, self._bytes)
        spent = [self._sum_calls(members, number) for members, number in groups]
        return tuple(sorted(spent, key=lambda one: (-one.exposed_ns, -one.time_ns)))

    def by_group(self) -> tuple[tuple[str, Spent], ...]:
        """Sum the times of collectives: one pair (name of the group, sums) per group and kind.

        Pairs are in the order of the groups in the workload; the group of all ranks, with the name
        "", is first. The kinds of a group are in the order of `JobCollective`. Messages are
        omitted. A call counts once for every rank that takes part.
        """
        spent_by_group = []
        groups = self._workload.groups
        for members, number in self._group_rows(self._group, self._sort):
            group = int(self._group[members[0]])
            if group > -2:
                name = groups[group].name if group >= 0 else ""
                spent_by_group.append((name, self._sum_calls(members, number)))
        return tuple(spent_by_group)

    def _group_rows(self, *keys: Int64Array) -> list[tuple[Int64Array, int]]:
        """Group the rows of this table by several keys; return (rows, number of rows) per group.

        `keys`: int64 arrays with one value per row. Groups are ordered by the first key, then by
        the next ones; the rows of a group are ascending. Empty for a table without rows.
        """
        order = np.lexsort(keys[::-1])
        parts = np.split(order, run_starts(*(key[order] for key in keys))[1:])
        return [(part, len(part)) for part in parts if len(part)]

    def _sum_calls(self, members: Int64Array, calls: int) -> Spent:
        """Sum the times in ns of rows that are calls of one kind.

        `members`: indices of rows of this table, at least one. `calls`: reported as the number of
        calls. The kind is that of the first row; so is the number of ranks, which is the size of
        its group, 2 for a message. The size in bytes is -1 if it differs between rows. Total time,
        exposed time (in which the rank does not compute) and waiting time are sums over all rows.
        `most_ns` is the maximum over the ranks of the sum of their exposed times.
        """
        first = members[0]
        exposed = self._exposed_ns[members]
        per_rank = np.bincount(self._rank[members], exposed)
        # The size is given only if it is equal in all calls.
        sizes = distinct(self._bytes[members])
        sort = int(self._sort[first])
        if sort >= _FIRST_MESSAGE:
            name = NodeKind(sort - _FIRST_MESSAGE).name.lower()
        else:
            name = JobCollective(sort).label
        return Spent(
            name,
            int(self._ranks[first]),
            int(sizes[0]) if len(sizes) == 1 else -1,
            calls,
            int(self._time_ns[members].sum()),
            int(exposed.sum()),
            int(per_rank.max(initial=0)),
            int(self._waiting_ns[members].sum()),
        )


def path_shares(workload: Workload, path: Sequence[PathNode]) -> dict[str, int]:
    """Return the time in ns that each kind of node has on the path, the longest first.

    Kinds with equal times are in the order of their first node on the path. Empty for an empty
    path.
    """
    shares: dict[str, int] = {}
    for node in path:
        name = node_sort(workload, node.row)
        shares[name] = shares.get(name, 0) + node.duration_ns
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


def node_sort(workload: Workload, row: int) -> str:
    """Return the kind of a node as in reports, such as `compute`, `all-reduce` or `send`.

    For a collective it is the name of the collective (`unknown` if not known), with `-v`
    added if the bytes differ per rank (the node has a table of counts). For any other node
    it is the name of the `NodeKind` in lower case.
    """
    nodes = workload.nodes
    if nodes.kind[row] == NodeKind.COLLECTIVE:
        name = JobCollective(nodes.collective[row]).label
        return f"{name}-v" if nodes.counts[row] >= 0 else name
    return NodeKind(nodes.kind[row]).name.lower()


def node_name(workload: Workload, row: int) -> str:
    """Return the name of the node in this row of the job; `node ID` if it has none.

    ID is the identity that the source gives the node, not its row.
    """
    nodes = workload.nodes
    name = int(nodes.name[row])
    return workload.names[name] if name >= 0 else f"node {nodes.identity[row]}"


def create_communication_item(spent: Spent) -> CommunicationItem:
    """Return the time of the calls of one kind for the JSON report."""
    return CommunicationItem(
        kind=spent.kind,
        ranks=spent.ranks,
        bytes=spent.bytes if spent.bytes >= 0 else None,
        calls=spent.calls,
        time_ns=spent.time_ns,
        exposed_ns=spent.exposed_ns,
        most_exposed_ns=spent.most_ns,
        waiting_ns=spent.waiting_ns,
    )


def create_group_item(group: str, spent: Spent) -> GroupCommunicationItem:
    """Return the time of the collectives of a process group for the JSON report."""
    return GroupCommunicationItem(group=group, **structs.asdict(create_communication_item(spent)))


def create_path_item(workload: Workload, report: JobReport) -> CriticalPathItem:
    """Return the critical path of `report` for the JSON report.

    `nodes`, `ranks` (those with a node on the path) and `ns_by_kind` (total time of the nodes of
    each kind, the longest first) count the entire path. `longest` has only the `LISTED_NODES` (20)
    nodes with the longest time, longest first, ties in the order of the path. Node numbers in it
    are identities of the source, not rows. An empty path gives 0 nodes, 0 ranks and no entries.
    """
    nodes = workload.nodes
    top = sorted(report.path, key=lambda node: -node.duration_ns)[:LISTED_NODES]
    return CriticalPathItem(
        nodes=len(report.path),
        ranks=len({int(nodes.rank[node.row]) for node in report.path}),
        ns_by_kind=path_shares(workload, report.path),
        longest=[
            PathNodeItem(
                rank=int(nodes.rank[node.row]),
                node=int(nodes.identity[node.row]),
                name=node_name(workload, node.row),
                kind=node_sort(workload, node.row),
                start_ns=node.start_ns,
                end_ns=node.end_ns,
            )
            for node in top
        ],
    )


class CommunicationItem(Record, frozen=True, kw_only=True):
    """Time of the calls of one kind, number of ranks and size."""

    kind: str
    ranks: Annotated[int, Meta(ge=0, description="Ranks of the groups; 2 for messages.")]
    bytes: Annotated[Count | None, Meta(description="Null for calls of several sizes.")]
    calls: Count
    time_ns: Annotated[int, Meta(ge=0, description="Time of all calls.")]
    exposed_ns: Annotated[int, Meta(ge=0, description="Part in which the rank does not compute.")]
    most_exposed_ns: Annotated[int, Meta(ge=0, description="Maximum exposed time of a rank.")]
    waiting_ns: Annotated[
        int,
        Meta(ge=0, description="Time until the last member began, or the message was sent."),
    ]


class GroupCommunicationItem(CommunicationItem, frozen=True, kw_only=True):
    """Time of the collectives of one process group and kind; an empty name means all ranks."""

    group: str


class PathNodeItem(Record, frozen=True, kw_only=True):
    """Node of the critical path."""

    rank: Count
    node: Count
    name: str
    kind: str
    start_ns: Count
    end_ns: Count


class CriticalPathItem(Record, frozen=True, kw_only=True):
    """Chain of nodes that determines the time of the job."""

    nodes: Count
    ranks: Count
    ns_by_kind: Mapping[str, Count]
    longest: Sequence[PathNodeItem]


class SimulateWorkloadReport(
    Report, tag="collhub/report-simulate-workload-1", frozen=True, kw_only=True
):
    """Report of `collhub simulate --json` on a workload."""

    source: str
    backend: str
    topology: Annotated[str | None, Meta(description="Null: the network that IN contains.")]
    time_ns: Annotated[
        Count | None,
        Meta(description="Time of the last rank's end; null if a rank never finishes."),
    ]
    rank_finish_ns: Sequence[Count | None]
    rank_exposed_ns: Annotated[
        Sequence[Count | None], Meta(description="Time of each rank in which it does not compute.")
    ]
    slots: Annotated[
        str, Meta(description="Rule that limits the nodes that a rank runs at the same time.")
    ]
    timing: TimingNote
    machine: Machine
    changes: Annotated[
        Sequence[JobChangeItem], Meta(description="The job with one change, simulated again.")
    ]
    details: Annotated[Mapping[str, AnyJson], Meta(description="Further results of the simulator.")]
    diagnostics: Sequence[Finding]
    rank_compute_ns: Annotated[
        Sequence[Count] | UnsetType, Meta(description="Time of each rank in which it computes.")
    ] = UNSET
    communication: Annotated[
        Sequence[CommunicationItem] | UnsetType,
        Meta(description="Collectives and messages, the longest exposed time first."),
    ] = UNSET
    groups: Sequence[GroupCommunicationItem] | UnsetType = UNSET
    critical_path: CriticalPathItem | UnsetType = UNSET
    unlimited_time_ns: Annotated[
        Count | UnsetType | None, Meta(description="With --overlap: time without limits of slots.")
    ] = UNSET
