"""Give every value in scratch a place of its own, so that steps wait for data alone.

A place that is used again makes its next writer wait for the readers of the value before, although
another place would do: what compilers call renaming. Values that one step reads or writes together
keep their distance. Cost: n log n in the units that steps touch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from collhub_columns import (
    BoolArray,
    Int64Array,
    expanded_ranges,
    group_of_entry,
    row_pointer,
    run_mask,
)

from collhub_msccl.conflicts.accesses import Columns, find_accesses, find_conflicts_within_blocks
from collhub_msccl.conflicts.true_dependencies import list_claimed_modes
from collhub_msccl.writing.draft import READS_SRC, WRITES_DST
from hub_core.model import COLUMN_DTYPES, Algorithm, Buffer, StepKind, StepTable


def with_own_places(algorithm: Algorithm) -> Algorithm | None:
    """The same steps with a place for every value, and the dependencies that memory then asks for.

    Of conflicting steps, the one that stands first comes first: right wherever all of them are in
    order. Data dependencies that are not about a place in scratch stay. None where steps touch more
    units than can be looked at.
    """
    columns = {name: getattr(algorithm.steps, name) for name in COLUMN_DTYPES}
    accesses = _accesses(columns)
    place, scratch_units = _places(accesses, algorithm.num_ranks)
    for side, is_side in (("src", ~accesses.is_write), ("dst", accesses.is_write)):
        offset = columns[f"{side}_offset"].copy()
        offset[accesses.row[is_side]] = place[is_side]
        columns[f"{side}_offset"] = offset
    keys = _stated_keys(algorithm.steps, accesses)
    table = _ordered_by_memory(algorithm, columns, scratch_units, keys)
    if table is None:
        return None
    return replace(algorithm, steps=table, scratch_units=scratch_units)


@dataclass(frozen=True, slots=True, eq=False)
class _ScratchAccesses:
    """Reads, then writes of SCRATCH, one entry each: `start`, `count` in units of its rank.

    `is_defining`: writes that keep nothing of what was there.
    """

    row: Int64Array
    rank: Int64Array
    start: Int64Array
    count: Int64Array
    is_write: BoolArray
    is_defining: BoolArray


def _accesses(columns: Columns) -> _ScratchAccesses:
    """All accesses, in the order of rows."""
    kind, count = columns["kind"], columns["count"].astype(np.int64)
    source, target = columns["src_offset"].astype(np.int64), columns["dst_offset"].astype(np.int64)
    from_scratch = columns["src_buffer"] == Buffer.SCRATCH
    to_scratch = columns["dst_buffer"] == Buffer.SCRATCH
    reads = np.flatnonzero(np.isin(kind, READS_SRC) & from_scratch)
    writes = np.flatnonzero(np.isin(kind, WRITES_DST) & to_scratch)
    # What a step reads and writes in one place is one value to it, before and after.
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


def _places(accesses: _ScratchAccesses, num_ranks: int) -> tuple[Int64Array, Int64Array]:
    """First unit of every access when values have places of their own, and units of every rank."""
    group = _groups(accesses)
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


def _groups(accesses: _ScratchAccesses) -> Int64Array:
    """Group of every access: those that have a value in common, through others too.

    Groups are numbered by their first access.
    """
    access, value = _values(accesses)
    leader = list(range(len(accesses.row)))
    first_access: dict[int, int] = {}
    for number, name in zip(access.tolist(), value.tolist(), strict=True):
        one = _leader(leader, number)
        other = _leader(leader, first_access.setdefault(name, number))
        leader[max(one, other)] = min(one, other)
    found = [_leader(leader, number) for number in range(len(leader))]
    _, group = np.unique(np.asarray(found, np.int64), return_inverse=True)
    return group.astype(np.int64).reshape(-1)


def _leader(leader: list[int], number: int) -> int:
    """The first access of a group: union-find with halved paths."""
    while leader[number] != number:
        leader[number] = leader[leader[number]]
        number = leader[number]
    return number


def _values(accesses: _ScratchAccesses) -> tuple[Int64Array, Int64Array]:
    """(access, value) pairs: a unit holds a new value from every write that defines it."""
    width = int((accesses.start + accesses.count).max(initial=0)) + 1
    access = group_of_entry(row_pointer(accesses.count))
    unit = expanded_ranges(accesses.rank * width + accesses.start, accesses.count)
    # A step reads before it writes.
    order = np.lexsort((accesses.is_write[access], accesses.row[access], unit))
    access = access[order]
    return access, np.cumsum(run_mask(unit[order]) | accesses.is_defining[access])


def _stated_keys(steps: StepTable, accesses: _ScratchAccesses) -> Int64Array:
    """Data dependencies (parent * rows + child) whose steps have no place in scratch in common."""
    parents, children = steps.data_indices, group_of_entry(steps.data_indptr)
    # A step reads one stretch of scratch and writes one, each perhaps empty.
    start, end = np.zeros((2, len(steps)), np.int64), np.zeros((2, len(steps)), np.int64)
    side = accesses.is_write.astype(np.int64)
    start[side, accesses.row] = accesses.start
    end[side, accesses.row] = accesses.start + accesses.count
    is_shared = np.zeros(len(parents), np.bool_)
    for one, other in product((0, 1), (0, 1)):
        first = np.maximum(start[one, parents], start[other, children])
        is_shared |= first < np.minimum(end[one, parents], end[other, children])
    return parents[~is_shared] * len(steps) + children[~is_shared]


def _ordered_by_memory(
    algorithm: Algorithm,
    columns: Columns,
    scratch_units: Int64Array,
    stated_keys: Int64Array,
) -> StepTable | None:
    """The steps with data dependencies alone: these, and conflicts in the order of rows."""
    collective, rank = algorithm.collective, columns["rank"].astype(np.int64)
    keys = [stated_keys]
    for in_place in list_claimed_modes(collective):
        base = collective.memory_layout(in_place, scratch_units).base
        # Every rank is one thread block here, whose rows stand in a possible order of execution.
        accesses = find_accesses(columns, rank, base)
        if accesses is None:
            return None
        parents, children = find_conflicts_within_blocks(accesses)
        keys.append(parents * len(rank) + children)
    pairs = np.divmod(np.unique(np.concatenate(keys)), max(len(rank), 1))
    return StepTable.from_columns(algorithm.num_ranks, columns, pairs)
