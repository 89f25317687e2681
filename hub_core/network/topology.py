"""The network: NPUs, switches and directed links, the time a message takes on a link, and shortest-path routes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from hub_core.model.diagnostics import InputError, UsageError
from hub_core.model.rank_lists import format_ranks

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

# In a text such as `dgx1v+dgx1-pcie`, and not in a number such as 1e+9.
PLANE_SEPARATOR = re.compile(r"\+(?=[A-Za-z])")


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


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Directed links as columns of equal length, while a topology is being built; without `plane`, all on plane 0."""

    source: Int64Array
    destination: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    plane: Int64Array | None = None

    @classmethod
    def uniform(
        cls,
        source: Int64Array,
        destination: Int64Array,
        bandwidth_bytes_per_s: float,
        latency_s: float,
    ) -> Links:
        """Links that differ in their ends only."""
        rates = np.full(len(source), bandwidth_bytes_per_s, np.float64)
        return cls(source, destination, rates, np.full(len(source), latency_s, np.float64))

    @classmethod
    def joined(cls, parts: Sequence[Links]) -> Links:
        """All links of all parts, in order."""
        columns = ("source", "destination", "bandwidth_bytes_per_s", "latency_s")
        planes = [
            np.zeros(len(part.source), np.int64) if part.plane is None else part.plane
            for part in parts
        ]
        joined = (np.concatenate([getattr(part, column) for part in parts]) for column in columns)
        return replace(cls(*joined), plane=np.concatenate(planes))

    def topology(
        self,
        name: str,
        num_npus: int,
        num_nodes: int,
        *,
        order: Int64Array | None = None,
        dimensions: tuple[Dimension, ...] = (),
        node_names: tuple[str, ...] = (),
        groups: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Topology:
        """The topology of these links, taken in `order` (default: as they stand)."""
        rows = np.arange(len(self.source)) if order is None else order
        return Topology(
            name,
            num_npus,
            num_nodes,
            self.source[rows],
            self.destination[rows],
            self.bandwidth_bytes_per_s[rows],
            self.latency_s[rows],
            dimensions,
            node_names,
            groups or {},
            (np.zeros(len(self.source), np.int64) if self.plane is None else self.plane)[rows],
        )


@dataclass(frozen=True, slots=True)
class Routes:
    """One path per (source, destination) pair: the link rows of pair i, in order, are `links[indptr[i]:indptr[i + 1]]`."""

    indptr: Int64Array
    links: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """NPUs 0..num_npus-1, switches num_npus..num_nodes-1, and directed links as columns of equal length.

    `source`, `destination`: int64 node ids; `bandwidth_bytes_per_s` > 0 and `latency_s` >= 0: float64. The
    order of the links decides ties in routing. `dimensions` describes a regular network, empty otherwise.
    `node_names`: one per node or empty. `groups`: named lists of NPUs. `plane`: int64, by default 0: links of one
    number are a network of their own on the same NPUs, numbered from 0 without a gap. A message on channel c takes links of
    plane c modulo `num_planes` alone.
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
    plane: Int64Array = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.plane is None:
            object.__setattr__(self, "plane", np.zeros(len(self.source), np.int64))
        if reason := self._defect():
            raise InputError(f"topology {self.name}: {reason}", code="invalid-topology")
        for column in (
            self.source,
            self.destination,
            self.bandwidth_bytes_per_s,
            self.latency_s,
            self.plane,
        ):
            column.flags.writeable = False

    def _defect(self) -> str | None:
        if not 1 <= self.num_npus <= self.num_nodes:
            return "needs at least one NPU"
        columns = (
            self.source,
            self.destination,
            self.bandwidth_bytes_per_s,
            self.latency_s,
            self.plane,
        )
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
        return self._planes_defect() or self._labels_defect()

    def _planes_defect(self) -> str | None:
        planes = np.unique(self.plane)
        if not np.array_equal(planes, np.arange(len(planes))):
            return f"its planes are not numbered from 0 without a gap, but {', '.join(map(str, planes[:8].tolist()))}"
        return (
            "dimensions describe one network, not several planes"
            if len(planes) > 1 and self.dimensions
            else None
        )

    def _labels_defect(self) -> str | None:
        if self.node_names and len(self.node_names) != self.num_nodes:
            return f"{len(self.node_names)} node names for {self.num_nodes} nodes"
        if len(set(self.node_names)) != len(self.node_names):
            return f"two nodes are named {next(name for name in self.node_names if self.node_names.count(name) > 1)!r}"
        for group, members in self.groups.items():
            if len(set(members)) != len(members) or not all(
                0 <= member < self.num_npus for member in members
            ):
                return f"group {group!r} names an NPU twice, or one outside 0..{self.num_npus - 1}"
        if (
            self.dimensions
            and math.prod(dimension.size for dimension in self.dimensions) != self.num_npus
        ):
            return f"the dimensions do not multiply to {self.num_npus} NPUs"
        return None

    def subset(self, npus: Sequence[int]) -> Topology:
        """The network of these NPUs alone, NPU `npus[i]` numbered i, with all switches and the links that are left.

        Planes stay, less those of which no link is left: the others close up. Raises `UsageError` for an NPU that is
        named twice or does not exist.
        """
        chosen = np.asarray(npus, np.int64)
        outside = [npu for npu in npus if not 0 <= npu < self.num_npus]
        if outside or not npus or len(set(npus)) < len(npus):
            wrong = (
                f"NPU {outside[0]} is not in 0..{self.num_npus - 1}"
                if outside
                else "a subset names no NPU, or one twice"
            )
            raise UsageError(
                f"topology {self.name}: {wrong}",
                cure="name each NPU once, as 0,2,4-7",
                code="invalid-subset",
            )
        kept = np.concatenate([chosen, np.arange(self.num_npus, self.num_nodes)])
        number = np.full(self.num_nodes, -1, np.int64)
        number[kept] = np.arange(len(kept))
        rows = np.flatnonzero((number[self.source] >= 0) & (number[self.destination] >= 0))
        groups = {
            name: tuple(int(number[npu]) for npu in members)
            for name, members in self.groups.items()
        }
        return Topology(
            self._name_of_subset(format_ranks(npus)),
            len(chosen),
            len(kept),
            number[self.source[rows]],
            number[self.destination[rows]],
            self.bandwidth_bytes_per_s[rows],
            self.latency_s[rows],
            (),
            tuple(self.node_names[node] for node in kept) if self.node_names else (),
            {name: members for name, members in groups.items() if min(members, default=0) >= 0},
            np.unique(self.plane[rows], return_inverse=True)[1].astype(np.int64),
        )

    def _name_of_subset(self, npus: str) -> str:
        parts = PLANE_SEPARATOR.split(self.name) if self.num_planes > 1 else [self.name]
        return "+".join(f"{part}{'&' if '?' in part else '?'}npus={npus}" for part in parts)

    @property
    def num_planes(self) -> int:
        """Number of planes, at least 1."""
        return int(self.plane.max(initial=0)) + 1

    def on_plane(self, plane: int) -> Topology:
        """The network of one plane alone; nodes keep their numbers, and switches behind the last that it uses are left out.

        Its links are those of the plane, in order: row i is the i-th of `flatnonzero(plane == p)`.
        """
        if self.num_planes == 1 and plane == 0:
            return self
        rows = np.flatnonzero(self.plane == plane)
        source, destination = self.source[rows], self.destination[rows]
        nodes = max(
            self.num_npus, int(source.max(initial=0)) + 1, int(destination.max(initial=0)) + 1
        )
        return Topology(
            f"{self.name}, plane {plane}",
            self.num_npus,
            nodes,
            source,
            destination,
            self.bandwidth_bytes_per_s[rows],
            self.latency_s[rows],
            (),
            self.node_names[:nodes],
            self.groups,
        )

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

    def routes(
        self, sources: Int64Array, destinations: Int64Array, channels: Int64Array | None = None
    ) -> Routes:
        """Shortest paths by number of links for pairs of nodes, int64[pairs] each, on the planes of `channels` (default 0).

        Ties: an NPU takes the first link in link order that lies on a shortest path; on a ring whose links are
        listed clockwise first, opposite nodes are thus reached clockwise, as in ASTRA-sim. A switch spreads: the
        switches with ties on a path take in turn the digits of the destination's number, each to the base of
        its number of tied links (D-mod-k routing on a fat tree; Zahavi, JPDC 2012). Of parallel links an NPU
        takes the first. Cost: pairs that are no neighbours need one breadth-first search per destination, done
        for many destinations at once. Raises `InputError` naming a pair without a path.
        """
        sources, destinations = np.asarray(sources, np.int64), np.asarray(destinations, np.int64)
        if self.num_planes > 1:
            return self._routes_by_plane(sources, destinations, channels)
        direct = self._direct_links(sources, destinations)
        distant = np.flatnonzero((direct < 0) & (sources != destinations))
        near = np.flatnonzero(direct >= 0)
        found = [(near, Routes(np.arange(len(near) + 1), direct[near]))]
        if len(distant):
            found += _distant_routes(self, sources, destinations, distant)
        return _joined_routes(len(sources), found)

    def _routes_by_plane(
        self, sources: Int64Array, destinations: Int64Array, channels: Int64Array | None
    ) -> Routes:
        wanted = (
            np.zeros(len(sources), np.int64)
            if channels is None
            else np.asarray(channels, np.int64) % self.num_planes
        )
        found = []
        for plane in np.unique(wanted).tolist():
            pairs, rows = np.flatnonzero(wanted == plane), np.flatnonzero(self.plane == plane)
            routes = self.on_plane(plane).routes(sources[pairs], destinations[pairs])
            found.append((pairs, Routes(routes.indptr, rows[routes.links])))
        return _joined_routes(len(sources), found)

    def _direct_links(self, sources: Int64Array, destinations: Int64Array) -> Int64Array:
        """First link in link order from each source to its destination, -1 where they are no neighbours."""
        if not self.num_links:
            return np.full(len(sources), -1, np.int64)
        keys, first = np.unique(self.source * self.num_nodes + self.destination, return_index=True)
        wanted = sources * self.num_nodes + destinations
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, first[place], -1)


# Cells of the (destination, node or link) tables that one step of the search holds in memory.
_SEARCH_CELLS = 1 << 22


def _joined_routes(count: int, found: Sequence[tuple[Int64Array, Routes]]) -> Routes:
    """Routes of `count` pairs; every part has those of some pairs, and pairs in no part have an empty one."""
    length = np.zeros(count, np.int64)
    for pairs, routes in found:
        length[pairs] = np.diff(routes.indptr)
    indptr = np.concatenate([[0], np.cumsum(length)])
    links = np.empty(int(indptr[-1]), np.int64)
    for pairs, routes in found:
        within = np.arange(len(routes.links)) - np.repeat(routes.indptr[:-1], length[pairs])
        links[np.repeat(indptr[pairs], length[pairs]) + within] = routes.links
    return Routes(indptr, links)


def _distant_routes(
    topology: Topology, sources: Int64Array, destinations: Int64Array, pairs: Int64Array
) -> list[tuple[Int64Array, Routes]]:
    """Routes of `pairs` (indices of sources and destinations), in batches of destinations."""
    pairs = pairs[np.argsort(destinations[pairs], kind="stable")]
    goals, first = np.unique(destinations[pairs], return_index=True)
    ends = np.append(first, len(pairs))
    search = _Search(topology)
    batch = max(1, _SEARCH_CELLS // max(topology.num_links, topology.num_nodes))
    found = []
    for start in range(0, len(goals), batch):
        stop = min(start + batch, len(goals))
        chosen = pairs[ends[start] : ends[stop]]
        row = np.repeat(np.arange(stop - start), np.diff(ends[start : stop + 1]))
        found.append((chosen, search.routes(goals[start:stop], row, sources[chosen])))
    return found


class _Search:
    """Shortest paths of one topology to a batch of goals. Links are sorted by source, in link order within one."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._order = np.argsort(topology.source, kind="stable")
        self._head = topology.destination[self._order]
        self._tails, self._starts = np.unique(topology.source[self._order], return_index=True)

    def routes(self, goals: Int64Array, row: Int64Array, sources: Int64Array) -> Routes:
        """Path i leads from `sources[i]` to `goals[row[i]]`."""
        distance = self._distances(goals)
        length = distance[row, sources].astype(np.int64)
        if np.any(length < 0):
            lost = int(np.argmax(length < 0))
            self._refuse(int(sources[lost]), int(goals[row[lost]]))
        useful, count, start = self._useful_links(distance)
        indptr = np.concatenate([[0], np.cumsum(length)])
        links = np.empty(int(indptr[-1]), np.int64)
        path, node, digits = np.arange(len(sources)), sources, goals[row]
        hop = 0
        while len(path):
            ties = np.where(node >= self._topology.num_npus, count[row[path], node], 1)
            digits, choice = np.divmod(digits, ties)
            link = useful[start[row[path], node] + choice]
            links[indptr[path] + hop] = link
            hop += 1
            going = np.flatnonzero(length[path] > hop)
            path, node, digits = path[going], self._topology.destination[link[going]], digits[going]
        return Routes(indptr, links)

    def _distances(self, goals: Int64Array) -> npt.NDArray[np.int32]:
        """Number of links from every node to each goal: int32[goals, nodes], -1 where there is no path."""
        distance = np.full((len(goals), self._topology.num_nodes), -1, np.int32)
        distance[np.arange(len(goals)), goals] = 0
        frontier = distance == 0
        hops = 0
        while frontier.any():
            hops += 1
            reached = np.zeros_like(frontier)
            reached[:, self._tails] = np.logical_or.reduceat(
                frontier[:, self._head], self._starts, axis=1
            )
            frontier = reached & (distance < 0)
            distance[frontier] = hops
        return distance

    def _useful_links(
        self, distance: npt.NDArray[np.int32]
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Links on shortest paths, per goal and source, as (links, count[goal, node], start[goal, node])."""
        tail = np.repeat(self._tails, np.diff(np.append(self._starts, len(self._head))))
        is_useful = (distance[:, self._head] >= 0) & (
            distance[:, self._head] == distance[:, tail] - 1
        )
        count = np.zeros(distance.shape, np.int64)
        count[:, self._tails] = np.add.reduceat(is_useful, self._starts, axis=1, dtype=np.int64)
        start = np.cumsum(count).reshape(count.shape) - count
        return self._order[np.nonzero(is_useful)[1]], count, start

    def _refuse(self, source: int, goal: int) -> NoReturn:
        name = self._topology.node_name
        raise InputError(
            f"topology {self._topology.name}: no path from {name(source)} to {name(goal)}",
            cure="add the missing links, or choose a connected topology",
            code="disconnected",
        )


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
