"""A plain event simulation, with which the kit answers synthesizers that request a time.

A step starts when all its dependencies have finished. A message takes the shortest route, link by
link, and a link carries one message at a time in order of arrival. Only the result is rounded, so
that no time is below a lower bound. Cost: one heap operation per step and per hop.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from hub_core.columns import csr
from hub_core.model.algorithm import Algorithm, message_bytes
from hub_core.model.diagnostics import Findings
from hub_core.model.messages import match_messages
from hub_core.network.links import Occupancy
from hub_core.network.topology import Topology


def simulate_time_ns(
    algorithm: Algorithm, topology: Topology, collective_bytes: int, occupancy: Occupancy
) -> int | None:
    """Simulate an algorithm; return the finish time of its last step in ns, rounded up.

    `occupancy`: whether a message also occupies a link during the link's latency. None: some steps
    never finish, because of a deadlock or an unmatched receive.
    """
    run = _Simulation.prepare(algorithm, topology, collective_bytes, occupancy)
    while run.events:
        run.advance(*heapq.heappop(run.events))
    if run.num_done < len(algorithm.steps):
        return None
    return math.ceil(run.end_ns)


@dataclass(slots=True)
class _Simulation:
    """State of a simulation. Rows are rows of the step table.

    `paths`: per SEND row, (link, occupied time in ns, time until delivery in ns) of every hop.
    `children`: per row, the rows that depend on it. `receive`: per SEND row, the row that receives
    its message. `waits`: per row, the number of unfinished dependencies. `starts`: per row, the
    finish time of its latest finished dependency in ns. `events`: heap of (time in ns, row, hop):
    the row may start (hop 0), or its message has arrived before that hop. `free`: per link, the
    time from which it is free.
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
    def prepare(
        cls, algorithm: Algorithm, topology: Topology, collective_bytes: int, occupancy: Occupancy
    ) -> _Simulation:
        """Build the initial state: rows without dependencies may start at time 0."""
        steps, rows = algorithm.steps, len(algorithm.steps)
        parents, children = steps.edges()
        indptr, indices = csr(parents, children, rows)
        messages = match_messages(steps, Findings())
        receive = dict(zip(messages.send.tolist(), messages.receive.tolist(), strict=True))
        waits = np.bincount(children, minlength=rows) + steps.receives
        first = np.flatnonzero(waits == 0).tolist()
        return cls(
            _compute_paths(algorithm, topology, collective_bytes, occupancy),
            [rows_of_parent.tolist() for rows_of_parent in np.split(indices, indptr[1:-1])]
            if rows
            else [],
            receive,
            waits.tolist(),
            [0.0] * rows,
            [(0.0, row, 0) for row in first],
        )

    def advance(self, now_ns: float, row: int, hop: int) -> None:
        """Process an event: start a step (hop 0), or send its message over the next link."""
        path = self.paths.get(row, [])
        departure_ns = now_ns
        if hop < len(path):
            link, busy_ns, arrival_ns = path[hop]
            begin_ns = max(now_ns, self.free.get(link, 0.0))
            departure_ns = self.free[link] = begin_ns + busy_ns
            heapq.heappush(self.events, (begin_ns + arrival_ns, row, hop + 1))
        elif row in self.receive:
            self._release(self.receive[row], now_ns)
        if not hop:
            self._finish(departure_ns, row)

    def _finish(self, now_ns: float, row: int) -> None:
        """Record a row as finished at `now_ns` and release its children."""
        for child in self.children[row]:
            self._release(child, now_ns)
        self.num_done += 1
        self.end_ns = max(self.end_ns, now_ns)

    def _release(self, row: int, at_ns: float) -> None:
        """Count one dependency of a row as finished at `at_ns`; add an event after the last one."""
        self.starts[row] = max(self.starts[row], at_ns)
        self.waits[row] -= 1
        if not self.waits[row]:
            heapq.heappush(self.events, (self.starts[row], row, 0))


def _compute_paths(
    algorithm: Algorithm, topology: Topology, collective_bytes: int, occupancy: Occupancy
) -> dict[int, list[tuple[int, float, float]]]:
    """Per SEND row, the hops of its route as (link, occupied time, time until delivery) in ns."""
    steps = algorithm.steps
    sends = np.flatnonzero(steps.sends)
    counts = steps.count[sends]
    sizes = message_bytes(collective_bytes, algorithm.collective.unit_count, counts).tolist()
    endpoints = (steps.rank, steps.peer, steps.channel)
    routes = topology.routes(*(column[sends].astype(np.int64) for column in endpoints))
    paths = {}
    for i, row in enumerate(sends.tolist()):
        links = routes.links[routes.indptr[i] : routes.indptr[i + 1]]
        bytes_per_ns = topology.bandwidth_bytes_per_s[links] / 1e9
        transfer_ns = sizes[i] / bytes_per_ns
        arrival_ns = transfer_ns + topology.latency_ns[links]
        busy_ns = arrival_ns if occupancy is Occupancy.ALPHA_BETA else transfer_ns
        hops = zip(links.tolist(), busy_ns.tolist(), arrival_ns.tolist(), strict=True)
        paths[row] = list(hops)
    return paths
