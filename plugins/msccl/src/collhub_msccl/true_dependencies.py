"""Complete the data dependencies of a step table, so that it is correct without program order.

The runtimes execute the steps of a thread block in order; in the model this order is control. Data
dependencies are those that every execution must respect: RAW, WAR and WAW on the same memory.

Conflicts between thread blocks of a rank are found if program order and dependencies order them.
Each access is compared with every other thread block that accesses its unit. Whether two accesses
are ordered is a look-up in the vector clocks of `accesses`; the relevant write of the other block
is found by binary search, because the accesses of a block to a unit are sorted by row. Cost:
queries times their logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.accesses import (
    Edges,
    UnitAccesses,
    VectorClocks,
    build_clocks,
    find_accesses,
    find_conflicts_within_blocks,
)
from hub_core.columns import (
    BoolArray,
    Int64Array,
    expanded_ranges,
    group_of_entry,
    inverse,
    row_pointer,
    run_lengths,
    run_starts,
)
from hub_core.model import COLUMN_DTYPES, Collective, StepTable

# A unit that all thread blocks access causes as many queries as the square of its accesses.
_MAX_QUERIES = 1 << 23


def find_conflicts_between_blocks(
    accesses: UnitAccesses,
    clocks: VectorClocks,
    table: StepTable,
) -> Edges | None:
    """Return pairs of rows in different thread blocks whose memory accesses must keep their order.

    The result is two arrays: the earlier rows and the later rows. A pair conflicts if both rows are
    on one rank, access the same unit, and at least one writes. Only pairs that the vector clocks
    (`clocks`) order are returned. First come pairs (write, access): for every access and each other
    block, the latest write of this block that must precede the access. Then come pairs (read,
    write): for every read and each other block, the first write that must follow. A pair is omitted
    if the access's own block writes the unit between both rows: other pairs then imply it. A pair
    can occur several times, once per unit.

    Returns None if a sum exceeds 2^23: over all accesses to units that at least two blocks access,
    the number of blocks that access the unit.
    """
    queries = _find_queries(accesses, clocks, table)
    if queries is None:
        return None
    write_parents, write_children = _find_edges_after_writes(accesses, queries, clocks)
    read_parents, read_children = _find_edges_after_reads(accesses, queries, len(table))
    parents = np.concatenate([write_parents, read_parents])
    children = np.concatenate([write_children, read_children])
    return parents, children


@dataclass(frozen=True, slots=True, eq=False)
class _Queries:
    """Each access paired with every other thread block that accesses its unit.

    A pair is a (block, unit) with an access. `pair`: int64 per access, number of its pair. Per
    query, int64: `access`; `other`, the queried pair; `lane` of its block; `known`, the last row of
    that block that precedes the access, or -1.
    """

    pair: Int64Array
    access: Int64Array
    other: Int64Array
    lane: Int64Array
    known: Int64Array


def _find_queries(
    accesses: UnitAccesses,
    clocks: VectorClocks,
    table: StepTable,
) -> _Queries | None:
    """Return a query for each access and each other thread block of the rank with the same unit.

    Other blocks are those that access the unit, too. Queries are sorted by access, then by block. A
    query has the last row of the other block that must precede the access according to `clocks`, or
    -1. A unit that only one block of the rank accesses gives no query. Without queries the columns
    are empty.

    Returns None if the number of queries, plus the number of accesses to units that several blocks
    access, is above 2^23 (`_MAX_QUERIES`).
    """
    pair = np.cumsum(accesses.is_new) - 1
    row_of_pair = accesses.row[accesses.is_new]
    unit_of_pair = accesses.unit[accesses.is_new]
    # Group pairs, which are given by their rank and unit.
    rank = table.rank[row_of_pair]
    members = np.lexsort((unit_of_pair, rank))
    starts = run_starts(unit_of_pair[members], rank[members])
    sizes = run_lengths(starts, len(members))
    cell = group_of_entry(row_pointer(sizes))[inverse(members)]
    # Pairs of a cell, a unit of a rank, are adjacent in `members`. By pair: the range of its cell.
    cell_start, cell_size = starts[cell], sizes[cell]
    # A unit that only one thread block accesses has no conflicts here.
    size = np.where(cell_size == 1, 0, cell_size)[pair]
    if int(size.sum()) > _MAX_QUERIES:
        return None
    access = group_of_entry(row_pointer(size))
    other_pair = members[expanded_ranges(cell_start[pair], size)]
    # The rows of one thread block are always ordered.
    is_other = other_pair != pair[access]
    access, other_pair = access[is_other], other_pair[is_other]
    lane = table.lane[row_of_pair][other_pair].astype(np.int64)
    known = clocks.find_last_before(accesses.row[access], lane)
    return _Queries(pair, access, other_pair, lane, known)


def _find_edges_after_writes(
    accesses: UnitAccesses,
    queries: _Queries,
    clocks: VectorClocks,
) -> Edges:
    """Return pairs (write of another thread block, later access of its unit), as row arrays.

    A query is an access and another thread block. By the clocks, some accesses of that block must
    precede the access. The latest of them that writes the accessed unit gives a pair, in the
    order of the queries. There is no pair without such a write.

    A pair is also left out if it is implied: the access's block wrote the unit before the access,
    and the other write must precede that write too. An access that writes is treated like a read.
    """
    writes = np.flatnonzero(accesses.is_write)
    width = int(accesses.row.max(initial=0)) + 2
    keys = queries.pair[writes] * width + accesses.row[writes] + 1
    # Row -1 (none known) sorts before all writes of its pair.
    target_keys = queries.other * width + queries.known + 1
    index = np.searchsorted(keys, target_keys, "right") - 1
    # Without a match, position -1 reads the appended -1.
    write = np.append(writes, -1)[index]
    is_known = (write >= 0) & (queries.pair[write] == queries.other)
    # Every later access of a block knows what the block's last write knew.
    last_write = accesses.find_last_writes()[queries.access]
    last_write_row = accesses.row[np.where(last_write >= 0, last_write, queries.access)]
    knew = clocks.find_last_before(last_write_row, queries.lane)
    is_new = is_known & ((last_write < 0) | (knew < accesses.row[write]))
    return accesses.row[write[is_new]], accesses.row[queries.access[is_new]]


def _find_edges_after_reads(
    accesses: UnitAccesses,
    queries: _Queries,
    rows: int,
) -> Edges:
    """Return pairs (read, first write of another thread block that must follow it), as row arrays.

    A query has an access by block A, another block B, and the last row of B that must precede the
    access (`known`). Each query of a read gives at most one pair, in the order of queries. Its
    write is the one with the lowest row of those writes by B to the same unit that have a query
    about A with `known` at or after the read. `rows`: number of rows of the table.

    A query gives no pair without such a write. Nor does it if A writes the unit after the read and
    the write of B must follow this next write of A, because the order of both writes then implies
    the pair. Without any pair both arrays are empty.
    """
    is_write = accesses.is_write[queries.access]
    by_write = np.flatnonzero(is_write & (queries.known >= 0))
    by_read = np.flatnonzero(~is_write)
    if not len(by_write) or not len(by_read):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    # Writes grouped by their pair and the pair that they know, sorted by row within a group.
    pair = queries.pair[queries.access]
    pairs = int(queries.pair[-1]) + 1
    group_of_write = pair[by_write] * pairs + queries.other[by_write]
    # Dense numbers, so that the keys below do not overflow.
    group, number = np.unique(group_of_write, return_inverse=True)
    order = np.lexsort((accesses.row[queries.access[by_write]], number))
    writes = by_write[order]
    keys = number[order] * (rows + 1) + queries.known[writes]

    # A read looks up the group with both pairs swapped.
    target_groups = queries.other[by_read] * pairs + pair[by_read]
    group_index = np.minimum(np.searchsorted(group, target_groups), len(group) - 1)
    is_known_group = group[group_index] == target_groups
    read, group_index = queries.access[by_read[is_known_group]], group_index[is_known_group]
    index = np.searchsorted(keys, group_index * (rows + 1) + accesses.row[read])
    last = np.minimum(index, len(keys) - 1)
    is_match: BoolArray = (index < len(keys)) & (keys[last] // (rows + 1) == group_index)
    read, write = read[is_match], writes[index[is_match]]

    # If the read's block writes the unit before that write knows it, the two writes are ordered and
    # imply the edge.
    next_write = accesses.find_next_writes()[read]
    is_new = (next_write < 0) | (accesses.row[next_write] > queries.known[write])
    return accesses.row[read[is_new]], accesses.row[queries.access[write[is_new]]]


def insert_true_dependencies(
    table: StepTable,
    collective: Collective,
    scratch_units: Int64Array,
    block_indptr: Int64Array,
) -> StepTable:
    """Return the table with data dependencies for ordered steps that access the same memory.

    Two steps of a rank conflict if they access the same memory and at least one writes. The order
    of steps is that of the rows within a thread block plus the data dependencies. Control
    dependencies do not count. An ordered conflict becomes a data dependency of the later step,
    unless other dependencies imply it. Unordered conflicts get none. Present dependencies and all
    columns are kept; `table` is not changed.

    Lanes must be the thread blocks 0..k-1 of each rank. `block_indptr`: int64[ranks + 1], first
    thread block of each rank. Conflicts are the union over the modes that the collective supports;
    in place, INPUT and OUTPUT share memory. If the analysis of a mode is too large (its accesses,
    or the order between thread blocks), all control dependencies become data dependencies instead
    of the conflicts of this mode.
    """
    data, control = table.data_edges, table.control_edges
    # The order does not depend on the mode, the memory does.
    clocks = build_clocks(table, block_indptr)
    edge_lists = [data]
    for in_place in list_claimed_modes(collective):
        base = collective.memory_layout(in_place, scratch_units).base
        edge_lists += _find_conflicts(table, base, clocks, block_indptr) or [control]
    parents = np.concatenate([parent for parent, _ in edge_lists])
    children = np.concatenate([child for _, child in edge_lists])
    return StepTable.from_columns(
        table.num_ranks,
        _get_columns(table),
        (parents, children),
        control,
    )


def list_claimed_modes(collective: Collective) -> list[bool]:
    """List the modes that the collective supports, as values of `in_place`.

    True (in place) comes first, then False (out of place). [] if it supports neither.
    """
    modes = []
    if collective.in_place:
        modes.append(True)
    if collective.out_of_place:
        modes.append(False)
    return modes


def _find_conflicts(
    table: StepTable,
    base: Int64Array,
    clocks: VectorClocks | None,
    block_indptr: Int64Array,
) -> list[Edges] | None:
    """Find pairs of rows that access the same memory, at least one writing, in one mode.

    `base`: int64[ranks, 3], first address of each buffer in this mode (in place or not).
    `clocks`: for each row, the rows of other thread blocks that precede it.

    The result has one or two entries, each of two arrays: earlier rows and later rows. The first
    has the pairs within thread blocks, the second the pairs between blocks. The second is omitted
    if no block waits for another one (`clocks.is_any` is False). Returns None in three cases:

    - `clocks` is None.
    - `find_accesses` returns None: all reads, or all writes, exceed 2^22 + 4 * rows memory units.
    - `find_conflicts_between_blocks` returns None: more than 2^23 combinations of an access and
      a block. This is not checked if the second entry is omitted.
    """
    if clocks is None:
        return None
    block = block_indptr[table.rank] + table.lane
    accesses = find_accesses(_get_columns(table), block, base)
    if accesses is None:
        return None
    within = find_conflicts_within_blocks(accesses)
    # No thread block waits for another one, so accesses of different blocks are unordered.
    if not clocks.is_any:
        return [within]
    between = find_conflicts_between_blocks(accesses, clocks, table)
    return None if between is None else [within, between]


def _get_columns(table: StepTable) -> dict[str, Int64Array]:
    """Return the columns of a table as a dictionary by column name."""
    return {name: getattr(table, name) for name in COLUMN_DTYPES}
