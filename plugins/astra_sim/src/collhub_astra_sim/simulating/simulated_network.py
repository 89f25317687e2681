"""Routes over a topology, and the times that messages take on their links.

A message of S bytes on a link of bandwidth B occupies it for trunc(S / B) ns and arrives after
trunc(latency + S / B), one truncation of the sum, as ASTRA-sim's congestion-aware backend computes
it. Times are tabulated by size and class of links, as algorithms have few of either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.simulating.private_links import private_links
from collhub_astra_sim.simulating.timing_model import TimingModel
from hub_core.columns import Float64Array, Int64Array, distinct
from hub_core.model import InputError
from hub_core.network import Occupancy, Routes, Topology, link_times_ns
from hub_core.plugin_api import LinkLoad

if TYPE_CHECKING:
    from collhub_astra_sim.simulating.event_queue import Records

LONGEST_NS = 1 << 62
_LARGEST_TABLE = 1 << 27
# Pairs up to which routes are kept: a network is mostly simulated again and again.
_MOST_KEPT = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedNetwork:
    """Links with routes and times.

    Pair p of NPUs takes the links `routes.links[routes.indptr[p]:routes.indptr[p + 1]]`. A message
    of `sizes[s]` bytes occupies link l for `busy_ns[s, link_class[l]]` and arrives at its end after
    `arrival_ns[s, link_class[l]]`.
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
    model: TimingModel,
    channels: Int64Array | None = None,
) -> SimulatedNetwork:
    """Route pairs of NPUs and tabulate the times of messages of `sizes` bytes on links in use.

    `channels`: int64 per pair, by default 0; it chooses the plane. Raises `InputError` where a pair
    has no path, or a time does not fit.
    """
    is_shared = model.is_congestion_aware
    links = routed_links(topology, sources, destinations, is_shared, channels)
    return _with_times(*links, sizes, model.occupancy)


def routed_links(
    topology: Topology,
    sources: Int64Array,
    destinations: Int64Array,
    is_shared: bool,
    channels: Int64Array | None = None,
) -> tuple[Routes, Float64Array, Float64Array]:
    """(routes of pairs of NPUs, bandwidth in bytes/s and latency in ns of every link).

    The links are those of the topology, or, if they are not shared, one for every pair.
    """
    if is_shared:
        routes = _routes(topology, sources, destinations, channels)
        return routes, topology.bandwidth_bytes_per_s, topology.latency_ns
    bandwidth, latency_ns = private_links(topology, sources, destinations, channels)
    pairs = np.arange(len(sources) + 1, dtype=np.int64)
    return Routes(pairs, pairs[:-1]), bandwidth, latency_ns


def _routes(
    topology: Topology,
    sources: Int64Array,
    destinations: Int64Array,
    channels: Int64Array | None,
) -> Routes:
    """`Topology.routes`, from what was found before where the pairs are few."""
    if len(sources) > _MOST_KEPT:
        return topology.routes(sources, destinations, channels)
    # As bytes, by which they are found again.
    chosen = b"" if channels is None else channels.astype(np.int64).tobytes()
    routes = _kept_routes(topology, sources.tobytes(), destinations.tobytes(), chosen)
    # Copied: kernels take no arrays that must not be written to.
    return Routes(routes.indptr.copy(), routes.links.copy())


@lru_cache(maxsize=64)
def _kept_routes(topology: Topology, sources: bytes, destinations: bytes, chosen: bytes) -> Routes:
    """The same for pairs as the bytes of int64."""
    channels = np.frombuffer(chosen, np.int64) if chosen else None
    pairs = np.frombuffer(sources, np.int64), np.frombuffer(destinations, np.int64)
    return topology.routes(*pairs, channels)


def _with_times(
    routes: Routes,
    bandwidth: Float64Array,
    latency_ns: Float64Array,
    sizes: Int64Array,
    occupancy: Occupancy,
) -> SimulatedNetwork:
    """The network of routes over links of these bandwidths and latencies."""
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
    """(class of every link, 0 for those without traffic; bandwidth + i latency of every class)."""
    used = distinct(routes.links)
    # A complex number per link, so that pairs of doubles sort and compare exactly.
    kinds = bandwidth[used] + 1j * latency_ns[used]
    classes, class_of_used = np.unique(kinds, return_inverse=True)
    link_class = np.zeros(len(bandwidth), np.int32)
    link_class[used] = class_of_used
    return link_class, classes


def link_loads(topology: Topology, link: Records) -> tuple[LinkLoad, ...]:
    """Links that carried anything, the busiest first.

    By bytes, then by busy time in ns; equal links stay in the order of the topology.
    """
    carried = link["bytes"]
    busy_ns = link["busy_ns"]
    used = np.flatnonzero(carried)
    # The last key is the first to sort by.
    keys = (used, -carried[used], -busy_ns[used])
    used = used[np.lexsort(keys)]
    columns = (
        topology.source[used].tolist(),
        topology.destination[used].tolist(),
        carried[used].tolist(),
        busy_ns[used].tolist(),
    )
    return tuple(LinkLoad(*load) for load in zip(*columns, strict=True))
