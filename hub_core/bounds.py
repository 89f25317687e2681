"""Lower bounds on the time of a collective on a topology, to judge a simulated time against."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from hub_core.collectives import Collective, CollectiveKind
from hub_core.topology import Topology

__all__ = ["lower_bound_ns"]

_Traffic = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]


def lower_bound_ns(collective: Collective, topology: Topology, collective_bytes: int) -> float | None:
    """A time in nanoseconds that no algorithm can beat, or None for custom collectives.

    The largest of: bytes that a rank must receive (send) through its incoming (outgoing) links; bytes that
    all ranks together must receive through all of them (all-reduce: 2 (n - 1) S, Patarasuk and Yuan, JPDC
    2009); and the longest of the least latencies between ranks that must hear of each other. A link carries
    nothing before its latency has passed. No reduction or multicast inside switches.
    """
    traffic = _traffic(collective, float(collective_bytes))
    if traffic is None or collective.num_ranks < 2:
        return None if traffic is None else 0.0
    ingress, egress, total = traffic
    ranks = np.arange(collective.num_ranks)
    per_rank = [
        _fill_time(topology, ends == rank, need)
        for ends, needs in ((topology.destination, ingress), (topology.source, egress))
        for rank, need in _distinct_needs(topology, ends, ranks, needs)
    ]
    together = [_fill_time(topology, ends < topology.num_npus, total) for ends in (topology.destination, topology.source)]
    return max(*per_rank, *together, _latency_bound(collective, topology))


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
    topology: Topology, ends: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64], needs: npt.NDArray[np.float64]
) -> list[tuple[int, float]]:
    """One rank for every distinct (need, capacity, latency sum): equal ranks need not be computed again."""
    capacity = np.bincount(ends, topology.bandwidth_bytes_per_s, topology.num_nodes)[ranks]
    latency = np.bincount(ends, topology.latency_s, topology.num_nodes)[ranks]
    _, first = np.unique(np.stack([needs, capacity, latency]), axis=1, return_index=True)
    return [(int(ranks[row]), float(needs[row])) for row in first]


def _fill_time(topology: Topology, mask: npt.NDArray[np.bool_], need: float) -> float:
    """Least time in which the links of `mask` can carry `need` bytes when each starts after its latency."""
    if need <= 0:
        return 0.0
    order = np.argsort(topology.latency_ns[mask], kind="stable")
    latency = topology.latency_ns[mask][order]
    rate = (topology.bandwidth_bytes_per_s[mask] / 1e9)[order]
    if not len(rate):
        return float("inf")
    # With the k fastest-starting links in use, T = (need + sum of rate * latency) / sum of rate; the least is it.
    times = (need + np.cumsum(rate * latency)) / np.cumsum(rate)
    return float(times.min())


def _latency_bound(collective: Collective, topology: Topology) -> float:
    root = collective.root or 0
    if collective.kind in (CollectiveKind.REDUCE, CollectiveKind.GATHER):
        return _eccentricity(topology, root, collective.num_ranks, topology.destination, topology.source)
    return _eccentricity(topology, root, collective.num_ranks, topology.source, topology.destination)


def _eccentricity(
    topology: Topology, start: int, num_ranks: int, tail: npt.NDArray[np.int64], head: npt.NDArray[np.int64]
) -> float:
    """Largest of the least latencies from `start` to a rank, by Dijkstra's algorithm over tail -> head."""
    neighbours: list[list[tuple[int, float]]] = [[] for _ in range(topology.num_nodes)]
    for u, v, latency in zip(tail.tolist(), head.tolist(), topology.latency_ns.tolist(), strict=True):
        neighbours[u].append((v, latency))
    best = [float("inf")] * topology.num_nodes
    best[start] = 0.0
    queue = [(0.0, start)]
    while queue:
        distance, node = heapq.heappop(queue)
        if distance > best[node]:
            continue
        for other, latency in neighbours[node]:
            if distance + latency < best[other]:
                best[other] = distance + latency
                heapq.heappush(queue, (best[other], other))
    return max(best[:num_ranks])
