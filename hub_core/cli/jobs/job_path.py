"""The critical path of a simulated job: the chain of nodes that explains when it ends.

From the node that ends last backwards. A collective on one rank is explained by the member of its
group that began last, a receipt by its message, every other node by what ended when it began: a
node that it waits for, else one of its rank that left a slot. Members of a collective, and the two
sides of a message, are matched in the order in which they begin, as simulators do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array, counted_positions, labels, run_lengths, run_starts
from hub_core.model import NodeColumns, NodeKind, Workload, connection_keys, pair_in_order


@dataclass(frozen=True, slots=True)
class PathNode:
    """A node of the path: its row, and the time that it accounts for."""

    row: int
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Of its part of the path."""
        return self.end_ns - self.start_ns


def critical_path(workload: Workload, start: Int64Array, end: Int64Array) -> list[PathNode]:
    """The path from the beginning to the last end, in that order; empty where nothing ends.

    `start`, `end`: int64 by row, -1 for never. Cost: sorting the nodes, and the path.
    """
    if not len(end) or int(end.max()) < 0:
        return []
    search = _Search(workload, start, end)
    row, found = int(np.argmax(end)), []
    seen: set[int] = set()
    # Nodes without time may wait for one another at one moment: none is taken twice.
    while row >= 0 and row not in seen:
        seen.add(row)
        last = search.cause(row)
        begin = min(int(start[last]), int(end[row]))
        # Where the cause is on another rank, the path goes on from there.
        found.append(PathNode(last, begin, int(end[row])))
        seen.add(last)
        row = search.before(last, seen)
    return _joined(found[::-1])


def _joined(path: list[PathNode]) -> list[PathNode]:
    """The path without overlaps: a node accounts for what the ones before it do not."""
    joined, reached = [], 0
    for node in path:
        # A node may begin while the one before it goes on.
        begin = max(node.start_ns, reached)
        reached = max(reached, node.end_ns)
        # A node that ended before the one ahead of it did takes no time.
        joined.append(PathNode(node.row, begin, max(node.end_ns, begin)))
    return joined


class _Search:
    """What the steps of the path need: partners by row, and the nodes of a rank by their ends."""

    def __init__(self, workload: Workload, start: Int64Array, end: Int64Array) -> None:
        self._nodes, self._start, self._end = workload.nodes, start, end
        self._partner = job_partners(workload, start, end)
        # By rank and end, those that never end first.
        self._by_end = np.lexsort((end, self._nodes.rank))

    def cause(self, row: int) -> int:
        """The node whose beginning decided when `row` ended: itself, or one of another rank."""
        other = int(self._partner[row])
        if self._nodes.kind[row] == NodeKind.RECV:
            # A message that was there before it was asked for decided nothing.
            return other if self._end[row] > self._start[row] else row
        return other if self._start[other] > self._start[row] else row

    def before(self, row: int, seen: set[int]) -> int:
        """The node that ended when this one began, -1 where there is none."""
        nodes, began = self._nodes, self._start[row]
        parents = np.concatenate(
            [
                nodes.data_indices[nodes.data_indptr[row] : nodes.data_indptr[row + 1]],
                nodes.control_indices[nodes.control_indptr[row] : nodes.control_indptr[row + 1]],
            ]
        )
        parent = int(parents[np.argmax(self._end[parents])]) if len(parents) else -1
        # A node that waits for another begins when that ends, unless its slot was taken.
        if parent >= 0 and self._end[parent] == began and parent not in seen:
            return parent
        return self._ended_last(int(nodes.rank[row]), int(began), seen, parent)

    def _ended_last(self, rank: int, moment: int, seen: set[int], parent: int) -> int:
        """The node of a rank that ended last until a moment; `parent` where none did."""
        first, stop = self._nodes.rank_indptr[rank : rank + 2].tolist()
        rows = self._by_end[first:stop]
        at = int(np.searchsorted(self._end[rows], moment, side="right")) - 1
        while at >= 0 and self._end[rows[at]] >= 0:
            if int(rows[at]) not in seen:
                return int(rows[at])
            at -= 1
        return -1 if parent in seen else parent


def job_partners(workload: Workload, start: Int64Array, end: Int64Array) -> Int64Array:
    """For every row of a job that ran the node whose start it may wait for, int64.

    Of a collective the member of the same call that began last, of a RECV its SEND, else the row
    itself. `start`, `end`: int64 by row in ns, -1 for never.
    """
    found = np.arange(len(end))
    rows, last = _last_members(workload.nodes, start, end)
    found[rows] = last
    receipts, sends = _messages(workload.nodes, start)
    found[receipts] = sends
    return found


def _last_members(
    nodes: NodeColumns, start: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(collectives, the member of the call of each that began last)."""
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (end >= 0))
    group = nodes.group[rows]
    order = np.lexsort((start[rows], nodes.rank[rows], group))
    rows, group = rows[order], group[order]
    # The k-th collective of a group is the same call on all its ranks.
    call = _ordinals(group, nodes.rank[rows])
    order = np.lexsort((start[rows], call, group))
    rows, group, call = rows[order], group[order], call[order]
    starts = run_starts(group, call)
    sizes = run_lengths(starts, len(rows))
    return rows, np.repeat(rows[starts + sizes - 1], sizes)


def _messages(nodes: NodeColumns, start: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(receipts, the SEND of each), of messages that were sent; equal ones in order of time."""
    begun = np.argsort(start, kind="stable")
    begun = begun[start[begun] >= 0]
    sends, receipts = (begun[nodes.kind[begun] == kind] for kind in (NodeKind.SEND, NodeKind.RECV))
    rank, peer = nodes.rank, nodes.peer
    source = np.concatenate([rank[sends], peer[receipts]])
    destination = np.concatenate([peer[sends], rank[receipts]])
    both = np.concatenate([sends, receipts])
    # What tells messages between two ranks apart, as one number.
    keys = connection_keys(source, destination, labels(nodes.tag[both], nodes.bytes[both]))
    found = pair_in_order(sends, receipts, keys[: len(sends)], keys[len(sends) :])
    return found.receive, found.send


def _ordinals(*columns: npt.NDArray[np.generic]) -> Int64Array:
    """How many rows before, of sorted columns, are equal: int64."""
    return counted_positions(run_lengths(run_starts(*columns), len(columns[0])))
