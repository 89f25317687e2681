"""Give every value in scratch a separate location, so that steps wait only for data.

If a location is reused, its next writer must wait for the readers of the previous value, although a
different location would avoid this: compilers call the remedy renaming. Values that one step reads
or writes together stay adjacent. Cost: n log n in the units that steps access.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from collhub_msccl.conflicts.accesses import Columns, find_accesses, find_conflicts_within_blocks
from collhub_msccl.conflicts.true_dependencies import list_claimed_modes
from collhub_msccl.writing.draft import READS_SRC, WRITES_DST
from hub_core.columns import (
    BoolArray,
    Int64Array,
    expanded_ranges,
    group_of_entry,
    row_pointer,
    run_mask,
)
from hub_core.model import COLUMN_DTYPES, Algorithm, Buffer, StepKind, StepTable


def rename_scratch_values(algorithm: Algorithm) -> Algorithm | None:
    """The same steps with a separate location for every value, and the resulting dependencies.

    Conflicting steps are ordered by row, which is correct if all conflicting steps of the algorithm
    are ordered. Data dependencies without shared scratch are kept. None if there are too many
    accesses to analyse.
    """
    columns = {name: getattr(algorithm.steps, name) for name in COLUMN_DTYPES}
    accesses = _find_accesses(columns)
    new_start, scratch_units = _place_values(accesses, algorithm.num_ranks)
    for side, is_side in (("src", ~accesses.is_write), ("dst", accesses.is_write)):
        offset = columns[f"{side}_offset"].copy()
        offset[accesses.row[is_side]] = new_start[is_side]
        columns[f"{side}_offset"] = offset
    keys = _find_kept_dependencies(algorithm.steps, accesses)
    table = _order_by_memory(algorithm, columns, scratch_units, keys)
    if table is None:
        return None
    return replace(algorithm, steps=table, scratch_units=scratch_units)


@dataclass(frozen=True, slots=True, eq=False)
class _ScratchAccesses:
    """Reads, then writes of SCRATCH, one entry each: `start`, `count` in units of its rank.

    `is_defining`: writes that do not depend on the previous content.
    """

    row: Int64Array
    rank: Int64Array
    start: Int64Array
    count: Int64Array
    is_write: BoolArray
    is_defining: BoolArray


def _find_accesses(columns: Columns) -> _ScratchAccesses:
    """All accesses to SCRATCH, reads then writes, each in the order of rows."""
    kind, count = columns["kind"], columns["count"].astype(np.int64)
    source, target = columns["src_offset"].astype(np.int64), columns["dst_offset"].astype(np.int64)
    from_scratch = columns["src_buffer"] == Buffer.SCRATCH
    to_scratch = columns["dst_buffer"] == Buffer.SCRATCH
    reads = np.flatnonzero(np.isin(kind, READS_SRC) & from_scratch)
    writes = np.flatnonzero(np.isin(kind, WRITES_DST) & to_scratch)
    # If a step reads and writes the same location, the value before and after counts as one.
    is_one_place = np.isin(kind, READS_SRC) & from_scratch & (np.abs(source - target) < count)
    is_defining = ~is_one_place & (kind != StepKind.REDUCE)
    row = np.concatenate([reads, writes])
    is_write = np.arange(len(row)) >= len(reads)
    return _ScratchAccesses(
        row,
        columns["rank"].astype(np.int64)[row],
        np.concatenate([source[reads], target[writes]]),
        count[row],
        is_write,
        is_write & is_defining[row],
    )


def _place_values(accesses: _ScratchAccesses, num_ranks: int) -> tuple[Int64Array, Int64Array]:
    """First unit of every access with separate locations for values, and units of every rank."""
    group = _group_accesses(accesses)
    size = int(group.max(initial=-1)) + 1
    low, high = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(low, group, accesses.start)
    np.maximum.at(high, group, accesses.start + accesses.count)
    rank = np.zeros(size, np.int64)
    rank[group] = accesses.rank
    order = np.argsort(rank, kind="stable")
    end = np.cumsum((high - low)[order])
    total = np.zeros(num_ranks, np.int64)
    np.add.at(total, rank, high - low)
    before_rank = np.cumsum(total) - total
    first = np.empty(size, np.int64)
    first[order] = end - (high - low)[order] - before_rank[rank[order]]
    return accesses.start + (first - low)[group], total


def _group_accesses(accesses: _ScratchAccesses) -> Int64Array:
    """Group of every access: accesses that share a value, directly or transitively.

    Groups are numbered by their first access.
    """
    access, value = _number_values(accesses)
    leader = list(range(len(accesses.row)))
    first_access: dict[int, int] = {}
    for number, name in zip(access.tolist(), value.tolist(), strict=True):
        leader_of_access = _find_leader(leader, number)
        leader_of_value = _find_leader(leader, first_access.setdefault(name, number))
        leader[max(leader_of_access, leader_of_value)] = min(leader_of_access, leader_of_value)
    leaders = [_find_leader(leader, number) for number in range(len(leader))]
    _, group = np.unique(np.asarray(leaders, np.int64), return_inverse=True)
    return group.astype(np.int64).reshape(-1)


def _find_leader(leader: list[int], number: int) -> int:
    """First access of a group: union-find with path halving, which changes `leader`."""
    while leader[number] != number:
        leader[number] = leader[leader[number]]
        number = leader[number]
    return number


def _number_values(accesses: _ScratchAccesses) -> tuple[Int64Array, Int64Array]:
    """(access, value) pairs: every defining write starts a new value of its units."""
    width = int((accesses.start + accesses.count).max(initial=0)) + 1
    access = group_of_entry(row_pointer(accesses.count))
    unit = expanded_ranges(accesses.rank * width + accesses.start, accesses.count)
    # A step reads before it writes.
    order = np.lexsort((accesses.is_write[access], accesses.row[access], unit))
    access = access[order]
    return access, np.cumsum(run_mask(unit[order]) | accesses.is_defining[access])


def _find_kept_dependencies(steps: StepTable, accesses: _ScratchAccesses) -> Int64Array:
    """Data dependencies (parent * rows + child) whose two steps share no scratch location."""
    parents, children = steps.data_indices, group_of_entry(steps.data_indptr)
    # A step reads and writes one range of scratch each, possibly empty.
    start, end = np.zeros((2, len(steps)), np.int64), np.zeros((2, len(steps)), np.int64)
    side = accesses.is_write.astype(np.int64)
    start[side, accesses.row] = accesses.start
    end[side, accesses.row] = accesses.start + accesses.count
    is_shared = np.zeros(len(parents), np.bool_)
    for parent_side, child_side in product((0, 1), (0, 1)):
        first = np.maximum(start[parent_side, parents], start[child_side, children])
        is_shared |= first < np.minimum(end[parent_side, parents], end[child_side, children])
    return parents[~is_shared] * len(steps) + children[~is_shared]


def _order_by_memory(
    algorithm: Algorithm,
    columns: Columns,
    scratch_units: Int64Array,
    kept_keys: Int64Array,
) -> StepTable | None:
    """Table of the steps with these data dependencies, and conflicts ordered by row.

    No control edges.

    None if there are too many accesses.
    """
    collective, rank = algorithm.collective, columns["rank"].astype(np.int64)
    keys = [kept_keys]
    for in_place in list_claimed_modes(collective):
        base = collective.memory_layout(in_place, scratch_units).base
        # Every rank counts as one thread block, whose rows are in a possible order of execution.
        accesses = find_accesses(columns, rank, base)
        if accesses is None:
            return None
        parents, children = find_conflicts_within_blocks(accesses)
        keys.append(parents * len(rank) + children)
    pairs = np.divmod(np.unique(np.concatenate(keys)), max(len(rank), 1))
    return StepTable.from_columns(algorithm.num_ranks, columns, pairs)
