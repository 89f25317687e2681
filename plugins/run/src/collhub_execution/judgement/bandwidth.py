"""Algorithm and bus bandwidth, as nccl-tests defines them, so that numbers can be compared."""

from __future__ import annotations

from hub_core.model import Collective, CollectiveKind

_FULL_VECTOR = frozenset({CollectiveKind.BROADCAST, CollectiveKind.REDUCE})


def algorithm_bandwidth(collective_bytes: int, time_s: float) -> float:
    """Bytes of the full buffer by time."""
    return collective_bytes / time_s


def bus_bandwidth(collective: Collective, collective_bytes: int, time_s: float) -> float | None:
    """The bandwidth that the busiest link of an ideal network would show; None if custom.

    Algorithm bandwidth times 2 (n - 1) / n for all-reduce, 1 for broadcast and reduce, (n - 1) / n
    for all others (NVIDIA nccl-tests, doc/PERFORMANCE.md).
    """
    factor = _bus_factor(collective.kind, collective.num_ranks)
    if factor is None:
        return None
    return factor * algorithm_bandwidth(collective_bytes, time_s)


def _bus_factor(kind: CollectiveKind, num_ranks: int) -> float | None:
    if kind is CollectiveKind.CUSTOM:
        return None
    if kind in _FULL_VECTOR:
        return 1.0
    share = (num_ranks - 1) / num_ranks
    # Every element crosses the links twice: once to be reduced, once to be spread.
    return 2 * share if kind is CollectiveKind.ALL_REDUCE else share
