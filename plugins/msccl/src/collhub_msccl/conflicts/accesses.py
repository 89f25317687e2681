"""Find the true dependencies (RAW, WAR, WAW) between steps of a thread block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, ColumnTable, Int64Array, expanded_ranges, run_mask
from hub_core.model import Buffer, StepKind

Columns = Mapping[str, npt.NDArray[Any]]
# Pairs of rows as two columns: (row that comes first, row that must come later).
Edges = tuple[Int64Array, Int64Array]

# Maximum accesses, one row per unit of every step: about 100 MiB.
_MAX_UNITS = 1 << 22
_READS_SRC = (StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)
_WRITES_DST = (StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)


@dataclass(frozen=True, slots=True, eq=False)
class UnitAccesses(ColumnTable):
    """Accesses to single units, sorted by (thread block, unit, row); at most one per unit and row.

    `block`, `row`: int64; `unit`: int64, address within the rank; `is_write`: bool, also if the row
    reads the unit too; `is_new`: bool, the first access of a (block, unit).
    """

    block: Int64Array
    unit: Int64Array
    row: Int64Array
    is_write: BoolArray
    is_new: BoolArray

    def find_last_writes(self) -> Int64Array:
        """Per access, the index of the latest earlier write to its (block, unit), or -1."""
        index = np.arange(len(self))
        latest_writes = np.maximum.accumulate(np.where(self.is_write, index, -1))
        last = np.concatenate([[-1], latest_writes[:-1]])
        # A write before the first access of the (block, unit) belongs to a different one.
        start = np.maximum.accumulate(np.where(self.is_new, index, 0))
        return np.where(last >= start, last, -1)

    def find_next_writes(self) -> Int64Array:
        """Per access, the index of the first later write to its (block, unit), or -1."""
        size = len(self)
        index = np.arange(size)
        candidates = np.where(self.is_write, index, size)
        from_here = np.minimum.accumulate(candidates[::-1])[::-1]
        following = np.append(from_here[1:], size)
        unit_stops = np.append(np.flatnonzero(self.is_new)[1:], size)
        # Likewise a write after the last access of the (block, unit) belongs to a different one.
        stop = unit_stops[np.cumsum(self.is_new) - 1]
        return np.where(following < stop, following, -1)


def find_accesses(
    columns: Columns,
    block: Int64Array,
    base: Int64Array,
) -> UnitAccesses | None:
    """All accesses of the rows; None if there are too many. `block`: thread block of each row.

    `base`: int64[ranks, 3], first address of each buffer; aliased buffers share addresses. One unit
    of the result is the greatest common divisor of all addresses and counts.
    """
    read_rows, read_address = _find_side_accesses(columns, base, _READS_SRC, "src")
    write_rows, write_address = _find_side_accesses(columns, base, _WRITES_DST, "dst")
    sizes = np.concatenate([read_address, write_address, columns["count"]])
    # Chunks that are always moved together count as one: large steps cost no more than small ones.
    grain = int(np.gcd.reduce(sizes, initial=0)) or 1
    count = columns["count"] // grain
    reads, writes = count[read_rows], count[write_rows]
    if _are_too_many(reads, len(count)) or _are_too_many(writes, len(count)):
        return None
    row = np.concatenate([np.repeat(read_rows, reads), np.repeat(write_rows, writes)])
    read_units = expanded_ranges(read_address // grain, reads)
    write_units = expanded_ranges(write_address // grain, writes)
    unit = np.concatenate([read_units, write_units])
    is_write = np.arange(len(row)) >= len(read_units)
    return _sort_accesses(block[row], unit, row, is_write)


def find_conflicts_within_blocks(accesses: UnitAccesses) -> Edges:
    """Pairs (earlier row, later row) of a thread block that must keep their order.

    For every unit: a read after the last write; a write after the reads since the last write, or
    after that write if there were none. These pairs imply all other conflicts of a thread block.
    """
    row = accesses.row
    last_write, next_write = accesses.find_last_writes(), accesses.find_next_writes()
    is_right_behind = last_write == np.arange(len(row)) - 1
    # Consecutive writes; reads between two writes would already order them.
    is_after = (last_write >= 0) & (~accesses.is_write | is_right_behind)
    is_before = ~accesses.is_write & (next_write >= 0)
    parents = np.concatenate([row[last_write[is_after]], row[is_before]])
    children = np.concatenate([row[is_after], row[next_write[is_before]]])
    return parents, children


def _find_side_accesses(
    columns: Columns,
    base: Int64Array,
    kinds: tuple[StepKind, ...],
    side: str,
) -> Edges:
    """Rows that access memory on this side, and the first address of each within its rank."""
    # REDUCE also reads its destination; a read and a write of one step count as a write, so the
    # read is omitted.
    rows = np.flatnonzero(np.isin(columns["kind"], [int(kind) for kind in kinds]))
    buffer = np.minimum(columns[f"{side}_buffer"][rows], Buffer.SCRATCH)
    rank = columns["rank"][rows]
    # Addresses are relative to the lowest buffer of the rank.
    start = base[rank, buffer] - base.min(axis=1)[rank]
    return rows, start + columns[f"{side}_offset"][rows]


def _are_too_many(count: Int64Array, rows: int) -> bool:
    """Whether the accesses exceed the limit; the sum is a float because integers could overflow."""
    total = float(count.sum(dtype=np.float64))
    return total > _MAX_UNITS + 4 * rows


def _sort_accesses(
    block: Int64Array,
    unit: Int64Array,
    row: Int64Array,
    is_write: BoolArray,
) -> UnitAccesses:
    """Sort accesses, and drop the read if a row reads and writes a unit."""
    order = _order_accesses(block, unit, row, is_write)
    block, unit, row, is_write = block[order], unit[order], row[order], is_write[order]
    # Reads sort before writes, so the last access of a row to a unit is its write, if there is one.
    # Keep the accesses that precede the first access of the next (row, unit).
    is_kept = np.roll(run_mask(row, unit, block), -1)
    block, unit, row, is_write = block[is_kept], unit[is_kept], row[is_kept], is_write[is_kept]
    return UnitAccesses(block, unit, row, is_write, is_new=run_mask(unit, block))


def _order_accesses(
    block: Int64Array,
    unit: Int64Array,
    row: Int64Array,
    is_write: BoolArray,
) -> Int64Array:
    """Indices that sort by (block, unit, row), a read before a write."""
    if not len(row):
        return row
    low = int(unit.min())
    span = int(unit.max()) - low + 1
    rows = int(row.max()) + 1
    if (int(block.max()) + 1) * span * rows * 2 >= 2**63:
        return np.lexsort((is_write, row, unit, block))
    # Sorting by one combined key is several times faster than by four.
    cell = block * span + (unit - low)
    key = (cell * rows + row) * 2 + is_write
    return np.argsort(key, kind="stable")
