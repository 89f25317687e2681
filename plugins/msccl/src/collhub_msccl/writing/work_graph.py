"""Work, dependencies and durations of a file's steps, and their order by list scheduling.

Time is counted in units that cross a link. A message crosses two links, that of its sender and that
of its receiver, each completely; its receive begins on the second link, and the sending step lasts
until the message has arrived. A fused step sends after it has received. Local work takes the time
of its units.

Of the ready steps, the one that can begin first is scheduled; on a tie, the one with the longest
chain of successors, then the one that sends to the next rank: if all ranks sent to the same rank in
turn, they would wait for its link. The messages of a rank share its outgoing link one after the
other, and those to a rank its incoming link. The messages of a connection are received in the order
in which they were sent. The result is an order of execution, so thread blocks cannot wait for each
other in a cycle. Cost: n log n in steps and waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.writing.draft import Arrangement, StepDraft
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import StepKind

NONE = -1


@dataclass(frozen=True, slots=True)
class WorkGraph:
    """Nodes are future steps, numbered in a possible order of execution.

    Lists have one entry per node.

    `node_of_row`: int64 per row of the draft; `recv`, `send`: peers or -1; `channel`: of its
    messages, 0 for none; `units`: that it moves; `transit`: from its beginning to that of `target`;
    `duration`: from its beginning to its end; `parents`, `children`: nodes of one rank ordered by
    dependencies; `source`, `target`: nodes at the other side of its messages, or -1; `start`:
    earliest beginning without contention; `tail`: from its beginning to the end of all its
    successors.
    """

    num_ranks: int
    node_of_row: Int64Array
    rank: list[int]
    recv: list[int]
    send: list[int]
    channel: list[int]
    units: list[int]
    transit: list[int]
    duration: list[int]
    parents: list[list[int]]
    children: list[list[int]]
    source: list[int]
    target: list[int]
    start: list[int]
    tail: list[int]

    def __len__(self) -> int:
        return len(self.rank)

    def get_receive_time(self, node: int) -> int:
        """Time that a node receives before it sends."""
        return self.transit[node] // 2 if self.source[node] >= 0 else 0

    def get_rank_distance(self, node: int) -> int:
        """Distance in rank numbers (cyclic) to the rank that a node sends to; 0 if it does not
        send."""
        return (self.send[node] - self.rank[node]) % self.num_ranks if self.target[node] >= 0 else 0


def build_work_graph(draft: StepDraft, arrangement: Arrangement, latency: int) -> WorkGraph:
    """Build the graph of arranged rows, with one node per step of the file.

    Nodes are numbered in the order of execution; fused rows have the node of the row into which
    they are fused. Times are in units of data; `latency` is the latency of a link.

    - units: the largest count of the rows of the node, or the total count of its reductions
    - crossing: units plus `latency`
    - duration: units for local work, one crossing for a receive, two for a send, three for a
      receive that also sends
    - transit: time from the begin of a node until the sent data has arrived; one crossing less than
      the duration for nodes that send, otherwise 0
    - start: earliest begin without limits of blocks and links
    - tail: longest time from the begin to the end of everything that depends on the node

    Missing peers are NONE.
    """
    position, fused_into = arrangement.position, arrangement.fused_into
    heads = np.flatnonzero(fused_into < 0)
    heads = heads[np.argsort(position[heads], kind="stable")]
    node_of_row = np.empty(len(draft), np.int64)
    node_of_row[heads] = np.arange(len(heads))
    fused = np.flatnonzero(fused_into >= 0)
    node_of_row[fused] = node_of_row[fused_into[fused]]
    size = len(heads)
    parents, children = _collect_waits(draft, node_of_row, size)
    sends = np.flatnonzero(draft.sends)
    sender, receiver = node_of_row[sends], node_of_row[draft.partner[sends]]
    targets, sources = np.full(size, NONE), np.full(size, NONE)
    targets[sender], sources[receiver] = receiver, sender
    target, source = targets.tolist(), sources.tolist()
    # A chain of reductions moves the total of its units.
    units_of_node = np.zeros(size, np.int64)
    np.maximum.at(units_of_node, node_of_row, draft.count)
    reductions = np.flatnonzero(draft.is_kind(StepKind.REDUCE))
    units_of_node[node_of_row[reductions]] = 0
    np.add.at(units_of_node, node_of_row[reductions], draft.count[reductions])
    units: list[int] = units_of_node.tolist()
    transit, duration = [0] * size, units.copy()
    for node, moved in enumerate(units):
        crossing = moved + latency
        if source[node] >= 0:
            duration[node] = crossing
        if target[node] >= 0:
            transit[node] = crossing if source[node] < 0 else 2 * crossing
            duration[node] = transit[node] + crossing
    start = [0] * size
    for node in range(size):
        begins = [start[parent] + duration[parent] for parent in parents[node]]
        if source[node] >= 0:
            begins.append(start[source[node]] + transit[source[node]])
        start[node] = max(begins, default=0)
    tail = duration.copy()
    for node in reversed(range(size)):
        finish_times = [duration[node] + tail[parent] for parent in children[node]]
        if target[node] >= 0:
            finish_times.append(transit[node] + tail[target[node]])
        tail[node] = max(finish_times, default=duration[node])
    return WorkGraph(
        draft.num_ranks,
        node_of_row,
        draft.rank[heads].tolist(),
        _collect_column(draft.peer, draft.receives, node_of_row, size, NONE),
        _collect_column(draft.peer, draft.sends, node_of_row, size, NONE),
        _collect_column(draft.channel, draft.partner >= 0, node_of_row, size, 0),
        units,
        transit,
        duration,
        parents,
        children,
        source,
        target,
        start,
        tail,
    )


def _collect_column(
    values: Int64Array,
    is_selected: BoolArray,
    node_of_row: Int64Array,
    size: int,
    default: int,
) -> list[int]:
    """Return for every node (step) the value of its selected row, or `default` without one.

    If a node has several selected rows, the last one counts. `values`, `is_selected`,
    `node_of_row`: by row. `size`: number of nodes.
    """
    result = np.full(size, default, np.int64)
    rows = np.flatnonzero(is_selected)
    result[node_of_row[rows]] = values[rows]
    value_of_node: list[int] = result.tolist()
    return value_of_node


def _collect_waits(
    draft: StepDraft,
    node_of_row: Int64Array,
    size: int,
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the parents and the children of every node, each listed once in ascending order.

    A node is a child of another if one of its rows depends on a row of the other. Dependencies
    within a node are dropped. `size`: number of nodes.
    """
    from_node, to_node = node_of_row[draft.parents], node_of_row[draft.children]
    is_crossing = from_node != to_node
    pairs: Edges = np.divmod(
        np.unique(from_node[is_crossing] * size + to_node[is_crossing]), max(size, 1)
    )
    parents: list[list[int]] = [[] for _ in range(size)]
    children: list[list[int]] = [[] for _ in range(size)]
    for parent, child in zip(pairs[0].tolist(), pairs[1].tolist(), strict=True):
        parents[child].append(parent)
        children[parent].append(child)
    return parents, children


Connection = tuple[int, int, int]


@dataclass(slots=True)
class _Pipe:
    """Receivers of the messages in transit on a connection, and nodes that wait for the
    connection."""

    receivers: deque[int] = field(default_factory=deque)
    waiting: list[int] = field(default_factory=list)


# A resource is a block, or a link into or out of a rank: kind, number, and for links out of a rank
# the time that the node receives before it needs the link.
_Resource = tuple[int, int, int]
_BLOCK, _IN, _OUT = range(3)
_NO_RESOURCE: _Resource = (-1, -1, -1)


class ListScheduler:
    """One run. `block`: block of every node, a number below `blocks`.

    `capacity`: messages that a connection holds until they are received; `begin`: begin of every
    node, valid after `order`.
    """

    def __init__(self, graph: WorkGraph, block: list[int], blocks: int, capacity: int) -> None:
        self._graph = graph
        self._block = block
        self._capacity = capacity
        self._free = [0] * blocks
        self._ready = [0] * len(graph)
        self._missing = [
            len(parents) + (source >= 0)
            for parents, source in zip(graph.parents, graph.source, strict=True)
        ]
        self._pipes: dict[Connection, _Pipe] = {}
        self._queue: list[tuple[int, int, int, int, _Resource]] = []
        self._parked: dict[_Resource, list[tuple[int, int, int]]] = {}
        # Times at which the links from and to every rank become free.
        self._ranks = max(graph.rank, default=-1) + 1
        self._from_rank = [0] * self._ranks
        self._to_rank = [0] * self._ranks
        self.begin = [0] * len(graph)

    def schedule(self) -> list[int] | None:
        """Order all nodes (steps of the file) by list scheduling; return them as they begin.

        Stores the times in `begin`. Of the nodes whose predecessors have finished, the one that can
        begin first is taken; at equal times by `_get_priority`. A node whose connection is full, or
        whose message is not the oldest of its connection, waits until a message is received on it.
        Returns None if such connections block all remaining nodes. May be called once per object.

        Nodes that wait for one resource (a block, or a link into or out of a rank) are stored there
        by priority, and only the first of them is in the queue. Otherwise every use of a link would
        queue all waiting nodes again, which is quadratic in the steps of a rank.
        """
        for node, missing in enumerate(self._missing):
            if not missing:
                self._queue_node(node)
        order: list[int] = []
        while self._queue:
            begin, _, _, node, resource = heapq.heappop(self._queue)
            parked = self._parked.get(resource)
            if parked is not None:
                # Another node took this place, which has an entry of its own.
                if not parked or parked[0][2] != node:
                    continue
                free = self._get_free_time(resource)
                if begin < free:
                    heapq.heappush(self._queue, (free, *parked[0], resource))
                    continue
                heapq.heappop(parked)
            earliest, needed = self._compute_earliest(node)
            if begin < earliest:
                self._park_node(node, earliest, needed)
            elif not self._is_blocked(node):
                self._run_node(node, begin)
                order.append(node)
            if parked:
                heapq.heappush(self._queue, (self._get_free_time(resource), *parked[0], resource))
        return order if len(order) == len(self._graph) else None

    def _queue_node(self, node: int) -> None:
        """Add a node (step) whose predecessors have finished to the queue.

        The queue is ordered by the earliest time at which its block and links permit the node to
        begin, then by priority.
        """
        earliest, _ = self._compute_earliest(node)
        heapq.heappush(self._queue, (earliest, *self._get_priority(node), _NO_RESOURCE))

    def _get_priority(self, node: int) -> tuple[int, int, int]:
        """Return the key that orders nodes (steps) that can begin at the same time; the lowest is
        first.

        Its entries: minus the longest remaining work, the distance between the rank and the rank to
        which it sends (`get_rank_distance`), the number of the node.
        """
        graph = self._graph
        return -graph.tail[node], graph.get_rank_distance(node), node

    def _park_node(self, node: int, earliest: int, resource: _Resource) -> None:
        """Add a node to those that wait for a resource, which are ordered by priority.

        If the node is now the first of them, it is queued to be tried at time `earliest`.
        """
        parked = self._parked.setdefault(resource, [])
        heapq.heappush(parked, self._get_priority(node))
        if parked[0][2] == node:
            heapq.heappush(self._queue, (earliest, *parked[0], resource))

    def _get_free_time(self, resource: _Resource) -> int:
        """Return the time from which a resource permits a waiting node (step) to begin.

        A resource is (kind, number, receive time): a thread block, the link into a rank, or the
        link out of a rank. A node needs the link out of a rank only after its receive time, so it
        may begin that much earlier than the link is free.
        """
        kind, number, receive_time = resource
        if kind == _BLOCK:
            return self._free[number]
        return self._to_rank[number] if kind == _IN else self._from_rank[number] - receive_time

    def _compute_earliest(self, node: int) -> tuple[int, _Resource]:
        """Return the earliest time at which a node could begin now, and the resource it waits for.

        The time is the maximum of these; at equal times the earlier entry gives the resource:
        - the time at which its predecessors and its message are ready (no resource)
        - the end of the last node of its block
        - if it sends: the time at which the link out of its rank is free, less the time that the
          node takes to receive if it also receives
        - if it receives: the time at which the link into its rank is free

        Full connections are not considered. Nothing is changed.
        """
        graph = self._graph
        rank = graph.rank[node]
        begin, resource = self._ready[node], _NO_RESOURCE
        block = self._block[node]
        if self._free[block] > begin:
            begin, resource = self._free[block], (_BLOCK, block, 0)
        if graph.target[node] >= 0:
            # A fused step uses the outgoing link only after it has received.
            receive_time = graph.get_receive_time(node)
            if self._from_rank[rank] - receive_time > begin:
                begin = self._from_rank[rank] - receive_time
                resource = (_OUT, rank, receive_time)
        if graph.source[node] >= 0 and self._to_rank[rank] > begin:
            begin, resource = self._to_rank[rank], (_IN, rank, 0)
        return begin, resource

    def _is_blocked(self, node: int) -> bool:
        """Return whether earlier messages on its connections prevent a node from beginning.

        A node may receive only the oldest message of its connection, and may send only if the
        connection holds fewer messages than its capacity. A blocked node is added to the waiting
        nodes of that connection and queued again when a message is received there.
        """
        incoming, outgoing = self._get_incoming(node), self._get_outgoing(node)
        if incoming is not None and incoming.receivers[0] != node:
            incoming.waiting.append(node)
            return True
        if outgoing is not None and len(outgoing.receivers) >= self._capacity:
            outgoing.waiting.append(node)
            return True
        return False

    def _run_node(self, node: int, begin: int) -> None:
        """Begin a node at time `begin` and update blocks, links and connections.

        - Its block is occupied until the end of the node.
        - The link into its rank is occupied by its units from `begin` on if it receives; the link
          out of its rank until its units are sent if it sends.
        - A received message is removed from its connection, and the nodes that wait there are
          queued again, ready no earlier than `begin`.
        - A sent message is added to its connection; its receiver may begin when it has arrived.
        - Nodes that depend on this node are ready no earlier than its end.
        """
        graph = self._graph
        end = begin + graph.duration[node]
        self._free[self._block[node]] = end
        self.begin[node] = begin
        incoming, outgoing = self._get_incoming(node), self._get_outgoing(node)
        if incoming is not None:
            self._to_rank[graph.rank[node]] = begin + graph.units[node]
            incoming.receivers.popleft()
            freed, incoming.waiting = incoming.waiting, []
            for waiting_node in freed:
                self._ready[waiting_node] = max(self._ready[waiting_node], begin)
                self._queue_node(waiting_node)
        if outgoing is not None:
            sent = begin + graph.get_receive_time(node) + graph.units[node]
            self._from_rank[graph.rank[node]] = sent
            arrival = begin + graph.transit[node]
            outgoing.receivers.append(graph.target[node])
            self._record_arrival(graph.target[node], arrival)
        for child in graph.children[node]:
            self._record_arrival(child, end)

    def _record_arrival(self, node: int, time: int) -> None:
        """Record that one predecessor or message of a node is available at `time`.

        When all are recorded, the node is queued; it is ready at the latest of these times.
        """
        self._ready[node] = max(self._ready[node], time)
        self._missing[node] -= 1
        if not self._missing[node]:
            self._queue_node(node)

    def _get_incoming(self, node: int) -> _Pipe | None:
        """Return the connection on which a node receives; None if it does not receive.

        A connection is (sender, receiver, channel); it is created at its first use.
        """
        graph = self._graph
        if graph.source[node] < 0:
            return None
        return self._get_pipe((graph.recv[node], graph.rank[node], graph.channel[node]))

    def _get_outgoing(self, node: int) -> _Pipe | None:
        """Return the connection on which a node sends; None if it does not send.

        A connection is (sender, receiver, channel); it is created at its first use.
        """
        graph = self._graph
        if graph.target[node] < 0:
            return None
        return self._get_pipe((graph.rank[node], graph.send[node], graph.channel[node]))

    def _get_pipe(self, connection: Connection) -> _Pipe:
        """State of a connection."""
        return self._pipes.setdefault(connection, _Pipe())
