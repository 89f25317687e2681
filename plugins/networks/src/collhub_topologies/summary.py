"""Facts about a network that are exact and fast to compute.

Classes of links, degrees, bandwidth per NPU, cuts, and the diameter: the length of the longest
shortest path between NPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """Return the number of links on the longest shortest path between two NPUs, or None.

    In a regular network (with `dimensions`), this is the sum over the dimensions: size - 1 of a
    line, size // 2 of a ring, 1 if fully connected, 2 of a switch, 0 for size 1. It is never
    None.

    In all other networks, paths from every NPU are searched along directed links, through NPUs
    and switches; a path over one switch has 2 links. The result is 0 for a single NPU. It is
    None if an NPU cannot reach another one. It is also None if the search would process more
    than `_MAX_WORK_BYTES` (2^32) bytes, as counted by `compute_longest_distance`.
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
    """Return the NPUs from which the search for the diameter must start, ascending int64.

    NPUs whose outgoing links all lead to one node (parallel links included) are grouped by this
    node. Of each group only the two lowest numbers are returned. The others would give no
    larger distance, because the members have equal distances to all nodes outside the group.
    Two are needed for the distance between members. All other NPUs are returned, also those
    without outgoing links.
    """
    order = np.lexsort((topology.destination, topology.source))
    source = topology.source[order]
    destination = topology.destination[order]
    # Parallel links count once.
    is_new = run_mask(source, destination)
    source, destination = source[is_new], destination[is_new]
    neighbours = np.bincount(source, minlength=topology.num_nodes)
    is_npu = source < topology.num_npus
    has_one_neighbour = neighbours[source] == 1
    is_leaf = is_npu & has_one_neighbour
    is_third = ordinals(destination[is_leaf]) >= 2
    redundant = source[is_leaf][is_third]
    return np.setdiff1d(np.arange(topology.num_npus), redundant)


def compute_longest_distance(
    arcs: Arcs, starts: Int64Array, goals: int, work: int
) -> tuple[int, int] | None:
    """Return the largest distance from any start to any goal, in arcs, and the bytes processed.

    The goals are nodes 0..goals - 1. Each start is a bit, 8 per byte, and each round passes the
    bits of every arc's tail to its head, so that a round costs arcs * starts / 8 bytes. Returns
    `None` if some start does not reach some goal, or if more than `work` bytes would be processed.
    There must be at least one start; a start that is a goal has distance 0 to itself.
    """
    # Each set has every head at most once: an assignment to repeated rows keeps only the last one.
    ordinal = ordinals(arcs.head)
    indptr, rows = csr(ordinal, np.arange(len(ordinal)), int(ordinal.max(initial=-1)) + 1)
    parts = np.split(rows, indptr[1:-1]) if len(rows) else []
    arc_sets = [(arcs.tail[part], arcs.head[part]) for part in parts]
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


# Kinds of nodes, indexed by whether the node is a switch.
_KINDS = ("NPU", "switch")


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Directed links with equal bandwidth, latency and kinds of their endpoints.

    `source`, `destination`: `NPU` or `switch`. `count`: number of links.
    """

    source: str
    destination: str
    bandwidth_bytes_per_s: float
    latency_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Span:
    """Minimum and maximum of a number over all NPUs or over all switches."""

    minimum: int | float
    maximum: int | float


@dataclass(frozen=True, slots=True)
class HalfCut:
    """The links between the lower and the upper half of one dimension, separately per direction.

    The lower half are NPUs with coordinate below `size // 2`, and switches whose NPUs are all in
    it; a switch with NPUs in both halves counts with the upper half.
    """

    dimension: int
    links_up: int
    links_down: int
    bandwidth_up_bytes_per_s: float
    bandwidth_down_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that `collect_facts` collects; see the functions for details."""

    classes: tuple[LinkClass, ...]
    spans: dict[str, dict[str, Span]]
    half_cuts: tuple[HalfCut, ...]
    diameter: int | None


def collect_facts(topology: Topology) -> Facts:
    """Collect all facts about a network: classes of equal links, ranges of values by kind of node,
    half cuts by dimension, and the diameter in links.
    """
    return Facts(
        tuple(find_link_classes(topology)),
        collect_spans(topology),
        tuple(find_half_cuts(topology)),
        compute_diameter(topology),
    )


def find_link_classes(topology: Topology) -> list[LinkClass]:
    """Return the classes of links: equal bandwidth, latency and kinds of source and destination.

    A kind is `NPU` or `switch`. The classes are sorted by descending number of links; ties by kind
    of the source, then of the destination (NPU first), then by descending bandwidth, then by
    ascending latency. Empty for a network without links.
    """
    if not topology.num_links:
        return []
    # Links of one class have equal columns in the table.
    from_switch = topology.source >= topology.num_npus
    to_switch = topology.destination >= topology.num_npus
    columns = (
        from_switch.astype(np.float64),
        to_switch.astype(np.float64),
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
    )
    table = np.stack(columns)
    distinct, counts = np.unique(table, axis=1, return_counts=True)
    classes = []
    for row, count in zip(distinct.T.tolist(), counts.tolist(), strict=True):
        source, destination, bandwidth, latency = row
        kinds = _KINDS[int(source)], _KINDS[int(destination)]
        classes.append(LinkClass(*kinds, bandwidth, latency, count))
    return sorted(classes, key=_class_key)


def _class_key(link_class: LinkClass) -> tuple[int, str, str, float, float]:
    """Sort key of `find_link_classes`: larger count first, then kind of source, kind of
    destination, higher bandwidth, lower latency.
    """
    return (
        -link_class.count,
        link_class.source,
        link_class.destination,
        -link_class.bandwidth_bytes_per_s,
        link_class.latency_s,
    )


def collect_spans(topology: Topology) -> dict[str, dict[str, Span]]:
    """Return the minimum and the maximum over nodes of their links and their total bandwidth.

    The outer keys are the kinds of nodes (`NPU`, `switch`); a kind without nodes is left out. The
    inner keys are `links_out`, `links_in`, `bandwidth_out_bytes_per_s` and
    `bandwidth_in_bytes_per_s`. A node without links counts with 0.
    """
    npus, nodes = topology.num_npus, topology.num_nodes
    rates = topology.bandwidth_bytes_per_s
    columns = {
        "links_out": np.bincount(topology.source, minlength=nodes),
        "links_in": np.bincount(topology.destination, minlength=nodes),
        "bandwidth_out_bytes_per_s": np.bincount(topology.source, rates, nodes),
        "bandwidth_in_bytes_per_s": np.bincount(topology.destination, rates, nodes),
    }
    span_of: dict[str, dict[str, Span]] = {}
    # Switches are numbered after the NPUs.
    for kind, first, end in (("NPU", 0, npus), ("switch", npus, nodes)):
        if first == end:
            continue
        span_of[kind] = {}
        for name, column in columns.items():
            values = column[first:end]
            span_of[kind][name] = Span(values.min().item(), values.max().item())
    return span_of


def find_half_cuts(topology: Topology) -> list[HalfCut]:
    """Return the cut between the two halves of every dimension of at least two NPUs.

    The order is that of the dimensions; `dimension` is the index among all dimensions, from 0.
    An NPU is in the lower half if its coordinate is below size // 2, so of 3 NPUs one is. A
    switch is in the upper half if an NPU of the upper half has a link to it, otherwise in the
    lower half.

    `links_up` and `bandwidth_up_bytes_per_s` sum over the directed links of the entire network
    from the lower to the upper half, `links_down` and `bandwidth_down_bytes_per_s` over the
    links back. The list is empty for irregular networks, which have no dimensions.
    """
    npus, rates = topology.num_npus, topology.bandwidth_bytes_per_s
    to_switch = topology.destination >= npus
    cuts, stride = [], 1
    for index, dimension in enumerate(topology.dimensions):
        if dimension.size == 1:
            continue
        coordinate = np.arange(npus) // stride % dimension.size
        stride *= dimension.size
        is_upper = np.zeros(topology.num_nodes, np.bool_)
        is_upper[:npus] = coordinate >= dimension.size // 2
        # A switch is in the upper half if any of its NPUs is.
        is_from_upper = is_upper[topology.source[to_switch]]
        np.logical_or.at(is_upper, topology.destination[to_switch], is_from_upper)
        source = is_upper[topology.source]
        destination = is_upper[topology.destination]
        up = ~source & destination
        down = source & ~destination
        bandwidth_up, bandwidth_down = float(rates[up].sum()), float(rates[down].sum())
        cuts.append(HalfCut(index, int(up.sum()), int(down.sum()), bandwidth_up, bandwidth_down))
    return cuts
