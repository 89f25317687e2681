"""Cut lanes into thread blocks, so that each keeps a runtime's limit of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, sorted_ordinals

from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.thread_blocks import Lanes


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Number of thread blocks that each lane becomes.

    `messages`: int64 per lane, counted at the ends of its connections; `local`: int64 per lane,
    blocks of their own for its local steps (0: they stay with the messages).
    """

    messages: Int64Array
    local: Int64Array

    @classmethod
    def none(cls, lanes: Lanes) -> Cuts:
        """One thread block a lane."""
        return cls(np.ones(lanes.size, np.int64), np.zeros(lanes.size, np.int64))

    @property
    def is_any(self) -> bool:
        """Whether any lane becomes several thread blocks."""
        return bool(np.any(self.messages > 1) or np.any(self.local > 0))


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Thread blocks sorted by (rank, lane, part)."""

    of_row: Int64Array  # per row

    # Per block: peers or -1, and the numbers of connection parts or -1.
    rank: Int64Array
    lane: Int64Array
    send: Int64Array
    recv: Int64Array
    incoming: Int64Array
    outgoing: Int64Array

    # Per part of a connection; the channel as the producer had it.
    source: Int64Array
    destination: Int64Array
    channel: Int64Array

    def __len__(self) -> int:
        return len(self.rank)

    def channel_of_block(self) -> Int64Array:
        """Channel of every thread block, 0 where it sends and receives nothing."""
        part = np.maximum(self.incoming, self.outgoing)
        # The appended 0 is what part -1 finds.
        return np.append(self.channel, 0)[part]


def cut_lanes(
    draft: StepDraft,
    lanes: Lanes,
    cuts: Cuts,
    position: Int64Array,
) -> Blocks:
    """Cut every lane.

    A connection is cut at the same messages at both ends, and each part gets its own channel: a
    connection must have one owner at each end. `position`: the order in which local steps are
    shared out.
    """
    connection, triples = draft.connections
    part = _message_parts(draft, lanes, cuts, connection)
    part = _with_local_parts(draft, lanes, cuts, part, position)
    width = int(part.max(initial=0)) + 1
    keys, number = np.unique(lanes.of_row * width + part, return_inverse=True)
    of_row = number.astype(np.int64).reshape(-1)
    # Lanes are numbered by rank, so blocks sort by rank too.
    rank = np.zeros(len(keys), np.int64)
    rank[of_row] = draft.rank
    pieces, piece_of_row = _connection_parts(connection, part, width)
    sends, receives = draft.sends, draft.receives
    source, destination, channel = triples[pieces].T
    return Blocks(
        of_row,
        rank,
        lane=keys // width,
        send=_of_blocks(of_row, sends, draft.peer, len(keys)),
        recv=_of_blocks(of_row, receives, draft.peer, len(keys)),
        incoming=_of_blocks(of_row, receives, piece_of_row, len(keys)),
        outgoing=_of_blocks(of_row, sends, piece_of_row, len(keys)),
        source=source,
        destination=destination,
        channel=channel,
    )


def _connection_parts(
    connection: Int64Array,
    part: Int64Array,
    width: int,
) -> tuple[Int64Array, Int64Array]:
    """The connection of every part of one, and the part of every row, -1 for local ones."""
    is_message = connection >= 0
    keys = connection[is_message] * width + part[is_message]
    known, number = np.unique(keys, return_inverse=True)
    of_row = np.full(len(connection), -1, np.int64)
    of_row[is_message] = number.reshape(-1)
    return known // width, of_row


def _of_blocks(
    of_row: Int64Array,
    side: BoolArray,
    column: Int64Array,
    size: int,
) -> Int64Array:
    """Value of `column` on one side of each block, whose rows agree; -1 for blocks without."""
    result = np.full(size, -1, np.int64)
    result[of_row[side]] = column[side]
    return result


def _message_parts(
    draft: StepDraft,
    lanes: Lanes,
    cuts: Cuts,
    connection: Int64Array,
) -> Int64Array:
    """Part of every message row, 0 for local ones.

    Its place among the messages of its connection, in as many parts as either lane asks for: both
    ends count alike, so they cut alike.
    """
    part = np.zeros(len(draft), np.int64)
    if not np.any(cuts.messages > 1):
        return part
    count = int(connection.max(initial=-1)) + 1
    parts = np.ones(count, np.int64)
    is_message = connection >= 0
    wanted = cuts.messages[lanes.of_row[is_message]]
    # A connection belongs to two lanes, at its two ends, and both must have place.
    np.maximum.at(parts, connection[is_message], wanted)
    for side in (draft.sends, draft.receives):
        rows = np.flatnonzero(side)
        rows = rows[np.argsort(connection[rows], kind="stable")]
        number = connection[rows]
        ordinal = sorted_ordinals(number)
        # Even shares: with fewer messages than parts, one message a part.
        total = np.bincount(number, minlength=count)
        share = np.minimum(parts, total)[number]
        part[rows] = ordinal * share // total[number]
    return part


def _with_local_parts(
    draft: StepDraft,
    lanes: Lanes,
    cuts: Cuts,
    part: Int64Array,
    position: Int64Array,
) -> Int64Array:
    """Local rows go with the message before them in their lane, or in turn to blocks of their own.

    Blocks of their own are numbered behind those of messages.
    """
    is_local = draft.partner < 0
    if not cuts.is_any or not is_local.any():
        return part
    order = np.lexsort((position, lanes.of_row))
    lane, local = lanes.of_row[order], is_local[order]
    first = np.searchsorted(lane, lane)
    own = _own_parts(lane, local, first, cuts)
    with_message = _parts_of_messages_before(part[order], local, first)
    wanted = np.where(own >= 0, own + int(part.max(initial=0)) + 1, with_message)
    part = part.copy()
    part[order[local]] = wanted[local]
    return part


def _own_parts(
    lane: Int64Array,
    local: BoolArray,
    first: Int64Array,
    cuts: Cuts,
) -> Int64Array:
    """Number of the block for local steps that each row goes to, -1 where its lane has none.

    All in order of lane and time; `first`: the first row of the lane. Meaningful at local rows.
    """
    number = np.cumsum(local)
    before_lane: Int64Array = (number - local)[first]
    ordinal = number - 1 - before_lane
    # No more blocks than there are steps for them.
    total = np.bincount(lane[local], minlength=len(cuts.local))
    blocks = np.minimum(cuts.local, total)[lane]
    own = ordinal * blocks // np.maximum(total[lane], 1)
    return np.where(blocks > 0, own, -1)


def _parts_of_messages_before(
    part: Int64Array,
    local: BoolArray,
    first: Int64Array,
) -> Int64Array:
    """The part of the last message up to each row, 0 before the first of its lane."""
    # Local rows point at the start of their lane, which never hides a message in it.
    candidates = np.where(local, first, np.arange(len(part)))
    latest = np.maximum.accumulate(candidates)
    return np.where(local[latest], 0, part[latest])
