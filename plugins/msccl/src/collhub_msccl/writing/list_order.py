"""Put the steps of every thread block in an order by list scheduling.

Of the steps that could begin, the one that begins first goes first; of several, the one with most
behind it, then the one that sends to the next rank: all ranks that send to the same one after the
other would wait for its link. Messages of a rank share its link, one after the other, and those to
it. A connection's messages are received in the order in which they were sent. The order is
one in which everything can run, so no thread blocks wait for each other in a circle. Cost: n log n
in steps and waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from collhub_msccl.writing.work_graph import WorkGraph

Connection = tuple[int, int, int]


@dataclass(slots=True)
class _Pipe:
    """Messages of a connection that are under way, and who has to wait for it."""

    receivers: deque[int] = field(default_factory=deque)
    waiting: list[int] = field(default_factory=list)


class ListScheduler:
    """One run; `block`: of every node, a number below `blocks`.

    `capacity`: messages that a connection holds until they are received. `begin`: of every node,
    after `order`.
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
        # When the links from and to every rank are free.
        self._ranks = max(graph.rank, default=-1) + 1
        self._from_rank = [0] * self._ranks
        self._to_rank = [0] * self._ranks
        self.begin = [0] * len(graph)

    def order(self) -> list[int] | None:
        """Nodes in the order in which they begin; None where messages get into each other's way."""
        for node, missing in enumerate(self._missing):
            if not missing:
                self._push(node)
        order: list[int] = []
        while self._queue:
            begin, _, _, node = heapq.heappop(self._queue)
            if begin < self._earliest(node):
                self._push(node)
            elif not self._must_wait(node):
                self._run(node, begin)
                order.append(node)
        return order if len(order) == len(self._graph) else None

    def _push(self, node: int) -> None:
        """Queue a node that waits for nothing but its turn."""
        graph = self._graph
        entry = self._earliest(node), -graph.tail[node], graph.turn(node), node
        heapq.heappush(self._queue, entry)

    def _earliest(self, node: int) -> int:
        """When a node could begin, as things stand."""
        graph = self._graph
        rank = graph.rank[node]
        begin = max(self._ready[node], self._free[self._block[node]])
        if graph.target[node] >= 0:
            # A fused step uses the link when it has received.
            begin = max(begin, self._from_rank[rank] - graph.receiving(node))
        if graph.source[node] >= 0:
            begin = max(begin, self._to_rank[rank])
        return begin

    def _must_wait(self, node: int) -> bool:
        """Whether messages before its own are in the way; then it is queued when one has gone."""
        incoming, outgoing = self._incoming(node), self._outgoing(node)
        if incoming is not None and incoming.receivers[0] != node:
            incoming.waiting.append(node)
            return True
        if outgoing is not None and len(outgoing.receivers) >= self._capacity:
            outgoing.waiting.append(node)
            return True
        return False

    def _run(self, node: int, begin: int) -> None:
        """Let a node begin, and queue what then can."""
        graph = self._graph
        end = begin + graph.duration[node]
        self._free[self._block[node]] = end
        self.begin[node] = begin
        incoming, outgoing = self._incoming(node), self._outgoing(node)
        if incoming is not None:
            self._to_rank[graph.rank[node]] = begin + graph.units[node]
            incoming.receivers.popleft()
            freed, incoming.waiting = incoming.waiting, []
            for other in freed:
                self._ready[other] = max(self._ready[other], begin)
                self._push(other)
        if outgoing is not None:
            sent = begin + graph.receiving(node) + graph.units[node]
            self._from_rank[graph.rank[node]] = sent
            arrival = begin + graph.transit[node]
            outgoing.receivers.append(graph.target[node])
            self._arrive(graph.target[node], arrival)
        for child in graph.children[node]:
            self._arrive(child, end)

    def _arrive(self, node: int, time: int) -> None:
        """One of the things that a node waits for has come."""
        self._ready[node] = max(self._ready[node], time)
        self._missing[node] -= 1
        if not self._missing[node]:
            self._push(node)

    def _incoming(self, node: int) -> _Pipe | None:
        """The connection that a node receives on."""
        graph = self._graph
        if graph.source[node] < 0:
            return None
        return self._pipe((graph.recv[node], graph.rank[node], graph.channel[node]))

    def _outgoing(self, node: int) -> _Pipe | None:
        """The connection that a node sends on."""
        graph = self._graph
        if graph.target[node] < 0:
            return None
        return self._pipe((graph.rank[node], graph.send[node], graph.channel[node]))

    def _pipe(self, connection: Connection) -> _Pipe:
        """The messages of a connection."""
        return self._pipes.setdefault(connection, _Pipe())
