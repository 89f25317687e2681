"""Routes over a topology, and the times that messages take on their links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.options import Model
from hub_core.model import InputError
from hub_core.network import Dimension, DimensionKind, Occupancy, Routes, Topology, link_times_ns

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

LONGEST_NS = 1 << 62
_LARGEST_TABLE = 1 << 27


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Links with routes and times.

    Pair p of NPUs takes the links `routes.links[routes.indptr[p]:routes.indptr[p + 1]]`. A message of `sizes[s]`
    bytes occupies link l for `busy_ns[s, link_class[l]]` and arrives at its end after `arrival_ns[s, link_class[l]]`.
    """

    routes: Routes
    sizes: Int64Array
    link_class: npt.NDArray[np.int32]
    busy_ns: Int64Array
    arrival_ns: Int64Array


def network_between(
    topology: Topology,
    sources: Int64Array,
    destinations: Int64Array,
    sizes: Int64Array,
    model: Model,
    channels: Int64Array | None = None,
) -> Network:
    """Route the pairs of NPUs and tabulate the times of messages of `sizes` bytes on the links in use.

    `channels`: int64 per pair, by default 0; it chooses the plane. Congestion-unaware,
    every pair has a private link of its own. Raises `InputError` where a pair has no path, or
    a time does not fit.
    """
    if not model.is_congestion_aware:
        bandwidth, latency_ns = _private_links(topology, sources, destinations, channels)
        pairs = np.arange(len(sources) + 1, dtype=np.int64)
        return _network(Routes(pairs, pairs[:-1]), bandwidth, latency_ns, sizes, model)
    routes = topology.routes(sources, destinations, channels)
    return _network(routes, topology.bandwidth_bytes_per_s, topology.latency_ns, sizes, model)


def _network(
    routes: Routes,
    bandwidth: Float64Array,
    latency_ns: Float64Array,
    sizes: Int64Array,
    model: Model,
) -> Network:
    used = np.unique(routes.links)
    # A complex number per link, so that pairs of doubles sort and compare exactly.
    classes, class_of_used = np.unique(bandwidth[used] + 1j * latency_ns[used], return_inverse=True)
    if len(classes) * len(sizes) > _LARGEST_TABLE:
        raise InputError(
            f"{len(sizes)} message sizes on {len(classes)} kinds of links are too many to tabulate",
            cure="simulate with fewer distinct sizes or bandwidths",
            code="too-large",
        )
    link_class = np.zeros(len(bandwidth), np.int32)
    link_class[used] = class_of_used
    busy_ns, arrival_ns = _times(classes.real, classes.imag, sizes, model.occupancy)
    return Network(routes, sizes, link_class, busy_ns, arrival_ns)


def _times(
    bandwidth: Float64Array, latency_ns: Float64Array, sizes: Int64Array, occupancy: Occupancy
) -> tuple[Int64Array, Int64Array]:
    """(busy, arrival) by size and class of links."""
    # What does not fit in 64 bits turns negative or becomes the largest number; the test below finds both.
    with np.errstate(invalid="ignore"):
        busy_ns, arrival_ns = link_times_ns(
            bandwidth[None, :], latency_ns[None, :], sizes[:, None], occupancy
        )
    if np.any((arrival_ns < 0) | (arrival_ns >= LONGEST_NS)):
        raise InputError(
            "a message takes longer than 146 years",
            cure="check sizes, bandwidths and latencies",
            code="too-long",
        )
    return busy_ns, arrival_ns


def _private_links(
    topology: Topology, sources: Int64Array, destinations: Int64Array, channels: Int64Array | None
) -> tuple[Float64Array, Float64Array]:
    """(bandwidth, latency in ns) between pairs of NPUs when messages never wait.

    Regular networks: the hops in the first dimension in which the pair differs, and nothing for the further ones,
    as ASTRA-sim's congestion-unaware network. All others: along the shortest path, the least bandwidth and the
    sum of the latencies.
    """
    if topology.dimensions:
        return _first_dimension(topology.dimensions, sources, destinations)
    routes = topology.routes(sources, destinations, channels)
    if not len(sources):
        return np.zeros(0), np.zeros(0)
    bandwidth = np.minimum.reduceat(
        topology.bandwidth_bytes_per_s[routes.links], routes.indptr[:-1]
    )
    return bandwidth, np.add.reduceat(topology.latency_ns[routes.links], routes.indptr[:-1])


def _first_dimension(
    dimensions: tuple[Dimension, ...], sources: Int64Array, destinations: Int64Array
) -> tuple[Float64Array, Float64Array]:
    bandwidth, latency_ns = np.zeros(len(sources)), np.zeros(len(sources))
    is_open = np.ones(len(sources), np.bool_)
    stride = 1
    for dimension in dimensions:
        here, there = sources // stride % dimension.size, destinations // stride % dimension.size
        first = is_open & (here != there)
        hops = _hops(dimension, np.abs(here - there)[first])
        bandwidth[first] = dimension.bandwidth_bytes_per_s
        latency_ns[first] = hops * np.round(dimension.latency_s * 1e9, 6)
        is_open &= ~first
        stride *= dimension.size
    return bandwidth, latency_ns


def _hops(dimension: Dimension, distance: Int64Array) -> Int64Array:
    if dimension.kind is DimensionKind.RING:
        return np.minimum(distance, dimension.size - distance)
    if dimension.kind is DimensionKind.LINE:
        return distance
    return np.full_like(distance, 2 if dimension.kind is DimensionKind.SWITCH else 1)
