"""Algorithm and bus bandwidth, as nccl-tests defines them, so that numbers can be compared."""

from __future__ import annotations

from hub_core.model.collectives import Collective
from hub_core.model.kinds import CollectiveKind

_FULL_VECTOR = frozenset({CollectiveKind.BROADCAST, CollectiveKind.REDUCE})


def algorithm_bandwidth(collective_bytes: int, time_s: float) -> float:
    """Bytes of the full buffer by time."""
    return collective_bytes / time_s


def bus_bandwidth(collective: Collective, collective_bytes: int, time_s: float) -> float | None:
    """The bandwidth that the busiest link of an ideal network would show; None for custom collectives.

    Algorithm bandwidth times 2 (n - 1) / n for all-reduce, 1 for broadcast and reduce, (n - 1) / n for all others
    (NVIDIA nccl-tests, doc/PERFORMANCE.md).
    """
    factor = _bus_factor(collective.kind, collective.num_ranks)
    return None if factor is None else factor * algorithm_bandwidth(collective_bytes, time_s)


def _bus_factor(kind: CollectiveKind, num_ranks: int) -> float | None:
    if kind is CollectiveKind.CUSTOM:
        return None
    if kind in _FULL_VECTOR:
        return 1.0
    share = (num_ranks - 1) / num_ranks
    return 2 * share if kind is CollectiveKind.ALL_REDUCE else share
