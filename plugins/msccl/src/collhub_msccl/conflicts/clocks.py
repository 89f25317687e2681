"""Compute for every step of a rank which steps of other thread blocks precede it.

Vector clocks (Fidge 1988, Mattern 1989) over the thread blocks of a rank, with data dependencies as
messages: "a precedes b" is one look-up instead of a search. Invariant: a vector changes only at a
row that waits for another thread block, so only those rows have a vector, and all other rows share
the vector of the last such row of their block. Cost: dependencies between blocks times thread
blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_msccl.conflicts.accesses import Edges
from hub_core.columns import Int64Array, group_of_entry, run_mask, run_starts
from hub_core.model import StepTable

# Entries of all vectors: 128 MiB.
_MAX_CLOCK_ENTRIES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Clocks:
    """Vector clocks of all rows, over the thread blocks of their rank.

    `known`: int64, concatenated vectors; `start`: int64 per row, first index of its vector. Entry b
    of a vector is the last row of thread block b of the rank that precedes the row, or -1.
    """

    known: Int64Array
    start: Int64Array

    @property
    def is_any(self) -> bool:
        """Whether any row waits for another thread block."""
        return bool(self.start.any())

    def find_last_before(self, row: Int64Array, lane: Int64Array) -> Int64Array:
        """Last row of thread block `lane` that precedes `row`, or -1; int64 per query.

        Not valid for the row's thread block itself, whose entry is not maintained.
        """
        known: Int64Array = self.known[self.start[row] + lane]
        return known


def build_clocks(table: StepTable, block_indptr: Int64Array) -> Clocks | None:
    """Clocks of a table whose lanes are thread blocks 0..k-1 of each rank; None if they are too
    large.

    `block_indptr`: int64[ranks + 1], first thread block of each rank.
    """
    parents, children = _find_crossing_edges(table)
    # Pairs are sorted by child.
    first_parents = run_starts(children)
    waiting = children[first_parents]
    if not len(waiting):
        return Clocks(np.zeros(0, np.int64), np.zeros(len(table), np.int64))
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
    return Clocks(known, _find_vector_starts(block, waiting, starts))


def _find_crossing_edges(table: StepTable) -> Edges:
    """Data dependencies (parent, child) between different thread blocks, sorted by child."""
    children = group_of_entry(table.data_indptr)
    parents = table.data_indices
    # Dependencies never leave the rank, so lanes distinguish thread blocks.
    is_crossing = table.lane[parents] != table.lane[children]
    return parents[is_crossing], children[is_crossing]


@dataclass(slots=True)
class _Past:
    """Waiting rows of a thread block so far, ascending, and the ranges of their vectors."""

    rows: list[int]
    vectors: list[slice]

    def find_vector(self, row: int) -> slice | None:
        """Range of the vector of `row`: of the last waiting row up to it; None before any wait."""
        position = bisect_right(self.rows, row)
        return self.vectors[position - 1] if position else None


def _fill_vectors(
    known: Int64Array,
    waits: Iterable[tuple[int, int, int, Int64Array]],
    block: Int64Array,
    lane: npt.NDArray[np.int32],
) -> None:
    """Fill the vectors of waiting rows in `known`.

    `waits`: (row, start, end, parents), topologically ordered.

    A vector is the maximum of the previous vector of the block, the parents' vectors, and the
    parents themselves.
    """
    past_of_block: dict[int, _Past] = {}
    for row, start, end, parents in waits:
        vector = known[start:end]
        past = past_of_block.setdefault(int(block[row]), _Past([], []))
        # A vector includes the previous one of its block.
        if past.vectors:
            vector[:] = known[past.vectors[-1]]
        for parent in parents.tolist():
            parent_past = past_of_block.get(int(block[parent]))
            inherited = parent_past.find_vector(parent) if parent_past is not None else None
            if inherited is not None:
                np.maximum(vector, known[inherited], out=vector)
            # The parent itself: its vector has no entry for its own block.
            parent_lane = lane[parent]
            vector[parent_lane] = max(parent, int(vector[parent_lane]))
        past.rows.append(row)
        past.vectors.append(slice(start, end))


def _find_vector_starts(
    block: Int64Array,
    waiting: Int64Array,
    starts: Int64Array,
) -> Int64Array:
    """Start of every row's vector: that of the last row of its thread block that waited.

    0 is the empty vector, of rows before any wait of their block.
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
