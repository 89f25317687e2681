"""Networks with exact integer capacities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from collhub_columns import Float64Array, Int64Array, positions_in

from hub_core.model import InputError
from hub_core.network import Topology

# Sums over a million links, scaled by rates, still stay below 2^60.
_MOST_CAPACITY = 1 << 40
_MOST_ROUNDED = 1000


@dataclass(frozen=True, slots=True, eq=False)
class CapacityGraph:
    """Directed arcs with int64 capacities in units of `unit` bytes per second, an exact fraction.

    Nodes 0..num_compute-1 compute, the others are switches. `source`, `destination`, `capacity`,
    `row` (row of the topology that the arc is): int64 columns. At most one arc per ordered pair
    of nodes.
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
        """The network with bandwidths scaled to the least integers.

        A bandwidth stands for its shortest decimal text. Of parallel links the first in link
        order stands, as simulators use no other. Those of different planes add up, which gives
        the rate that no algorithm over all planes exceeds: trees are packed on
        `Topology.on_plane`. Raises `InputError` where the bandwidths have no common unit in which
        all are below 2^40.
        """
        pair = topology.source * topology.num_nodes + topology.destination
        row = _first_in_plane(topology, pair)
        capacity, unit = _whole(topology.bandwidth_bytes_per_s[row], topology.name)
        # Rows of the same ends that are left lie on different planes.
        _, first, place = np.unique(pair[row], return_index=True, return_inverse=True)
        total = np.zeros(len(first), np.int64)
        np.add.at(total, place.ravel(), capacity)
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
        """Whether some nodes only forward."""
        return self.num_nodes > self.num_compute


def transposed(graph: CapacityGraph) -> CapacityGraph:
    """The same links turned round; arcs keep their numbers."""
    return replace(graph, source=graph.destination, destination=graph.source)


def induced(graph: CapacityGraph, nodes: Sequence[int]) -> CapacityGraph:
    """The network of these nodes alone, all computing, numbered in this order."""
    # Nodes that are left out have the number -1, and with them go the arcs that touch one.
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


def _first_in_plane(topology: Topology, pair: Int64Array) -> Int64Array:
    """Rows of the links that are the first of their plane between their ends: int64."""
    key = topology.plane * topology.num_nodes**2 + pair
    # Of equal keys the first row stands.
    row: Int64Array = np.unique(key, return_index=True)[1]
    return row


def with_common_unit(topology: Topology) -> tuple[Topology, float]:
    """The network with bandwidths that have a common unit, and the tolerance of their rounding.

    Without such a unit (`CapacityGraph.of`), bandwidths are rounded to 3, else to 2 or 1
    significant decimal digits, such that all are at most 1000 units: finer ones make algorithms of
    too many units. If none suffices, the last is taken. The tolerance is the largest relative
    excess of a bandwidth over its rounded value, 0.0 if nothing was rounded. Raises `InputError`
    for bandwidths that differ by more than a factor of 2^40.
    """
    bandwidths = topology.bandwidth_bytes_per_s
    try:
        _whole(bandwidths, topology.name)
        return topology, 0.0
    except InputError:
        pass
    rounded = bandwidths
    for digits in (3, 2, 1):
        texts = [f"{value:.{digits - 1}e}" for value in bandwidths.tolist()]
        rounded = np.array([float(text) for text in texts])
        if max(_least_integers([Fraction(text) for text in texts])[0]) <= _MOST_ROUNDED:
            break
    _whole(rounded, topology.name)
    # A tiny excess, so that the rounding of this division leaves a bound a bound.
    tolerance = max(0.0, float(np.max(bandwidths / rounded)) - 1.0) + 1e-12
    return replace(topology, bandwidth_bytes_per_s=rounded, dimensions=()), tolerance


def _whole(bandwidth_bytes_per_s: Float64Array, name: str) -> tuple[Int64Array, Fraction]:
    """Bandwidths as the least integers (int64), and what 1 of these stands for in bytes/s."""
    if not len(bandwidth_bytes_per_s):
        return np.zeros(0, np.int64), Fraction(1)
    values, which = np.unique(bandwidth_bytes_per_s, return_inverse=True)
    # The shortest text of a double is what its author wrote; its binary value is not.
    exact = [Fraction(repr(float(value))) for value in values]
    least, unit = _least_integers(exact)
    if max(least) > _MOST_CAPACITY:
        raise InputError(
            f"topology {name}: its bandwidths have no common unit below 2^40",
            cure="round them, for example to whole GB/s",
            code="capacities",
        )
    return np.asarray(least, np.int64)[which.ravel()], unit


def _least_integers(values: list[Fraction]) -> tuple[list[int], Fraction]:
    """The least integers in the proportion of the values, and what 1 of them stands for."""
    denominator = math.lcm(*(value.denominator for value in values))
    whole = [int(value * denominator) for value in values]
    divisor = math.gcd(*whole)
    # The unit is the largest of which all values are multiples.
    unit = Fraction(divisor, denominator)
    return [value // divisor for value in whole], unit
