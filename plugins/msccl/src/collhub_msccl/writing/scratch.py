"""Allocate scratch: one location per value, or memory that is reused after its accesses finished.

By liveness: overlapping accesses share a segment of memory, and a segment moves as a unit. Segments
are placed in the order of their first access, each in the smallest range whose earlier accesses are
finished, by waits and block order, before the new ones begin; otherwise after all existing ranges.
Invariant: no waits are added. Cost: segments times the ranges tried, times the thread blocks that
access them.

By value: if a location is reused, its next writer must wait for the readers of the previous value,
although a different location would avoid this: compilers call the remedy renaming. Values that one
step reads or writes together stay adjacent. Cost: n log n in the units that steps access.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from collhub_msccl.accesses import Columns, find_accesses, find_conflicts_within_blocks
from collhub_msccl.true_dependencies import list_claimed_modes
from collhub_msccl.writing.draft import READS_SRC, WRITES_DST, StepDraft
from collhub_msccl.writing.waits import Knowledge
from hub_core.columns import (
    BoolArray,
    Int64Array,
    connected_parts,
    expanded_ranges,
    first_positions,
    group_of_entry,
    row_pointer,
    run_lengths,
    run_mask,
    run_starts,
)
from hub_core.model import COLUMN_DTYPES, Algorithm, Buffer, StepKind, StepTable

# Ranges tried per segment: more would save little scratch and cost quadratic time.
_MAX_RANGES_TRIED = 64
_NEVER = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class _ScratchSegments:
    """Accesses to SCRATCH sorted by (rank, offset), and the segments of memory that they form.

    Per access: `row`, `is_source`, and `segment`, the number of its segment. Per segment, int64,
    sorted likewise: `start`, `size`, `rank`.
    """

    row: Int64Array
    is_source: BoolArray
    segment: Int64Array
    start: Int64Array
    size: Int64Array
    rank: Int64Array


def allocate_scratch(
    draft: StepDraft,
    dropped_src: BoolArray,
    dropped_dst: BoolArray,
    knowledge: Knowledge,
) -> tuple[StepDraft, Int64Array]:
    """Move the contents of SCRATCH so that memory is reused after its last access.

    Accesses of a rank that overlap, directly or in a chain, form a segment, which moves as a unit.
    Segments are placed by the time of their first access, ties by number. A segment gets the
    smallest free range of sufficient size whose accesses have all finished before its accesses. Of
    equal ranges it is the lowest one; at most 64 ranges are tried. Otherwise it gets new memory
    after all ranges of the rank.

    Returns a draft with new offsets, and the SCRATCH units of every rank as int64; `draft` is not
    changed. `dropped_src`, `dropped_dst`: masks of the rows whose source (or destination) the file
    does not access; their offsets do not change. `knowledge`: which steps are known to be finished
    at which other steps.
    """
    segments = _find_segments(draft, dropped_src, dropped_dst)
    new_start, total = _place_segments(segments, knowledge, draft.num_ranks)
    # An access moves with its segment.
    shift = (new_start - segments.start)[segments.segment]
    is_source = segments.is_source
    src_offset, dst_offset = draft.src_offset.copy(), draft.dst_offset.copy()
    src_offset[segments.row[is_source]] += shift[is_source]
    dst_offset[segments.row[~is_source]] += shift[~is_source]
    return replace(draft, src_offset=src_offset, dst_offset=dst_offset), total


def count_scratch_units(
    draft: StepDraft,
    dropped_src: BoolArray,
    dropped_dst: BoolArray,
) -> Int64Array:
    """Return the SCRATCH units that every rank needs with the offsets of the draft: int64[ranks].

    It is the maximum of offset + count over the accesses of the rank to SCRATCH, 0 without
    accesses. `dropped_src`, `dropped_dst`: masks of the rows whose source (or destination)
    is not counted.
    """
    segments = _find_segments(draft, dropped_src, dropped_dst)
    total = np.zeros(draft.num_ranks, np.int64)
    np.maximum.at(total, segments.rank, segments.start + segments.size)
    return total


def _find_segments(
    draft: StepDraft,
    dropped_src: BoolArray,
    dropped_dst: BoolArray,
) -> _ScratchSegments:
    """Divide the accesses to SCRATCH into segments that share no unit.

    Accesses are reads of SCRATCH by steps with a source, and writes by steps with a destination. A
    step may have both. `dropped_src`, `dropped_dst`: masks of the rows whose read (or write) is
    left out. Accesses are sorted by rank, then by offset, then reads before writes, then by row.

    In this order, an access begins a new segment if its rank is new, or if it starts at or after
    the end of all earlier accesses of its rank. Segments are numbered from 0 in this order. Returns
    row, side and segment of each access, and start (unit), size (in units) and rank of each
    segment. Without accesses all arrays are empty.
    """
    reads = draft.is_kind(*READS_SRC) & (draft.src_buffer == Buffer.SCRATCH) & ~dropped_src
    writes = draft.is_kind(*WRITES_DST) & (draft.dst_buffer == Buffer.SCRATCH) & ~dropped_dst
    read_rows, write_rows = np.flatnonzero(reads), np.flatnonzero(writes)
    row = np.concatenate([read_rows, write_rows])
    is_source = np.arange(len(row)) < len(read_rows)
    offset = np.where(is_source, draft.src_offset[row], draft.dst_offset[row])
    width = int((offset + draft.count[row]).max(initial=0)) + 1
    # One number for rank and address; width is larger than every address.
    first = draft.rank[row] * width + offset
    order = np.argsort(first, kind="stable")
    row, is_source, first = row[order], is_source[order], first[order]
    # Maximum end address of all accesses so far: a new segment starts at or after it.
    reach = np.maximum.accumulate(first + draft.count[row])
    is_new = np.ones(len(row), np.bool_)
    is_new[1:] = first[1:] >= reach[:-1]
    starts = np.flatnonzero(is_new)
    lasts = starts + run_lengths(starts, len(row)) - 1
    rank, start = np.divmod(first[starts], width)
    size = reach[lasts] - first[starts]
    return _ScratchSegments(row, is_source, np.cumsum(is_new) - 1, start, size, rank)


@dataclass(slots=True)
class _ScratchRange:
    """A range of a rank's scratch, and the last accesses to its current segment: {block:
    ordinal}."""

    start: int
    size: int
    last: dict[int, int]


def _place_segments(
    segments: _ScratchSegments,
    knowledge: Knowledge,
    num_ranks: int,
) -> tuple[Int64Array, Int64Array]:
    """Return the new first unit of each segment of SCRATCH, and the SCRATCH units of every rank.

    Both are int64, by segment and by rank; the units of a rank are 0 without segments. Segments
    are placed by ascending time of their first access (`knowledge.time`: a position in a possible
    order of execution), at equal times by number. Reads and writes count equally. A segment gets
    one of these ranges of its rank:

    1. The smallest range (at equal sizes the lowest) of sufficient size whose accesses have all
       finished before the segment's accesses. At most 64 ranges are tried (`_find_free_range`). The
       range keeps its size, even if the segment is smaller.
    2. Otherwise a new range of the segment's size, after all ranges of the rank.

    The units of a rank are the sum of its ranges. The arguments are not changed.
    """
    # Per segment: the first and the last access in each block that has one, by its position there,
    # and the earliest time of an access.
    count = len(segments.start)
    first_accesses: list[dict[int, int]] = [{} for _ in range(count)]
    last_accesses: list[dict[int, int]] = [{} for _ in range(count)]
    first_time = [_NEVER] * count
    steps = knowledge.step_of_row[segments.row]
    accesses = zip(
        segments.segment.tolist(),
        knowledge.block[steps].tolist(),
        knowledge.ordinal[steps].tolist(),
        knowledge.time[steps].tolist(),
        strict=True,
    )
    for segment, block, ordinal, time in accesses:
        first, last = first_accesses[segment], last_accesses[segment]
        first[block] = min(ordinal, first.get(block, ordinal))
        last[block] = max(ordinal, last.get(block, ordinal))
        first_time[segment] = min(time, first_time[segment])

    total = [0] * num_ranks
    ranges: list[list[_ScratchRange]] = [[] for _ in range(num_ranks)]
    result = np.zeros(count, np.int64)
    ranks, sizes = segments.rank.tolist(), segments.size.tolist()
    for segment in sorted(range(count), key=lambda segment: (first_time[segment], segment)):
        rank, size = ranks[segment], sizes[segment]
        memory_range = _find_free_range(ranges[rank], size, first_accesses[segment], knowledge)
        if memory_range is None:
            # None is free: append a range.
            memory_range = _ScratchRange(total[rank], size, {})
            total[rank] += size
            ranges[rank].append(memory_range)
        memory_range.last = last_accesses[segment]
        result[segment] = memory_range.start
    return result, np.asarray(total, np.int64)


def _find_free_range(
    ranges: list[_ScratchRange],
    size: int,
    first: dict[int, int],
    knowledge: Knowledge,
) -> _ScratchRange | None:
    """Return the smallest scratch range that a new segment may reuse, or None.

    A range must have at least `size` units, and every last access to its current segment must be
    known to precede every first access of the new one. `first`: for each thread block, the number
    of the step in it that accesses the new segment first. At most the `_MAX_RANGES_TRIED` smallest
    ranges of sufficient size are examined (at equal sizes the lowest starts first), so None may be
    returned although a larger one is free.
    """
    fitting = [memory_range for memory_range in ranges if memory_range.size >= size]
    fitting.sort(key=lambda memory_range: (memory_range.size, memory_range.start))
    for memory_range in fitting[:_MAX_RANGES_TRIED]:
        if all(
            knowledge.is_before(last_block, last_ordinal, first_block, first_ordinal)
            for last_block, last_ordinal in memory_range.last.items()
            for first_block, first_ordinal in first.items()
        ):
            return memory_range
    return None


def rename_scratch_values(algorithm: Algorithm) -> Algorithm | None:
    """Return the algorithm with separate scratch for every value, so that steps wait less.

    A value of a unit of SCRATCH lasts from a write that does not depend on the old content
    (`_find_accesses`) to the next such write. Values that one access covers together move
    together. They are placed from unit 0 of each rank without gaps, in the order of their first
    accesses. Only offsets in SCRATCH, `scratch_units` and the dependencies change.

    Data dependencies are kept between steps that access no common unit of the old SCRATCH. Then
    each row depends on earlier rows that conflict in the new memory: in all buffers, in every mode
    (in place, out of place) of the collective. Control dependencies are dropped, also without
    SCRATCH. This is correct if the algorithm orders all conflicting steps.

    Returns None if there are too many accesses for this analysis (`find_accesses`). The argument is
    not changed.
    """
    columns = {name: getattr(algorithm.steps, name) for name in COLUMN_DTYPES}
    accesses = _find_accesses(columns)
    new_start, scratch_units = _place_values(accesses, algorithm.num_ranks)
    for side, is_side in (("src", ~accesses.is_write), ("dst", accesses.is_write)):
        offset = columns[f"{side}_offset"].copy()
        offset[accesses.row[is_side]] = new_start[is_side]
        columns[f"{side}_offset"] = offset
    # A step reads and writes one range of scratch each, possibly empty; those of two dependent
    # steps may overlap.
    steps = algorithm.steps
    begin, end = np.zeros((2, 2, len(steps)), np.int64)
    side_of_access = accesses.is_write.astype(np.int64)
    begin[side_of_access, accesses.row] = accesses.start
    end[side_of_access, accesses.row] = accesses.start + accesses.count
    parents, children = steps.data_edges
    is_shared = np.zeros(len(parents), np.bool_)
    for parent_side, child_side in product((0, 1), (0, 1)):
        first = np.maximum(begin[parent_side, parents], begin[child_side, children])
        is_shared |= first < np.minimum(end[parent_side, parents], end[child_side, children])
    # Dependencies as parent * rows + child.
    keys = [parents[~is_shared] * len(steps) + children[~is_shared]]
    collective, rank = algorithm.collective, columns["rank"].astype(np.int64)
    for in_place in list_claimed_modes(collective):
        base = collective.memory_layout(in_place, scratch_units).base
        # Every rank counts as one thread block, whose rows are in a possible order of execution.
        unit_accesses = find_accesses(columns, rank, base)
        if unit_accesses is None:
            return None
        parents, children = find_conflicts_within_blocks(unit_accesses)
        keys.append(parents * len(rank) + children)
    pairs = np.divmod(np.unique(np.concatenate(keys)), max(len(rank), 1))
    table = StepTable.from_columns(algorithm.num_ranks, columns, pairs)
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
    """List all accesses to SCRATCH: first the reads, then the writes, each in the order of rows.

    SEND, RECV_REDUCE, COPY and REDUCE read their source. RECV, RECV_REDUCE, COPY and REDUCE write
    their destination; for REDUCE this is one write, although it reads the destination too. A step
    that reads and writes SCRATCH has two accesses. `start` and `count` are in units.

    `is_defining` is True for a write that begins a new value, and False for reads. A write
    continues the old value if its step is a REDUCE, or if it reads a range of SCRATCH that overlaps
    the written range. Without accesses all columns are empty. `columns` are those of a step table.
    """
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
    """Return the new first unit of every access to SCRATCH, and the scratch units of every rank.

    Both are int64: one entry per access in the order of `accesses`, and one per rank. Accesses to a
    unit are ordered by row; in a row, the read precedes the write. A value of a unit begins with
    the first access, and with each access marked in `is_defining`. The following accesses of the
    unit use this value.

    Two accesses are in one range if they use a common value, directly or through other accesses.
    Accesses of a range keep their relative positions; ranges share no unit. The ranges of a rank
    are consecutive from unit 0, ordered by the lowest index in `accesses` of one of their accesses.
    An access of 0 units forms an empty range. A rank without accesses needs 0 units.
    """
    # One entry per access and unit, sorted by unit. The values of all units are numbered from 1.
    width = int((accesses.start + accesses.count).max(initial=0)) + 1
    access = group_of_entry(row_pointer(accesses.count))
    unit = expanded_ranges(accesses.rank * width + accesses.start, accesses.count)
    # A step reads before it writes.
    order = np.lexsort((accesses.is_write[access], accesses.row[access], unit))
    access = access[order]
    value = np.cumsum(run_mask(unit[order]) | accesses.is_defining[access])
    # Accesses that share a value, directly or transitively, are one group, numbered by its first
    # access.
    access_of_value = access[run_starts(value)]
    leaders = connected_parts(access, access_of_value[value - 1], len(accesses.row))
    _, group = np.unique(leaders, return_inverse=True)
    group = group.astype(np.int64).reshape(-1)
    size = int(group.max(initial=-1)) + 1
    low, high = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(low, group, accesses.start)
    np.maximum.at(high, group, accesses.start + accesses.count)
    rank = np.zeros(size, np.int64)
    rank[group] = accesses.rank
    by_rank = np.argsort(rank, kind="stable")
    end = np.cumsum((high - low)[by_rank])
    total = np.zeros(num_ranks, np.int64)
    np.add.at(total, rank, high - low)
    before_rank = first_positions(total)
    first = np.empty(size, np.int64)
    first[by_rank] = end - (high - low)[by_rank] - before_rank[rank[by_rank]]
    return accesses.start + (first - low)[group], total
