"""Find ranks of a workload that wait for one another, by the wait-for graph of hung jobs.

The workload is executed without times until no node can complete. The calls in which its ranks
then wait are the operations of a hung job, so the graph of `waiting.py` finds the deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_job_traces import collectives_in_order

from collhub_waits.matching import Matching
from collhub_waits.records import (
    Call,
    Dump,
    Group,
    Operation,
    Records,
    State,
    Tables,
    to_columns,
)
from collhub_waits.waiting import WaitGraph, walk_cycle
from hub_core.columns import Int64Array, labels, ordinals, topological_levels
from hub_core.model import JobCollective, NodeKind, Workload


@dataclass(frozen=True)
class BlockedRank:
    """A rank of a deadlock: it waits in node `waits_in` and has not reached node `awaited`.

    The rank before it in the deadlock waits for `awaited`. Both are rows of the workload.
    """

    rank: int
    waits_in: int
    awaited: int


def find_deadlock(workload: Workload) -> tuple[BlockedRank, ...]:
    """Return the ranks of one deadlock in the order in which they wait; empty without one.

    Requires that every collective is called by all ranks of its group, and that every message has
    both ends. All calls of a collective end together, and a receive ends after its send begins.
    Messages with equal ranks, tag and bytes are not matched: their order is not decided.
    """
    nodes = workload.nodes
    calls = _Calls(workload)
    parents, children = nodes.edges()
    edges = (
        np.concatenate([parents, calls.sends]),
        np.concatenate([children, calls.receives]),
    )
    order = topological_levels(len(nodes), calls.vertex[edges[0]], calls.vertex[edges[1]])
    is_stuck = order.position[calls.vertex] < 0
    if not is_stuck.any():
        return ()
    # A rank waits in the nodes whose dependencies on the rank are complete.
    is_front = is_stuck.copy()
    is_front[children[is_stuck[parents]]] = False
    rows = np.flatnonzero(is_front)
    graph = WaitGraph(Matching(calls.build_records(rows)))
    members = set(graph.order_cycles()[0])
    waits = [wait for wait in graph.waits if {wait.rank, wait.awaited} <= members]
    cycle = walk_cycle(waits)
    return tuple(
        BlockedRank(
            wait.rank,
            int(rows[wait.row]),
            calls.node_on(int(rows[previous.row]), wait.rank),
        )
        for previous, wait in zip([cycle[-1], *cycle], cycle, strict=False)
    )


class _Calls:
    """Collectives and messages of a workload: which nodes are calls of one operation.

    `vertex`: the row of every node, or the row of its collective's first call. `sends` and
    `receives`: rows of the messages with unique ranks, tag and bytes.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.nodes = workload.nodes
        self.vertex = np.arange(len(self.nodes))
        issued = collectives_in_order(self.nodes)
        if len(issued):
            groups = self.nodes.group[issued].astype(np.int64)
            ordinal = ordinals((groups + 1) * self.nodes.num_ranks + self.nodes.rank[issued])
            call = labels(groups + 1, ordinal)
            first = np.full(int(call.max()) + 1, len(self.nodes))
            np.minimum.at(first, call, issued)
            self.vertex[issued] = first[call]
        self.sends, self.receives = self._match_messages()

    def _match_messages(self) -> tuple[Int64Array, Int64Array]:
        nodes = self.nodes
        rows = np.flatnonzero(nodes.is_kind(NodeKind.SEND, NodeKind.RECV))
        if not len(rows):
            return rows, rows
        is_send = nodes.kind[rows] == NodeKind.SEND
        source = np.where(is_send, nodes.rank[rows], nodes.peer[rows])
        destination = np.where(is_send, nodes.peer[rows], nodes.rank[rows])
        key = labels(source, destination, nodes.tag[rows], nodes.bytes[rows])
        is_single = np.bincount(key)[key] == 2
        # Each key occurs once per side: sort both sides by key.
        sends, receives = np.flatnonzero(is_single & is_send), np.flatnonzero(is_single & ~is_send)
        return rows[sends[np.argsort(key[sends])]], rows[receives[np.argsort(key[receives])]]

    def node_on(self, row: int, rank: int) -> int:
        """Return the node of another rank that belongs to the same collective or message."""
        if self.nodes.kind[row] == NodeKind.COLLECTIVE:
            same = np.flatnonzero(self.vertex == self.vertex[row])
            return int(same[self.nodes.rank[same] == rank][0])
        return int(self.sends[self.receives == row][0])

    def build_records(self, rows: Int64Array) -> Records:
        """Return nodes, in ascending order of their ranks, as operations that have started."""
        tables = Tables()
        operations: dict[int, list[Operation]] = {rank: [] for rank in range(self.nodes.num_ranks)}
        for row in rows.tolist():
            operations[int(self.nodes.rank[row])].append(self._operation(row, tables))
        return Records(
            {rank: _build_dump(rank, issued) for rank, issued in operations.items()}, tables
        )

    def _operation(self, row: int, tables: Tables) -> Operation:
        nodes = self.nodes
        is_p2p = bool(nodes.kind[row] != NodeKind.COLLECTIVE)
        group = -1 if is_p2p else int(nodes.group[row])
        rank, peer = int(nodes.rank[row]), int(nodes.peer[row])
        if is_p2p:
            call = Call("", "recv", (), ((int(nodes.bytes[row]),),), (), (), peer, rank)
        else:
            name = JobCollective(nodes.collective[row]).name.lower()
            call = Call("", name, ((int(nodes.bytes[row]),),), (), (), ())
        members = tuple(map(int, self.workload.members(group)))
        # Dependencies order the calls of a workload, not their numbers within a group: every
        # operation is the only one of its group.
        return Operation(
            group=tables.groups.number(Group(members, "", int(self.vertex[row]))),
            is_p2p=is_p2p,
            sequence=1,
            calls=tables.calls.number((call,)),
            state=State.STARTED,
            has_timed_out=False,
            created_ns=0,
            started_ns=0,
            completed_ns=0,
            timeout_ns=0,
            stack=tables.stacks.number(()),
        )


def _build_dump(rank: int, operations: Sequence[Operation]) -> Dump:
    groups = frozenset(operation.group for operation in operations)
    return Dump(
        rank,
        file="",
        version="",
        columns=to_columns(operations),
        groups=groups,
        status={},
        is_overwritten=False,
        has_completed=True,
        records_starts=True,
    )
