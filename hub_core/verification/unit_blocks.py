"""Divide a large algorithm into blocks of units whose races and contents are independent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model.collectives import Collective, MemoryLayout
from hub_core.model.counts import UnitCounts
from hub_core.model.kinds import Buffer, CollectiveKind

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm
    from hub_core.model.messages import Messages

MAX_BLOCKS = 128
# Kinds whose parts are those of ranks, and the kinds that describe a block of their units.
_UNEVEN_KINDS = {
    CollectiveKind.ALL_GATHER: CollectiveKind.ALL_GATHER_V,
    CollectiveKind.REDUCE_SCATTER: CollectiveKind.REDUCE_SCATTER_V,
}


@dataclass(frozen=True, slots=True)
class UnitBlock:
    """Units `first` to `stop` - 1 of the full buffer of a collective, as a problem of its own.

    `collective`: that of the block. `starts`: the first of its units in each buffer, int64[ranks,
    3]: `first`, or the first unit of the rank in a buffer with a part. `positions`: unit of the
    full buffer at which the regions of every step begin, int64[rows].
    """

    first: int
    stop: int
    collective: Collective
    starts: Int64Array
    positions: Int64Array


def is_divisible(algorithm: Algorithm, messages: Messages) -> bool:
    """Return whether the units of an algorithm can be verified independently of each other.

    True if all of these hold:

    - The collective is no all-to-all, scatter or gather, and has neither a contract nor counts.
    - SCRATCH of each rank has 0 units or those of the full buffer.
    - No step moves data to another unit of the full buffer: both operands of a step, and both
      regions of a message, begin at the same unit. A buffer with only the part of rank r begins at
      unit r * units per rank.
    - Every send has a receive and every receive a send, and both have equal counts.
    """
    collective = algorithm.collective
    traits = collective.kind.traits
    if collective.contract is not None or collective.counts is not None:
        return False
    if traits.is_split and collective.kind not in _UNEVEN_KINDS:
        return False
    scratch = algorithm.scratch_units
    if not bool(np.all((scratch == 0) | (scratch == collective.unit_count))):
        return False
    steps = algorithm.steps
    source, destination = (_find_positions(algorithm, side) for side in ("src", "dst"))
    has_two = (steps.src_buffer != Buffer.UNKNOWN) & (steps.dst_buffer != Buffer.UNKNOWN)
    sent, received = messages.send, messages.receive
    return (
        not bool(np.any(has_two & (source != destination)))
        and np.array_equal(source[sent], destination[received])
        and np.array_equal(steps.count[sent], steps.count[received])
        and not len(messages.lonely_sends)
        and not len(messages.lonely_receives)
    )


def find_block_starts(algorithm: Algorithm, unit: int, blocks: float) -> range:
    """Return the starts of at most ceil(`blocks`) blocks of units of an algorithm.

    `unit`: number of units of the algorithm in a group. Starts and the step of the range
    count groups. All blocks have `step` groups, which is the number of groups /
    ceil(`blocks`), rounded up; only the last block may have fewer. There is at least one
    block. `blocks` must be positive.
    """
    total = max(1, algorithm.collective.unit_count // unit)
    return range(0, total, max(1, ceil(total / ceil(blocks))))


def divide_units(algorithm: Algorithm, unit: int, starts: range) -> list[UnitBlock]:
    """Return the blocks of a divisible algorithm that begin at `starts`, in this order.

    `starts`: result of `find_block_starts`, or a slice of it with the same step; it counts groups
    of `unit` units. Each block has `starts.step` groups; a block that would exceed the full buffer
    ends with it. The limits `first` and `stop` of a block are in units of the algorithm (start x
    `unit`), its collective counts groups. `unit` divides the units of the algorithm.
    """
    collective = algorithm.collective
    positions = find_positions(algorithm)
    total = max(1, collective.unit_count // unit)
    divided = []
    for first in starts:
        stop = min(first + starts.step, total)
        part, first_units = _select_units(collective, first * unit, stop * unit, unit)
        divided.append(UnitBlock(first * unit, stop * unit, part, first_units, positions))
    return divided


def find_unit_at(algorithm: Algorithm, layout: MemoryLayout, address: int, unit: int) -> int:
    """Return the unit of the full buffer that a memory address of a divisible algorithm holds.

    `layout`: memory in blocks of `unit` units; `address` is the number of a block. The
    result is the first unit of this block, in units of the algorithm. In place, buffers
    that share memory give the same unit. Raise `IndexError` for an address outside all
    buffers.
    """
    collective = algorithm.collective
    is_inside = (layout.base <= address) & (address < layout.base + layout.size)
    rank, buffer = (int(index[0]) for index in np.nonzero(is_inside))
    offset = (address - int(layout.base[rank, buffer])) * unit
    return offset + rank * collective.units_per_rank * (buffer == _find_part(collective))


def find_positions(algorithm: Algorithm) -> Int64Array:
    """Return the unit of the full buffer at which the regions of every step of a divisible
    algorithm begin: int64[rows].
    """
    return np.where(
        algorithm.steps.src_buffer != Buffer.UNKNOWN,
        _find_positions(algorithm, "src"),
        _find_positions(algorithm, "dst"),
    )


def _select_units(
    collective: Collective, first: int, stop: int, unit: int
) -> tuple[Collective, Int64Array]:
    """Return the collective restricted to some units of the full buffer, and where they start.

    The selection is the units `first` to `stop` - 1 of the given collective. The returned
    collective counts in blocks of `unit` units, which must divide the borders of the selection and
    of all parts (not checked). An all-gather or reduce-scatter becomes its uneven kind: the part of
    a rank is the intersection of its old part with the selection, perhaps empty. Other kinds stay.

    The starts are int64[ranks, 3] by INPUT, OUTPUT and SCRATCH, in units of the given collective
    counted in the full buffer. They are `first`. In the buffer that has only the part of a rank
    (INPUT of an all-gather, OUTPUT of a reduce-scatter) they are max(`first`, first unit of the
    part).
    """
    starts = np.full((collective.num_ranks, 3), first)
    count = (stop - first) // unit
    uneven = _UNEVEN_KINDS.get(collective.kind)
    if uneven is None:
        return replace(collective, unit_count=count), starts
    share = collective.units_per_rank
    own = np.arange(collective.num_ranks) * share
    part = _find_part(collective)
    starts[:, part] = np.maximum(own, first)
    sizes = np.maximum(np.minimum(own + share, stop) - starts[:, part], 0)
    counts = UnitCounts.from_flat((sizes // unit).tolist(), uneven, collective.num_ranks)
    return replace(collective, kind=uneven, unit_count=count, counts=counts), starts


def _find_positions(algorithm: Algorithm, side: str) -> Int64Array:
    """Return the unit of the full buffer at which an operand of each step begins: int64[rows].

    `side`: the operand, `src` or `dst`. In an all-gather, unit k of INPUT of rank r is unit
    r * (units per rank) + k of the full buffer; in a reduce-scatter, the same applies to
    OUTPUT. In all other buffers, offsets are units of the full buffer. The value is
    meaningless for steps without this operand.
    """
    steps, collective = algorithm.steps, algorithm.collective
    offset: Int64Array = getattr(steps, f"{side}_offset")
    is_part = getattr(steps, f"{side}_buffer") == _find_part(collective)
    return offset + np.where(is_part, steps.rank * np.int64(collective.units_per_rank), 0)


def _find_part(collective: Collective) -> int:
    """Return the buffer that is only one rank's part of the full buffer, or -1.

    It is INPUT for an all-gather, and OUTPUT for a reduce-scatter. All other kinds give -1,
    also those that are not divisible, such as all-to-all or the uneven kinds.
    """
    if collective.kind not in _UNEVEN_KINDS:
        return -1
    return Buffer.INPUT if collective.kind.traits.input_is_part else Buffer.OUTPUT
