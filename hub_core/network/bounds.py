"""Lower bounds on the time of a collective on a topology, to judge a simulated time against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hub_core.model.collectives import Collective, CollectiveKind
from hub_core.model.diagnostics import InputError
from hub_core.network.topology import Topology

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_Traffic = tuple[Float64Array, Float64Array, float]


def lower_bound_ns(
    collective: Collective, topology: Topology, collective_bytes: int
) -> float | None:
    """A whole number of nanoseconds that no algorithm can beat, or None for custom collectives.

    The largest of: bytes that a rank must receive (send) through its incoming (outgoing) links; bytes that all
    ranks together must receive (send) through theirs (all-reduce: 2 (n - 1) S, Patarasuk and Yuan, JPDC 2009);
    and the least latency between two ranks of which one must hear of the other. A link to a rank carries nothing
    before the least latency from a rank through it has passed, a link from a rank nothing that could still arrive
    in less. Ranks are NPUs 0..n-1; other NPUs and switches forward, they neither reduce nor multicast.

    It holds for links that are shared (not for the model congestion-unaware) and for exact times: a simulator
    that truncates every message's time to whole nanoseconds, as ASTRA-sim does, gains up to 1 ns a message and
    hop, which shows where messages take few nanoseconds each. Raises `InputError` for too few NPUs.
    """
    n = collective.num_ranks
    if n > topology.num_npus:
        raise InputError(
            f"{n} ranks, but topology {topology.name} has {topology.num_npus} NPUs",
            cure="choose a larger topology",
            code="topology-too-small",
        )
    traffic = _traffic(collective, float(collective_bytes))
    if traffic is None or n < 2:
        return None if traffic is None else 0.0
    ingress, egress, total = traffic
    ends = (topology.destination, topology.source)
    is_rank = np.arange(topology.num_nodes) < n
    bounds = [_latency_bound(collective, topology)]
    for (near, far), needs in zip((ends, ends[::-1]), (ingress, egress), strict=True):
        # Receiving: the way from the nearest rank to the far end comes before the link; sending: from it to a rank, behind.
        delay = topology.latency_ns + _latencies(topology, is_rank, far, near)[far]
        for rank, need in _distinct_needs(topology, delay, near, needs):
            bounds.append(_fill_time(topology, delay, near == rank, need))
        bounds.append(_fill_time(topology, delay, near < n, total))
    return float(np.floor(max(bounds)))


def _traffic(collective: Collective, size: float) -> _Traffic | None:
    n, kind = collective.num_ranks, collective.kind
    share = size / n
    everyone = np.ones(n)
    at_root = np.zeros(n)
    at_root[collective.root or 0] = 1.0
    others = everyone - at_root
    rest = size - share
    table: dict[CollectiveKind, _Traffic] = {
        CollectiveKind.ALL_REDUCE: (everyone * size, everyone * size, 2 * (n - 1) * size),
        CollectiveKind.ALL_GATHER: (everyone * rest, everyone * share, (n - 1) * size),
        CollectiveKind.REDUCE_SCATTER: (everyone * share, everyone * rest, (n - 1) * size),
        CollectiveKind.ALL_TO_ALL: (everyone * rest, everyone * rest, (n - 1) * size),
        CollectiveKind.BROADCAST: (others * size, at_root * size, (n - 1) * size),
        CollectiveKind.REDUCE: (at_root * size, others * size, (n - 1) * size),
        CollectiveKind.GATHER: (at_root * rest, others * share, rest),
        CollectiveKind.SCATTER: (others * share, at_root * rest, rest),
    }
    return table.get(kind)


def _distinct_needs(
    topology: Topology, delay: Float64Array, ends: Int64Array, needs: Float64Array
) -> list[tuple[int, float]]:
    """(rank, need) for ranks with a need, one of those that agree in need, sum of rates and sum of delays."""
    weights = (topology.bandwidth_bytes_per_s, delay)
    columns = [np.bincount(ends, weight, topology.num_nodes)[: len(needs)] for weight in weights]
    _, first = np.unique(np.stack([needs, *columns]), axis=1, return_index=True)
    return [(int(rank), float(needs[rank])) for rank in first if needs[rank] > 0]


def _fill_time(
    topology: Topology, delay: Float64Array, mask: npt.NDArray[np.bool_], need: float
) -> float:
    """Least time in which the links of `mask` can carry `need` bytes when each starts after its delay."""
    if need <= 0:
        return 0.0
    usable = mask & np.isfinite(delay)
    order = np.argsort(delay[usable], kind="stable")
    starts = delay[usable][order]
    rates = (topology.bandwidth_bytes_per_s[usable] / 1e9)[order]
    if not len(rates):
        return float("inf")
    # With the k first-starting links in use, T = (need + sum of rate * start) / sum of rate; the least is it.
    times = (need + np.cumsum(rates * starts)) / np.cumsum(rates)
    return float(times.min())


def _latency_bound(collective: Collective, topology: Topology) -> float:
    """The largest least latency from the root (to it, where it collects), or from two ranks far apart."""
    to_root = collective.kind in (CollectiveKind.REDUCE, CollectiveKind.GATHER)
    tail, head = (
        (topology.destination, topology.source)
        if to_root
        else (topology.source, topology.destination)
    )
    nodes = np.arange(topology.num_nodes)
    latencies = _latencies(topology, nodes == (collective.root or 0), tail, head)[
        : collective.num_ranks
    ]
    if collective.root is None:
        # Everyone must hear of everyone: the rank that is farthest away is a better place to start from.
        latencies = np.maximum(
            latencies,
            _latencies(topology, nodes == np.argmax(latencies), tail, head)[: len(latencies)],
        )
    return float(latencies.max())


def _latencies(
    topology: Topology, start: npt.NDArray[np.bool_], tail: Int64Array, head: Int64Array
) -> Float64Array:
    """Least sum of latencies from the nodes of `start` to every node over links tail -> head (Bellman and Ford)."""
    best = np.where(start, 0.0, np.inf)
    while True:
        nearer = best.copy()
        np.minimum.at(nearer, head, best[tail] + topology.latency_ns)
        if np.array_equal(nearer, best):
            return best
        best = nearer
