"""Find the true dependencies between steps of a thread block: RAW, WAR and WAW on one memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_columns import BoolArray, ColumnTable, Int64Array, expanded_ranges, run_mask

from hub_core.model import Buffer, StepKind

Columns = Mapping[str, npt.NDArray[Any]]
# Pairs of rows as two columns: (row that comes first, row that must come later).
Edges = tuple[Int64Array, Int64Array]

# Every unit of every step is a row of its own here: some 100 MiB at this limit.
_MOST_UNITS = 1 << 22
_READS_SRC = (StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)
_WRITES_DST = (StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)


@dataclass(frozen=True, slots=True, eq=False)
class UnitAccesses(ColumnTable):
    """Accesses to single units, sorted by (thread block, unit, row), at most one a unit and row.

    `block`, `row`: int64; `unit`: int64, address within the rank; `is_write`: bool, also where the
    row reads the unit too. `is_new`: bool, the first access of a (block, unit).
    """

    block: Int64Array
    unit: Int64Array
    row: Int64Array
    is_write: BoolArray
    is_new: BoolArray

    def last_writes(self) -> Int64Array:
        """For each access the latest write before it in its (block, unit), or -1."""
        index = np.arange(len(self))
        up_to_here = np.maximum.accumulate(np.where(self.is_write, index, -1))
        last = np.concatenate([[-1], up_to_here[:-1]])
        # The first access of the (block, unit): a write before it is of another one.
        start = np.maximum.accumulate(np.where(self.is_new, index, 0))
        return np.where(last >= start, last, -1)

    def next_writes(self) -> Int64Array:
        """For each access the first write after it in its (block, unit), or -1."""
        size = len(self)
        index = np.arange(size)
        candidates = np.where(self.is_write, index, size)
        from_here = np.minimum.accumulate(candidates[::-1])[::-1]
        following = np.append(from_here[1:], size)
        ends = np.append(np.flatnonzero(self.is_new)[1:], size)
        # Likewise a write at or beyond the end of the (block, unit) is of another one.
        end = ends[np.cumsum(self.is_new) - 1]
        return np.where(following < end, following, -1)


def find_accesses(
    columns: Columns,
    block: Int64Array,
    base: Int64Array,
) -> UnitAccesses | None:
    """All accesses of rows whose thread blocks are `block`; None where they are too many.

    `base`: int64[ranks, 3], first address of each buffer, so that aliases share addresses. One unit
    here is the greatest common divisor of all offsets and counts.
    """
    read_rows, read_address = _side(columns, base, _READS_SRC, "src")
    write_rows, write_address = _side(columns, base, _WRITES_DST, "dst")
    sizes = np.concatenate([read_address, write_address, columns["count"]])
    # Chunks that are always moved together count as one: large steps cost no more than small ones.
    grain = int(np.gcd.reduce(sizes, initial=0)) or 1
    count = columns["count"] // grain
    reads, writes = count[read_rows], count[write_rows]
    if _are_too_many(reads, len(count)) or _are_too_many(writes, len(count)):
        return None
    row = np.concatenate([np.repeat(read_rows, reads), np.repeat(write_rows, writes)])
    # All reads, then all writes; sorting mixes them.
    read_units = expanded_ranges(read_address // grain, reads)
    write_units = expanded_ranges(write_address // grain, writes)
    unit = np.concatenate([read_units, write_units])
    is_write = np.arange(len(row)) >= len(read_units)
    return _sorted(block[row], unit, row, is_write)


def conflicts_within_blocks(accesses: UnitAccesses) -> Edges:
    """Pairs (earlier row, later row) that must keep their order.

    Of every unit: a read after its last write, a write after the reads since the last write, or
    after that write where there was none. All other conflicts of a thread block follow from these.
    """
    row = accesses.row
    last_write, next_write = accesses.last_writes(), accesses.next_writes()
    is_right_behind = last_write == np.arange(len(row)) - 1
    # Writes one behind the other: reads between them would order them already.
    is_after = (last_write >= 0) & (~accesses.is_write | is_right_behind)
    is_before = ~accesses.is_write & (next_write >= 0)
    parents = np.concatenate([row[last_write[is_after]], row[is_before]])
    children = np.concatenate([row[is_after], row[next_write[is_before]]])
    return parents, children


def _side(
    columns: Columns,
    base: Int64Array,
    kinds: tuple[StepKind, ...],
    side: str,
) -> Edges:
    """Rows that access memory on this side, and the first address of each within the rank."""
    # REDUCE reads its destination too: a read and a write of one step count as the write, so that
    # read needs no row.
    rows = np.flatnonzero(np.isin(columns["kind"], [int(kind) for kind in kinds]))
    buffer = np.minimum(columns[f"{side}_buffer"][rows], Buffer.SCRATCH)
    rank = columns["rank"][rows]
    # Addresses count from the lowest buffer of the rank.
    start = base[rank, buffer] - base.min(axis=1)[rank]
    return rows, start + columns[f"{side}_offset"][rows]


def _are_too_many(count: Int64Array, rows: int) -> bool:
    """Whether so many units are beyond the limit; the sum itself could overflow integers."""
    total = float(count.sum(dtype=np.float64))
    return total > _MOST_UNITS + 4 * rows


def _sorted(
    block: Int64Array,
    unit: Int64Array,
    row: Int64Array,
    is_write: BoolArray,
) -> UnitAccesses:
    """Sort accesses and leave out the read where a row reads and writes a unit."""
    order = _by_block_and_unit(block, unit, row, is_write)
    block, unit, row, is_write = block[order], unit[order], row[order], is_write[order]
    # Reads sort before writes, so the last access of a row to a unit is the write, if there is one.
    # It stands before the first access of the next.
    is_kept = np.roll(run_mask(row, unit, block), -1)
    block, unit, row, is_write = block[is_kept], unit[is_kept], row[is_kept], is_write[is_kept]
    return UnitAccesses(block, unit, row, is_write, is_new=run_mask(unit, block))


def _by_block_and_unit(
    block: Int64Array,
    unit: Int64Array,
    row: Int64Array,
    is_write: BoolArray,
) -> Int64Array:
    """The order by (block, unit, row), a read before a write."""
    if not len(row):
        return row
    low = int(unit.min())
    span = int(unit.max()) - low + 1
    rows = int(row.max()) + 1
    if (int(block.max()) + 1) * span * rows * 2 >= 2**63:
        return np.lexsort((is_write, row, unit, block))
    # One key sorts several times faster than four.
    place = block * span + (unit - low)
    key = (place * rows + row) * 2 + is_write
    return np.argsort(key, kind="stable")
