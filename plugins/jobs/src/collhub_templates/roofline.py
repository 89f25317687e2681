"""Durations of computations by the roofline of an NPU, and the options that describe it."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Peak rates of one NPU, from which the roofline gives times of computations."""

    tflops: float = option(
        OptionType.FLOAT, 312.0, "peak of an NPU, in 1e12 operations/s; 0: no times", minimum=0
    )
    memory_bandwidth: float = option(
        OptionType.BANDWIDTH, 2e12, "of the memory of an NPU", minimum=1
    )


def work_of(machine: MachineOptions, operations: int, touched: int) -> dict[str, int]:
    """Return columns of a computation of so many floating-point operations and bytes of memory.

    With the option `tflops`, also the duration in ns: the longer of the times for operations and
    for memory, rounded, at least 1.
    """
    work = {"operations": operations, "bytes": touched}
    if machine.tflops:
        # Whichever takes longer hides the other.
        flops_ns = operations / machine.tflops / 1e3
        memory_ns = touched / machine.memory_bandwidth * 1e9
        work["duration_ns"] = max(1, round(max(flops_ns, memory_ns)))
    return work
