"""Networks with exact integer capacities.

Networks of duplex links are undirected graphs; minimum sets of their nodes are computed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from collhub_packing.flows import FlowNetwork, scaled
from hub_core.columns import BoolArray, Float64Array, Int64Array, positions_in
from hub_core.model import InputError
from hub_core.network import Topology

# Sums over a million links, scaled by rates, are still below 2^60.
_MAX_CAPACITY = 1 << 40
_MAX_ROUNDED_CAPACITY = 1000


@dataclass(frozen=True, slots=True, eq=False)
class CapacityGraph:
    """Directed arcs with int64 capacities in units of `unit` bytes per second, an exact fraction.

    Nodes 0..num_compute-1 compute, the remaining ones are switches. At most one arc per ordered
    pair of nodes. int64 columns per arc: `source`, `destination`, `capacity`, `row` (row of the
    link in the topology).
    """

    num_nodes: int
    num_compute: int
    source: Int64Array
    destination: Int64Array
    capacity: Int64Array
    row: Int64Array
    unit: Fraction

    @classmethod
    def of(cls, topology: Topology) -> CapacityGraph:
        """Convert a topology to a graph whose link capacities are the smallest integers.

        All capacities are the bandwidths divided by one common unit, the largest with integer
        results. A bandwidth is the value of its shortest decimal text.

        - Parallel links of one plane: only the first counts, as in simulators.
        - Links of different planes between the same nodes: their capacities are added. This gives
          a rate that no algorithm exceeds. To pack trees, use `Topology.on_plane` before.

        Without links the graph is empty. Raises `InputError` (`capacities`) for an integer above
        2^40.
        """
        pair = topology.source * topology.num_nodes + topology.destination
        key = topology.plane * topology.num_nodes**2 + pair
        row: Int64Array = np.unique(key, return_index=True)[1]
        capacity, unit = _to_integers(topology.bandwidth_bytes_per_s[row], topology.name)
        # The remaining links between the same nodes are on different planes.
        _, first, group = np.unique(pair[row], return_index=True, return_inverse=True)
        total = np.zeros(len(first), np.int64)
        np.add.at(total, group.ravel(), capacity)
        row = row[first]
        return cls(
            num_nodes=topology.num_nodes,
            num_compute=topology.num_npus,
            source=topology.source[row],
            destination=topology.destination[row],
            capacity=total,
            row=row,
            unit=unit,
        )

    @property
    def num_arcs(self) -> int:
        """Number of arcs."""
        return len(self.source)

    @property
    def has_switches(self) -> bool:
        """Whether the graph has nodes beyond the compute nodes; these only forward."""
        return self.num_nodes > self.num_compute


def transposed(graph: CapacityGraph) -> CapacityGraph:
    """Return a copy of the graph with all arcs reversed; arcs keep their numbers and capacities."""
    return replace(graph, source=graph.destination, destination=graph.source)


def induced(graph: CapacityGraph, nodes: Sequence[int]) -> CapacityGraph:
    """Return the part of the network between the given nodes, all as compute nodes.

    Node i of the result is `nodes[i]`, also if that was a switch. The nodes must be distinct and
    not negative (not checked). Arcs between two of these nodes keep their order, capacity and
    `row`; all other arcs are dropped. The unit is unchanged. Without nodes the result has no nodes
    and no arcs. A number of `num_nodes` or more raises `IndexError`.
    """
    # Removed nodes have the number -1; arcs that touch one are removed.
    number = positions_in(np.asarray(nodes, np.int64), graph.num_nodes)
    is_inside = (number[graph.source] >= 0) & (number[graph.destination] >= 0)
    arcs = np.flatnonzero(is_inside)
    return CapacityGraph(
        num_nodes=len(nodes),
        num_compute=len(nodes),
        source=number[graph.source[arcs]],
        destination=number[graph.destination[arcs]],
        capacity=graph.capacity[arcs],
        row=graph.row[arcs],
        unit=graph.unit,
    )


def with_common_unit(topology: Topology) -> tuple[Topology, float]:
    """Return a topology whose bandwidths are multiples of a common unit, and a relative
    tolerance.

    If the bandwidths have such a unit (`_to_integers`), it is the given topology with the
    tolerance 0.0. Otherwise it is the result of `round_bandwidths`, which raises
    `InputError` (`capacities`) if even rounded bandwidths are too different.
    """
    try:
        _to_integers(topology.bandwidth_bytes_per_s, topology.name)
    except InputError:
        return round_bandwidths(topology)
    return topology, 0.0


def round_bandwidths(topology: Topology) -> tuple[Topology, float]:
    """Round bandwidths so that they have a common unit; return (topology, relative tolerance).

    All bandwidths are rounded to 3 significant decimal digits, also those that have a common unit
    already. The unit is the greatest common divisor of the rounded values. If the largest of them
    is more than `_MAX_ROUNDED_CAPACITY` (1000) units, the original values are rounded to 2 digits.
    If the largest still is, they are rounded to 1 digit. More units would give algorithms with too
    many units.

    The tolerance is the largest relative excess of a bandwidth over its rounded value, at least 0,
    plus 1e-12. The result has `dimensions` (); everything else is unchanged. Raises `InputError`
    (`capacities`) if a value with 1 digit exceeds 2^40 units, and `ValueError` without links.
    """
    bandwidths = topology.bandwidth_bytes_per_s
    rounded = bandwidths
    for digits in (3, 2, 1):
        texts = [f"{value:.{digits - 1}e}" for value in bandwidths.tolist()]
        rounded = np.array([float(text) for text in texts])
        if (
            max(_to_smallest_integers([Fraction(text) for text in texts])[0])
            <= _MAX_ROUNDED_CAPACITY
        ):
            break
    _to_integers(rounded, topology.name)
    # A tiny margin: despite the rounding of this division, bounds remain bounds.
    tolerance = max(0.0, float(np.max(bandwidths / rounded)) - 1.0) + 1e-12
    return replace(topology, bandwidth_bytes_per_s=rounded, dimensions=()), tolerance


def _to_integers(bandwidth_bytes_per_s: Float64Array, name: str) -> tuple[Int64Array, Fraction]:
    """Convert bandwidths to the smallest integers in the same proportion, in the same order.

    Bandwidths must be positive. Also returns the unit in bytes/s, the greatest common divisor of
    the bandwidths: a bandwidth is its integer times the unit. For example, 2e9, 1e9 and 2e9 give 2,
    1, 2 and the unit 1e9. A bandwidth counts as its shortest decimal text (`repr`), so 0.1 is
    exactly 1/10. An empty array gives an empty one and unit 1. Raises `InputError` (`capacities`)
    if an integer would exceed 2^40; the message names the topology by `name`.
    """
    if not len(bandwidth_bytes_per_s):
        return np.zeros(0, np.int64), Fraction(1)
    values, position = np.unique(bandwidth_bytes_per_s, return_inverse=True)
    # The shortest text of a double is the number that its author wrote; the binary value differs.
    exact = [Fraction(repr(float(value))) for value in values]
    integers, unit = _to_smallest_integers(exact)
    if max(integers) > _MAX_CAPACITY:
        raise InputError(
            f"topology {name}: its bandwidths have no common unit below 2^40",
            cure="round them, for example to whole GB/s",
            code="capacities",
        )
    return np.asarray(integers, np.int64)[position.ravel()], unit


def _to_smallest_integers(values: list[Fraction]) -> tuple[list[int], Fraction]:
    """Return the smallest integers in the proportion of positive fractions, and their unit.

    The integers are in the order of `values`. The unit is the greatest common divisor of
    all values: value = integer * unit. Without values the list is empty and the unit 0.
    """
    denominator = math.lcm(*(value.denominator for value in values))
    integers = [int(value * denominator) for value in values]
    divisor = math.gcd(*integers)
    # The unit is the greatest common divisor of all values.
    unit = Fraction(divisor, denominator)
    return [value // divisor for value in integers], unit


@dataclass(frozen=True, slots=True, eq=False)
class DuplexLinks:
    """Links with equal capacity in both directions; int64 columns, one entry per link.

    `low` < `high`: the two nodes. `up`, `down`: the arcs of the graph from `low` to `high` and
    back.
    """

    num_nodes: int
    low: Int64Array
    high: Int64Array
    capacity: Int64Array
    up: Int64Array
    down: Int64Array

    @classmethod
    def of(cls, graph: CapacityGraph) -> DuplexLinks:
        """Pair every arc from a lower to a higher node with its reverse arc.

        Arcs with capacity 0 are ignored. Pairs are sorted by the lower node, then the higher one;
        `up` and `down` are the numbers of their arcs in `graph`. Without arcs the result is empty.
        Raises `InputError` (`not-duplex`) if an arc, in either direction, has no reverse arc of the
        same capacity.
        """
        # Find the arcs with capacity to higher and to lower nodes, both sorted by lower, higher
        # node.
        source, destination = graph.source, graph.destination
        has_room = graph.capacity > 0
        up = _sort_by_ends((source < destination) & has_room, source, destination)
        down = _sort_by_ends((source > destination) & has_room, destination, source)
        if not (
            np.array_equal(graph.source[up], graph.destination[down])
            and np.array_equal(graph.destination[up], graph.source[down])
            and np.array_equal(graph.capacity[up], graph.capacity[down])
        ):
            raise InputError(
                "links differ by direction, so that trees of undirected links do not fit",
                cure="use trees for each direction",
                code="not-duplex",
            )
        low, high, capacity = graph.source[up], graph.destination[up], graph.capacity[up]
        return cls(graph.num_nodes, low, high, capacity, up, down)

    def opposite(self, num_arcs: int) -> Int64Array:
        """Return the reverse arc of every arc: int64[num_arcs], -1 for arcs without capacity.

        The reverse arc connects the same nodes in the other direction.
        """
        back = np.full(num_arcs, -1, np.int64)
        back[self.up] = self.down
        back[self.down] = self.up
        return back


def are_duplex(graph: CapacityGraph) -> bool:
    """Return whether every arc with capacity has a reverse arc of the same capacity.

    Arcs without capacity are ignored; True without arcs.
    """
    try:
        DuplexLinks.of(graph)
    except InputError:
        return False
    return True


def _sort_by_ends(chosen: BoolArray, low: Int64Array, high: Int64Array) -> Int64Array:
    """Return the numbers of the arcs that the mask `chosen` marks, sorted by their ends.

    `low`, `high`: lower and higher node of every arc; `low` decides first. Equal arcs keep their
    order.
    """
    arcs = np.flatnonzero(chosen)
    return arcs[np.lexsort((high[arcs], low[arcs]))]


class LeastSets:
    """Finds node sets X that minimize the capacity leaving X plus the weights in X.

    One minimum cut per query (Picard 1976, closures by flows): a node of negative weight is
    attached to the source by an arc, one of positive weight to the sink. `scale`: factor of the
    capacities.
    """

    def __init__(self, links: DuplexLinks, scale: int) -> None:
        tails = np.concatenate([links.low, links.high])
        heads = np.concatenate([links.high, links.low])
        self._network = FlowNetwork.fed_and_drained(links.num_nodes, tails, heads)
        self._links = np.tile(scaled(links.capacity, scale), 2)
        self._num_nodes = links.num_nodes

    def least(
        self,
        members: Sequence[int],
        weights: Int64Array,
        allowed: BoolArray,
    ) -> tuple[int, BoolArray]:
        """Find the node set of minimum value that has all `members` and only `allowed` nodes.

        The value of a set is the scaled capacity of the links that leave it, plus the `weights` of
        its nodes. `weights`: int64[nodes], in units of the scaled capacity, may be negative.
        `allowed`: bool[nodes]. The members must be distinct and allowed (not checked). They may be
        empty; then the empty set, of value 0, is a candidate.

        Returns (value, set as bool[nodes]). Of several sets of minimum value it is the smallest,
        which is contained in all others. Raises `InputError` (`capacities`) if the capacities of
        the minimum cut problem add up to 2^60 or more.
        """
        n = self._num_nodes
        gain, loss = np.maximum(-weights, 0), np.maximum(weights, 0)
        # The weights of members are a constant part of the value.
        base = int(gain[allowed].sum()) - int(loss[members].sum())
        unlimited = int(self._links.sum()) + int(np.abs(weights).sum()) + 1
        # Members and forbidden nodes are tied to their side of every cut.
        gain = np.where(allowed, gain, 0)
        loss = np.where(allowed, loss, unlimited)
        gain[members] = unlimited
        loss[members] = 0
        capacity = np.concatenate([self._links, gain, loss])
        cut = self._network.least_cut(capacity, n, [n + 1])
        assert cut is not None
        return cut.value - base, cut.side[:n]
