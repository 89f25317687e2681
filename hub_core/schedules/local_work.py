"""Time of the local work of steps: reductions, copies and computations."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import StepKind, StepTable
from hub_core.network import link_times_ns


def work_times_ns(
    steps: StepTable, sizes: Int64Array, reduce_rate: float | None, copy_rate: float | None
) -> Int64Array:
    """Time of each step's local work in nanoseconds: stated, else by `sizes` in bytes, else 1.

    What is stated was measured or modelled by somebody. Else reductions and copies take their bytes
    by the rates in bytes per second, where given, rounded as by a link without latency.
    """
    # Simulators count in whole nanoseconds or more: work that nothing times must not vanish.
    times = np.ones(len(steps), np.int64)
    reduces = steps.is_kind(StepKind.REDUCE, StepKind.RECV_REDUCE)
    for rate, rows in ((reduce_rate, reduces), (copy_rate, steps.is_kind(StepKind.COPY))):
        if rate is not None:
            busy, _ = link_times_ns(np.asarray([rate]), np.zeros(1), sizes)
            times = np.where(rows, np.maximum(busy, 1), times)
    return np.where(steps.duration_ns >= 0, steps.duration_ns, times)
