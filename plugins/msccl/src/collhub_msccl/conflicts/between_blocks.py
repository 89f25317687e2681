"""Find conflicts between thread blocks of a rank that order and dependencies put in order.

Each access is held against every other thread block that touches its unit. Whether the two are in
order is a look-up in the vector clocks of `clocks`; which of the block's writes it is, a binary
search, as the accesses of a block to a unit are sorted by row. Cost: queries times their logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from collhub_columns import (
    BoolArray,
    Int64Array,
    expanded_ranges,
    group_of_entry,
    inverse,
    row_pointer,
    run_lengths,
    run_starts,
)

from collhub_msccl.conflicts.accesses import Edges, UnitAccesses
from collhub_msccl.conflicts.clocks import Clocks
from hub_core.model import StepTable

# A unit that all thread blocks touch gives as many queries as the square of its accesses.
_MOST_QUERIES = 1 << 23


def conflicts_between_blocks(
    accesses: UnitAccesses,
    clocks: Clocks,
    table: StepTable,
) -> Edges | None:
    """Pairs (earlier row, later row) of different thread blocks of a rank that are in order.

    For each access the latest write of every other block that it knows; for each read the first
    write of every other block that knows it. Left out is what follows from these and conflicts
    within a block. None where the accesses are too many to compare.
    """
    queries = _find_queries(accesses, clocks, table)
    if queries is None:
        return None
    write_parents, write_children = _after_writes(accesses, queries, clocks)
    read_parents, read_children = _after_reads(accesses, queries, len(table))
    parents = np.concatenate([write_parents, read_parents])
    children = np.concatenate([write_children, read_children])
    return parents, children


@dataclass(frozen=True, slots=True, eq=False)
class _Queries:
    """Each access against every other thread block that touches its unit.

    A pair is a (block, unit) with an access. `pair`: int64 per access, its number. Per query,
    int64: `access`; `other`, the pair asked about; `lane` of its block; `known`, its last row that
    is done before the access, or -1.
    """

    pair: Int64Array
    access: Int64Array
    other: Int64Array
    lane: Int64Array
    known: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Pairs grouped by the unit of a rank that they are about.

    `members`: int64, pairs, one cell after the other; `start`, `size`: int64 per pair, where the
    members of its cell are.
    """

    members: Int64Array
    start: Int64Array
    size: Int64Array


def _find_queries(
    accesses: UnitAccesses,
    clocks: Clocks,
    table: StepTable,
) -> _Queries | None:
    """All queries, by access; None where they are too many."""
    pair = np.cumsum(accesses.is_new) - 1
    row_of_pair = accesses.row[accesses.is_new]
    unit_of_pair = accesses.unit[accesses.is_new]
    cells = _cells(table.rank[row_of_pair], unit_of_pair)
    # A unit that one thread block alone touches has no conflict here.
    size = np.where(cells.size == 1, 0, cells.size)[pair]
    if int(size.sum()) > _MOST_QUERIES:
        return None
    access = group_of_entry(row_pointer(size))
    other = cells.members[expanded_ranges(cells.start[pair], size)]
    # A thread block is in order with itself.
    is_other = other != pair[access]
    access, other = access[is_other], other[is_other]
    lane = table.lane[row_of_pair][other].astype(np.int64)
    known = clocks.before(accesses.row[access], lane)
    return _Queries(pair, access, other, lane, known)


def _cells(rank: npt.NDArray[np.int32], unit: Int64Array) -> _Cells:
    """Group pairs, given by their rank and unit."""
    members = np.lexsort((unit, rank))
    starts = run_starts(unit[members], rank[members])
    sizes = run_lengths(starts, len(members))
    cell = group_of_entry(row_pointer(sizes))[inverse(members)]
    return _Cells(members, starts[cell], sizes[cell])


def _after_writes(
    accesses: UnitAccesses,
    queries: _Queries,
    clocks: Clocks,
) -> Edges:
    """From the latest known write of another block to each access.

    Not where the last write of the access's own block knew it already: then it follows.
    """
    writes = np.flatnonzero(accesses.is_write)
    width = int(accesses.row.max(initial=0)) + 2
    keys = queries.pair[writes] * width + accesses.row[writes] + 1
    # The row before the first one, -1, sorts before all writes of its pair.
    wanted = queries.other * width + queries.known + 1
    found = np.searchsorted(keys, wanted, "right") - 1
    # Where nothing is found, position -1 reads the appended -1.
    write = np.append(writes, -1)[found]
    is_known = (write >= 0) & (queries.pair[write] == queries.other)
    # What the last write of the own block knew, every access after it knows through that write.
    own = accesses.last_writes()[queries.access]
    own_row = accesses.row[np.where(own >= 0, own, queries.access)]
    knew = clocks.before(own_row, queries.lane)
    is_new = is_known & ((own < 0) | (knew < accesses.row[write]))
    return accesses.row[write[is_new]], accesses.row[queries.access[is_new]]


def _after_reads(
    accesses: UnitAccesses,
    queries: _Queries,
    rows: int,
) -> Edges:
    """From each read to the first write of another block that knows it.

    Not where a write of the read's own block comes between. The queries are those of the writes: a
    write that asks about a block knows all its rows up to `known`.
    """
    is_write = accesses.is_write[queries.access]
    by_write = np.flatnonzero(is_write & (queries.known >= 0))
    by_read = np.flatnonzero(~is_write)
    if not len(by_write) or not len(by_read):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    read, write = _first_knowing(accesses, queries, by_read, by_write, rows)
    # If the own block writes the unit before the found write knows it, that write is in order
    # behind this one.
    own = accesses.next_writes()[read]
    is_new = (own < 0) | (accesses.row[own] > queries.known[write])
    parents = accesses.row[read[is_new]]
    children = accesses.row[queries.access[write[is_new]]]
    return parents, children


def _first_knowing(
    accesses: UnitAccesses,
    queries: _Queries,
    by_read: Int64Array,
    by_write: Int64Array,
    rows: int,
) -> tuple[Int64Array, Int64Array]:
    """Accesses that read, and for each the query of the first write that knows it.

    A group is (pair of the write, pair that it asks about). Within a group later writes know more,
    so one sorted key, (group, known), finds the first that knows enough.
    """
    pair = queries.pair[queries.access]
    pairs = int(queries.pair[-1]) + 1
    group_of_write = pair[by_write] * pairs + queries.other[by_write]
    # Dense numbers, so that the keys below do not overflow.
    group, number = np.unique(group_of_write, return_inverse=True)
    order = np.lexsort((accesses.row[queries.access[by_write]], number))
    writes = by_write[order]
    keys = number[order] * (rows + 1) + queries.known[writes]
    # A read looks for the group with both pairs swapped.
    wanted = queries.other[by_read] * pairs + pair[by_read]
    place = np.minimum(np.searchsorted(group, wanted), len(group) - 1)
    is_there = group[place] == wanted
    read, place = queries.access[by_read[is_there]], place[is_there]
    found = np.searchsorted(keys, place * (rows + 1) + accesses.row[read])
    is_found = _is_in_group(keys, found, place, rows + 1)
    return read[is_found], writes[found[is_found]]


def _is_in_group(
    keys: Int64Array,
    found: Int64Array,
    place: Int64Array,
    width: int,
) -> BoolArray:
    """Whether the key found still is one of the group, not the first of the next."""
    last = np.minimum(found, len(keys) - 1)
    result: BoolArray = (found < len(keys)) & (keys[last] // width == place)
    return result
