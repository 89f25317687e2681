"""Memory accesses of steps, conflicts (RAW, WAR, WAW) in thread blocks, and clocks between blocks.

Clocks are vector clocks (Fidge 1988, Mattern 1989) over the thread blocks of a rank, with data
dependencies as messages: "a precedes b" is one look-up instead of a search. Invariant: a vector
changes only at a row that waits for another thread block, so only those rows have a vector, and all
other rows share the vector of the last such row of their block. Cost: dependencies between blocks
times thread blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int64Array,
    expanded_ranges,
    group_of_entry,
    run_mask,
    run_starts,
)
from hub_core.model import Buffer, StepKind, StepTable

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
        """Return for each access the index of the last earlier write to the same (block, unit).

        The result is int64, one entry per access, and -1 if there is no earlier write. Indices
        count the accesses of this object, which are sorted by (block, unit, row). The access itself
        does not count as earlier.
        """
        index = np.arange(len(self))
        latest_writes = np.maximum.accumulate(np.where(self.is_write, index, -1))
        last = np.concatenate([[-1], latest_writes[:-1]])
        # A write before the first access of the (block, unit) belongs to a different one.
        start = np.maximum.accumulate(np.where(self.is_new, index, 0))
        return np.where(last >= start, last, -1)

    def find_next_writes(self) -> Int64Array:
        """Return for each access the index of the next later write to the same (block, unit).

        The result is int64, one entry per access, and -1 if there is no later write. Indices count
        the accesses of this object, which are sorted by (block, unit, row). The access itself does
        not count as later.
        """
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
    """List the memory accesses of step rows: one per row and unit of memory.

    `columns`: columns of a step table. `block`: int64[rows], thread block of each row, numbered
    uniquely across all ranks. `base`: int64[ranks, 3], first address of the buffers INPUT, OUTPUT
    and SCRATCH; buffers that share memory share addresses.

    SEND, RECV_REDUCE, COPY and REDUCE read `count` addresses of their source. RECV, RECV_REDUCE,
    COPY and REDUCE write `count` addresses of their destination. Other kinds access nothing. An
    address counts from the lowest buffer of the row's rank, so units of different ranks may have
    equal numbers. The size of a unit is the greatest common divisor of all first addresses and all
    counts, at least 1; unit u begins at address u * size. A row that reads and writes one unit has
    only the write access.

    The accesses are sorted by (block, unit, row). Without accesses all columns are empty. Returns
    None if the units of all reads, or of all writes, exceed 2^22 plus four times the number of
    rows.
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
    order = _order_accesses(block[row], unit, row, is_write)
    row, unit, is_write = row[order], unit[order], is_write[order]
    # Reads sort before writes, so the last access of a row to a unit is its write, if there is one.
    # Keep the accesses that precede the first access of the next (row, unit).
    is_kept = np.roll(run_mask(row, unit, block[row]), -1)
    row, unit, is_write = row[is_kept], unit[is_kept], is_write[is_kept]
    return UnitAccesses(block[row], unit, row, is_write, is_new=run_mask(unit, block[row]))


def find_conflicts_within_blocks(accesses: UnitAccesses) -> Edges:
    """Find the pairs of rows of a thread block whose memory accesses must keep their order.

    Returns two equally long arrays, the earlier rows and the later rows, empty without
    pairs. For every memory unit the pairs are:

    - the last write before a read, and this read
    - a read, and the next write after it
    - two consecutive writes without a read in between

    A row that reads and writes a unit counts as a write. A pair occurs once per unit for
    which it is found; pairs are not sorted. The order of all other conflicting rows of a
    thread block follows from these pairs.
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
    """Return the rows with a step kind in `kinds`, and the first address that each one accesses.

    `side`: `src` or `dst`, the operand whose buffer and offset are used. `base`: int64[ranks, 3],
    first address of each buffer; buffer numbers above SCRATCH (UNKNOWN) count as SCRATCH. Both
    results are int64, one entry per selected row, in the order of rows. An address counts from the
    lowest buffer of the row's rank.
    """
    # REDUCE also reads its destination; a read and a write of one step count as a write, so the
    # read is omitted.
    rows = np.flatnonzero(np.isin(columns["kind"], [int(kind) for kind in kinds]))
    buffer = np.minimum(columns[f"{side}_buffer"][rows], Buffer.SCRATCH)
    rank = columns["rank"][rows]
    # Addresses are relative to the lowest buffer of the rank.
    start = base[rank, buffer] - base.min(axis=1)[rank]
    return rows, start + columns[f"{side}_offset"][rows]


def _are_too_many(count: Int64Array, rows: int) -> bool:
    """Return whether the sum of `count` exceeds 2^22 plus 4 for each of `rows` rows of a table.

    The sum is a float, because an integer could overflow.
    """
    total = float(count.sum(dtype=np.float64))
    return total > _MAX_UNITS + 4 * rows


def _order_accesses(
    block: Int64Array,
    unit: Int64Array,
    row: Int64Array,
    is_write: BoolArray,
) -> Int64Array:
    """Return the indices that sort accesses by (block, unit, row), a read before a write.

    One access per entry: thread block, unit of memory, row of the step. Sorts by one combined key
    if it fits into 63 bits, else by four keys. Empty without accesses.
    """
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


# Entries of all vectors: 128 MiB.
_MAX_CLOCK_ENTRIES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class VectorClocks:
    """Vector clocks of all rows, over the thread blocks of their rank.

    `known`: int64, concatenated vectors; `start`: int64 per row, first index of its vector. Entry b
    of a vector is the last row of thread block b of the rank that precedes the row, or -1.
    """

    known: Int64Array
    start: Int64Array

    @property
    def is_any(self) -> bool:
        """Whether any row waits for another thread block; if not, rows of different blocks are
        unordered.
        """
        return bool(self.start.any())

    def find_last_before(self, row: Int64Array, lane: Int64Array) -> Int64Array:
        """Return, per query, the last row of thread block `lane` that must precede `row`, or -1.

        `row` and `lane` are int64 and equally long; `lane` counts the thread blocks of the row's
        rank. For the thread block of `row` itself the result has no meaning.
        """
        known: Int64Array = self.known[self.start[row] + lane]
        return known


def build_clocks(table: StepTable, block_indptr: Int64Array) -> VectorClocks | None:
    """Compute which rows of other thread blocks must precede each row, from the data dependencies.

    The clock of a row is a vector with one entry per thread block of its rank. The entry is the
    last row of the table in that block that must precede the row, or -1. The entry of the row's
    own block has no meaning. `block_indptr`: int64[ranks + 1], number of the first thread block of
    each rank. Not checked: lanes of the table are the thread blocks 0..k-1 of each rank, and every
    dependency refers to an earlier row of the same rank.

    A vector is stored only for rows with a dependency on another block, and shared by the following
    rows of their block. All rows before these share one more vector of -1. Returns None if the
    vectors have more than 2^24 entries in total. If no row depends on another block, `known` is
    empty.
    """
    children = group_of_entry(table.data_indptr)
    parents = table.data_indices
    # Dependencies never leave the rank, so lanes distinguish thread blocks.
    is_crossing = table.lane[parents] != table.lane[children]
    parents, children = parents[is_crossing], children[is_crossing]
    # Pairs are sorted by child.
    first_parents = run_starts(children)
    waiting = children[first_parents]
    if not len(waiting):
        return VectorClocks(np.zeros(0, np.int64), np.zeros(len(table), np.int64))
    blocks_of_rank = np.diff(block_indptr)
    sizes = blocks_of_rank[table.rank[waiting]]
    # The first vector is the empty one, of rows before any wait; it is long enough for every rank.
    stops = int(blocks_of_rank.max(initial=0)) + np.cumsum(sizes)
    if stops[-1] > _MAX_CLOCK_ENTRIES:
        return None
    starts = stops - sizes
    block = block_indptr[table.rank] + table.lane
    known = np.full(stops[-1], -1, np.int64)
    parents_of_row = np.split(parents, first_parents[1:])
    waits = zip(waiting, starts, stops, parents_of_row, strict=True)
    _fill_vectors(known, waits, block, table.lane)
    return VectorClocks(known, _find_vector_starts(block, waiting, starts))


def _fill_vectors(
    known: Int64Array,
    waits: Iterable[tuple[int, int, int, Int64Array]],
    block: Int64Array,
    lane: npt.NDArray[np.int32],
) -> None:
    """Compute the vectors of all waiting rows, in place in `known`, whose entries must be -1.

    A row waits if it depends on another thread block. Its vector has one entry per thread block of
    its rank: the last row of this block that must precede it, -1 for none. The entry of its own
    block has no meaning. `waits`: (row, start, end, parents) of each waiting row in topological
    order; its vector is `known[start:end]`. `block`, `lane`: thread block of every row, numbered
    across all ranks and within the rank.

    A vector is the element-wise maximum of:

    - the vector of the previous waiting row of the same block
    - for each parent: the vector of the last waiting row of the parent's block that is not after
      the parent
    - for each parent: its row, in the entry of its lane
    """
    # By thread block: its waiting rows so far, ascending, and the ranges of their vectors.
    rows_of_block: dict[int, list[int]] = defaultdict(list)
    ranges_of_block: dict[int, list[slice]] = defaultdict(list)
    for row, start, end, parents in waits:
        vector = known[start:end]
        ranges = ranges_of_block[int(block[row])]
        # A vector includes the previous one of its block.
        if ranges:
            vector[:] = known[ranges[-1]]
        for parent in parents.tolist():
            parent_block = int(block[parent])
            number = bisect_right(rows_of_block[parent_block], parent)
            if number:
                inherited = ranges_of_block[parent_block][number - 1]
                np.maximum(vector, known[inherited], out=vector)
            # The parent itself: its vector has no entry for its own block.
            parent_lane = lane[parent]
            vector[parent_lane] = max(parent, int(vector[parent_lane]))
        rows_of_block[int(block[row])].append(row)
        ranges.append(slice(start, end))


def _find_vector_starts(
    block: Int64Array,
    waiting: Int64Array,
    starts: Int64Array,
) -> Int64Array:
    """Return the index in `VectorClocks.known` at which the vector of each row begins: int64[rows].

    Only waiting rows (that wait for another thread block) store a vector. A row has the vector of
    the last waiting row of its thread block, up to and including the row; without one the index is
    0, where a vector of -1 begins. `block`: thread block of every row, not necessarily sorted.
    `starts`: start of the vector of each of the rows `waiting`, above 0.
    """
    order = np.argsort(block, kind="stable")
    start_of_row = np.zeros(len(block), np.int64)
    start_of_row[waiting] = starts
    start_of_row = start_of_row[order]
    is_first = run_mask(block[order])
    # Forward fill: every row refers to the last row up to it that starts a block or has a vector.
    sources = np.where((start_of_row > 0) | is_first, np.arange(len(order)), 0)
    latest = np.maximum.accumulate(sources)
    result = np.empty(len(block), np.int64)
    result[order] = start_of_row[latest]
    return result
