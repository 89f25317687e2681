"""Algorithm and bus bandwidth, as defined by nccl-tests, so that numbers can be compared."""

from __future__ import annotations

from hub_core.model import Collective, CollectiveKind

_FULL_VECTOR = frozenset({CollectiveKind.BROADCAST, CollectiveKind.REDUCE})


def algorithm_bandwidth(collective_bytes: int, time_s: float) -> float:
    """Return bytes of the full buffer per second."""
    return collective_bytes / time_s


def bus_bandwidth(collective: Collective, collective_bytes: int, time_s: float) -> float | None:
    """Return the bandwidth of the busiest link of an ideal network, in bytes/s; None if custom.

    Algorithm bandwidth times 2 (n - 1) / n for all-reduce, 1 for broadcast and reduce, (n - 1) / n
    for the remaining collectives (NVIDIA nccl-tests, doc/PERFORMANCE.md).
    """
    factor = _compute_bus_factor(collective.kind, collective.num_ranks)
    if factor is None:
        return None
    return factor * algorithm_bandwidth(collective_bytes, time_s)


def _compute_bus_factor(kind: CollectiveKind, num_ranks: int) -> float | None:
    """Return the ratio of bus to algorithm bandwidth, None for custom collectives."""
    if kind is CollectiveKind.CUSTOM:
        return None
    if kind in _FULL_VECTOR:
        return 1.0
    share = (num_ranks - 1) / num_ranks
    # Every element crosses the links twice: once to be reduced, once to be distributed.
    return 2 * share if kind is CollectiveKind.ALL_REDUCE else share
