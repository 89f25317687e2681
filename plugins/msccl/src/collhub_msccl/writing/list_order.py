"""Order the steps of every thread block by list scheduling.

Of the ready steps, the one that can begin first is chosen; on a tie, the one with the longest chain
of successors, then the one that sends to the next rank: if all ranks sent to the same rank in turn,
they would wait for its link. The messages of a rank share its outgoing link one after the other,
and those to a rank its incoming link. The messages of a connection are received in the order in
which they were sent. The result is an order of execution, so thread blocks cannot wait for each
other in a cycle. Cost: n log n in steps and waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from collhub_msccl.writing.work_graph import WorkGraph

Connection = tuple[int, int, int]


@dataclass(slots=True)
class _Pipe:
    """Receivers of the messages in transit on a connection, and nodes that wait for the
    connection."""

    receivers: deque[int] = field(default_factory=deque)
    waiting: list[int] = field(default_factory=list)


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
        self._queue: list[tuple[int, int, int, int]] = []
        # Times at which the links from and to every rank become free.
        self._ranks = max(graph.rank, default=-1) + 1
        self._from_rank = [0] * self._ranks
        self._to_rank = [0] * self._ranks
        self.begin = [0] * len(graph)

    def schedule(self) -> list[int] | None:
        """Nodes in the order in which they begin; None if full connections block all remaining
        nodes."""
        for node, missing in enumerate(self._missing):
            if not missing:
                self._queue_node(node)
        order: list[int] = []
        while self._queue:
            begin, _, _, node = heapq.heappop(self._queue)
            if begin < self._compute_earliest(node):
                self._queue_node(node)
            elif not self._is_blocked(node):
                self._run_node(node, begin)
                order.append(node)
        return order if len(order) == len(self._graph) else None

    def _queue_node(self, node: int) -> None:
        """Queue a node whose predecessors have finished."""
        graph = self._graph
        entry = self._compute_earliest(node), -graph.tail[node], graph.get_rank_distance(node), node
        heapq.heappush(self._queue, entry)

    def _compute_earliest(self, node: int) -> int:
        """Earliest time at which a node could begin now."""
        graph = self._graph
        rank = graph.rank[node]
        begin = max(self._ready[node], self._free[self._block[node]])
        if graph.target[node] >= 0:
            # A fused step uses the outgoing link only after it has received.
            begin = max(begin, self._from_rank[rank] - graph.get_receive_time(node))
        if graph.source[node] >= 0:
            begin = max(begin, self._to_rank[rank])
        return begin

    def _is_blocked(self, node: int) -> bool:
        """Whether earlier messages block the node; it is then queued again when one is received."""
        incoming, outgoing = self._get_incoming(node), self._get_outgoing(node)
        if incoming is not None and incoming.receivers[0] != node:
            incoming.waiting.append(node)
            return True
        if outgoing is not None and len(outgoing.receivers) >= self._capacity:
            outgoing.waiting.append(node)
            return True
        return False

    def _run_node(self, node: int, begin: int) -> None:
        """Begin a node, and queue the nodes that become ready."""
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
        """Record that one predecessor or message of a node is available at a time."""
        self._ready[node] = max(self._ready[node], time)
        self._missing[node] -= 1
        if not self._missing[node]:
            self._queue_node(node)

    def _get_incoming(self, node: int) -> _Pipe | None:
        """Connection on which a node receives, or None."""
        graph = self._graph
        if graph.source[node] < 0:
            return None
        return self._get_pipe((graph.recv[node], graph.rank[node], graph.channel[node]))

    def _get_outgoing(self, node: int) -> _Pipe | None:
        """Connection on which a node sends, or None."""
        graph = self._graph
        if graph.target[node] < 0:
            return None
        return self._get_pipe((graph.rank[node], graph.send[node], graph.channel[node]))

    def _get_pipe(self, connection: Connection) -> _Pipe:
        """State of a connection."""
        return self._pipes.setdefault(connection, _Pipe())
