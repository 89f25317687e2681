"""Builders of regular networks: `line`, `ring`, `mesh`, `torus`, `switch`, ..."""

from __future__ import annotations

from hub_core.network.grids import grid
from hub_core.network.texts import MAX_DIMENSIONS, TopologyText, regular_topology
from hub_core.network.topology import Dimension, DimensionKind, Topology

# A hypercube of order 20 would have more links than MAX_LINKS.
MAX_ORDER = 19


def line(text: TopologyText) -> Topology:
    """`line:8`: every NPU with a link each way to the next."""
    return regular_topology(text, DimensionKind.LINE, 1)


def ring(text: TopologyText) -> Topology:
    """`ring:8`: a line whose ends are joined."""
    return regular_topology(text, DimensionKind.RING, 1)


def mesh(text: TopologyText) -> Topology:
    """`mesh:4x4`: a product of lines."""
    return regular_topology(text, DimensionKind.LINE, MAX_DIMENSIONS)


def torus(text: TopologyText) -> Topology:
    """`torus:4x4x4`: a product of rings."""
    return regular_topology(text, DimensionKind.RING, MAX_DIMENSIONS)


def fully_connected(text: TopologyText) -> Topology:
    """`fully-connected:8`: a link each way between any two NPUs."""
    return regular_topology(text, DimensionKind.FULLY_CONNECTED, 1)


def switch(text: TopologyText) -> Topology:
    """`switch:8`: every NPU with a link each way to one switch."""
    return regular_topology(text, DimensionKind.SWITCH, 1)


def hypercube(text: TopologyText) -> Topology:
    """`hypercube:3`: 2^3 NPUs, a link between those whose numbers differ in one bit."""
    (order,) = text.parameters(1, "x", "hypercube:3 for 8 NPUs")
    if order > MAX_ORDER:
        raise text.error(f"the order is not in 1..{MAX_ORDER}", "hypercube:3 has 8 NPUs")
    # Lines of two: the ring of two would be the same, less clearly.
    constants = text.per_dimension(order)
    return grid(text.text, [Dimension(DimensionKind.LINE, 2, *pair) for pair in constants])
