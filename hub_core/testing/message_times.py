"""A plain simulation of messages, by which the kit answers synthesizers that ask for a time.

Steps run as soon as what they wait for is done; a message takes the shortest route, link by link,
and a link carries one message at a time, in the order in which they come. Nothing is rounded before
the end, so that no time falls below a lower bound. Cost: a heap operation a step.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from hub_core.columns import csr
from hub_core.model.algorithm import Algorithm, message_bytes
from hub_core.model.findings import Findings
from hub_core.model.messages import match_messages
from hub_core.network.links import Occupancy
from hub_core.network.topology import Topology


def time_of_messages(
    algorithm: Algorithm, topology: Topology, collective_bytes: int, occupancy: Occupancy
) -> int | None:
    """The time in nanoseconds until the last step is done, None where some never are."""
    run = _Run.of(algorithm, topology, collective_bytes, occupancy)
    while run.events:
        run.advance(*heapq.heappop(run.events))
    if run.num_done < len(algorithm.steps):
        return None
    return math.ceil(run.end_ns)


@dataclass(slots=True)
class _Run:
    """One simulation. `paths`: per SEND, (link, busy, latency) in ns of every hop.

    `waits`, `starts`: per row, for how many others it waits still, and when the last of them was
    done. `events`: a heap of (time, row, hop): a row that may start (hop 0), or its message that is
    at that hop. `children`: the rows that wait for a row's end; `receive`: the one that waits for
    its message.
    """

    paths: dict[int, list[tuple[int, float, float]]]
    children: list[list[int]]
    receive: dict[int, int]
    waits: list[int]
    starts: list[float]
    events: list[tuple[float, int, int]]
    free: dict[int, float] = field(default_factory=dict)
    num_done: int = 0
    end_ns: float = 0.0

    @classmethod
    def of(
        cls, algorithm: Algorithm, topology: Topology, collective_bytes: int, occupancy: Occupancy
    ) -> _Run:
        steps, rows = algorithm.steps, len(algorithm.steps)
        parents, children = steps.edges()
        indptr, indices = csr(parents, children, rows)
        messages = match_messages(steps, Findings())
        receive = dict(zip(messages.send.tolist(), messages.receive.tolist(), strict=True))
        waits = np.bincount(children, minlength=rows) + steps.receives
        first = np.flatnonzero(waits == 0).tolist()
        return cls(
            _paths(algorithm, topology, collective_bytes, occupancy),
            [part.tolist() for part in np.split(indices, indptr[1:-1])] if rows else [],
            receive,
            waits.tolist(),
            [0.0] * rows,
            [(0.0, row, 0) for row in first],
        )

    def advance(self, now_ns: float, row: int, hop: int) -> None:
        """Run a step that waits for nothing any more, or send its message over the next link."""
        path = self.paths.get(row, [])
        left_ns = now_ns
        if hop < len(path):
            link, busy_ns, arrival_ns = path[hop]
            begin_ns = max(now_ns, self.free.get(link, 0.0))
            left_ns = self.free[link] = begin_ns + busy_ns
            heapq.heappush(self.events, (begin_ns + arrival_ns, row, hop + 1))
        elif row in self.receive:
            self._release(self.receive[row], now_ns)
        if not hop:
            self._finish(left_ns, row)

    def _finish(self, now_ns: float, row: int) -> None:
        """Count a row as done at `now_ns`, and release the rows that wait for its end."""
        for child in self.children[row]:
            self._release(child, now_ns)
        self.num_done += 1
        self.end_ns = max(self.end_ns, now_ns)

    def _release(self, row: int, at_ns: float) -> None:
        self.starts[row] = max(self.starts[row], at_ns)
        self.waits[row] -= 1
        if not self.waits[row]:
            heapq.heappush(self.events, (self.starts[row], row, 0))


def _paths(
    algorithm: Algorithm, topology: Topology, collective_bytes: int, occupancy: Occupancy
) -> dict[int, list[tuple[int, float, float]]]:
    """Per SEND, the links of its route, with how long each is busy and when it delivers, in ns."""
    steps = algorithm.steps
    sends = np.flatnonzero(steps.sends)
    counts = steps.count[sends]
    sizes = message_bytes(collective_bytes, algorithm.collective.unit_count, counts).tolist()
    ends = (steps.rank, steps.peer, steps.channel)
    routes = topology.routes(*(column[sends].astype(np.int64) for column in ends))
    paths = {}
    for place, row in enumerate(sends.tolist()):
        links = routes.links[routes.indptr[place] : routes.indptr[place + 1]]
        bytes_per_ns = topology.bandwidth_bytes_per_s[links] / 1e9
        transfer_ns = sizes[place] / bytes_per_ns
        arrival_ns = transfer_ns + topology.latency_ns[links]
        busy_ns = arrival_ns if occupancy is Occupancy.ALPHA_BETA else transfer_ns
        hops = zip(links.tolist(), busy_ns.tolist(), arrival_ns.tolist(), strict=True)
        paths[row] = list(hops)
    return paths
