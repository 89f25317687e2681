"""ASTRA-sim's congestion-unaware network: every pair of NPUs has a private link of its own."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Float64Array, Int64Array
from hub_core.network import Dimension, DimensionKind, Topology

_HOPS_THROUGH_SWITCH = 2


def private_links(
    topology: Topology, sources: Int64Array, destinations: Int64Array, channels: Int64Array | None
) -> tuple[Float64Array, Float64Array]:
    """(bandwidth in bytes/s, latency in ns) between pairs of NPUs when messages never wait.

    Regular networks: the hops in the first dimension in which the pair differs, and nothing for the
    further ones, as ASTRA-sim's congestion-unaware network. All others: along the shortest path,
    the least bandwidth and the sum of the latencies. Raises `InputError` for a pair without path.
    """
    if topology.dimensions:
        return _first_dimension(topology.dimensions, sources, destinations)
    return _shortest_paths(topology, sources, destinations, channels)


def _shortest_paths(
    topology: Topology, sources: Int64Array, destinations: Int64Array, channels: Int64Array | None
) -> tuple[Float64Array, Float64Array]:
    routes = topology.routes(sources, destinations, channels)
    # Reductions by segments do not take an empty list of segments.
    if not len(sources):
        return np.zeros(0), np.zeros(0)
    starts = routes.indptr[:-1]
    bandwidths = topology.bandwidth_bytes_per_s[routes.links]
    latencies_ns = topology.latency_ns[routes.links]
    least_bandwidth = np.minimum.reduceat(bandwidths, starts)
    sum_of_latencies_ns = np.add.reduceat(latencies_ns, starts)
    return least_bandwidth, sum_of_latencies_ns


def _first_dimension(
    dimensions: tuple[Dimension, ...], sources: Int64Array, destinations: Int64Array
) -> tuple[Float64Array, Float64Array]:
    """The link of the first dimension in which each pair differs; NPU = a0 + n0 * (a1 + ...)."""
    bandwidth = np.zeros(len(sources))
    latency_ns = np.zeros(len(sources))
    is_open = np.ones(len(sources), np.bool_)
    stride = 1
    for dimension in dimensions:
        here = sources // stride % dimension.size
        there = destinations // stride % dimension.size
        is_first = is_open & (here != there)
        hops = _hops(dimension, np.abs(here - there)[is_first])
        bandwidth[is_first] = dimension.bandwidth_bytes_per_s
        # As many digits as the network YAML states.
        latency_ns[is_first] = hops * np.round(dimension.latency_s * 1e9, 6)
        is_open &= ~is_first
        stride *= dimension.size
    return bandwidth, latency_ns


def _hops(dimension: Dimension, distance: Int64Array) -> Int64Array:
    """Links between two positions of a dimension that are so far apart.

    `distance` is at least 1; a ring is crossed the shorter way, a switch by two links.
    """
    if dimension.kind is DimensionKind.RING:
        return np.minimum(distance, dimension.size - distance)
    if dimension.kind is DimensionKind.LINE:
        return distance
    hops = _HOPS_THROUGH_SWITCH if dimension.kind is DimensionKind.SWITCH else 1
    return np.full_like(distance, hops)
