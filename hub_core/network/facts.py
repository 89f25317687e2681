"""What can be said about a network exactly and fast: classes of links, degrees, bandwidth per NPU, diameter, cuts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.network.topology import DimensionKind, Topology

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
BitArray = npt.NDArray[np.uint8]

# Bytes of reach tables that the search for the diameter goes through before it gives up: a few seconds.
_MOST_WORK = 1 << 32
_TABLE_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Directed links that agree in bandwidth, latency and the kinds of their ends (`NPU` or `switch`)."""

    source: str
    destination: str
    bandwidth_bytes_per_s: float
    latency_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Span:
    """The least and the largest of a number, over NPUs or over switches."""

    least: int | float
    largest: int | float


@dataclass(frozen=True, slots=True)
class HalfCut:
    """The links between the lower and the upper half of one dimension, both directions apart.

    The halves are NPUs with coordinate below `size // 2` and the others, with the switches whose NPUs are all on one side;
    a switch of the dimension itself counts with the upper half.
    """

    dimension: int
    links_up: int
    links_down: int
    bandwidth_up_bytes_per_s: float
    bandwidth_down_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that `facts_of` finds; see the functions of the same names."""

    classes: tuple[LinkClass, ...]
    spans: dict[str, dict[str, Span]]
    half_cuts: tuple[HalfCut, ...]
    diameter: int | None


def facts_of(topology: Topology) -> Facts:
    """All facts of a network."""
    return Facts(
        tuple(link_classes(topology)),
        spans(topology),
        tuple(half_cuts(topology)),
        diameter(topology),
    )


def link_classes(topology: Topology) -> list[LinkClass]:
    """All classes, those of most links first, then by the kinds of their ends and by falling bandwidth."""
    if not topology.num_links:
        return []
    ends = [
        (column >= topology.num_npus).astype(np.float64)
        for column in (topology.source, topology.destination)
    ]
    rows = np.stack([*ends, topology.bandwidth_bytes_per_s, topology.latency_s])
    distinct, counts = np.unique(rows, axis=1, return_counts=True)
    kinds = ("NPU", "switch")
    found = [
        LinkClass(kinds[int(source)], kinds[int(destination)], bandwidth, latency, count)
        for (source, destination, bandwidth, latency), count in zip(
            distinct.T.tolist(), counts.tolist(), strict=True
        )
    ]
    return sorted(
        found,
        key=lambda one: (
            -one.count,
            one.source,
            one.destination,
            -one.bandwidth_bytes_per_s,
            one.latency_s,
        ),
    )


def spans(topology: Topology) -> dict[str, dict[str, Span]]:
    """By `NPU` and `switch` (where there are any): spans of links out and in, and of the sums of their bandwidths."""
    npus, nodes = topology.num_npus, topology.num_nodes
    kinds = {"NPU": slice(0, npus), "switch": slice(npus, nodes)}
    columns = {
        "links_out": np.bincount(topology.source, minlength=nodes),
        "links_in": np.bincount(topology.destination, minlength=nodes),
        "bandwidth_out_bytes_per_s": np.bincount(
            topology.source, topology.bandwidth_bytes_per_s, nodes
        ),
        "bandwidth_in_bytes_per_s": np.bincount(
            topology.destination, topology.bandwidth_bytes_per_s, nodes
        ),
    }
    return {
        kind: {
            name: Span(column[rows].min().item(), column[rows].max().item())
            for name, column in columns.items()
        }
        for kind, rows in kinds.items()
        if rows.start < rows.stop
    }


def half_cuts(topology: Topology) -> list[HalfCut]:
    """One cut for every dimension of at least two NPUs; empty for irregular networks."""
    found, stride = [], 1
    for index, dimension in enumerate(topology.dimensions):
        if dimension.size > 1:
            found.append(_half_cut(topology, index, stride, dimension.size))
        stride *= dimension.size
    return found


def _half_cut(topology: Topology, index: int, stride: int, size: int) -> HalfCut:
    is_upper = np.zeros(topology.num_nodes, np.bool_)
    is_upper[: topology.num_npus] = np.arange(topology.num_npus) // stride % size >= size // 2
    to_switch = topology.destination >= topology.num_npus
    np.logical_or.at(
        is_upper, topology.destination[to_switch], is_upper[topology.source[to_switch]]
    )
    source, destination = is_upper[topology.source], is_upper[topology.destination]
    up, down = ~source & destination, source & ~destination
    rates = topology.bandwidth_bytes_per_s
    return HalfCut(
        index, int(up.sum()), int(down.sum()), float(rates[up].sum()), float(rates[down].sum())
    )


def reached(topology: Topology, start: int, backwards: bool = False) -> BoolArray:
    """Which nodes a node reaches over links, itself included; `backwards`: which nodes reach it."""
    tail, head = (
        (topology.destination, topology.source)
        if backwards
        else (topology.source, topology.destination)
    )
    order = np.argsort(tail, kind="stable")
    head = head[order]
    first = np.searchsorted(tail[order], np.arange(topology.num_nodes + 1))
    seen = np.zeros(topology.num_nodes, np.bool_)
    seen[start] = True
    frontier = np.asarray([start])
    while len(frontier):
        count = first[frontier + 1] - first[frontier]
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        met = head[np.repeat(first[frontier], count) + within]
        frontier = np.unique(met[~seen[met]])
        seen[frontier] = True
    return seen


def diameter(topology: Topology) -> int | None:
    """Most links that a shortest path between two NPUs has; None where they do not all reach one another.

    By formula for regular networks; else by a search that follows all NPUs at once, 8 a byte. None, too, where that
    would take more than some seconds.
    """
    if topology.dimensions:
        return sum(
            _DIAMETERS[dimension.kind](dimension.size)
            for dimension in topology.dimensions
            if dimension.size > 1
        )
    starts = _distinct_starts(topology)
    width = max(1, min(_TABLE_BYTES // max(topology.num_nodes, 1), -(-len(starts) // 8)))
    longest, work = 0, _MOST_WORK
    for first in range(0, len(starts), 8 * width):
        found = _farthest(topology, starts[first : first + 8 * width], work)
        if found is None:
            return None
        longest, work = max(longest, found[0]), work - found[1]
    return longest


def _distinct_starts(topology: Topology) -> Int64Array:
    """All NPUs, but two alone of those that have their links to one and the same node: the others are as far from all."""
    order = np.lexsort((topology.destination, topology.source))
    source, destination = topology.source[order], topology.destination[order]
    is_new = np.append(True, (np.diff(source) != 0) | (np.diff(destination) != 0))[: len(source)]
    source, destination = source[is_new], destination[is_new]
    has_one = np.bincount(source, minlength=topology.num_nodes) == 1
    leaf = (source < topology.num_npus) & has_one[source]
    hub, leaves = destination[leaf], source[leaf]
    by_hub = np.argsort(hub, kind="stable")
    hub, leaves = hub[by_hub], leaves[by_hub]
    is_third = np.append([False, False], hub[2:] == hub[:-2])[: len(hub)]
    return np.setdiff1d(np.arange(topology.num_npus), leaves[is_third])


_DIAMETERS: dict[DimensionKind, Callable[[int], int]] = {
    DimensionKind.LINE: lambda size: size - 1,
    DimensionKind.RING: lambda size: size // 2,
    DimensionKind.FULLY_CONNECTED: lambda size: 1,
    DimensionKind.SWITCH: lambda size: 2,
}


def _farthest(topology: Topology, starts: Int64Array, most_work: int) -> tuple[int, int] | None:
    """Links to the farthest NPU from any of `starts`, and the bytes looked at; None: not all are reached, or too much work."""
    turns = _in_turns(topology)
    reach: BitArray = np.zeros((topology.num_nodes, -(-len(starts) // 8)), np.uint8)
    place = np.arange(len(starts))
    reach[starts, place // 8] = 128 >> (place % 8)
    full = np.packbits(np.ones(len(starts), np.bool_))
    hops = work = 0
    while not np.array_equal(
        reach[: topology.num_npus], np.broadcast_to(full, (topology.num_npus, len(full)))
    ):
        work += topology.num_links * len(full)
        if work > most_work:
            return None
        before = reach.copy()
        for tails, heads in turns:
            reach[heads] |= before[tails]
        if np.array_equal(before, reach):
            return None
        hops += 1
    return hops, work


def _in_turns(topology: Topology) -> list[tuple[Int64Array, Int64Array]]:
    """The links as (tails, heads), in as many parts as the most links of a head, each head once in a part."""
    order = np.argsort(topology.destination, kind="stable")
    tails, heads = topology.source[order], topology.destination[order]
    turn = np.arange(len(heads)) - np.searchsorted(heads, heads)
    by_turn = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))[:-1]
    return (
        list(zip(np.split(tails[by_turn], ends), np.split(heads[by_turn], ends), strict=True))
        if len(heads)
        else []
    )
