"""Builder `hypercube`: a grid of lines of two."""

from __future__ import annotations

from hub_core.network import Dimension, DimensionKind, Topology, TopologyText, grid

# A hypercube of order 20 would have more links than the core builds.
_MOST_ORDER = 19


def hypercube(text: TopologyText) -> Topology:
    """`hypercube:3`: 2^3 NPUs, a link between those whose numbers differ in one bit."""
    (order,) = text.parameters(1, "x", "hypercube:3 for 8 NPUs")
    if order > _MOST_ORDER:
        raise text.error(f"the order is not in 1..{_MOST_ORDER}", "hypercube:3 has 8 NPUs")
    # Lines of two: the ring of two would be the same, less clearly.
    constants = text.per_dimension(order)
    return grid(text.text, [Dimension(DimensionKind.LINE, 2, *pair) for pair in constants])
