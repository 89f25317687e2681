"""The diameter of a network: the links of the longest of the shortest paths between NPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from collhub_columns import Int64Array, ordinals, run_mask

from collhub_topologies.facts.farthest import farthest
from hub_core.network import DimensionKind, Topology

# Bytes of reach tables that the search for the diameter goes through before it gives up: a few
# seconds.
_MOST_WORK = 1 << 32
_TABLE_BYTES = 1 << 26

_DIAMETERS: dict[DimensionKind, Callable[[int], int]] = {
    DimensionKind.LINE: lambda size: size - 1,
    DimensionKind.RING: lambda size: size // 2,
    DimensionKind.FULLY_CONNECTED: lambda size: 1,
    # To the switch and from it.
    DimensionKind.SWITCH: lambda size: 2,
}


def diameter(topology: Topology) -> int | None:
    """Most links that a shortest path between two NPUs has; None where some path is missing.

    By formula for regular networks; else by a search that follows all NPUs at once. None, too,
    where that would take more than some seconds.
    """
    if topology.dimensions:
        # Hops of a product add up; a dimension of one NPU has none.
        long = [dimension for dimension in topology.dimensions if dimension.size > 1]
        return sum(_DIAMETERS[dimension.kind](dimension.size) for dimension in long)
    starts = _distinct_starts(topology)
    arcs = topology.arcs()
    # 8 starts a byte; as many at once as a table of the network's nodes holds. One byte a node is
    # gone through in any case.
    bytes_a_node = min(_TABLE_BYTES // topology.num_nodes, -(-len(starts) // 8))
    batch = 8 * max(1, bytes_a_node)
    longest, work = 0, _MOST_WORK
    for first in range(0, len(starts), batch):
        found = farthest(arcs, starts[first : first + batch], topology.num_npus, work)
        # A batch that is not reached by all ends the search: there is no diameter.
        if found is None:
            return None
        longest, work = max(longest, found[0]), work - found[1]
    return longest


def _distinct_starts(topology: Topology) -> Int64Array:
    """All NPUs, but two alone of those that have their links to one and the same node.

    The others are as far from all nodes as these two. Two, since one must be as far from another.
    """
    source, destination = _distinct_pairs(topology)
    neighbours = np.bincount(source, minlength=topology.num_nodes)
    is_npu = source < topology.num_npus
    has_one = neighbours[source] == 1
    is_leaf = is_npu & has_one
    is_third = ordinals(destination[is_leaf]) >= 2
    alike = source[is_leaf][is_third]
    return np.setdiff1d(np.arange(topology.num_npus), alike)


def _distinct_pairs(topology: Topology) -> tuple[Int64Array, Int64Array]:
    """The ends of all links, parallel ones as one: it is the neighbours that matter."""
    order = np.lexsort((topology.destination, topology.source))
    source = topology.source[order]
    destination = topology.destination[order]
    is_new = run_mask(source, destination)
    return source[is_new], destination[is_new]
