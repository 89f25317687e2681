"""Which units every step reads and writes, checked against the sizes of the buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Buffer, MemoryLayout
from hub_core.model.findings import Findings
from hub_core.model.steps import StepKind, StepTable
from hub_core.model.wording import action, region

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

READING = (StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)
WRITING = (StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)


@dataclass(frozen=True, slots=True)
class Regions:
    """Addresses of all steps in one memory layout, in blocks of `unit` units (the largest that divides everything).

    Per row of the step table: `source` and `destination`, first block read and written, -1 where nothing is;
    `count`: blocks; `is_valid`: both regions lie in their buffers. `total`: blocks in all memories.
    """

    source: Int64Array
    destination: Int64Array
    count: Int64Array
    is_valid: BoolArray
    total: int


def check_regions(algorithm: Algorithm, findings: Findings) -> BoolArray:
    """Mask of the rows that have a positive count and stay in their buffers; the others become findings."""
    steps = algorithm.steps
    sizes = _sizes(algorithm)
    good = np.ones(len(steps), np.bool_)
    empty = ~steps.is_kind(StepKind.COMPUTE) & (steps.count < 1)
    findings.add_rows(
        "empty-step",
        steps,
        np.flatnonzero(empty),
        lambda row: (
            f"a count of {int(steps.count[row])} units, expected 1 or more: {action(steps, row)}"
        ),
    )
    good &= ~empty
    for kinds, buffer, offset, verb in (
        (READING, steps.src_buffer, steps.src_offset, "reads"),
        (WRITING, steps.dst_buffer, steps.dst_offset, "writes"),
    ):
        size = np.where(
            buffer <= Buffer.SCRATCH, sizes[steps.rank, np.minimum(buffer, Buffer.SCRATCH)], 0
        )
        outside = (offset < 0) | (steps.count > size) | (offset > size - steps.count)
        outside &= steps.is_kind(*kinds) & ~empty & (buffer != Buffer.UNKNOWN)
        good &= ~outside
        say = _sayer(steps, buffer, offset, size, verb)
        findings.add_rows("out-of-bounds", steps, np.flatnonzero(outside), say)
    return good


def _sayer(
    steps: StepTable, buffer: npt.NDArray[np.uint8], offset: Int64Array, size: Int64Array, verb: str
) -> Callable[[int], str]:
    def say(row: int) -> str:
        place = region(int(buffer[row]), int(offset[row]), int(steps.count[row]))
        return f"{verb} {place}, but that buffer has {int(size[row])} units: {action(steps, row)}"

    return say


def find_regions(
    algorithm: Algorithm, layout: MemoryLayout, is_valid: BoolArray, unit: int
) -> Regions:
    """Address every region in `layout`, which is in blocks of `unit`. Regions outside their buffers get no address."""
    steps = algorithm.steps
    starts = [
        np.where(
            steps.is_kind(*kinds) & is_valid,
            layout.base[steps.rank, np.minimum(buffer, Buffer.SCRATCH)] + offset // unit,
            -1,
        )
        for kinds, buffer, offset in (
            (READING, steps.src_buffer, steps.src_offset),
            (WRITING, steps.dst_buffer, steps.dst_offset),
        )
    ]
    count = np.where(is_valid, steps.count // unit, 0)
    return Regions(starts[0], starts[1], count, is_valid, layout.total)


def common_unit(algorithm: Algorithm) -> int:
    """The largest number of units that divides every offset, count, buffer size and share of a rank."""
    steps: StepTable = algorithm.steps
    share = np.asarray(
        [algorithm.collective.units_per_rank] if algorithm.collective.contract is None else [],
        np.int64,
    )
    columns = (steps.src_offset, steps.dst_offset, steps.count, _sizes(algorithm).ravel(), share)
    return max(1, int(np.gcd.reduce([np.gcd.reduce(column) for column in columns if len(column)])))


def _sizes(algorithm: Algorithm) -> Int64Array:
    collective = algorithm.collective
    return np.stack(
        [collective.input_units(), collective.output_units(), algorithm.scratch_units], axis=1
    )
