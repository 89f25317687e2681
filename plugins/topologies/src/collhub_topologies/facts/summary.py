"""What can be said about a network exactly and fast.

Classes of links, degrees, bandwidth per NPU, diameter, cuts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Float64Array, Int64Array

from collhub_topologies.facts.diameter import diameter
from hub_core.network import Topology

# Of nodes, by whether they are switches.
_KINDS = ("NPU", "switch")


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Directed links that agree in bandwidth, latency and the kinds of their ends.

    `source`, `destination`: `NPU` or `switch`.
    """

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

    The halves are NPUs with coordinate below `size // 2` and the others, with the switches whose
    NPUs are all on one side; a switch of the dimension itself counts with the upper half.
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
    """All classes, those of most links first, then by kinds of ends and by falling bandwidth."""
    if not topology.num_links:
        return []
    table = _link_table(topology)
    distinct, counts = np.unique(table, axis=1, return_counts=True)
    found = []
    for row, count in zip(distinct.T.tolist(), counts.tolist(), strict=True):
        source, destination, bandwidth, latency = row
        ends = _KINDS[int(source)], _KINDS[int(destination)]
        found.append(LinkClass(*ends, bandwidth, latency, count))
    return sorted(found, key=_rank_of_class)


def _link_table(topology: Topology) -> Float64Array:
    """float64[4, links], in which equal columns are links of one class."""
    from_switch = topology.source >= topology.num_npus
    to_switch = topology.destination >= topology.num_npus
    columns = (
        from_switch.astype(np.float64),
        to_switch.astype(np.float64),
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
    )
    return np.stack(columns)


def _rank_of_class(one: LinkClass) -> tuple[int, str, str, float, float]:
    """Sort key: the order of `link_classes`."""
    return (
        -one.count,
        one.source,
        one.destination,
        -one.bandwidth_bytes_per_s,
        one.latency_s,
    )


def spans(topology: Topology) -> dict[str, dict[str, Span]]:
    """Spans of links out and in, and of the sums of their bandwidths.

    By `NPU` and `switch`, where there are any.
    """
    npus, nodes = topology.num_npus, topology.num_nodes
    rates = topology.bandwidth_bytes_per_s
    columns = {
        "links_out": np.bincount(topology.source, minlength=nodes),
        "links_in": np.bincount(topology.destination, minlength=nodes),
        "bandwidth_out_bytes_per_s": np.bincount(topology.source, rates, nodes),
        "bandwidth_in_bytes_per_s": np.bincount(topology.destination, rates, nodes),
    }
    found: dict[str, dict[str, Span]] = {}
    # Switches are numbered behind the NPUs.
    for kind, first, end in (("NPU", 0, npus), ("switch", npus, nodes)):
        if first == end:
            continue
        found[kind] = {}
        for name, column in columns.items():
            found[kind][name] = _span_of(column[first:end])
    return found


def _span_of(column: Int64Array | Float64Array) -> Span:
    least, largest = column.min(), column.max()
    return Span(least.item(), largest.item())


def half_cuts(topology: Topology) -> list[HalfCut]:
    """One cut for every dimension of at least two NPUs.

    Empty for irregular networks.
    """
    found, stride = [], 1
    for index, dimension in enumerate(topology.dimensions):
        if dimension.size > 1:
            found.append(_half_cut(topology, index, stride, dimension.size))
        stride *= dimension.size
    return found


def _half_cut(topology: Topology, index: int, stride: int, size: int) -> HalfCut:
    """The cut of one dimension whose neighbours are `stride` apart."""
    is_upper = _upper_half(topology, stride, size)
    source = is_upper[topology.source]
    destination = is_upper[topology.destination]
    up = ~source & destination
    down = source & ~destination
    rates = topology.bandwidth_bytes_per_s
    return HalfCut(
        index,
        int(up.sum()),
        int(down.sum()),
        float(rates[up].sum()),
        float(rates[down].sum()),
    )


def _upper_half(topology: Topology, stride: int, size: int) -> BoolArray:
    """Which nodes stand in the upper half of a dimension, bool[nodes]."""
    npus = topology.num_npus
    coordinate = np.arange(npus) // stride % size
    is_upper = np.zeros(topology.num_nodes, np.bool_)
    is_upper[:npus] = coordinate >= size // 2
    # A switch stands where any of its NPUs is in the upper half.
    to_switch = topology.destination >= npus
    below = topology.source[to_switch]
    switch = topology.destination[to_switch]
    np.logical_or.at(is_upper, switch, is_upper[below])
    return is_upper
