"""Allocate scratch by liveness: what no step touches is dropped, and what is done with makes room for what comes later."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_msccl.writing.draft import READS_SRC, WRITES_DST, StepDraft
from collhub_msccl.writing.emission_waits import Knowledge
from hub_core.collectives import Buffer

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MOST_TRIES = 64


@dataclass(frozen=True, slots=True)
class _ScratchPieces:
    """Accesses to SCRATCH sorted by (rank, offset): `row`, `is_source`, and `piece`, the number of the piece of memory that
    overlapping accesses have in common. `start`, `size`, `rank`: int64 per piece, sorted likewise."""

    row: Int64Array
    is_source: BoolArray
    piece: Int64Array
    start: Int64Array
    size: Int64Array
    rank: Int64Array


def allocated(
    draft: StepDraft, dropped_src: BoolArray, dropped_dst: BoolArray, knowledge: Knowledge
) -> tuple[StepDraft, Int64Array]:
    """Move the pieces of SCRATCH, and return the units that every rank then needs.

    `dropped_src`, `dropped_dst`: rows whose source (destination) no step of the file touches. A piece moves to where
    another one stood if all accesses to that one happen before, by waits and the order within thread blocks.
    """
    accesses = _find(draft, dropped_src, dropped_dst)
    place, total = _places(accesses, knowledge, draft.num_ranks)
    shift = (place - accesses.start)[accesses.piece]
    columns = {}
    for side, is_here in (("src_offset", accesses.is_source), ("dst_offset", ~accesses.is_source)):
        columns[side] = getattr(draft, side).copy()
        columns[side][accesses.row[is_here]] += shift[is_here]
    return replace(draft, **columns), total


def touched(draft: StepDraft, dropped_src: BoolArray, dropped_dst: BoolArray) -> Int64Array:
    """Units of SCRATCH that every rank needs where nothing moves."""
    accesses = _find(draft, dropped_src, dropped_dst)
    total = np.zeros(draft.num_ranks, np.int64)
    np.maximum.at(total, accesses.rank, accesses.start + accesses.size)
    return total


def _find(draft: StepDraft, dropped_src: BoolArray, dropped_dst: BoolArray) -> _ScratchPieces:
    reads = np.flatnonzero(
        draft.is_kind(*READS_SRC) & (draft.src_buffer == Buffer.SCRATCH) & ~dropped_src
    )
    writes = np.flatnonzero(
        draft.is_kind(*WRITES_DST) & (draft.dst_buffer == Buffer.SCRATCH) & ~dropped_dst
    )
    row = np.concatenate([reads, writes])
    is_source = np.arange(len(row)) < len(reads)
    offset = np.where(is_source, draft.src_offset[row], draft.dst_offset[row])
    width = int((offset + draft.count[row]).max(initial=0)) + 1
    first = draft.rank[row] * width + offset
    order = np.argsort(first, kind="stable")
    row, is_source, first = row[order], is_source[order], first[order]
    reach = np.maximum.accumulate(first + draft.count[row])
    is_new = np.append(True, first[1:] >= reach[:-1])[: len(row)]
    starts = np.flatnonzero(is_new)
    ends = np.append(starts[1:], len(row))[: len(starts)] - 1
    rank, start = np.divmod(first[starts], width)
    return _ScratchPieces(
        row, is_source, np.cumsum(is_new) - 1, start, reach[ends] - first[starts], rank
    )


@dataclass(slots=True)
class _ScratchStretch:
    """A stretch of a rank's scratch and the last accesses to what stood there: {block: ordinal}."""

    start: int
    size: int
    last: dict[int, int]


def _places(
    accesses: _ScratchPieces, knowledge: Knowledge, num_ranks: int
) -> tuple[Int64Array, Int64Array]:
    """Where each piece goes, and the units of every rank."""
    first, last, time = _lives(accesses, knowledge)
    total = [0] * num_ranks
    places: list[list[_ScratchStretch]] = [[] for _ in range(num_ranks)]
    result = np.zeros(len(accesses.start), np.int64)
    columns = (column.tolist() for column in (accesses.rank, accesses.size))
    ranks, sizes = columns
    for piece in sorted(range(len(ranks)), key=lambda piece: (time[piece], piece)):
        rank, size = ranks[piece], sizes[piece]
        place = _free_place(places[rank], size, first[piece], knowledge)
        if place is None:
            place = _ScratchStretch(total[rank], size, {})
            total[rank] += size
            places[rank].append(place)
        place.last = last[piece]
        result[piece] = place.start
    return result, np.asarray(total, np.int64)


def _lives(
    accesses: _ScratchPieces, knowledge: Knowledge
) -> tuple[list[dict[int, int]], list[dict[int, int]], list[int]]:
    """Of every piece the first and the last access of each thread block, and when the first of all is."""
    count = len(accesses.start)
    first: list[dict[int, int]] = [{} for _ in range(count)]
    last: list[dict[int, int]] = [{} for _ in range(count)]
    time = [2**62] * count
    steps = knowledge.step_of_row[accesses.row]
    columns = (
        accesses.piece,
        knowledge.block[steps],
        knowledge.ordinal[steps],
        knowledge.time[steps],
    )
    for piece, block, ordinal, when in zip(*(column.tolist() for column in columns), strict=True):
        first[piece][block] = min(ordinal, first[piece].get(block, ordinal))
        last[piece][block] = max(ordinal, last[piece].get(block, ordinal))
        time[piece] = min(when, time[piece])
    return first, last, time


def _free_place(
    places: list[_ScratchStretch], size: int, first: dict[int, int], knowledge: Knowledge
) -> _ScratchStretch | None:
    """A place that is large enough and that all accesses before are done with when the new ones begin; tight ones first."""
    fitting = sorted(
        (place for place in places if place.size >= size),
        key=lambda place: (place.size, place.start),
    )
    for place in fitting[:_MOST_TRIES]:
        if all(
            knowledge.is_before(there, at, here, start)
            for there, at in place.last.items()
            for here, start in first.items()
        ):
            return place
    return None
