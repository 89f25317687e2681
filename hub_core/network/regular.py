"""Builders of regular networks: `line`, `ring`, `mesh`, `torus`, `switch`, ..."""

from __future__ import annotations

from hub_core.network.grids import grid
from hub_core.network.texts import DIMENSIONS, MAX_DIMENSIONS, TopologyText
from hub_core.network.topology import Dimension, DimensionKind, Topology

# Builders whose argument may have several sizes, as `mesh:4x4`.
_PRODUCTS = {"mesh": DimensionKind.LINE, "torus": DimensionKind.RING}
# A hypercube of order 20 would have more links than MAX_LINKS.
MAX_ORDER = 19


def regular(text: TopologyText) -> Topology:
    """`ring:8`: a grid of dimensions of one kind; `mesh` and `torus` may have several."""
    sizes = text.sizes()
    kind = _PRODUCTS.get(text.name) or DIMENSIONS[text.name]
    most = MAX_DIMENSIONS if text.name in _PRODUCTS else 1
    if len(sizes) > most:
        cure = "use fewer"
        if most == 1:
            cure = f"join dimensions by *, as in {text.name}:4*{text.name}:4"
        raise text.error(f"{len(sizes)} dimensions where {most} can be", cure)
    constants = text.per_dimension(len(sizes))
    dimensions = [Dimension(kind, n, *pair) for n, pair in zip(sizes, constants, strict=True)]
    return grid(text.text, dimensions)


def hypercube(text: TopologyText) -> Topology:
    """`hypercube:3`: 2^3 NPUs, a link between those whose numbers differ in one bit."""
    (order,) = text.parameters(1, "x", "hypercube:3 for 8 NPUs")
    if order > MAX_ORDER:
        raise text.error(f"the order is not in 1..{MAX_ORDER}", "hypercube:3 has 8 NPUs")
    # Lines of two: the ring of two would be the same, less clearly.
    constants = text.per_dimension(order)
    return grid(text.text, [Dimension(DimensionKind.LINE, 2, *pair) for pair in constants])
