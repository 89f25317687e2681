"""Memory regions that steps read and write, checked against the buffer sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import BoolArray, Int64Array
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import MemoryLayout
from hub_core.model.diagnostics import Findings
from hub_core.model.kinds import READING, WRITING, Buffer, StepKind
from hub_core.model.messages import action, region
from hub_core.model.steps import StepTable

# By operand of a step: the kinds of steps that have it, and the verb for messages.
_SIDES = {"src": (READING, "reads"), "dst": (WRITING, "writes")}


@dataclass(frozen=True, slots=True)
class Regions:
    """Addresses of the operands of all steps in one memory layout, in blocks of equal size.

    Columns with one entry per row of the step table: `source`, `destination`: address of the first
    block read and written, -1 if the step has no such operand or the region is invalid; `count`:
    number of blocks, 0 if invalid; `is_valid`: both regions are within their buffers. `total`:
    number of blocks in the memories of all ranks.
    """

    source: Int64Array
    destination: Int64Array
    count: Int64Array
    is_valid: BoolArray
    total: int


def check_regions(algorithm: Algorithm, findings: Findings) -> BoolArray:
    """Return bool[rows]: the step has a positive count and its regions are within their buffers.

    Each violation is added to `findings`. COMPUTE steps may have any count.
    """
    steps = algorithm.steps
    is_empty = ~steps.is_kind(StepKind.COMPUTE) & (steps.count < 1)

    def say(row: int) -> str:
        count = int(steps.count[row])
        return f"a count of {count} units, expected 1 or more: {action(steps, row)}"

    findings.add_rows("empty-step", steps, np.flatnonzero(is_empty), say)
    is_within = ~is_empty
    sizes = _buffer_sizes(algorithm)
    is_within &= ~_find_outside(steps, "src", sizes, is_empty, findings)
    is_within &= ~_find_outside(steps, "dst", sizes, is_empty, findings)
    return is_within


def _find_outside(
    steps: StepTable, side: str, sizes: Int64Array, is_empty: BoolArray, findings: Findings
) -> BoolArray:
    """Return bool[rows]: the step reads ("src") or writes ("dst") outside a buffer.

    Each such step is added to `findings`; rows in `is_empty` and UNKNOWN buffers are skipped.
    """
    kinds, verb = _SIDES[side]
    buffer, offset = getattr(steps, f"{side}_buffer"), getattr(steps, f"{side}_offset")
    # UNKNOWN has no size; it is masked out below.
    known = np.minimum(buffer, Buffer.SCRATCH)
    size = np.where(buffer <= Buffer.SCRATCH, sizes[steps.rank, known], 0)
    # offset + count is not computed: it could overflow.
    is_outside: BoolArray = (offset < 0) | (steps.count > size) | (offset > size - steps.count)
    is_outside &= steps.is_kind(*kinds) & ~is_empty & (buffer != Buffer.UNKNOWN)

    def say(row: int) -> str:
        text = region(int(buffer[row]), int(offset[row]), int(steps.count[row]))
        claim = f"{verb} {text}, but that buffer has {int(size[row])} units"
        return f"{claim}: {action(steps, row)}"

    findings.add_rows("out-of-bounds", steps, np.flatnonzero(is_outside), say)
    return is_outside


def find_regions(
    algorithm: Algorithm, layout: MemoryLayout, is_valid: BoolArray, unit: int
) -> Regions:
    """Compute the address of every region in `layout`, whose blocks have `unit` units.

    Regions outside their buffers (not `is_valid`) get the address -1 and the count 0.
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
    """Return the largest number of units that divides every offset, count, buffer size and share.

    At least 1. Shares (`units_per_rank`) are ignored for collectives with a contract of their own.
    """
    steps, collective = algorithm.steps, algorithm.collective
    columns = [steps.src_offset, steps.dst_offset, steps.count, _buffer_sizes(algorithm).ravel()]
    # gcd(0, n) is n: zero offsets and empty buffers have no effect.
    divisors = [int(np.gcd.reduce(column)) for column in columns if len(column)]
    if collective.contract is None:
        divisors.append(collective.units_per_rank)
    return max(1, int(np.gcd.reduce(divisors)))


def _buffer_sizes(algorithm: Algorithm) -> Int64Array:
    """Return the sizes of INPUT, OUTPUT and SCRATCH in units: int64[ranks, 3]."""
    collective = algorithm.collective
    columns = [collective.input_units(), collective.output_units(), algorithm.scratch_units]
    return np.stack(columns, axis=1)
