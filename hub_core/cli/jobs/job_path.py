"""The critical path of a simulated job: the chain of nodes that determines its end.

The path is traced back from the node that ends last. The end of a collective is explained by the
member of its group that began last, the end of a receive by its message, and the begin of any other
node by the node that ended at that time: a node that it depends on, else a node of its rank that
freed a slot. Members of a collective, and send and receive of a message, are matched in the order
in which they begin, as simulators do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import (
    BoolArray,
    Int64Array,
    RankTable,
    counted_positions,
    labels,
    run_lengths,
    run_starts,
)
from hub_core.model import NodeKind, Workload, connection_keys, pair_in_order


@dataclass(frozen=True, slots=True)
class PathNode:
    """A node of the path: its row, and the time that it explains."""

    row: int
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Time that the node explains."""
        return self.end_ns - self.start_ns


def critical_path(workload: Workload, start: Int64Array, end: Int64Array) -> list[PathNode]:
    """Return the nodes that determined the finish time of a job, in order of time.

    `start`, `end`: int64 by node in ns, -1 for a node that never starts or ends. The path
    goes backwards from the node that finishes last, by the rules of `trace_critical_path`.
    It is empty if no node finishes.
    """
    partner = job_partners(workload, start, end)
    is_receive = workload.nodes.is_kind(NodeKind.RECV)
    return trace_critical_path(workload.nodes, partner, is_receive, start, end)


def trace_critical_path(
    table: RankTable,
    partner: Int64Array,
    is_receive: BoolArray,
    start: Int64Array,
    end: Int64Array,
) -> list[PathNode]:
    """Return the nodes that determined the last end, in order of time; empty if no row ends.

    `table`: nodes of a job or steps of an algorithm. By row: `partner`, the row whose start it may
    wait for, as from `job_partners`, or the row itself; `is_receive`; `start` and `end`, int64 in
    ns, -1 for never.

    The search begins at the row with the latest end (the lowest row of several) and goes backwards:

    1. `_PathData.cause` gives the cause of the row: the row whose start determined its end. It is
       the send of a receive, the member of a collective that began last, or the row itself.
    2. The cause becomes a node of the path, from its own start to the end of the row. If the cause
       is another row, the row itself is not in the path.
    3. The search continues with the row whose end allowed the cause to begin (`_PathData.before`).
       Rows and causes that were visited are skipped. The search stops if there is no such row.

    Finally nodes that overlap are cut, so that no time counts twice: a node begins at the latest
    end of the nodes before it, or at its own start if that is later. A node that ended before that
    has duration 0.
    """
    if not len(end) or int(end.max()) < 0:
        return []
    search = _PathData(table, partner, is_receive, start, end)
    row, path = int(np.argmax(end)), []
    seen: set[int] = set()
    # Nodes of zero duration may depend on each other at one time; no node is taken twice.
    while row >= 0 and row not in seen:
        seen.add(row)
        last = search.cause(row)
        begin = min(int(start[last]), int(end[row]))
        # If the cause is on another rank, the path continues there.
        path.append(PathNode(last, begin, int(end[row])))
        seen.add(last)
        row = search.before(last, seen)
    joined, reached = [], 0
    for node in reversed(path):
        # A node may begin while the previous one still runs.
        begin = max(node.start_ns, reached)
        reached = max(reached, node.end_ns)
        # A node that ended before the previous node explains no time.
        joined.append(PathNode(node.row, begin, max(node.end_ns, begin)))
    return joined


class _PathData:
    """Data for tracing the path: partners by row, and the nodes of each rank ordered by end."""

    def __init__(
        self,
        table: RankTable,
        partner: Int64Array,
        is_receive: BoolArray,
        start: Int64Array,
        end: Int64Array,
    ) -> None:
        self._nodes, self._start, self._end = table, start, end
        self._partner, self._is_receive = partner, is_receive
        # Ordered by rank and end; nodes that never end come first.
        self._by_end = np.lexsort((end, self._nodes.rank))

    def cause(self, row: int) -> int:
        """Return the node whose start determined the end of `row`: the row itself, or its partner.

        For a receive it is the send, unless the receive took no time because the message had
        already arrived. For a collective it is the member that began last, if that began later than
        `row`. For all other nodes, and for a message without a partner, it is `row`.
        """
        partner = int(self._partner[row])
        if self._is_receive[row]:
            # A message that arrived before the receive began determined nothing.
            return partner if self._end[row] > self._start[row] else row
        return partner if self._start[partner] > self._start[row] else row

    def before(self, row: int, seen: set[int]) -> int:
        """Return the row whose end allowed a row to begin; -1 if there is none.

        "Parent" is the data or control dependency of the row that ended last, the first listed of
        several with equal ends. The first rule that applies decides:

        1. The parent, if it ended exactly when the row began and is not in `seen`.
        2. The row of the same rank that ended last, at the latest when this row began: it occupied
           the slot. Rows in `seen` are skipped. Of rows with equal ends, the highest one is taken.
        3. The parent, whenever it ended, unless it is in `seen`.
        4. Otherwise -1.
        """
        nodes, began = self._nodes, self._start[row]
        parents = np.concatenate(
            [
                nodes.data_indices[nodes.data_indptr[row] : nodes.data_indptr[row + 1]],
                nodes.control_indices[nodes.control_indptr[row] : nodes.control_indptr[row + 1]],
            ]
        )
        parent = int(parents[np.argmax(self._end[parents])]) if len(parents) else -1
        # A node begins when the node that it depends on ends, unless its slot is occupied.
        if parent >= 0 and self._end[parent] == began and parent not in seen:
            return parent
        rank = int(nodes.rank[row])
        first, stop = nodes.rank_indptr[rank : rank + 2].tolist()
        rows = self._by_end[first:stop]
        at = int(np.searchsorted(self._end[rows], int(began), side="right")) - 1
        while at >= 0 and self._end[rows[at]] >= 0:
            if int(rows[at]) not in seen:
                return int(rows[at])
            at -= 1
        return -1 if parent in seen else parent


def job_partners(workload: Workload, start: Int64Array, end: Int64Array) -> Int64Array:
    """Return for every row the row whose start it may wait for, int64.

    - A collective that finishes: the member of the same call that began last, among the
      members that end. Of several, the one with the highest rank. It may be the row itself.
    - A RECV: its SEND, which has the same sender, receiver, tag and bytes. Among equal ones that
      began, the k-th RECV to begin is paired with the k-th SEND to begin; at equal starts, the
      lower row is first.
    - Every other row, also a RECV without such a SEND: the row itself.

    `start`, `end`: int64 by row in ns, -1 for never. A call is the k-th collective of a
    group on each of its ranks, counted among the finished ones by start, then row.
    """
    nodes = workload.nodes
    partners = np.arange(len(end))
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (end >= 0))
    group = nodes.group[rows]
    order = np.lexsort((start[rows], nodes.rank[rows], group))
    rows, group = rows[order], group[order]
    # The k-th collective of a group is the same call on all its ranks.
    calls_of_rank = run_lengths(run_starts(group, nodes.rank[rows]), len(rows))
    call = counted_positions(calls_of_rank)
    order = np.lexsort((start[rows], call, group))
    rows, group, call = rows[order], group[order], call[order]
    starts = run_starts(group, call)
    sizes = run_lengths(starts, len(rows))
    partners[rows] = np.repeat(rows[starts + sizes - 1], sizes)

    begun = np.argsort(start, kind="stable")
    begun = begun[start[begun] >= 0]
    sends, receipts = (begun[nodes.kind[begun] == kind] for kind in (NodeKind.SEND, NodeKind.RECV))
    source = np.concatenate([nodes.rank[sends], nodes.peer[receipts]])
    destination = np.concatenate([nodes.peer[sends], nodes.rank[receipts]])
    both = np.concatenate([sends, receipts])
    # One number distinguishes the messages between two ranks.
    keys = connection_keys(source, destination, labels(nodes.tag[both], nodes.bytes[both]))
    matches = pair_in_order(sends, receipts, keys[: len(sends)], keys[len(sends) :])
    partners[matches.receive] = matches.send
    return partners
