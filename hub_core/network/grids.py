"""Products of regular dimensions: lines, rings, fully connected groups and switches."""

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
    """The product of dimensions: node id = a0 + n0 * (a1 + n1 * ...), as ASTRA-sim numbers them.

    Links are listed NPU by NPU, dimension by dimension, the next higher (clockwise) neighbour
    first, the links of the switches last. A switch dimension adds one switch per group of NPUs that
    differ in it alone. Raises `UsageError` for more than `MAX_NODES` NPUs or `MAX_LINKS` links.
    """
    sizes = [dimension.size for dimension in dimensions]
    npus = math.prod(sizes)
    # Before anything is made: sizes as they are typed can ask for more memory than there is.
    if npus > MAX_NODES or sum(npus * _links_per_npu(one) for one in dimensions) > MAX_LINKS:
        cure = f"stay below {MAX_NODES} NPUs and {MAX_LINKS} links"
        raise UsageError(f"topology {name!r} is too large", cure=cure)
    parts: list[Links] = []
    nodes = npus
    strides = itertools.accumulate([1, *sizes], operator.mul)
    for dimension, stride in zip(dimensions, strides, strict=False):
        ends = _dimension_links(dimension, stride, npus, nodes)
        parts.append(Links.uniform(*ends, dimension.bandwidth_bytes_per_s, dimension.latency_s))
        nodes = max(nodes, int(ends[0].max(initial=0)) + 1)
    links = Links.joined(parts).by_source(npus)
    return links.topology(name, npus, nodes, dimensions=tuple(dimensions))


def _links_per_npu(dimension: Dimension) -> int:
    """Links of one dimension, divided by the NPUs; those of a line rounded up."""
    if dimension.kind is DimensionKind.SWITCH:
        return 2
    others = dimension.size - 1
    return others if dimension.kind is DimensionKind.FULLY_CONNECTED else min(2, others)


def _dimension_links(
    dimension: Dimension, stride: int, npus: int, first_switch: int
) -> tuple[Int64Array, Int64Array]:
    """Sources and destinations of the links of one dimension, node by node."""
    node = np.arange(npus, dtype=np.int64)
    # The coordinate in this dimension; all others stay along its links.
    here = node // stride % dimension.size
    if dimension.kind is DimensionKind.SWITCH:
        # NPUs that agree in all other coordinates share a switch.
        groups = np.unique(node - here * stride, return_inverse=True)[1]
        switch = first_switch + groups
        return np.stack([node, switch], 1).ravel(), np.stack([switch, node], 1).ravel()
    there = _neighbours(dimension.kind, here, dimension.size)
    is_inside = (there >= 0) & (there < dimension.size)
    row, column = np.nonzero(is_inside & (there != here[:, None]))
    return node[row], node[row] + (there[row, column] - here[row]) * stride


def _neighbours(kind: DimensionKind, here: Int64Array, size: int) -> Int64Array:
    """Candidates, one row a node, in link order; those outside and the node itself are none."""
    if kind is DimensionKind.FULLY_CONNECTED:
        return np.broadcast_to(np.arange(size, dtype=np.int64), (len(here), size))
    steps: Int64Array = here[:, None] + np.asarray([1, -1], np.int64)
    if kind is DimensionKind.LINE:
        return steps
    around: Int64Array = steps % size
    # Both directions of a ring of two lead to the same neighbour over the same link.
    return around[:, :1] if size == 2 else around
