"""The network: NPUs, switches and directed links."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from hub_core.columns import Arcs, Float64Array, Int64Array, distinct, positions_in
from hub_core.model.diagnostics import InputError, UsageError
from hub_core.model.notebook_display import NotebookDisplay
from hub_core.model.quantities import format_ranks
from hub_core.network.routes import Routes, joined_routes, shortest_routes

# In a text such as `dgx1v+dgx1-pcie`, and not in a number such as 1e+9.
PLANE_SEPARATOR = re.compile(r"\+(?=[A-Za-z])")
# Rates and times of other orders of magnitude would overflow or be lost in sums.
_MIN_RATE, _MAX_RATE = 1e-3, 1e21
_MAX_LATENCY_S = 1e18
_NAMED_PLANES = 8


class DimensionKind(StrEnum):
    """How the nodes of one dimension of a regular network are connected."""

    LINE = "line"
    RING = "ring"
    FULLY_CONNECTED = "fully-connected"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a regular network; node id = a0 + n0 * (a1 + n1 * ...).

    `latency_s`: per link.
    """

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
class MeasuredSwitches:
    """Switches of a machine that multicast and add up messages (NVLS, SHARP) at a measured rate.

    `switches`: node numbers. `bytes_per_s`: bytes of the vector of an all-reduce divided by its
    time, as measured for large vectors on all NPUs of a switch.
    """

    switches: tuple[int, ...]
    bytes_per_s: float

    def renumber(self, number: Sequence[int]) -> MeasuredSwitches | None:
        """Return the switches under the numbers `number[node]`, without those of number -1.

        The measured rate is kept. None if no switch remains.
        """
        switches = tuple(number[switch] for switch in self.switches if number[switch] >= 0)
        return MeasuredSwitches(switches, self.bytes_per_s) if switches else None


@dataclass(frozen=True, slots=True, eq=False)
class Topology(NotebookDisplay):
    """NPUs 0..num_npus-1, switches num_npus..num_nodes-1, and directed links as columns.

    `source`, `destination`: int64 node ids; `bandwidth_bytes_per_s` > 0 and `latency_s` >= 0:
    float64. The order of the links decides ties in routing. `dimensions`: of a regular network,
    else empty. `node_names`: one per node, or empty. `groups`: named lists of NPUs. `plane`: int64,
    by default 0; the links of each plane are a separate network on the same NPUs, and planes are
    numbered from 0 without gaps. A message on channel c uses only links of plane c modulo
    `num_planes`. `multicast`, `reduction`: switches that forward copies of a message to several
    nodes, and that add up messages to one NPU (NVLS, SHARP), at the rate of their links.
    `measured_switches`: those that do both on the real machine, at a measured rate. Times of
    nominal links ignore them; `with_measured_switches` declares them. Raises `InputError` for
    inconsistent or invalid values.
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
    multicast: tuple[int, ...] = ()
    reduction: tuple[int, ...] = ()
    measured_switches: MeasuredSwitches | None = None

    def __post_init__(self) -> None:
        # Set here only: the class is frozen.
        if self.plane is None:
            object.__setattr__(self, "plane", np.zeros(len(self.source), np.int64))
        reason = self._links_defect() or self._planes_defect() or self._names_defect()
        if reason := reason or self._groups_defect():
            raise InputError(f"topology {self.name}: {reason}", code="invalid-topology")
        for column in self._columns():
            column.flags.writeable = False

    def __repr__(self) -> str:
        switches = self.num_nodes - self.num_npus
        nodes = f"{self.num_npus} NPUs, {switches} switches"
        return f"<Topology {self.name}: {nodes}, {self.num_links} links>"

    def _columns(self) -> tuple[Int64Array | Float64Array, ...]:
        """Return all columns of the links: source, destination, bandwidth, latency, plane."""
        endpoints = (self.source, self.destination)
        return *endpoints, self.bandwidth_bytes_per_s, self.latency_s, self.plane

    def _links_defect(self) -> str | None:
        """Return a text about the first defect of NPUs and links, or None.

        Order: 1 to `num_nodes` NPUs; columns of equal length; ends that exist; no link from a node
        to itself; bandwidths positive, finite; latencies finite, at least 0; bandwidths of 1e-3 to
        1e21 bytes/s; latencies up to 1e18 s.
        """
        if not 1 <= self.num_npus <= self.num_nodes:
            return f"{self.num_npus} NPUs in {self.num_nodes} nodes; at least 1 and at most all"
        if len({len(column) for column in self._columns()}) != 1:
            return "link columns differ in length"
        endpoints = np.concatenate([self.source, self.destination])
        if len(endpoints) and (int(endpoints.min()) < 0 or int(endpoints.max()) >= self.num_nodes):
            return f"a link ends at a node outside 0..{self.num_nodes - 1}"
        loops = self.source[self.source == self.destination]
        if len(loops):
            return f"a link joins node {int(loops[0])} to itself"
        rates, latencies = self.bandwidth_bytes_per_s, self.latency_s
        if not np.all((rates > 0) & np.isfinite(rates)):
            return "a link's bandwidth is not positive and finite"
        if not np.all((latencies >= 0) & np.isfinite(latencies)):
            return "a link's latency is negative or not finite"
        if not np.all((rates >= _MIN_RATE) & (rates <= _MAX_RATE)):
            return f"a link's bandwidth is not in {_MIN_RATE:g}..{_MAX_RATE:g} bytes/s"
        if not np.all(latencies <= _MAX_LATENCY_S):
            return f"a link's latency is above {_MAX_LATENCY_S:g} s"
        return None

    def _planes_defect(self) -> str | None:
        """Return a text about the first defect of the planes, or None.

        The planes of the links must be numbered from 0 without gaps, and a topology with dimensions
        has at most one plane.
        """
        planes = distinct(self.plane)
        if not np.array_equal(planes, np.arange(len(planes))):
            named = ", ".join(map(str, planes[:_NAMED_PLANES].tolist()))
            return f"its planes are not numbered from 0 without a gap, but {named}"
        if len(planes) > 1 and self.dimensions:
            return "dimensions describe one network, not several planes"
        return None

    def _names_defect(self) -> str | None:
        """Return a text about the first defect of the node names, or None; () means no names.

        First a number of names other than the number of nodes, then the first repeated name.
        """
        names = self.node_names
        if names and len(names) != self.num_nodes:
            return f"{len(names)} node names for {self.num_nodes} nodes"
        if len(set(names)) != len(names):
            doubled = next(name for name in names if names.count(name) > 1)
            return f"two nodes are named {doubled!r}"
        return None

    def _groups_defect(self) -> str | None:
        """Return a text about the first defect of groups, dimensions and switches, or None.

        Checked in this order: a group lists NPUs that exist, each at most once; the sizes of
        dimensions, if there are any, multiply to the number of NPUs; only switches multicast,
        reduce or are measured; the measured rate is within the limits of bandwidths.
        """
        for group, members in self.groups.items():
            is_outside = any(not 0 <= member < self.num_npus for member in members)
            if is_outside or len(set(members)) != len(members):
                return f"group {group!r} names an NPU twice, or one outside 0..{self.num_npus - 1}"
        sizes = [dimension.size for dimension in self.dimensions]
        if sizes and math.prod(sizes) != self.num_npus:
            return f"the dimensions do not multiply to {self.num_npus} NPUs"
        measured = self.measured_switches
        multiplying = {*self.multicast, *self.reduction, *(measured.switches if measured else ())}
        if not multiplying <= set(range(self.num_npus, self.num_nodes)):
            return f"only switches, {self.num_npus}..{self.num_nodes - 1}, multicast or reduce"
        if measured and not _MIN_RATE <= measured.bytes_per_s <= _MAX_RATE:
            return f"the measured rate of switches is not in {_MIN_RATE:g}..{_MAX_RATE:g} bytes/s"
        return None

    def with_measured_switches(self) -> Topology:
        """Return the network whose measured switches multicast and reduce, as on the machine.

        The network itself if it has none, or if it declares switches that multicast or reduce.
        """
        if self.measured_switches is None or self.multicast or self.reduction:
            return self
        switches = self.measured_switches.switches
        return replace(self, multicast=switches, reduction=switches)

    def differences(self, other: Topology) -> list[str]:
        """Return the names of the fields in which two networks differ; [] if they are equal.

        The order is fixed, links last. `links`: a link differs (nodes, plane, bandwidth or
        latency); `link_order`: equal links in another order. Latencies are rounded to 1e-6 ns,
        bandwidths compared exactly. `name` and `measured_switches` are not compared.
        """
        plain = ("num_npus", "num_nodes", "dimensions", "node_names", "groups")
        names = (*plain, "multicast", "reduction")
        differing = [name for name in names if getattr(self, name) != getattr(other, name)]
        rows, other_rows = self._rows(), other._rows()
        if not np.array_equal(rows, other_rows):
            first, another = (table[:, np.lexsort(table)] for table in (rows, other_rows))
            differing.append("link_order" if np.array_equal(first, another) else "links")
        return differing

    def _rows(self) -> Float64Array:
        """Return the links as one table: float64[5, links].

        Its rows: source, destination, plane, bandwidth in bytes/s, latency in ns as `latency_ns`.
        """
        keys = (self.source, self.destination, self.plane)
        return np.stack([*keys, self.bandwidth_bytes_per_s, self.latency_ns])

    def subset(self, npus: Sequence[int]) -> Topology:
        """Return the network restricted to these NPUs; NPU `npus[i]` gets number i.

        All switches are kept, with numbers after the NPUs, and so are the links between kept nodes,
        in their order. Groups with a removed NPU and all dimensions are dropped. Planes without
        links are removed, and the others renumbered. The name gets `npus=...` after `?` or `&`.
        Raises `UsageError` (`invalid-subset`) for an NPU that does not exist or is listed twice,
        and for no NPUs.
        """
        outside = [npu for npu in npus if not 0 <= npu < self.num_npus]
        if outside or not npus or len(set(npus)) < len(npus):
            wrong = "a subset names no NPU, or one twice"
            if outside:
                wrong = f"NPU {outside[0]} is not in 0..{self.num_npus - 1}"
            cure = "name each NPU once, as 0,2,4-7"
            raise UsageError(f"topology {self.name}: {wrong}", cure=cure, code="invalid-subset")
        nodes = np.concatenate([np.asarray(npus), np.arange(self.num_npus, self.num_nodes)])
        number = positions_in(nodes, self.num_nodes)
        source, destination = number[self.source], number[self.destination]
        rows = np.flatnonzero((source >= 0) & (destination >= 0))
        names = tuple(self.node_names[node] for node in nodes) if self.node_names else ()
        # Python integers, because groups are compared and printed.
        numbers = number.tolist()
        groups = {
            name: tuple(numbers[npu] for npu in members) for name, members in self.groups.items()
        }
        # Each plane of a text has a list, so that the name can be parsed again.
        planes = PLANE_SEPARATOR.split(self.name) if self.num_planes > 1 else [self.name]
        choice = f"npus={format_ranks(npus)}"
        return self._part(
            rows,
            name="+".join(f"{plane}{'&' if '?' in plane else '?'}{choice}" for plane in planes),
            num_npus=len(npus),
            num_nodes=len(nodes),
            source=source[rows],
            destination=destination[rows],
            node_names=names,
            groups={name: members for name, members in groups.items() if -1 not in members},
            multicast=tuple(numbers[switch] for switch in self.multicast),
            reduction=tuple(numbers[switch] for switch in self.reduction),
            measured_switches=self.measured_switches and self.measured_switches.renumber(numbers),
            plane=np.unique(self.plane[rows], return_inverse=True)[1].astype(np.int64),
        )

    @property
    def num_planes(self) -> int:
        """Number of planes, at least 1."""
        return int(self.plane.max(initial=0)) + 1

    def on_plane(self, plane: int) -> Topology:
        """Return the network of one plane: only its links, in link order and with plane number 0.

        If the network has only plane 0, `on_plane(0)` returns the network itself. Otherwise the
        name gets `, plane P`, groups remain, and dimensions are dropped. Nodes keep their numbers.
        Switches with higher numbers than all nodes of the links, all switches without links, are
        removed.
        """
        if self.num_planes == 1 and plane == 0:
            return self
        rows = np.flatnonzero(self.plane == plane)
        # Switches of later planes have larger numbers and are not needed.
        last = np.concatenate([self.source[rows], self.destination[rows]]).max(initial=0)
        nodes = max(self.num_npus, int(last) + 1)
        numbers = [node if node < nodes else -1 for node in range(self.num_nodes)]
        return self._part(
            rows,
            name=f"{self.name}, plane {plane}",
            num_nodes=nodes,
            node_names=self.node_names[:nodes],
            plane=np.zeros(len(rows), np.int64),
            multicast=tuple(switch for switch in self.multicast if switch < nodes),
            reduction=tuple(switch for switch in self.reduction if switch < nodes),
            measured_switches=self.measured_switches and self.measured_switches.renumber(numbers),
        )

    def _part(self, rows: Int64Array, **changes: Any) -> Topology:
        """Return a copy with only the links of `rows`, in this order, and without dimensions.

        `changes`: further fields to replace, which take precedence; `plane` must be one of them.
        """
        columns = ("source", "destination", "bandwidth_bytes_per_s", "latency_s")
        taken = {name: getattr(self, name)[rows] for name in columns}
        return replace(self, **{**taken, "dimensions": (), **changes})

    @property
    def num_links(self) -> int:
        """Number of directed links."""
        return len(self.source)

    @property
    def latency_ns(self) -> Float64Array:
        """Link latencies in nanoseconds, float64[links]."""
        # Rounded to 1e-6 ns, so that decimal inputs come back exactly.
        return np.round(self.latency_s * 1e9, 6)

    def links(self) -> Iterator[Link]:
        """Yield a `Link` record per link, in link order; columns are faster for large networks."""
        columns = (self.source, self.destination, self.bandwidth_bytes_per_s, self.latency_s)
        for row in zip(*(column.tolist() for column in columns), strict=True):
            yield Link(*row)

    def node_name(self, node: int) -> str:
        """Return the name of a node from `node_names`, if the topology has names.

        Otherwise, the number of an NPU, and `switch K` for a switch, with K from 0.
        """
        if self.node_names:
            return self.node_names[node]
        return str(node) if node < self.num_npus else f"switch {node - self.num_npus}"

    def arcs(self, *, backwards: bool = False) -> Arcs:
        """Return the links as arcs for searches; `backwards`: from destination to source."""
        if backwards:
            return Arcs(self.num_nodes, self.destination, self.source)
        return Arcs(self.num_nodes, self.source, self.destination)

    def routes(
        self, sources: Int64Array, destinations: Int64Array, channels: Int64Array | None = None
    ) -> Routes:
        """Return a path with the fewest links for each pair of nodes, in the order of the pairs.

        `sources`, `destinations`: int64[pairs]. Pair i uses plane `channels[i] % num_planes`, plane
        0 without `channels`. Equal ends give an empty path. A direct link gives the first such
        link. On other paths, a node takes one of its links that are on a shortest path. An NPU
        takes the first of them in link order. A switch with n of them takes number d mod n; then d
        becomes d // n for the next switch. At first d is the number of the destination (D-mod-k
        routing; Zahavi, JPDC 2012). Raises `InputError` (`disconnected`) for a pair without a path.
        """
        sources, destinations = np.asarray(sources, np.int64), np.asarray(destinations, np.int64)
        if self.num_planes == 1:
            return shortest_routes(self, sources, destinations)
        pending = np.zeros(len(sources), np.int64)
        if channels is not None:
            pending = np.asarray(channels, np.int64) % self.num_planes
        parts = []
        for plane in distinct(pending).tolist():
            pairs, rows = np.flatnonzero(pending == plane), np.flatnonzero(self.plane == plane)
            part = self.on_plane(plane)
            routes = shortest_routes(part, sources[pairs], destinations[pairs])
            parts.append((pairs, Routes(routes.indptr, rows[routes.links])))
        return joined_routes(len(sources), parts)
