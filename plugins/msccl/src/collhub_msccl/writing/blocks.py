"""Cut lanes into thread blocks, so that each respects the runtime's limit of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.thread_blocks import Lanes
from hub_core.columns import BoolArray, Int64Array, sorted_ordinals


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Number of thread blocks into which each lane is cut.

    `messages`: int64 per lane, blocks for its messages; `local`: int64 per lane, separate blocks
    for its local steps (0: they stay with the messages).
    """

    messages: Int64Array
    local: Int64Array

    @classmethod
    def build_uncut(cls, lanes: Lanes) -> Cuts:
        """Cuts with one thread block per lane."""
        return cls(np.ones(lanes.size, np.int64), np.zeros(lanes.size, np.int64))

    @property
    def is_any(self) -> bool:
        """Whether any lane is cut into several thread blocks."""
        return bool(np.any(self.messages > 1) or np.any(self.local > 0))


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Thread blocks sorted by (rank, lane, part).

    `of_row`: block of each row.
    """

    of_row: Int64Array  # per row

    # Per block: peers or -1, and numbers of the connection parts or -1.
    rank: Int64Array
    lane: Int64Array
    send: Int64Array
    recv: Int64Array
    incoming: Int64Array
    outgoing: Int64Array

    # Per part of a connection; the producer's channel.
    source: Int64Array
    destination: Int64Array
    channel: Int64Array

    def __len__(self) -> int:
        return len(self.rank)

    def find_channels_of_blocks(self) -> Int64Array:
        """Channel of every thread block, 0 if it neither sends nor receives."""
        part = np.maximum(self.incoming, self.outgoing)
        # Part -1 reads the appended 0.
        return np.append(self.channel, 0)[part]


def cut_lanes(
    draft: StepDraft,
    lanes: Lanes,
    cuts: Cuts,
    position: Int64Array,
) -> Blocks:
    """Cut every lane into the thread blocks given by `cuts`.

    A connection is cut at the same messages on both sides, and each part gets a separate channel,
    because a connection must have one owner on each side. `position`: int64 per row, order in which
    local steps are distributed.
    """
    connection, triples = draft.connections
    part = _divide_messages(draft, lanes, cuts, connection)
    part = _divide_local_rows(draft, lanes, cuts, part, position)
    width = int(part.max(initial=0)) + 1
    keys, number = np.unique(lanes.of_row * width + part, return_inverse=True)
    of_row = number.astype(np.int64).reshape(-1)
    # Lanes are numbered by rank, so blocks are sorted by rank too.
    rank = np.zeros(len(keys), np.int64)
    rank[of_row] = draft.rank
    connection_of_part, connection_part_of_row = _number_connection_parts(connection, part, width)
    sends, receives = draft.sends, draft.receives
    source, destination, channel = triples[connection_of_part].T
    return Blocks(
        of_row,
        rank,
        lane=keys // width,
        send=_collect_per_block(of_row, sends, draft.peer, len(keys)),
        recv=_collect_per_block(of_row, receives, draft.peer, len(keys)),
        incoming=_collect_per_block(of_row, receives, connection_part_of_row, len(keys)),
        outgoing=_collect_per_block(of_row, sends, connection_part_of_row, len(keys)),
        source=source,
        destination=destination,
        channel=channel,
    )


def _number_connection_parts(
    connection: Int64Array,
    part: Int64Array,
    width: int,
) -> tuple[Int64Array, Int64Array]:
    """Connection of every connection part, and part of every row (-1 for local rows)."""
    is_message = connection >= 0
    keys = connection[is_message] * width + part[is_message]
    known, number = np.unique(keys, return_inverse=True)
    of_row = np.full(len(connection), -1, np.int64)
    of_row[is_message] = number.reshape(-1)
    return known // width, of_row


def _collect_per_block(
    of_row: Int64Array,
    side: BoolArray,
    column: Int64Array,
    size: int,
) -> Int64Array:
    """Value of `column` for each block, taken from its rows in `side`; -1 for blocks without
    such rows."""
    result = np.full(size, -1, np.int64)
    result[of_row[side]] = column[side]
    return result


def _divide_messages(
    draft: StepDraft,
    lanes: Lanes,
    cuts: Cuts,
    connection: Int64Array,
) -> Int64Array:
    """Part of every message row, 0 for local rows.

    The messages of a connection are divided evenly into the larger number of parts that its two
    lanes request. Both sides count messages equally, so they are cut at the same messages.
    """
    part = np.zeros(len(draft), np.int64)
    if not np.any(cuts.messages > 1):
        return part
    count = int(connection.max(initial=-1)) + 1
    parts = np.ones(count, np.int64)
    is_message = connection >= 0
    requested = cuts.messages[lanes.of_row[is_message]]
    # A connection belongs to two lanes, one on each side; the larger number of cuts counts.
    np.maximum.at(parts, connection[is_message], requested)
    for side in (draft.sends, draft.receives):
        rows = np.flatnonzero(side)
        rows = rows[np.argsort(connection[rows], kind="stable")]
        number = connection[rows]
        ordinal = sorted_ordinals(number)
        # Even division; with fewer messages than parts, one message per part.
        total = np.bincount(number, minlength=count)
        share = np.minimum(parts, total)[number]
        part[rows] = ordinal * share // total[number]
    return part


def _divide_local_rows(
    draft: StepDraft,
    lanes: Lanes,
    cuts: Cuts,
    part: Int64Array,
    position: Int64Array,
) -> Int64Array:
    """Return `part` with the parts of local rows filled in.

    A local row belongs to the part of the previous message of its lane, or to one of the lane's
    separate blocks for local steps, which are numbered after those of messages.
    """
    is_local = draft.partner < 0
    if not cuts.is_any or not is_local.any():
        return part
    order = np.lexsort((position, lanes.of_row))
    lane, local = lanes.of_row[order], is_local[order]
    first = np.searchsorted(lane, lane)
    local_part = _assign_local_blocks(lane, local, first, cuts)
    with_message = _find_preceding_parts(part[order], local, first)
    target_part = np.where(local_part >= 0, local_part + int(part.max(initial=0)) + 1, with_message)
    part = part.copy()
    part[order[local]] = target_part[local]
    return part


def _assign_local_blocks(
    lane: Int64Array,
    local: BoolArray,
    first: Int64Array,
    cuts: Cuts,
) -> Int64Array:
    """Number of the separate block for local steps of each row, -1 if its lane has none.

    Arrays are sorted by lane and time; `first`: index of the first row of the lane. The result is
    valid only for local rows.
    """
    number = np.cumsum(local)
    before_lane: Int64Array = (number - local)[first]
    ordinal = number - 1 - before_lane
    # At most one block per local step.
    total = np.bincount(lane[local], minlength=len(cuts.local))
    blocks = np.minimum(cuts.local, total)[lane]
    block_number = ordinal * blocks // np.maximum(total[lane], 1)
    return np.where(blocks > 0, block_number, -1)


def _find_preceding_parts(
    part: Int64Array,
    local: BoolArray,
    first: Int64Array,
) -> Int64Array:
    """Part of the latest message up to each row; 0 before the first message of its lane."""
    # Local rows refer to the start of their lane, which never hides a message of the lane.
    candidates = np.where(local, first, np.arange(len(part)))
    latest = np.maximum.accumulate(candidates)
    return np.where(local[latest], 0, part[latest])
