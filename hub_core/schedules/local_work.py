"""Time of the local work of steps: reductions, copies and computations."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import StepKind, StepTable
from hub_core.network import link_times_ns


def work_times_ns(
    steps: StepTable, sizes: Int64Array, reduce_rate: float | None, copy_rate: float | None
) -> Int64Array:
    """Duration of the local work of each step in ns, int64[rows].

    The step's `duration_ns` if it has one. Otherwise reductions and copies take `sizes` (bytes per
    step) divided by their rate (bytes/s), if that is not None, rounded as for a link without
    latency and at least 1. All other steps take 1.
    """
    # At least 1 ns, the resolution of some simulators, so that no step takes no time.
    times = np.ones(len(steps), np.int64)
    reduces = steps.is_kind(StepKind.REDUCE, StepKind.RECV_REDUCE)
    for rate, rows in ((reduce_rate, reduces), (copy_rate, steps.is_kind(StepKind.COPY))):
        if rate is not None:
            busy, _ = link_times_ns(np.asarray([rate]), np.zeros(1), sizes)
            times = np.where(rows, np.maximum(busy, 1), times)
    return np.where(steps.duration_ns >= 0, steps.duration_ns, times)
