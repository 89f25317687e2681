"""The timing model of the simulation: routes, private links, times of messages and of local work.

A message of S bytes on a link of bandwidth B occupies it for trunc(S / B) ns and arrives after
trunc(latency + S / B), with one truncation of the sum, as in ASTRA-sim's congestion-aware backend.
Times are tabulated by size and class of links, because algorithms have few of both. In ASTRA-sim's
congestion-unaware network every pair of NPUs has a private link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.options import CONGESTION_AWARE, AnalyticalOptions
from hub_core import NodeTable, NodeType
from hub_core.columns import Float64Array, Int64Array, distinct
from hub_core.model import Algorithm, InputError, UsageError, message_bytes
from hub_core.network import Dimension, DimensionKind, Occupancy, Routes, Topology, link_times_ns
from hub_core.plugin_api import LinkLoad
from hub_core.schedules import work_times_ns

if TYPE_CHECKING:
    from collhub_kernels.event_queue import Records

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
    """Route pairs of NPUs, and tabulate the times of messages on the links that the routes use.

    `sources`, `destinations`: the pairs; `sizes`: all distinct sizes of messages in bytes.
    `channels`: int64 by pair, by default 0; they select the plane of the topology. With a
    congestion-unaware model every pair has a link of its own instead of a route over shared links.

    Used links with exactly equal bandwidth and latency form a class, numbered by ascending
    (bandwidth, latency); without used links there is none. `busy_ns` and `arrival_ns` are
    int64[size, class] in the order of `sizes`, both from the start of the transmission on a link,
    with the rounding of `link_times_ns`. `link_class` is int32 by link, 0 for an unused one.

    Raises `InputError` for a pair without a path, `too-large` for tables of more than
    `_LARGEST_TABLE` (2^27) entries, `too-long` if a message arrives after 2^62 ns or more.
    """
    routes, bandwidth, latency_ns = route_links(
        topology, sources, destinations, model.is_congestion_aware, channels
    )
    used = distinct(routes.links)
    # A complex number per link, so that pairs of doubles are sorted and compared exactly.
    kinds = bandwidth[used] + 1j * latency_ns[used]
    classes, class_of_used = np.unique(kinds, return_inverse=True)
    link_class = np.zeros(len(bandwidth), np.int32)
    link_class[used] = class_of_used
    if len(classes) * len(sizes) > _LARGEST_TABLE:
        raise InputError(
            f"{len(sizes)} message sizes on {len(classes)} kinds of links are too many to tabulate",
            cure="simulate with fewer distinct sizes or bandwidths",
            code="too-large",
        )
    busy_ns, arrival_ns = link_times_ns(
        classes.real[None, :], classes.imag[None, :], sizes[:, None], model.occupancy
    )
    return SimulatedNetwork(routes, sizes, link_class, busy_ns, arrival_ns)


def route_links(
    topology: Topology,
    sources: Int64Array,
    destinations: Int64Array,
    is_shared: bool,
    channels: Int64Array | None = None,
) -> tuple[Routes, Float64Array, Float64Array]:
    """Return the routes of pairs of NPUs, and bandwidth (bytes/s) and latency (ns) of every link.

    If `is_shared`, the links are those of the topology; otherwise pair i has its own link i, which
    never is shared, with the values of `find_private_links`: those of the first dimension in which
    the NPUs differ, or without dimensions the minimum bandwidth and the sum of the latencies of the
    route. `channels`: plane of each pair, None for the default. Raises `InputError` for a pair
    without a path.
    """
    if not is_shared:
        bandwidth, latency_ns = find_private_links(topology, sources, destinations, channels)
        pairs = np.arange(len(sources) + 1, dtype=np.int64)
        return Routes(pairs, pairs[:-1]), bandwidth, latency_ns
    if len(sources) > _MOST_KEPT:
        routes = topology.routes(sources, destinations, channels)
    else:
        # Converted to bytes, which are hashable.
        channel_bytes = b"" if channels is None else channels.astype(np.int64).tobytes()
        kept = _find_routes_cached(
            topology, sources.tobytes(), destinations.tobytes(), channel_bytes
        )
        # Copied, because kernels do not accept read-only arrays.
        routes = Routes(kept.indptr.copy(), kept.links.copy())
    return routes, topology.bandwidth_bytes_per_s, topology.latency_ns


@lru_cache(maxsize=64)
def _find_routes_cached(
    topology: Topology, sources: bytes, destinations: bytes, channel_bytes: bytes
) -> Routes:
    """Return the routes of pairs from a cache.

    `sources` and `destinations` are the bytes of int64 arrays, because keys of a cache must be
    hashable; so is `channel_bytes`, empty for no channels. The result is shared; callers must copy
    it before writing.
    """
    channels = np.frombuffer(channel_bytes, np.int64) if channel_bytes else None
    pairs = np.frombuffer(sources, np.int64), np.frombuffer(destinations, np.int64)
    return topology.routes(*pairs, channels)


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


_HOPS_THROUGH_SWITCH = 2


def find_private_links(
    topology: Topology, sources: Int64Array, destinations: Int64Array, channels: Int64Array | None
) -> tuple[Float64Array, Float64Array]:
    """Return bandwidth (bytes/s) and latency (ns) by pair of NPUs, for messages that share no link.

    Both are float64, in the order of the pairs (`sources[i]`, `destinations[i]`).

    - Topology with dimensions: the values of the first dimension in which the NPUs differ, as in
      ASTRA-sim's congestion-unaware network (`_measure_first_dimension`). Later dimensions, links
      and `channels` are ignored. Two equal NPUs get 0 and 0.
    - Other topologies: the minimum bandwidth and the sum of the latencies of the links on the
      route. `channels`: int64 per pair, selects the plane of the route; None for plane 0. NPUs of a
      pair must differ (not checked). Raises `InputError` for a pair without a path.
    """
    if topology.dimensions:
        return _measure_first_dimension(topology.dimensions, sources, destinations)
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


def _measure_first_dimension(
    dimensions: tuple[Dimension, ...], sources: Int64Array, destinations: Int64Array
) -> tuple[Float64Array, Float64Array]:
    """Return bandwidth and latency of each pair in the first dimension that differs.

    The bandwidths (bytes/s) and latencies (ns) are float64 arrays with one value per pair. The
    position of an NPU in a dimension is its number, divided by the product of the sizes of all
    earlier dimensions, modulo the size. So the first dimension varies fastest.

    The bandwidth is that of the first dimension in which both positions differ. The latency is
    that of the dimension, rounded to 1e-6 ns, times the number of hops: the shorter direction
    on a ring, the distance on a line, 2 through a switch, 1 in a full mesh. Both values are 0
    for a pair of equal NPUs.
    """
    bandwidth = np.zeros(len(sources))
    latency_ns = np.zeros(len(sources))
    is_open = np.ones(len(sources), np.bool_)
    stride = 1
    for dimension in dimensions:
        source_position = sources // stride % dimension.size
        destination_position = destinations // stride % dimension.size
        is_first = is_open & (source_position != destination_position)
        hops = _count_hops(dimension, np.abs(source_position - destination_position)[is_first])
        bandwidth[is_first] = dimension.bandwidth_bytes_per_s
        # Rounded to the number of digits in the network YAML.
        latency_ns[is_first] = hops * np.round(dimension.latency_s * 1e9, 6)
        is_open &= ~is_first
        stride *= dimension.size
    return bandwidth, latency_ns


def _count_hops(dimension: Dimension, distance: Int64Array) -> Int64Array:
    """Return the number of links between two positions of a dimension, by pair.

    `distance`: absolute difference of both positions, at least 1. A ring is crossed in the shorter
    direction, a line directly. A switch counts as `_HOPS_THROUGH_SWITCH` links, a full mesh as one.
    """
    if dimension.kind is DimensionKind.RING:
        return np.minimum(distance, dimension.size - distance)
    if dimension.kind is DimensionKind.LINE:
        return distance
    hops = _HOPS_THROUGH_SWITCH if dimension.kind is DimensionKind.SWITCH else 1
    return np.full_like(distance, hops)


@dataclass(frozen=True, slots=True)
class TimingModel:
    """Parameters of the analytical model, with ASTRA-sim's as defaults.

    `is_congestion_aware`: messages wait for one another on links. `reduce_bytes_per_s`,
    `copy_bytes_per_s`: speed of local steps without a duration; None: 1 ns per step.
    """

    is_congestion_aware: bool = True
    occupancy: Occupancy = Occupancy.SERIALIZATION
    reduce_bytes_per_s: float | None = None
    copy_bytes_per_s: float | None = None

    @classmethod
    def of_options(cls, options: AnalyticalOptions) -> TimingModel:
        """Return the model that the options of the simulator describe."""
        return cls(
            options.network == CONGESTION_AWARE,
            Occupancy(options.occupancy),
            options.reduce_bandwidth,
            options.copy_bandwidth,
        )


# ASTRA-sim turns a duration of 0 into one cycle.
SHORTEST_NS = 1


def get_trace_durations_ns(nodes: NodeTable) -> Int64Array:
    """Return the durations of the traces, int64 per node; at least 1 ns, also if missing."""
    return np.maximum(nodes.duration_ns, SHORTEST_NS)


def compute_durations_ns(
    algorithm: Algorithm, nodes: NodeTable, collective_bytes: int, model: TimingModel
) -> Int64Array:
    """Return the durations of all trace nodes in ns, int64[nodes], at least 1.

    They are those of the traces. A missing duration of a local step is computed from its bytes and
    the reduction or copy bandwidth of the model; it is 1 without a bandwidth. Raises `InputError`
    if all steps, messages included, have about 2^63 bytes or more together (`size-range`), or if
    the bytes of one of them would take 2^62 ns or more at a given bandwidth (`too-long`).
    """
    durations = get_trace_durations_ns(nodes)
    is_local = (nodes.type == NodeType.COMP) & (nodes.step >= 0)
    rows = np.flatnonzero(is_local & (nodes.duration_ns < 0))
    steps, unit_count = algorithm.steps, algorithm.collective.unit_count
    sizes = message_bytes(collective_bytes, unit_count, steps.count)
    times = work_times_ns(steps, sizes, model.reduce_bytes_per_s, model.copy_bytes_per_s)
    durations[rows] = times[nodes.step[rows]]
    return durations


def check_size(algorithm: Algorithm, collective_bytes: int) -> None:
    """Raise an error if an algorithm cannot be used with a collective of `collective_bytes`.

    Raises `UsageError` for less than one byte. Raises `InputError` (`fixed-size`) if all of
    these hold: the algorithm has a size (`Algorithm.collective_bytes`), it differs from
    `collective_bytes`, and the contents of its steps are not known (`has_contents` is False).
    Such an algorithm is a trace whose messages are in bytes, which cannot be scaled. Otherwise
    nothing happens.
    """
    if collective_bytes < 1:
        raise UsageError(
            f"a collective of {collective_bytes} bytes",
            cure="choose a size of at least 1 byte",
        )
    fixed = algorithm.collective_bytes
    if fixed is None or fixed == collective_bytes or algorithm.has_contents:
        return
    raise InputError(
        f"the trace states its messages in bytes, for a size of {fixed} bytes in all, "
        f"not {collective_bytes}",
        cure=f"use it at {fixed}B",
        code="fixed-size",
    )
