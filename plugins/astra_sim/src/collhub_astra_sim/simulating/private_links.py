"""ASTRA-sim's congestion-unaware network: every pair of NPUs has a private link."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Float64Array, Int64Array
from hub_core.network import Dimension, DimensionKind, Topology

_HOPS_THROUGH_SWITCH = 2


def find_private_links(
    topology: Topology, sources: Int64Array, destinations: Int64Array, channels: Int64Array | None
) -> tuple[Float64Array, Float64Array]:
    """Return (bandwidth in bytes/s, latency in ns) per pair of NPUs for messages that never wait.

    Regular networks: only the hops in the first dimension in which the pair differs count, as in
    ASTRA-sim's congestion-unaware network. Other networks: the minimum bandwidth and the sum of the
    latencies along the shortest path. Raises `InputError` for a pair without a path.
    """
    if topology.dimensions:
        return _first_dimension(topology.dimensions, sources, destinations)
    return _shortest_paths(topology, sources, destinations, channels)


def _shortest_paths(
    topology: Topology, sources: Int64Array, destinations: Int64Array, channels: Int64Array | None
) -> tuple[Float64Array, Float64Array]:
    """Return (minimum bandwidth in bytes/s, sum of latencies in ns) of the route of every pair."""
    routes = topology.routes(sources, destinations, channels)
    # `reduceat` does not accept an empty list of segments.
    if not len(sources):
        return np.zeros(0), np.zeros(0)
    starts = routes.indptr[:-1]
    bandwidths = topology.bandwidth_bytes_per_s[routes.links]
    latencies_ns = topology.latency_ns[routes.links]
    minimum_bandwidth = np.minimum.reduceat(bandwidths, starts)
    sum_of_latencies_ns = np.add.reduceat(latencies_ns, starts)
    return minimum_bandwidth, sum_of_latencies_ns


def _first_dimension(
    dimensions: tuple[Dimension, ...], sources: Int64Array, destinations: Int64Array
) -> tuple[Float64Array, Float64Array]:
    """Return (bandwidth, latency in ns) in the first dimension in which each pair differs.

    NPU = a0 + n0 * (a1 + ...). Both are 0 for a pair of equal NPUs.
    """
    bandwidth = np.zeros(len(sources))
    latency_ns = np.zeros(len(sources))
    is_open = np.ones(len(sources), np.bool_)
    stride = 1
    for dimension in dimensions:
        source_position = sources // stride % dimension.size
        destination_position = destinations // stride % dimension.size
        is_first = is_open & (source_position != destination_position)
        hops = _hops(dimension, np.abs(source_position - destination_position)[is_first])
        bandwidth[is_first] = dimension.bandwidth_bytes_per_s
        # Rounded to the number of digits in the network YAML.
        latency_ns[is_first] = hops * np.round(dimension.latency_s * 1e9, 6)
        is_open &= ~is_first
        stride *= dimension.size
    return bandwidth, latency_ns


def _hops(dimension: Dimension, distance: Int64Array) -> Int64Array:
    """Return the number of links between two positions of a dimension at this distance.

    `distance` is at least 1; a ring is crossed in the shorter direction, a switch by two links.
    """
    if dimension.kind is DimensionKind.RING:
        return np.minimum(distance, dimension.size - distance)
    if dimension.kind is DimensionKind.LINE:
        return distance
    hops = _HOPS_THROUGH_SWITCH if dimension.kind is DimensionKind.SWITCH else 1
    return np.full_like(distance, hops)
