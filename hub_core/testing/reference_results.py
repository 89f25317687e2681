"""Reference results that share no code with the core: message times, routes, cables, subsets."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hub_core.columns import csr
from hub_core.model.algorithm import Algorithm, message_bytes
from hub_core.model.messages import matched_messages
from hub_core.network.links import Occupancy
from hub_core.network.topology import Topology
from hub_core.pipeline.inputs import parse_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub_core.registry.plugins import Registry


def simulate_time_ns(
    algorithm: Algorithm, topology: Topology, collective_bytes: int, occupancy: Occupancy
) -> int | None:
    """Simulate an algorithm; return the finish time of its last step in ns, rounded up.

    A SEND finishes when its message has left its first link. `collective_bytes`: size of
    the collective. `occupancy`: whether a message also occupies a link during the link's
    latency. Return 0 if there are no steps. Return None if a step never starts, because of
    a deadlock or a receive without a SEND. Raise `InputError` for a message without a
    route.
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
        """Build the initial state, with an event at time 0 for every row that waits for nothing.

        A row (step) waits for its data and control dependencies. A receive also waits for its
        message; if no SEND matches it, neither it nor the rows that depend on it ever start.
        `collective_bytes` and `occupancy` determine how long messages occupy links
        (`_compute_paths`). No step is executed yet. An algorithm without steps has no events.
        Raises `InputError` for a message without a route.
        """
        steps, rows = algorithm.steps, len(algorithm.steps)
        parents, children = steps.edges()
        indptr, indices = csr(parents, children, rows)
        messages = matched_messages(steps)
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
        """Process an event: row `row` starts (hop 0), or its message has arrived before link `hop`.

        `now_ns`: time of the event. If the path of the row has a link `hop`, the message waits
        until this link is free and occupies it. Then an event for the arrival before the next link
        is added. Otherwise the message has arrived, and the receive that matches the row, if any,
        is released now; for a SEND without links this is in the event of hop 0. Rows that are no
        SEND have only the event of hop 0.

        In the event of hop 0, the row finishes: a SEND with links when its message has left its
        first link, any other row now. `num_done` and `end_ns` count it, and the rows that depend on
        it are released at this time.
        """
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
            for child in self.children[row]:
                self._release(child, departure_ns)
            self.num_done += 1
            self.end_ns = max(self.end_ns, departure_ns)

    def _release(self, row: int, at_ns: float) -> None:
        """Count one dependency of a row as finished at `at_ns`, the message of a receive included.

        After the last dependency, an event of hop 0 is added for the row: it starts at the
        latest of the times of its dependencies.
        """
        self.starts[row] = max(self.starts[row], at_ns)
        self.waits[row] -= 1
        if not self.waits[row]:
            heapq.heappush(self.events, (self.starts[row], row, 0))


def _compute_paths(
    algorithm: Algorithm, topology: Topology, collective_bytes: int, occupancy: Occupancy
) -> dict[int, list[tuple[int, float, float]]]:
    """Return the route of every SEND row: list of (link, busy ns, ns until arrival) by row.

    The route is that of `Topology.routes` for sender, receiver and channel, where rank r is NPU r;
    it is empty for a message of a rank to itself. The transfer time is the size in bytes
    (`message_bytes`) divided by the bandwidth. The time until arrival also has the latency. A link
    is busy for the transfer time or, with ALPHA_BETA, until the arrival. Times are not rounded.
    Raises `InputError` for a message without a route.
    """
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


def find_distances(topology: Topology, start: int) -> dict[int, int]:
    """Return the minimum number of links from node `start` to every reachable node.

    Links have a direction. `start` itself has 0. Unreachable nodes are missing. Nodes are in the
    order of a breadth-first search.
    """
    neighbours: dict[int, list[int]] = {}
    for source, destination in _list_ends(topology):
        neighbours.setdefault(source, []).append(destination)
    counts = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for neighbour in neighbours.get(node, ()):
            if neighbour not in counts:
                counts[neighbour] = counts[node] + 1
                queue.append(neighbour)
    return counts


def check_routes(topology: Topology) -> None:
    """Assert that the route between every two NPUs is connected and has the minimum of links.

    It is meant for tests of topology builders. The time is quadratic in the number of NPUs. Raises
    `AssertionError` for the first pair whose route is not shortest, leads to another node, or has a
    gap. Raises `InputError` if a pair has no route.
    """
    sources, destinations = np.divmod(np.arange(topology.num_npus**2), topology.num_npus)
    routes = topology.routes(sources, destinations)
    shortest = [find_distances(topology, start) for start in range(topology.num_npus)]
    for pair, (source, destination) in enumerate(
        zip(sources.tolist(), destinations.tolist(), strict=True)
    ):
        path = routes.links[routes.indptr[pair] : routes.indptr[pair + 1]]
        where = f"route from {source} to {destination}"
        assert len(path) == shortest[source][destination], f"{where}: {len(path)} links"
        nodes = [source, *topology.destination[path].tolist()]
        assert nodes[-1] == destination, f"{where}: ends at {nodes[-1]}"
        assert topology.source[path].tolist() == nodes[:-1], f"{where}: has a gap"


def check_cabling(topology: Topology) -> None:
    """Assert that routes are correct, and that every link has an opposite link.

    It is meant for topologies in which every cable is a pair of links. Only the existence
    of the opposite link is checked, not the number of parallel links, bandwidths or
    latencies. Raise `AssertionError` for such a link, and for the defects of
    `check_routes`. Raise `InputError` if two NPUs have no route.
    """
    check_routes(topology)
    endpoints = set(_list_ends(topology))
    unpaired = sorted(link for link in endpoints if link[::-1] not in endpoints)
    assert not unpaired, f"links without a link in the opposite direction: {unpaired}"


def check_subset(topology: Topology, npus: Sequence[int], registry: Registry | None = None) -> None:
    """Assert that `topology.subset(npus)` preserves the links, rates and switch names.

    Checked in this order:

    1. The subset has exactly the links between these NPUs and all switches, in the same order and
       with the same bandwidths.
    2. The switches have the same names.
    3. The builders of `registry` (None: those of all plugins) build an equal network from the name
       of the subset: the same name, links, bandwidths and groups, then the same latencies. The
       latencies are not compared with `topology`.

    Raises `AssertionError` for the first check that fails. Raises `HubError` if `npus` is no valid
    subset, or if the name of the subset is no topology text.
    """
    part = topology.subset(npus)
    switches = range(topology.num_npus, topology.num_nodes)
    nodes = [*npus, *switches]
    actual = [
        (nodes[source], nodes[destination], rate) for source, destination, rate in _list_links(part)
    ]
    expected = [link for link in _list_links(topology) if link[0] in nodes and link[1] in nodes]
    assert actual == expected, f"links of the subset are {actual}, not {expected}"
    names = [part.node_name(node) for node in range(len(npus), part.num_nodes)]
    expected_names = [topology.node_name(node) for node in switches]
    assert names == expected_names, (
        f"switches of the subset are named {names}, not {expected_names}"
    )
    rebuilt = parse_topology(part.name, registry)
    is_equal = (rebuilt.name, _list_links(rebuilt), rebuilt.groups) == (
        part.name,
        _list_links(part),
        part.groups,
    )
    assert is_equal, f"{part.name} builds another network than the subset of this name"
    assert np.array_equal(rebuilt.latency_s, part.latency_s), f"{part.name} has other latencies"


def _list_ends(topology: Topology) -> list[tuple[int, int]]:
    """(source, destination) of every link."""
    return list(zip(topology.source.tolist(), topology.destination.tolist(), strict=True))


def _list_links(topology: Topology) -> list[tuple[int, int, float]]:
    """Return (source, destination, bandwidth in bytes/s) of every link, in link order.

    Parallel links are separate entries. Numbers are Python's.
    """
    rates = topology.bandwidth_bytes_per_s.tolist()
    return [(*endpoints, rate) for endpoints, rate in zip(_list_ends(topology), rates, strict=True)]
