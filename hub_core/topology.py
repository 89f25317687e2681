"""The network: NPUs, switches and directed links, the time a message takes on a link, and shortest-path routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hub_core.diagnostics import InputError

__all__ = ["Dimension", "DimensionKind", "Link", "Occupancy", "Routes", "Topology", "link_times_ns"]

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


class Occupancy(StrEnum):
    """How long a message of `size` bytes keeps a link busy, and when it arrives after it was put on the link.

    SERIALIZATION: busy size/bandwidth, arrival after latency + size/bandwidth (ASTRA-sim's model).
    ALPHA_BETA: busy and arrival both latency + size/bandwidth (TACOS's model).
    """

    SERIALIZATION = "serialization"
    ALPHA_BETA = "alpha-beta"


class DimensionKind(StrEnum):
    """How the nodes of one dimension of a regular network are joined."""

    LINE = "line"
    RING = "ring"
    FULLY_CONNECTED = "fully-connected"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a regular network; node id = a0 + n0 * (a1 + n1 * (a2 ...)). Latency is per hop."""

    kind: DimensionKind
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Link:
    """A view of one directed link."""

    source: int
    destination: int
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Routes:
    """One path per (source, destination) pair: the link rows of pair i are `links[indptr[i]:indptr[i + 1]]`."""

    indptr: Int64Array
    links: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """NPUs 0..num_npus-1, switches num_npus..num_nodes-1, and directed links as columns of equal length.

    `source`, `destination`: int64 node ids; `bandwidth_bytes_per_s` > 0 and `latency_s` >= 0: float64. The
    order of the links decides ties in routing. `dimensions` describes a regular network, empty otherwise.
    `node_names`: one per node or empty. `groups`: named lists of NPUs.
    """

    name: str
    num_npus: int
    num_nodes: int
    source: Int64Array
    destination: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    dimensions: tuple[Dimension, ...] = ()
    node_names: tuple[str, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if reason := self._defect():
            raise InputError(f"topology {self.name}: {reason}", code="invalid-topology")
        for column in (self.source, self.destination, self.bandwidth_bytes_per_s, self.latency_s):
            column.flags.writeable = False

    def _defect(self) -> str | None:
        if not 1 <= self.num_npus <= self.num_nodes:
            return "needs at least one NPU"
        columns = (self.source, self.destination, self.bandwidth_bytes_per_s, self.latency_s)
        if len({len(column) for column in columns}) != 1:
            return "link columns differ in length"
        ends = np.concatenate([self.source, self.destination])
        if len(ends) and not (int(ends.min()) >= 0 and int(ends.max()) < self.num_nodes):
            return f"a link ends at a node outside 0..{self.num_nodes - 1}"
        if np.any(self.source == self.destination):
            return f"a link joins node {int(self.source[self.source == self.destination][0])} to itself"
        if not np.all((self.bandwidth_bytes_per_s > 0) & np.isfinite(self.bandwidth_bytes_per_s)):
            return "a link's bandwidth is not positive and finite"
        if not np.all((self.latency_s >= 0) & np.isfinite(self.latency_s)):
            return "a link's latency is negative or not finite"
        if self.node_names and len(self.node_names) != self.num_nodes:
            return f"{len(self.node_names)} node names for {self.num_nodes} nodes"
        return None

    @property
    def num_links(self) -> int:
        """Number of directed links."""
        return len(self.source)

    @property
    def latency_ns(self) -> Float64Array:
        """Link latencies in nanoseconds, rounded to 1e-6 ns so that decimal inputs come back exactly."""
        return np.round(self.latency_s * 1e9, 6)

    def links(self) -> Iterator[Link]:
        """Iterate over the links as records, in order."""
        for row in range(self.num_links):
            yield Link(
                int(self.source[row]),
                int(self.destination[row]),
                float(self.bandwidth_bytes_per_s[row]),
                float(self.latency_s[row]),
            )

    def node_name(self, node: int) -> str:
        """Name of a node for people: its given name, else its number, `switch K` for switches."""
        if self.node_names:
            return self.node_names[node]
        return str(node) if node < self.num_npus else f"switch {node - self.num_npus}"

    def routes(self, sources: Int64Array, destinations: Int64Array) -> Routes:
        """Shortest paths by number of links for pairs of nodes, int64[pairs] each.

        Ties: at every hop the first link in link order that lies on a shortest path. On a ring whose links are
        listed clockwise first, opposite nodes are thus reached clockwise, as in ASTRA-sim. Cost: one
        breadth-first search per distinct destination that is not a neighbour. Raises `InputError` naming the
        first pair without a path.
        """
        paths: list[list[int]] = [[] for _ in range(len(sources))]
        direct = self._first_direct_links()
        distant: dict[int, list[int]] = {}
        for pair, (source, destination) in enumerate(zip(sources.tolist(), destinations.tolist(), strict=True)):
            link = direct.get((source, destination))
            if link is not None:
                paths[pair].append(link)
            elif source != destination:
                distant.setdefault(destination, []).append(pair)
        for destination, pairs in distant.items():
            next_link = self._next_links(destination)
            for pair in pairs:
                paths[pair] = self._follow(int(sources[pair]), destination, next_link)
        indptr = np.zeros(len(paths) + 1, np.int64)
        np.cumsum([len(path) for path in paths], out=indptr[1:])
        return Routes(indptr, np.asarray([link for path in paths for link in path], np.int64))

    def _first_direct_links(self) -> dict[tuple[int, int], int]:
        ends = zip(self.source.tolist(), self.destination.tolist(), strict=True)
        rows: dict[tuple[int, int], int] = {}
        for row, pair in enumerate(ends):
            rows.setdefault(pair, row)
        return rows

    def _next_links(self, destination: int) -> Int64Array:
        """First link of a shortest path to `destination` from every node, -1 where there is none."""
        distance = np.full(self.num_nodes, -1, np.int64)
        distance[destination] = 0
        hops = 0
        while True:
            hops += 1
            reached = self.source[(distance[self.destination] == hops - 1) & (distance[self.source] < 0)]
            if not len(reached):
                break
            distance[reached] = hops
        useful = np.flatnonzero((distance[self.destination] >= 0) & (distance[self.destination] == distance[self.source] - 1))
        next_link = np.full(self.num_nodes, -1, np.int64)
        next_link[self.source[useful[::-1]]] = useful[::-1]
        return next_link

    def _follow(self, source: int, destination: int, next_link: Int64Array) -> list[int]:
        path: list[int] = []
        node = source
        while node != destination:
            link = int(next_link[node])
            if link < 0:
                raise InputError(
                    f"topology {self.name}: no path from {self.node_name(source)} to {self.node_name(destination)}",
                    cure="add the missing links, or choose a connected topology",
                    code="disconnected",
                )
            path.append(link)
            node = int(self.destination[link])
        return path


def link_times_ns(
    bandwidth_bytes_per_s: Float64Array,
    latency_ns: Float64Array,
    sizes: Int64Array,
    occupancy: Occupancy = Occupancy.SERIALIZATION,
) -> tuple[Int64Array, Int64Array]:
    """(busy, arrival) in whole nanoseconds, by numpy broadcasting of the three arguments.

    One truncation of the double result each, as ASTRA-sim's analytical network does: busy =
    trunc(size / B), arrival = trunc(latency + size / B), B in bytes per nanosecond.
    """
    serialization = sizes / (bandwidth_bytes_per_s / 1e9)
    arrival = np.trunc(latency_ns + serialization).astype(np.int64)
    if occupancy is Occupancy.ALPHA_BETA:
        return arrival, arrival
    return np.trunc(serialization).astype(np.int64) + np.zeros_like(arrival), arrival
