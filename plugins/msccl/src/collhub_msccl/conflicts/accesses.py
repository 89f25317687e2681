"""Find the true dependencies between steps of a rank: RAW, WAR and WAW on the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.collectives import Buffer
from hub_core.steps import StepKind

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Columns = Mapping[str, npt.NDArray[Any]]
Edges = tuple[Int64Array, Int64Array]

_MOST_UNITS = 1 << 22
_READS_SRC = (StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)
_WRITES_DST = (StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)


@dataclass(frozen=True, slots=True)
class UnitAccesses:
    """Accesses to single units, sorted by (thread block, unit, row), at most one for a unit and row.

    `block`, `row`: int64; `unit`: int64, address within the rank; `is_write`: bool, also where the row reads the unit
    too. `is_new`: bool, the first access of a (block, unit).
    """

    block: Int64Array
    unit: Int64Array
    row: Int64Array
    is_write: BoolArray
    is_new: BoolArray

    def __len__(self) -> int:
        return len(self.row)

    def last_writes(self) -> Int64Array:
        """For each access the index of the latest write before it in its (block, unit), or -1."""
        index = np.arange(len(self))
        last = np.concatenate(
            [[-1], np.maximum.accumulate(np.where(self.is_write, index, -1))[:-1]]
        )
        return np.where(last >= np.maximum.accumulate(np.where(self.is_new, index, 0)), last, -1)

    def next_writes(self) -> Int64Array:
        """For each access the index of the first write after it in its (block, unit), or -1."""
        index, size = np.arange(len(self)), len(self)
        following = np.append(
            np.minimum.accumulate(np.where(self.is_write, index, size)[::-1])[::-1][1:], size
        )
        end = np.append(np.flatnonzero(self.is_new)[1:], size)[np.cumsum(self.is_new) - 1]
        return np.where(following < end, following, -1)


def find_accesses(columns: Columns, block: Int64Array, base: Int64Array) -> UnitAccesses | None:
    """All accesses of rows whose thread blocks are `block`; None where they are too many to look at each.

    `base`: int64[ranks, 3], first address of each buffer, so that aliases share addresses. One unit here is the
    greatest common divisor of all offsets and counts.
    """
    sides = [_side(columns, base, *side) for side in ((_READS_SRC, "src"), (_WRITES_DST, "dst"))]
    step = (
        int(
            np.gcd.reduce(
                np.concatenate([*(address for _, address in sides), columns["count"]]), initial=0
            )
        )
        or 1
    )
    count = columns["count"] // step
    if any(
        float(count[rows].sum(dtype=np.float64)) > _MOST_UNITS + 4 * len(count) for rows, _ in sides
    ):
        return None
    row = np.concatenate([np.repeat(rows, count[rows]) for rows, _ in sides])
    unit = np.concatenate([_each_unit(address // step, count[rows]) for rows, address in sides])
    is_write = np.arange(len(row)) >= int(count[sides[0][0]].sum())
    return _sorted(block[row], unit, row, is_write)


def conflicts_within_blocks(accesses: UnitAccesses) -> Edges:
    """Pairs (earlier row, later row) that must keep their order.

    Of every unit: a read after its last write, a write after the reads since the last write, or after that write
    where there was none. All other conflicts of a thread block follow from these.
    """
    row, last_write, next_write = accesses.row, accesses.last_writes(), accesses.next_writes()
    after_write = (last_write >= 0) & (~accesses.is_write | (last_write == np.arange(len(row)) - 1))
    before_write = ~accesses.is_write & (next_write >= 0)
    parents = np.concatenate([row[last_write[after_write]], row[before_write]])
    children = np.concatenate([row[after_write], row[next_write[before_write]]])
    return parents, children


def _side(columns: Columns, base: Int64Array, kinds: tuple[StepKind, ...], side: str) -> Edges:
    """Rows that access memory on this side, and the first address of each access within the rank."""
    # REDUCE reads its destination too: as a read and a write of one step count as the write, that needs no row.
    rows = np.flatnonzero(np.isin(columns["kind"], [int(kind) for kind in kinds]))
    buffer = np.minimum(columns[f"{side}_buffer"][rows], Buffer.SCRATCH)
    rank = columns["rank"][rows]
    return rows, base[rank, buffer] - base.min(axis=1)[rank] + columns[f"{side}_offset"][rows]


def _each_unit(start: Int64Array, count: Int64Array) -> Int64Array:
    if bool(np.all(count == 1)):
        return start
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(start, count) + within


def _sorted(
    block: Int64Array, unit: Int64Array, row: Int64Array, is_write: BoolArray
) -> UnitAccesses:
    order = _by_block_and_unit(block, unit, row, is_write)
    block, unit, row, is_write = block[order], unit[order], row[order], is_write[order]
    same_unit = (unit[1:] == unit[:-1]) & (block[1:] == block[:-1])
    # Reads sort before writes, so the last access of a row to a unit is the write, if there is one.
    kept = np.append(~(same_unit & (row[1:] == row[:-1])), True)[: len(row)]
    block, unit, row, is_write = block[kept], unit[kept], row[kept], is_write[kept]
    is_new = np.append(True, (unit[1:] != unit[:-1]) | (block[1:] != block[:-1]))[: len(row)]
    return UnitAccesses(block, unit, row, is_write, is_new)


def _by_block_and_unit(
    block: Int64Array, unit: Int64Array, row: Int64Array, is_write: BoolArray
) -> Int64Array:
    if not len(row):
        return row
    low, span = int(unit.min()), int(unit.max() - unit.min()) + 1
    rows = int(row.max()) + 1
    if (int(block.max()) + 1) * span * rows * 2 >= 2**63:
        return np.lexsort((is_write, row, unit, block))
    # One key sorts several times faster than four.
    return np.argsort(((block * span + (unit - low)) * rows + row) * 2 + is_write, kind="stable")
