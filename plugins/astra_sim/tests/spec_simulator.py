"""ASTRA-sim's analytical model once more, in plain Python with dicts and lists.

The compiled kernel is held against it. Written from the description of the model, simple instead of
fast, sharing no code with the kernel.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from math import trunc

from trace_graphs import COMP, RECV, SEND, Graph, GraphNode

PRIMES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087)

Link = tuple[float, float]
"""Bandwidth in bytes per ns, latency in ns."""
Route = list[int]
"""Nodes of the network from source to destination."""


class HashSet:
    """Iterates like libstdc++'s unordered_set of integers."""

    def __init__(self) -> None:
        self._order: list[int] = []
        self._buckets = 1
        self._limit = 0

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._order))

    def __len__(self) -> int:
        return len(self._order)

    def insert(self, key: int) -> None:
        if key in self._order:
            return
        if len(self._order) + 1 > self._limit:
            self._buckets = self._limit = next(prime for prime in PRIMES if prime > self._limit)
            old, self._order = self._order, []
            for other in old:
                self._place(other)
        self._place(key)

    def erase(self, key: int) -> None:
        self._order.remove(key)

    def _place(self, key: int) -> None:
        for position, other in enumerate(self._order):
            if other % self._buckets == key % self._buckets:
                self._order.insert(position, key)
                return
        self._order.insert(0, key)


class Meeting:
    """Where a message and its receive find each other."""

    def __init__(self) -> None:
        self.receiver: tuple[int, int] | None = None
        self.has_arrived = False


class SpecSimulator:
    """One run. `links` by (from, to); `route` gives the nodes between two ranks.

    `private`: the link of two ranks for messages that never wait (congestion-unaware), then `links`
    and `route` are not used. `is_alpha_beta`: a link stays busy for the latency too.
    """

    def __init__(
        self,
        graph: Graph,
        links: dict[tuple[int, int], Link],
        route: Callable[[int, int], Route],
        private: Callable[[int, int], Link] | None = None,
        is_alpha_beta: bool = False,
    ) -> None:
        self.now = 0
        self.finish: list[int | None] = [None] * len(graph.complete().ranks)
        self._queue: dict[int, deque[Callable[[], None]]] = {}
        self._links, self._route, self._private, self._is_alpha_beta = (
            links,
            route,
            private,
            is_alpha_beta,
        )
        self._busy: set[tuple[int, int]] = set()
        self._line: defaultdict[tuple[int, int], deque[tuple[Route, int, Callable[[], None]]]] = (
            defaultdict(deque)
        )
        self._sent: defaultdict[tuple[int, ...], int] = defaultdict(int)
        self._posted: defaultdict[tuple[int, ...], int] = defaultdict(int)
        self._meetings: defaultdict[tuple[int, ...], Meeting] = defaultdict(Meeting)
        self._ranks = [Rank(number, nodes, self) for number, nodes in enumerate(graph.ranks)]

    def run(self) -> list[int | None]:
        for rank in self._ranks:
            rank.issue_free()
        while self._queue:
            self.now = min(self._queue)
            while self._queue[self.now]:
                self._queue[self.now].popleft()()
            del self._queue[self.now]
        return self.finish

    def at(self, time: int, callback: Callable[[], None]) -> None:
        self._queue.setdefault(time, deque()).append(callback)

    def send(self, rank: int, node: GraphNode) -> None:
        key = (node.tag % 500_000_000, rank, node.peer, node.size)
        meeting = self._meetings[(*key, self._sent[key])]
        self._sent[key] += 1

        def deliver() -> None:
            receiver = meeting.receiver
            self._ranks[rank].end(node.identity)
            if receiver is None:
                meeting.has_arrived = True
            else:
                self._ranks[receiver[0]].end(receiver[1])

        if self._private is None:
            self._put(self._route(rank, node.peer), node.size, deliver)
        else:
            self.at(self.now + self._arrival(self._private(rank, node.peer), node.size), deliver)

    def recv(self, rank: int, node: GraphNode) -> None:
        key = (node.tag % 500_000_000, node.peer, rank, node.size)
        meeting = self._meetings[(*key, self._posted[key])]
        self._posted[key] += 1
        if meeting.has_arrived:
            self.at(self.now, lambda: self._ranks[rank].end(node.identity))
        else:
            meeting.receiver = (rank, node.identity)

    def _put(self, route: Route, size: int, deliver: Callable[[], None]) -> None:
        link = (route[0], route[1])
        if link in self._busy:
            self._line[link].append((route, size, deliver))
        else:
            self._transmit(route, size, deliver)

    def _transmit(self, route: Route, size: int, deliver: Callable[[], None]) -> None:
        link = (route[0], route[1])
        arrival = self._arrival(self._links[link], size)
        busy = arrival if self._is_alpha_beta else trunc(size / self._links[link][0])
        self._busy.add(link)
        rest = route[1:]
        self.at(
            self.now + arrival,
            deliver if len(rest) == 1 else lambda: self._put(rest, size, deliver),
        )
        self.at(self.now + busy, lambda: self._free(link))

    def _free(self, link: tuple[int, int]) -> None:
        self._busy.remove(link)
        if self._line[link]:
            self._transmit(*self._line[link].popleft())

    def _arrival(self, link: Link, size: int) -> int:
        return trunc(link[1] + size / link[0])


class Rank:
    """The nodes of one rank and which of them may start."""

    def __init__(self, number: int, nodes: list[GraphNode], simulator: SpecSimulator) -> None:
        self._number, self._simulator = number, simulator
        self._nodes = {node.identity: node for node in nodes}
        self._parents: dict[int, set[int]] = {}
        self._children: dict[int, HashSet] = {}
        self._ongoing: set[int] = set()
        self._batches: dict[int, list[int]] = {}
        self._free = HashSet()
        self._resolve(nodes)

    def _resolve(self, nodes: list[GraphNode]) -> None:
        named = HashSet()
        for node in nodes:
            self._touch(node.identity, named)
            dependencies = HashSet()
            for parent in node.data + node.control:
                dependencies.insert(parent)
            for parent in dependencies:
                self._touch(parent, named)
                self._parents[node.identity].add(parent)
                self._children[parent].insert(node.identity)
        for identity in named:
            if not self._parents[identity]:
                self._free.insert(identity)

    def _touch(self, identity: int, named: HashSet) -> None:
        named.insert(identity)
        self._parents.setdefault(identity, set())
        self._children.setdefault(identity, HashSet())

    def issue_free(self) -> None:
        for identity in self._free:
            self._free.erase(identity)
            self._ongoing.add(identity)
            node = self._nodes[identity]
            if node.type is SEND:
                self._simulator.send(self._number, node)
            elif node.type is RECV:
                self._simulator.recv(self._number, node)
            elif node.type is COMP:
                self._compute(identity, node.duration_ns or 1)

    def end(self, identity: int) -> None:
        self._ongoing.remove(identity)
        for child in self._children[identity]:
            self._parents[child].remove(identity)
            if not self._parents[child]:
                self._free.insert(child)
        self.issue_free()
        if not self._ongoing and not len(self._free):
            self._simulator.finish[self._number] = self._simulator.now

    def _compute(self, identity: int, duration_ns: int) -> None:
        time = self._simulator.now + duration_ns
        if time not in self._batches:
            self._batches[time] = []
            self._simulator.at(time, self._run_batch)
        self._batches[time].append(identity)

    def _run_batch(self) -> None:
        batch = self._batches[self._simulator.now]
        while batch:
            self.end(batch.pop(0))
        del self._batches[self._simulator.now]
