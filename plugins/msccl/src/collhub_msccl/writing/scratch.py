"""Allocate scratch by liveness: memory whose accesses are finished is reused.

Overlapping accesses share a segment of memory, and a segment moves as a unit. Segments are placed
in the order of their first access, each in the smallest range whose earlier accesses are finished,
by waits and block order, before the new ones begin; otherwise after all existing ranges. Invariant:
no waits are added. Cost: segments times the ranges tried, times the thread blocks that access them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from collhub_msccl.writing.draft import READS_SRC, WRITES_DST, StepDraft
from collhub_msccl.writing.emission_waits import Knowledge
from hub_core.columns import BoolArray, Int64Array, run_lengths
from hub_core.model import Buffer

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
    """Return the draft with SCRATCH segments moved, and the SCRATCH units that every rank then
    needs.

    `dropped_src`, `dropped_dst`: rows whose source (destination) is not accessed in the file.
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
    """SCRATCH units that every rank needs without moving any segment."""
    segments = _find_segments(draft, dropped_src, dropped_dst)
    total = np.zeros(draft.num_ranks, np.int64)
    np.maximum.at(total, segments.rank, segments.start + segments.size)
    return total


def _find_segments(
    draft: StepDraft,
    dropped_src: BoolArray,
    dropped_dst: BoolArray,
) -> _ScratchSegments:
    """Sort the accesses by address and separate them where none crosses the border."""
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
    """First unit of each segment after placement, and units of every rank."""
    lifetimes = _compute_lifetimes(segments, knowledge)
    total = [0] * num_ranks
    ranges: list[list[_ScratchRange]] = [[] for _ in range(num_ranks)]
    result = np.zeros(len(segments.start), np.int64)
    ranks, sizes = segments.rank.tolist(), segments.size.tolist()
    for segment in sorted(
        range(len(ranks)), key=lambda segment: (lifetimes[segment].time, segment)
    ):
        rank, size = ranks[segment], sizes[segment]
        memory_range = _find_free_range(ranges[rank], size, lifetimes[segment].first, knowledge)
        if memory_range is None:
            # None is free: append a range.
            memory_range = _ScratchRange(total[rank], size, {})
            total[rank] += size
            ranges[rank].append(memory_range)
        memory_range.last = lifetimes[segment].last
        result[segment] = memory_range.start
    return result, np.asarray(total, np.int64)


@dataclass(slots=True)
class _Lifetime:
    """First and last access of a segment by each block, and the time of the very first access."""

    first: dict[int, int]
    last: dict[int, int]
    time: int = _NEVER

    def add(
        self,
        block: int,
        ordinal: int,
        time: int,
    ) -> None:
        """Include an access."""
        self.first[block] = min(ordinal, self.first.get(block, ordinal))
        self.last[block] = max(ordinal, self.last.get(block, ordinal))
        self.time = min(time, self.time)


def _compute_lifetimes(segments: _ScratchSegments, knowledge: Knowledge) -> list[_Lifetime]:
    """Lifetime of every segment."""
    lifetimes = [_Lifetime({}, {}) for _ in range(len(segments.start))]
    steps = knowledge.step_of_row[segments.row]
    accesses = zip(
        segments.segment.tolist(),
        knowledge.block[steps].tolist(),
        knowledge.ordinal[steps].tolist(),
        knowledge.time[steps].tolist(),
        strict=True,
    )
    for segment, block, ordinal, time in accesses:
        lifetimes[segment].add(block, ordinal, time)
    return lifetimes


def _find_free_range(
    ranges: list[_ScratchRange],
    size: int,
    first: dict[int, int],
    knowledge: Knowledge,
) -> _ScratchRange | None:
    """Smallest range that is large enough and free before the accesses `first` begin; None if
    not found."""
    fitting = [memory_range for memory_range in ranges if memory_range.size >= size]
    fitting.sort(key=lambda memory_range: (memory_range.size, memory_range.start))
    for memory_range in fitting[:_MAX_RANGES_TRIED]:
        if _is_done(memory_range.last, first, knowledge):
            return memory_range
    return None


def _is_done(
    last: dict[int, int],
    first: dict[int, int],
    knowledge: Knowledge,
) -> bool:
    """Whether all of these last accesses are finished before any of these first ones begins."""
    return all(
        knowledge.is_before(last_block, last_ordinal, first_block, first_ordinal)
        for last_block, last_ordinal in last.items()
        for first_block, first_ordinal in first.items()
    )
