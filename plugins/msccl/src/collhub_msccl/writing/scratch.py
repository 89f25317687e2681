"""Allocate scratch by liveness: what is done with makes room for what comes later.

Overlapping accesses have a piece of memory in common, and a piece moves as a whole. Pieces are
placed in the order of their first access, each in the tightest place where all accesses before are
done, by waits and the order within thread blocks, when the new ones begin; else behind all others.
Invariant: no step waits for another one than before. Cost: pieces times the places that are tried,
times the thread blocks that touch them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from collhub_columns import BoolArray, Int64Array, run_lengths

from collhub_msccl.writing.draft import READS_SRC, WRITES_DST, StepDraft
from collhub_msccl.writing.emission_waits import Knowledge
from hub_core.model import Buffer

# Places that are tried for a piece: more would save little scratch and cost quadratic time.
_MOST_TRIES = 64
_NEVER = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class _ScratchPieces:
    """Accesses to SCRATCH sorted by (rank, offset), and the pieces of memory that they touch.

    Per access: `row`, `is_source`, and `piece`, the number of the piece that overlapping accesses
    have in common. Per piece, int64, sorted likewise: `start`, `size`, `rank`.
    """

    row: Int64Array
    is_source: BoolArray
    piece: Int64Array
    start: Int64Array
    size: Int64Array
    rank: Int64Array


def allocated(
    draft: StepDraft,
    dropped_src: BoolArray,
    dropped_dst: BoolArray,
    knowledge: Knowledge,
) -> tuple[StepDraft, Int64Array]:
    """Move the pieces of SCRATCH, and return the units that every rank then needs.

    `dropped_src`, `dropped_dst`: rows whose source (destination) no step of the file touches.
    """
    pieces = _find_pieces(draft, dropped_src, dropped_dst)
    place, total = _places(pieces, knowledge, draft.num_ranks)
    # An access moves with its piece.
    shift = (place - pieces.start)[pieces.piece]
    is_source = pieces.is_source
    src_offset, dst_offset = draft.src_offset.copy(), draft.dst_offset.copy()
    src_offset[pieces.row[is_source]] += shift[is_source]
    dst_offset[pieces.row[~is_source]] += shift[~is_source]
    return replace(draft, src_offset=src_offset, dst_offset=dst_offset), total


def touched(
    draft: StepDraft,
    dropped_src: BoolArray,
    dropped_dst: BoolArray,
) -> Int64Array:
    """Units of SCRATCH that every rank needs where nothing moves."""
    pieces = _find_pieces(draft, dropped_src, dropped_dst)
    total = np.zeros(draft.num_ranks, np.int64)
    np.maximum.at(total, pieces.rank, pieces.start + pieces.size)
    return total


def _find_pieces(
    draft: StepDraft,
    dropped_src: BoolArray,
    dropped_dst: BoolArray,
) -> _ScratchPieces:
    """Sort the accesses by address and cut them where none reaches over the border."""
    reads = draft.is_kind(*READS_SRC) & (draft.src_buffer == Buffer.SCRATCH) & ~dropped_src
    writes = draft.is_kind(*WRITES_DST) & (draft.dst_buffer == Buffer.SCRATCH) & ~dropped_dst
    read_rows, write_rows = np.flatnonzero(reads), np.flatnonzero(writes)
    row = np.concatenate([read_rows, write_rows])
    is_source = np.arange(len(row)) < len(read_rows)
    offset = np.where(is_source, draft.src_offset[row], draft.dst_offset[row])
    width = int((offset + draft.count[row]).max(initial=0)) + 1
    # One number for rank and address; width is beyond every address.
    first = draft.rank[row] * width + offset
    order = np.argsort(first, kind="stable")
    row, is_source, first = row[order], is_source[order], first[order]
    # The highest address of all accesses so far: a new piece starts at or beyond it.
    reach = np.maximum.accumulate(first + draft.count[row])
    is_new = np.ones(len(row), np.bool_)
    is_new[1:] = first[1:] >= reach[:-1]
    starts = np.flatnonzero(is_new)
    lasts = starts + run_lengths(starts, len(row)) - 1
    rank, start = np.divmod(first[starts], width)
    size = reach[lasts] - first[starts]
    return _ScratchPieces(row, is_source, np.cumsum(is_new) - 1, start, size, rank)


@dataclass(slots=True)
class _ScratchStretch:
    """A stretch of a rank's scratch and the last accesses to what stood there: {block: ordinal}."""

    start: int
    size: int
    last: dict[int, int]


def _places(
    pieces: _ScratchPieces,
    knowledge: Knowledge,
    num_ranks: int,
) -> tuple[Int64Array, Int64Array]:
    """First unit of each piece when placed, and units of every rank."""
    lives = _lives(pieces, knowledge)
    total = [0] * num_ranks
    stretches: list[list[_ScratchStretch]] = [[] for _ in range(num_ranks)]
    result = np.zeros(len(pieces.start), np.int64)
    ranks, sizes = pieces.rank.tolist(), pieces.size.tolist()
    for piece in sorted(range(len(ranks)), key=lambda piece: (lives[piece].time, piece)):
        rank, size = ranks[piece], sizes[piece]
        stretch = _free_stretch(stretches[rank], size, lives[piece].first, knowledge)
        if stretch is None:
            # None is free: behind all that there is.
            stretch = _ScratchStretch(total[rank], size, {})
            total[rank] += size
            stretches[rank].append(stretch)
        stretch.last = lives[piece].last
        result[piece] = stretch.start
    return result, np.asarray(total, np.int64)


@dataclass(slots=True)
class _Life:
    """Of a piece the first and the last access of each block, and when the first of all is."""

    first: dict[int, int]
    last: dict[int, int]
    time: int = _NEVER

    def add(
        self,
        block: int,
        ordinal: int,
        time: int,
    ) -> None:
        """Take an access into account."""
        self.first[block] = min(ordinal, self.first.get(block, ordinal))
        self.last[block] = max(ordinal, self.last.get(block, ordinal))
        self.time = min(time, self.time)


def _lives(pieces: _ScratchPieces, knowledge: Knowledge) -> list[_Life]:
    """The life of every piece."""
    lives = [_Life({}, {}) for _ in range(len(pieces.start))]
    steps = knowledge.step_of_row[pieces.row]
    accesses = zip(
        pieces.piece.tolist(),
        knowledge.block[steps].tolist(),
        knowledge.ordinal[steps].tolist(),
        knowledge.time[steps].tolist(),
        strict=True,
    )
    for piece, block, ordinal, time in accesses:
        lives[piece].add(block, ordinal, time)
    return lives


def _free_stretch(
    stretches: list[_ScratchStretch],
    size: int,
    first: dict[int, int],
    knowledge: Knowledge,
) -> _ScratchStretch | None:
    """A stretch that is large enough and free when the accesses `first` begin; tight ones first."""
    fitting = [stretch for stretch in stretches if stretch.size >= size]
    fitting.sort(key=lambda stretch: (stretch.size, stretch.start))
    for stretch in fitting[:_MOST_TRIES]:
        if _is_done(stretch.last, first, knowledge):
            return stretch
    return None


def _is_done(
    last: dict[int, int],
    first: dict[int, int],
    knowledge: Knowledge,
) -> bool:
    """Whether all of these last accesses are done before any of these first ones begins."""
    return all(
        knowledge.is_before(there, at, here, start)
        for there, at in last.items()
        for here, start in first.items()
    )
