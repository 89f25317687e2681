"""Idle time of the streams of a device, as HolisticTraceAnalysis breaks it down.

Source: `get_idle_time_breakdown` of facebookresearch/HolisticTraceAnalysis. A gap between two
consecutive kernels or copies of a stream is

- host wait, if the second one was launched after the first one ended: nothing was queued;
- kernel wait, if it was queued and the gap is below the usual delay between two kernels;
- other: it was queued and waited longer, for another stream as a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.columns import Int64Array

# HolisticTraceAnalysis' delay between consecutive kernels; an option multiplies it.
KERNEL_DELAY_NS = 30


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """Idle time of one stream in ns, from its first start to its last end."""

    device: int
    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


def idle_by_stream(
    start: Int64Array,
    end: Int64Array,
    stream: Int64Array,
    issued_at: Int64Array,
    kernel_delay_ns: float,
    names: Sequence[tuple[int, int]],
) -> tuple[StreamIdle, ...]:
    """The idle time of every stream; columns int64[activities] by start, times in ns.

    `issued_at`: when each was launched, -1 where the launch is not recorded. `names`: device and
    stream by the numbers in `stream`.
    """
    found = []
    for number in np.unique(stream).tolist():
        rows = np.flatnonzero(stream == number)
        ready = end[rows[:-1]]
        gap = np.maximum(start[rows[1:]] - ready, 0)
        is_host_wait = issued_at[rows[1:]] > ready
        is_kernel_wait = ~is_host_wait & (gap < kernel_delay_ns)
        sums = [gap[is_host_wait], gap[is_kernel_wait], gap[~is_host_wait & ~is_kernel_wait]]
        found.append(StreamIdle(*names[number], *(int(one.sum()) for one in sums)))
    return tuple(found)
