"""Builders of regular networks: `line`, `ring`, `mesh`, `torus`, `switch`, ..."""

from __future__ import annotations

from hub_core.network.grids import grid
from hub_core.network.texts import DIMENSIONS, MAX_DIMENSIONS, TopologyText
from hub_core.network.topology import Dimension, DimensionKind, Topology

# Builders whose argument may have several sizes, as `mesh:4x4`.
_PRODUCTS = {"mesh": DimensionKind.LINE, "torus": DimensionKind.RING}


def regular(text: TopologyText) -> Topology:
    """Build a topology such as `ring:8`, whose dimensions are of one kind.

    Only `mesh` and `torus` may have several dimensions. Raises `UsageError` for others.
    """
    sizes = text.sizes()
    kind = _PRODUCTS.get(text.name) or DIMENSIONS[text.name]
    max_dimensions = MAX_DIMENSIONS if text.name in _PRODUCTS else 1
    if len(sizes) > max_dimensions:
        cure = "use fewer"
        if max_dimensions == 1:
            cure = f"join dimensions by *, as in {text.name}:4*{text.name}:4"
        raise text.error(f"{len(sizes)} dimensions where {max_dimensions} can be", cure)
    constants = text.per_dimension(len(sizes))
    dimensions = [Dimension(kind, n, *pair) for n, pair in zip(sizes, constants, strict=True)]
    return grid(text.text, dimensions)
