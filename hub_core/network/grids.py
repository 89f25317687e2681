"""Build products of regular dimensions: lines, rings, fully connected groups, switches."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import UsageError
from hub_core.network.links import Links
from hub_core.network.topology import Dimension, DimensionKind, Topology

MAX_NODES = 1 << 20
MAX_LINKS = 1 << 24


def grid(name: str, dimensions: Sequence[Dimension]) -> Topology:
    """Build the product of dimensions; node id = a0 + n0 * (a1 + n1 * ...), as in ASTRA-sim.

    Links are ordered by NPU, then by dimension, the next higher (clockwise) neighbour first; links
    of switches are last. A switch dimension adds one switch per group of NPUs that differ only in
    this dimension. Raises `UsageError` for more than `MAX_NODES` NPUs or `MAX_LINKS` links.
    """
    sizes = [dimension.size for dimension in dimensions]
    npus = math.prod(sizes)
    # Checked before arrays are allocated: sizes typed by users may exceed the memory.
    if npus > MAX_NODES or sum(npus * _links_per_npu(each) for each in dimensions) > MAX_LINKS:
        cure = f"stay below {MAX_NODES} NPUs and {MAX_LINKS} links"
        raise UsageError(f"topology {name!r} is too large", cure=cure)
    parts: list[Links] = []
    nodes = npus
    strides = itertools.accumulate([1, *sizes], operator.mul)
    for dimension, stride in zip(dimensions, strides, strict=False):
        endpoints = _dimension_links(dimension, stride, npus, nodes)
        parts.append(
            Links.uniform(*endpoints, dimension.bandwidth_bytes_per_s, dimension.latency_s)
        )
        nodes = max(nodes, int(endpoints[0].max(initial=0)) + 1)
    links = Links.joined(parts).by_source(npus)
    return links.topology(name, npus, nodes, dimensions=tuple(dimensions))


def _links_per_npu(dimension: Dimension) -> int:
    """Return the number of links of a dimension per NPU, an upper bound for lines."""
    if dimension.kind is DimensionKind.SWITCH:
        return 2
    neighbours = dimension.size - 1
    return neighbours if dimension.kind is DimensionKind.FULLY_CONNECTED else min(2, neighbours)


def _dimension_links(
    dimension: Dimension, stride: int, npus: int, first_switch: int
) -> tuple[Int64Array, Int64Array]:
    """Return sources and destinations of the links of one dimension, ordered by node."""
    node = np.arange(npus, dtype=np.int64)
    # Links of a dimension change this coordinate only.
    coordinate = node // stride % dimension.size
    if dimension.kind is DimensionKind.SWITCH:
        # NPUs that are equal in all other coordinates share a switch.
        groups = np.unique(node - coordinate * stride, return_inverse=True)[1]
        switch = first_switch + groups
        return np.stack([node, switch], 1).ravel(), np.stack([switch, node], 1).ravel()
    neighbour = _neighbours(dimension.kind, coordinate, dimension.size)
    is_inside = (neighbour >= 0) & (neighbour < dimension.size)
    row, column = np.nonzero(is_inside & (neighbour != coordinate[:, None]))
    return node[row], node[row] + (neighbour[row, column] - coordinate[row]) * stride


def _neighbours(kind: DimensionKind, coordinate: Int64Array, size: int) -> Int64Array:
    """Return candidate coordinates of neighbours, one row per node, in link order.

    The caller removes candidates outside 0..size-1 and the node itself.
    """
    if kind is DimensionKind.FULLY_CONNECTED:
        return np.broadcast_to(np.arange(size, dtype=np.int64), (len(coordinate), size))
    steps: Int64Array = coordinate[:, None] + np.asarray([1, -1], np.int64)
    if kind is DimensionKind.LINE:
        return steps
    around: Int64Array = steps % size
    # In a ring of two, both directions are the same link.
    return around[:, :1] if size == 2 else around
