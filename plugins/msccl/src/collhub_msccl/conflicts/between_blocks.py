"""Find conflicts between thread blocks of a rank that only program order and dependencies together put in order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_msccl.conflicts.accesses import Edges, Int64Array, UnitAccesses
from hub_core.steps import StepTable

_MOST_CLOCKS = 1 << 24
_MOST_QUERIES = 1 << 23


@dataclass(frozen=True, slots=True)
class Clocks:
    """What every row of a rank knows to be done before it, as vector clocks over the rank's thread blocks.

    `known`: int64, vectors one after the other; `start`: int64 per row, where its vector begins; the entry of
    thread block b of the rank is the last row of b that is done before, or -1.
    """

    known: Int64Array
    start: Int64Array

    @property
    def is_any(self) -> bool:
        """Whether any row waits for another thread block."""
        return bool(self.start.any())

    def before(self, row: Int64Array, lane: Int64Array) -> Int64Array:
        """Last row of the thread block `lane` that is done before `row`, or -1; for other blocks than the row's own."""
        known: Int64Array = self.known[self.start[row] + lane]
        return known


def tell_clocks(table: StepTable, block_indptr: Int64Array) -> Clocks | None:
    """Clocks of a table whose lanes are thread blocks 0..k-1 of each rank; None where they would be too large.

    A vector changes only at a row that waits for another thread block. Cost: dependencies between blocks times
    thread blocks of the rank.
    """
    parents, children = _between_blocks(table)
    waiting = np.unique(children)
    blocks_of_rank = np.diff(block_indptr)
    sizes = blocks_of_rank[table.rank[waiting]]
    # The empty vector, of rows before any wait, stands first and is long enough for every rank.
    ends = int(blocks_of_rank.max(initial=0)) + np.cumsum(sizes)
    if not len(waiting):
        return Clocks(np.zeros(0, np.int64), np.zeros(len(table), np.int64))
    if ends[-1] > _MOST_CLOCKS:
        return None
    block = block_indptr[table.rank] + table.lane
    known = np.full(ends[-1], -1, np.int64)
    bounds = np.searchsorted(children, waiting[1:])
    _advance(
        known,
        zip(waiting, ends - sizes, ends, np.split(parents, bounds), strict=True),
        block,
        table.lane,
    )
    return Clocks(known, _starts_of_rows(block, waiting, ends - sizes))


def _advance(
    known: Int64Array,
    waits: Iterable[tuple[int, int, int, Int64Array]],
    block: Int64Array,
    lane: npt.NDArray[np.int32],
) -> None:
    """Fill the vectors of waiting rows: (row, start, end, parents) in row order, a possible order of execution."""
    past: dict[int, tuple[list[int], list[slice]]] = {}
    for row, start, end, parents in waits:
        vector = known[start:end]
        rows, vectors = past.setdefault(int(block[row]), ([], []))
        if vectors:
            vector[:] = known[vectors[-1]]
        for parent in parents.tolist():
            its_rows, its_vectors = past.get(int(block[parent]), ([], []))
            if position := bisect_right(its_rows, parent):
                np.maximum(vector, known[its_vectors[position - 1]], out=vector)
            vector[lane[parent]] = max(parent, int(vector[lane[parent]]))
        rows.append(row)
        vectors.append(slice(start, end))


def _between_blocks(table: StepTable) -> Edges:
    """Data dependencies between thread blocks, by child."""
    children = np.repeat(np.arange(len(table)), np.diff(table.data_indptr))
    crossing = table.lane[table.data_indices] != table.lane[children]
    return table.data_indices[crossing], children[crossing]


def _starts_of_rows(block: Int64Array, waiting: Int64Array, starts: Int64Array) -> Int64Array:
    """Every row has the vector of the last row of its thread block that waited, or the empty one at 0."""
    order = np.argsort(block, kind="stable")
    of_row = np.zeros(len(block), np.int64)
    of_row[waiting] = starts
    of_row = of_row[order]
    is_first = np.append(True, block[order][1:] != block[order][:-1])[: len(order)]
    latest = np.maximum.accumulate(np.where((of_row > 0) | is_first, np.arange(len(order)), 0))
    result = np.empty(len(block), np.int64)
    result[order] = of_row[latest]
    return result


def conflicts_between_blocks(
    accesses: UnitAccesses, clocks: Clocks, table: StepTable
) -> Edges | None:
    """Pairs (earlier row, later row) of different thread blocks of a rank, where clocks put them in order.

    For each access the latest write of every other block that it knows; for each read the first write of every
    other block that knows it. Left out is what follows from these and conflicts within a block. None where the
    accesses are too many to compare.
    """
    queries = _find_queries(accesses, clocks, table)
    if queries is None:
        return None
    after, before = (
        _after_writes(accesses, queries, clocks),
        _after_reads(accesses, queries, len(table)),
    )
    return np.concatenate([after[0], before[0]]), np.concatenate([after[1], before[1]])


@dataclass(frozen=True, slots=True)
class _Queries:
    """Each access against every other thread block that touches its unit.

    `pair`: int64 per access, number of its (block, unit). Per query, int64: `access`; `other`, the (block, unit)
    asked about; `lane` of that block; `known`, its last row before the access, or -1.
    """

    pair: Int64Array
    access: Int64Array
    other: Int64Array
    lane: Int64Array
    known: Int64Array


def _find_queries(accesses: UnitAccesses, clocks: Clocks, table: StepTable) -> _Queries | None:
    pair = np.cumsum(accesses.is_new) - 1
    first = np.flatnonzero(accesses.is_new)
    rank, unit = table.rank[accesses.row[first]], accesses.unit[first]
    by_unit = np.lexsort((unit, rank))
    new_cell = np.append(
        True, (unit[by_unit][1:] != unit[by_unit][:-1]) | (rank[by_unit][1:] != rank[by_unit][:-1])
    )[: len(first)]
    cell_start = np.flatnonzero(new_cell)
    cell_size = np.diff(np.append(cell_start, len(first)))
    cell = np.empty(len(first), np.int64)
    cell[by_unit] = np.cumsum(new_cell) - 1
    size = cell_size[cell[pair]]
    size[size == 1] = 0
    if int(size.sum()) > _MOST_QUERIES:
        return None
    access = np.repeat(np.arange(len(accesses)), size)
    within = np.arange(len(access)) - np.repeat(np.cumsum(size) - size, size)
    other = by_unit[cell_start[cell[pair[access]]] + within]
    is_other = other != pair[access]
    access, other = access[is_other], other[is_other]
    lane = table.lane[accesses.row[first]][other].astype(np.int64)
    return _Queries(pair, access, other, lane, clocks.before(accesses.row[access], lane))


def _after_writes(accesses: UnitAccesses, queries: _Queries, clocks: Clocks) -> Edges:
    """From the latest known write of another block to each access, unless the access's own last write knew it already."""
    writes = np.flatnonzero(accesses.is_write)
    width = int(accesses.row.max(initial=0)) + 2
    keys = queries.pair[writes] * width + accesses.row[writes] + 1
    # The row before the first one, -1, sorts before all writes of its pair.
    found = np.searchsorted(keys, queries.other * width + queries.known + 1, "right") - 1
    write = np.append(writes, -1)[found]
    is_known = (write >= 0) & (queries.pair[write] == queries.other)
    own = accesses.last_writes()[queries.access]
    knew = clocks.before(accesses.row[np.where(own >= 0, own, queries.access)], queries.lane)
    is_new = is_known & ((own < 0) | (knew < accesses.row[write]))
    return accesses.row[write[is_new]], accesses.row[queries.access[is_new]]


def _after_reads(accesses: UnitAccesses, queries: _Queries, rows: int) -> Edges:
    """From each read to the first write of another block that knows it, unless a write of its own block comes between."""
    by_write = np.flatnonzero(accesses.is_write[queries.access] & (queries.known >= 0))
    by_read = np.flatnonzero(~accesses.is_write[queries.access])
    if not len(by_write) or not len(by_read):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    pairs = int(queries.pair[-1]) + 1
    group, number = np.unique(
        queries.pair[queries.access[by_write]] * pairs + queries.other[by_write],
        return_inverse=True,
    )
    # Within a group later writes know more, so the keys ascend with the rows of the writes.
    order = np.lexsort((accesses.row[queries.access[by_write]], number))
    writes, keys = by_write[order], number[order] * (rows + 1) + queries.known[by_write][order]
    wanted = queries.other[by_read] * pairs + queries.pair[queries.access[by_read]]
    place = np.minimum(np.searchsorted(group, wanted), len(group) - 1)
    by_read, place = by_read[group[place] == wanted], place[group[place] == wanted]
    read = queries.access[by_read]
    found = np.searchsorted(keys, place * (rows + 1) + accesses.row[read])
    is_found = (found < len(keys)) & (keys[np.minimum(found, len(keys) - 1)] // (rows + 1) == place)
    read, write = read[is_found], writes[found[is_found]]
    own = accesses.next_writes()[read]
    is_new = (own < 0) | (accesses.row[own] > queries.known[write])
    return accesses.row[read[is_new]], accesses.row[queries.access[write[is_new]]]
