"""Which units every step reads and writes, checked against the sizes of the buffers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import MemoryLayout
from hub_core.model.findings import Findings
from hub_core.model.kinds import READING, WRITING, Buffer, StepKind
from hub_core.model.steps import StepTable
from hub_core.model.wording import action, region

# By side of a step: the kinds that have it, and what they do there.
_SIDES = {"src": (READING, "reads"), "dst": (WRITING, "writes")}


@dataclass(frozen=True, slots=True)
class Regions:
    """Addresses of all steps in one memory layout, in blocks of some units.

    Per row of the step table: `source` and `destination`, first block read and written, -1 where
    nothing is; `count`: blocks; `is_valid`: both regions lie in their buffers. `total`: blocks in
    all memories.
    """

    source: Int64Array
    destination: Int64Array
    count: Int64Array
    is_valid: BoolArray
    total: int


def check_regions(algorithm: Algorithm, findings: Findings) -> BoolArray:
    """Rows of positive count that stay in their buffers: bool[rows]; others become findings."""
    steps = algorithm.steps
    is_empty = ~steps.is_kind(StepKind.COMPUTE) & (steps.count < 1)

    def say(row: int) -> str:
        count = int(steps.count[row])
        return f"a count of {count} units, expected 1 or more: {action(steps, row)}"

    findings.add_rows("empty-step", steps, np.flatnonzero(is_empty), say)
    is_good = ~is_empty
    sizes = _sizes(algorithm)
    is_good &= ~_outside(steps, "src", sizes, is_empty, findings)
    is_good &= ~_outside(steps, "dst", sizes, is_empty, findings)
    return is_good


def _outside(
    steps: StepTable, side: str, sizes: Int64Array, is_empty: BoolArray, findings: Findings
) -> BoolArray:
    """Rows that read ("src") or write ("dst") beyond a buffer; they become findings."""
    kinds, verb = _SIDES[side]
    buffer, offset = getattr(steps, f"{side}_buffer"), getattr(steps, f"{side}_offset")
    # UNKNOWN has no size; it is masked out below.
    known = np.minimum(buffer, Buffer.SCRATCH)
    size = np.where(buffer <= Buffer.SCRATCH, sizes[steps.rank, known], 0)
    # Without the sum of offset and count, which can wrap around.
    is_outside: BoolArray = (offset < 0) | (steps.count > size) | (offset > size - steps.count)
    is_outside &= steps.is_kind(*kinds) & ~is_empty & (buffer != Buffer.UNKNOWN)

    def say(row: int) -> str:
        place = region(int(buffer[row]), int(offset[row]), int(steps.count[row]))
        claim = f"{verb} {place}, but that buffer has {int(size[row])} units"
        return f"{claim}: {action(steps, row)}"

    findings.add_rows("out-of-bounds", steps, np.flatnonzero(is_outside), say)
    return is_outside


def find_regions(
    algorithm: Algorithm, layout: MemoryLayout, is_valid: BoolArray, unit: int
) -> Regions:
    """Address every region in `layout`, which is in blocks of `unit` units.

    Regions outside their buffers (not `is_valid`) get no address.
    """
    steps = algorithm.steps
    addresses = []
    for side, (kinds, _) in _SIDES.items():
        buffer, offset = getattr(steps, f"{side}_buffer"), getattr(steps, f"{side}_offset")
        base = layout.base[steps.rank, np.minimum(buffer, Buffer.SCRATCH)]
        addresses.append(np.where(steps.is_kind(*kinds) & is_valid, base + offset // unit, -1))
    source, destination = addresses
    count = np.where(is_valid, steps.count // unit, 0)
    return Regions(source, destination, count, is_valid, layout.total)


def common_unit(algorithm: Algorithm) -> int:
    """The largest number of units that divides every offset, count, buffer size and share."""
    steps, collective = algorithm.steps, algorithm.collective
    columns = [steps.src_offset, steps.dst_offset, steps.count, _sizes(algorithm).ravel()]
    # gcd(0, n) is n: offsets and buffers of nothing do not count.
    divisors = [int(np.gcd.reduce(column)) for column in columns if len(column)]
    if collective.contract is None:
        divisors.append(collective.units_per_rank)
    return max(1, int(np.gcd.reduce(divisors)))


def _sizes(algorithm: Algorithm) -> Int64Array:
    """Sizes of INPUT, OUTPUT and SCRATCH in units: int64[ranks, 3]."""
    collective = algorithm.collective
    columns = [collective.input_units(), collective.output_units(), algorithm.scratch_units]
    return np.stack(columns, axis=1)
