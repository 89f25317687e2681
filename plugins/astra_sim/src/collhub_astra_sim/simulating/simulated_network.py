"""Routes on a topology, and the times of messages on their links.

A message of S bytes on a link of bandwidth B occupies it for trunc(S / B) ns and arrives after
trunc(latency + S / B), with one truncation of the sum, as in ASTRA-sim's congestion-aware backend.
Times are tabulated by size and class of links, because algorithms have few of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.simulating.private_links import find_private_links
from collhub_astra_sim.simulating.timing_model import TimingModel
from hub_core.columns import Float64Array, Int64Array, distinct
from hub_core.model import InputError
from hub_core.network import Occupancy, Routes, Topology, link_times_ns
from hub_core.plugin_api import LinkLoad

if TYPE_CHECKING:
    from collhub_astra_sim.simulating.event_queue import Records

LONGEST_NS = 1 << 62
_LARGEST_TABLE = 1 << 27
# Maximum number of pairs whose routes are cached: a network is usually simulated repeatedly.
_MOST_KEPT = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedNetwork:
    """Links with routes and times.

    Pair p of NPUs uses the links `routes.links[routes.indptr[p]:routes.indptr[p + 1]]`. A message
    of `sizes[s]` bytes occupies link l for `busy_ns[s, link_class[l]]` and arrives at its end after
    `arrival_ns[s, link_class[l]]`.
    """

    routes: Routes
    sizes: Int64Array
    link_class: npt.NDArray[np.int32]
    busy_ns: Int64Array
    arrival_ns: Int64Array


def build_network(
    topology: Topology,
    sources: Int64Array,
    destinations: Int64Array,
    sizes: Int64Array,
    model: TimingModel,
    channels: Int64Array | None = None,
) -> SimulatedNetwork:
    """Route pairs of NPUs and tabulate the times of messages of `sizes` bytes on the links in use.

    `channels`: int64 per pair, by default 0; selects the plane. Raises `InputError` for a pair
    without a path, or if a time does not fit.
    """
    is_shared = model.is_congestion_aware
    links = route_links(topology, sources, destinations, is_shared, channels)
    return _with_times(*links, sizes, model.occupancy)


def route_links(
    topology: Topology,
    sources: Int64Array,
    destinations: Int64Array,
    is_shared: bool,
    channels: Int64Array | None = None,
) -> tuple[Routes, Float64Array, Float64Array]:
    """Return (routes of pairs of NPUs, bandwidth in bytes/s and latency in ns of every link).

    The links are those of the topology, or, if `is_shared` is false, one private link per pair.
    """
    if is_shared:
        routes = _routes(topology, sources, destinations, channels)
        return routes, topology.bandwidth_bytes_per_s, topology.latency_ns
    bandwidth, latency_ns = find_private_links(topology, sources, destinations, channels)
    pairs = np.arange(len(sources) + 1, dtype=np.int64)
    return Routes(pairs, pairs[:-1]), bandwidth, latency_ns


def _routes(
    topology: Topology,
    sources: Int64Array,
    destinations: Int64Array,
    channels: Int64Array | None,
) -> Routes:
    """Return `Topology.routes`, cached if the number of pairs is small."""
    if len(sources) > _MOST_KEPT:
        return topology.routes(sources, destinations, channels)
    # Converted to bytes, which are hashable.
    channel_bytes = b"" if channels is None else channels.astype(np.int64).tobytes()
    routes = _cached_routes(topology, sources.tobytes(), destinations.tobytes(), channel_bytes)
    # Copied, because kernels do not accept read-only arrays.
    return Routes(routes.indptr.copy(), routes.links.copy())


@lru_cache(maxsize=64)
def _cached_routes(
    topology: Topology, sources: bytes, destinations: bytes, channel_bytes: bytes
) -> Routes:
    """Return the routes of pairs that are given as the bytes of int64 arrays; cached."""
    channels = np.frombuffer(channel_bytes, np.int64) if channel_bytes else None
    pairs = np.frombuffer(sources, np.int64), np.frombuffer(destinations, np.int64)
    return topology.routes(*pairs, channels)


def _with_times(
    routes: Routes,
    bandwidth: Float64Array,
    latency_ns: Float64Array,
    sizes: Int64Array,
    occupancy: Occupancy,
) -> SimulatedNetwork:
    """Build the network of routes over links with these bandwidths (bytes/s) and latencies.

    Raises `InputError` if the table of times would be too large.
    """
    link_class, classes = _link_classes(routes, bandwidth, latency_ns)
    if len(classes) * len(sizes) > _LARGEST_TABLE:
        raise InputError(
            f"{len(sizes)} message sizes on {len(classes)} kinds of links are too many to tabulate",
            cure="simulate with fewer distinct sizes or bandwidths",
            code="too-large",
        )
    busy_ns, arrival_ns = link_times_ns(
        classes.real[None, :], classes.imag[None, :], sizes[:, None], occupancy
    )
    return SimulatedNetwork(routes, sizes, link_class, busy_ns, arrival_ns)


def _link_classes(
    routes: Routes, bandwidth: Float64Array, latency_ns: Float64Array
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.complex128]]:
    """Return (class of every link, 0 without traffic; bandwidth + i latency of every class)."""
    used = distinct(routes.links)
    # A complex number per link, so that pairs of doubles are sorted and compared exactly.
    kinds = bandwidth[used] + 1j * latency_ns[used]
    classes, class_of_used = np.unique(kinds, return_inverse=True)
    link_class = np.zeros(len(bandwidth), np.int32)
    link_class[used] = class_of_used
    return link_class, classes


def report_link_loads(topology: Topology, link: Records) -> tuple[LinkLoad, ...]:
    """Return the loads of links that carried messages, the busiest first.

    Sorted by busy time (ns), then by bytes, descending; equal links in the order of the topology.
    """
    carried = link["bytes"]
    busy_ns = link["busy_ns"]
    used = np.flatnonzero(carried)
    # `lexsort` sorts by the last key first.
    keys = (used, -carried[used], -busy_ns[used])
    used = used[np.lexsort(keys)]
    columns = (
        topology.source[used].tolist(),
        topology.destination[used].tolist(),
        carried[used].tolist(),
        busy_ns[used].tolist(),
    )
    return tuple(LinkLoad(*load) for load in zip(*columns, strict=True))
