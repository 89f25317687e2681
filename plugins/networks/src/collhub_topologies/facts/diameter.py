"""Compute the diameter of a network: the length of the longest shortest path between NPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hub_core.columns import Arcs, Int64Array, csr, ordinals, run_mask
from hub_core.network import DimensionKind, Topology

# Bytes of reach tables that the search processes before it gives up: a few seconds.
_MAX_WORK_BYTES = 1 << 32
_MAX_TABLE_BYTES = 1 << 26

_DIAMETERS: dict[DimensionKind, Callable[[int], int]] = {
    DimensionKind.LINE: lambda size: size - 1,
    DimensionKind.RING: lambda size: size // 2,
    DimensionKind.FULLY_CONNECTED: lambda size: 1,
    DimensionKind.SWITCH: lambda size: 2,
}


def compute_diameter(topology: Topology) -> int | None:
    """Compute the number of links on the longest shortest path between two NPUs.

    By formula for regular networks, otherwise by a search from all NPUs at once. None if a path is
    missing, or if the search would take more than some seconds.
    """
    if topology.dimensions:
        # The diameters of the dimensions add up; a dimension of one NPU has none.
        return sum(
            _DIAMETERS[dimension.kind](dimension.size)
            for dimension in topology.dimensions
            if dimension.size > 1
        )
    starts = _find_distinct_starts(topology)
    arcs = topology.arcs()
    # 8 starts per byte, and as many bytes per node as fit into the table, at least one.
    bytes_per_node = min(_MAX_TABLE_BYTES // topology.num_nodes, -(-len(starts) // 8))
    batch = 8 * max(1, bytes_per_node)
    longest, work = 0, _MAX_WORK_BYTES
    for first in range(0, len(starts), batch):
        result = compute_longest_distance(
            arcs, starts[first : first + batch], topology.num_npus, work
        )
        # A missing path (or too much work) ends the search.
        if result is None:
            return None
        longest, work = max(longest, result[0]), work - result[1]
    return longest


def _find_distinct_starts(topology: Topology) -> Int64Array:
    """Find the NPUs to start from: of NPUs whose only neighbour is the same node, two are enough.

    The remaining ones have the same distances; two, because the distance between such NPUs counts
    too.
    """
    source, destination = _find_distinct_pairs(topology)
    neighbours = np.bincount(source, minlength=topology.num_nodes)
    is_npu = source < topology.num_npus
    has_one_neighbour = neighbours[source] == 1
    is_leaf = is_npu & has_one_neighbour
    is_third = ordinals(destination[is_leaf]) >= 2
    redundant = source[is_leaf][is_third]
    return np.setdiff1d(np.arange(topology.num_npus), redundant)


def _find_distinct_pairs(topology: Topology) -> tuple[Int64Array, Int64Array]:
    """Find the (source, destination) pairs of links, parallel links once."""
    order = np.lexsort((topology.destination, topology.source))
    source = topology.source[order]
    destination = topology.destination[order]
    is_new = run_mask(source, destination)
    return source[is_new], destination[is_new]


def compute_longest_distance(
    arcs: Arcs, starts: Int64Array, goals: int, work: int
) -> tuple[int, int] | None:
    """Compute the number of arcs on the longest shortest path from `starts` to the goals.

    The goals are nodes 0..goals-1. Also returns the processed bytes. None if a goal is not reached
    from some start, or if more than `work` bytes would be processed. Starts are bits, 8 per byte,
    and a round passes the bits of every tail to its heads: rounds times arcs times starts / 8
    bytes.
    """
    arc_sets = _split_arcs(arcs)
    # Big-endian within a byte, as packbits does it.
    bit = np.arange(len(starts))
    all_starts = np.packbits(np.ones(len(starts), np.bool_))
    reach = np.zeros((arcs.num_nodes, len(all_starts)), np.uint8)
    reach[starts, bit // 8] = 128 >> (bit % 8)
    hops = done = 0
    while not np.all(reach[:goals] == all_starts):
        done += len(arcs.tail) * len(all_starts)
        if done > work:
            return None
        # Arcs pass the bits from before the round, otherwise a round would count several hops.
        before = reach.copy()
        for tails, heads in arc_sets:
            reach[heads] |= before[tails]
        # No change: a goal is not reached from all starts.
        if np.array_equal(before, reach):
            return None
        hops += 1
    return hops, done


def _split_arcs(arcs: Arcs) -> list[tuple[Int64Array, Int64Array]]:
    """Split the arcs into sets of (tails, heads) with each head at most once per set.

    An assignment to repeated rows would keep only the last value.
    """
    ordinal = ordinals(arcs.head)
    indptr, rows = csr(ordinal, np.arange(len(ordinal)), int(ordinal.max(initial=-1)) + 1)
    parts = np.split(rows, indptr[1:-1]) if len(rows) else []
    return [(arcs.tail[part], arcs.head[part]) for part in parts]
