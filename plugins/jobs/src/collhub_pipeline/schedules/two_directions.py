"""Micro-batches from both ends: each device holds a stage of either direction.

After DualPipe (DeepSeek-V3, arXiv 2412.19437) and Chimera (Li and Hoefler, SC 2021): parameters are
held twice. No order was published as a rule: each device takes, of what is there, a gradient of an
input first, then a forward pass while it holds fewer activations of that way than 1F1B, together
p + 1, then a gradient of weights. The order follows from the exact times, and fits these alone.
"""

from __future__ import annotations

from collhub_pipeline.schedules.schedule import Operation, Pass, Schedule
from collhub_pipeline.timing import PassTimes, greedy
from hub_core import UsageError


def two_directions(devices: int, micros: int, times: PassTimes) -> Schedule:
    """Half of the micro-batches each way. Raises `UsageError` for odd numbers."""
    for number, what in ((micros, "micro_batches"), (devices, "stages")):
        if number % 2:
            message = f"{number} {what.replace('_', '-')} cannot be split in two directions"
            raise UsageError(message, cure=f"make -O {what} even", code="two-directions")
    up = tuple(range(devices))
    passes = [
        Operation(kind, way, stage, micro)
        for way in range(2)
        for stage in range(devices)
        for micro in range(micros // 2)
        for kind in (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)
    ]
    # As 1F1B each way, which together is one more than there are devices.
    most = [devices - stage for stage in range(devices)]
    return greedy("two-directions", (up, up[::-1]), passes, times, most_held=(most, most))
