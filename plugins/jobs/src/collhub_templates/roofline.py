"""Durations of computations by the roofline of an NPU, and the options that describe it."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class RooflineOptions:
    """Peak rates of one NPU, from which the roofline gives times of computations."""

    tflops: float = option(
        OptionType.FLOAT, 312.0, "peak of an NPU, in 1e12 operations/s; 0: no times", minimum=0
    )
    memory_bandwidth: float = option(
        OptionType.BANDWIDTH, 2e12, "of the memory of an NPU", minimum=1
    )


def work_of(machine: RooflineOptions, operations: int, touched: int) -> dict[str, int]:
    """Return the columns `operations` and `bytes` of a computation, and its duration if known.

    `operations`: number of floating-point operations. `touched`: bytes of memory that are
    read or written. Both are returned unchanged. If `machine.tflops` is 0, the result has
    only these two.

    Otherwise it also has `duration_ns`, the larger of two times: operations at `tflops` *
    1e12 per second, and bytes at `memory_bandwidth` bytes per second. It is rounded to an
    integer, halves to even, and is at least 1, also without any work.
    """
    work = {"operations": operations, "bytes": touched}
    if machine.tflops:
        # Operations and memory accesses overlap, so that the longer time counts.
        flops_ns = operations / machine.tflops / 1e3
        memory_ns = touched / machine.memory_bandwidth * 1e9
        work["duration_ns"] = max(1, round(max(flops_ns, memory_ns)))
    return work
