"""Find the true dependencies between the steps of a thread block: RAW, WAR and WAW on the same memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hub_core.collectives import Buffer
from hub_core.steps import StepKind

__all__ = ["conflicts"]

Int64Array = npt.NDArray[np.int64]
Columns = Mapping[str, Int64Array]
Edges = tuple[Int64Array, Int64Array]

_MOST_UNITS = 1 << 22
_READS_SRC = (StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)
_WRITES_DST = (StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)


def conflicts(columns: Columns, group: Int64Array, base: Int64Array) -> Edges | None:
    """Pairs (earlier row, later row) of the same group that must keep their order.

    `columns`: kind, rank, src_buffer, ..., count of rows in program order; `group`: int64 per row, ascending;
    `base`: int64[ranks, 3], first address of each buffer, aliases included. Of every unit: a read after its last
    write, a write after the reads since the last write, or after that write where there was none; everything else
    follows. None where steps touch too many units to look at each.
    """
    sides = [_side(columns, base, *side) for side in ((_READS_SRC, "src"), (_WRITES_DST, "dst"))]
    unit = int(np.gcd.reduce(np.concatenate([*(offset for _, offset in sides), columns["count"]]), initial=0)) or 1
    count = columns["count"] // unit
    rows = [np.repeat(row, count[row]) for row, _ in sides] if _fits(sides, count) else None
    if rows is None:
        return None
    address = [_each_unit(offset // unit, count[row]) for row, offset in sides]
    is_write = np.repeat([False, True], [len(rows[0]), len(rows[1])])
    return _ordered_pairs(group, np.concatenate(rows), np.concatenate(address), is_write)


def _side(columns: Columns, base: Int64Array, kinds: tuple[StepKind, ...], side: str) -> Edges:
    """Rows that access memory on this side, and the first address of each access within the rank.

    REDUCE reads its destination too; a step's own read and write of one unit count as the write.
    """
    rows = np.flatnonzero(np.isin(columns["kind"], [int(kind) for kind in kinds]))
    buffer = np.minimum(columns[f"{side}_buffer"][rows], Buffer.SCRATCH)
    rank = columns["rank"][rows]
    return rows, base[rank, buffer] - base.min(axis=1)[rank] + columns[f"{side}_offset"][rows]


def _fits(sides: list[Edges], count: Int64Array) -> bool:
    return all(float(count[rows].astype(np.float64).sum()) <= _MOST_UNITS + 4 * len(count) for rows, _ in sides)


def _each_unit(start: Int64Array, count: Int64Array) -> Int64Array:
    if bool(np.all(count == 1)):
        return start
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(start, count) + within


def _ordered_pairs(group: Int64Array, row: Int64Array, address: Int64Array, is_write: npt.NDArray[np.bool_]) -> Edges:
    if not len(row):
        return row, row
    order = _by_unit(group[row], address, row, is_write)
    row, address, is_write = row[order], address[order], is_write[order]
    new_unit = np.concatenate([[True], (address[1:] != address[:-1]) | (group[row[1:]] != group[row[:-1]])])
    # Of a read and a write of one step, the write stands for both; sorting put the read first.
    both = np.concatenate([(row[1:] == row[:-1]) & ~new_unit[1:], [False]])
    if both.any():
        new_unit[1:] |= new_unit[:-1] & both[:-1]
        row, is_write, new_unit = row[~both], is_write[~both], new_unit[~both]
    index = np.arange(len(row))
    first = np.maximum.accumulate(np.where(new_unit, index, 0))
    end = np.append(np.flatnonzero(new_unit)[1:], len(row))[np.cumsum(new_unit) - 1]
    last_write = np.concatenate([[-1], np.maximum.accumulate(np.where(is_write, index, -1))[:-1]])
    next_write = np.append(np.minimum.accumulate(np.where(is_write, index, len(row))[::-1])[::-1][1:], len(row))
    after_write = (last_write >= first) & (~is_write | (last_write == index - 1))
    before_write = ~is_write & (next_write < end)
    parents = np.concatenate([row[last_write[after_write]], row[before_write]])
    children = np.concatenate([row[after_write], row[next_write[before_write]]])
    return parents, children


def _by_unit(group: Int64Array, address: Int64Array, row: Int64Array, is_write: npt.NDArray[np.bool_]) -> Int64Array:
    """Order accesses by group, address, row, reads first."""
    low, span = int(address.min()), int(address.max() - address.min()) + 1
    rows = int(row.max()) + 1
    if (int(group.max()) + 1) * span * rows * 2 >= 2**63:
        return np.lexsort((is_write, row, address, group))
    # One key sorts several times faster than four.
    return np.argsort(((group * span + (address - low)) * rows + row) * 2 + is_write, kind="stable")
