"""Cut lanes into thread blocks and give these channels, within a runtime's limits."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_msccl.runtimes.known_runtimes import BLOCKS_PER_CHANNEL
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.thread_blocks import Lanes

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cuts:
    """How many thread blocks a lane becomes: `messages` int64 per lane, counted at the ends of its connections; `local`
    int64 per lane, blocks of their own for its local steps (0: they stay with the messages)."""

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


@dataclass(frozen=True, slots=True)
class Blocks:
    """Thread blocks sorted by (rank, lane, part).

    `of_row`: int64 per row. Per block, int64: `rank`, `lane`, `send`, `recv` (peer or -1), `incoming`, `outgoing`: number
    of the connection's part or -1. Per part of a connection, int64: `source`, `destination`, `channel` as the producer
    had it.
    """

    of_row: Int64Array
    rank: Int64Array
    lane: Int64Array
    send: Int64Array
    recv: Int64Array
    incoming: Int64Array
    outgoing: Int64Array
    source: Int64Array
    destination: Int64Array
    channel: Int64Array

    def __len__(self) -> int:
        return len(self.rank)

    def channel_of_block(self) -> Int64Array:
        """Channel of every thread block, 0 where it sends and receives nothing."""
        part = np.maximum(self.incoming, self.outgoing)
        return np.append(self.channel, 0)[part]


def cut_lanes(draft: StepDraft, lanes: Lanes, cuts: Cuts, position: Int64Array) -> Blocks:
    """Cut every lane. A connection is cut at the same messages at both ends, and each part gets its own channel.

    `position`: the order in which local steps are shared out.
    """
    connection, triples = draft.connections
    part = _message_parts(draft, lanes, cuts, connection)
    part = _with_local_parts(draft, lanes, cuts, part, position)
    width = int(part.max(initial=0)) + 1
    keys, of_row = np.unique(lanes.of_row * width + part, return_inverse=True)
    of_row = of_row.astype(np.int64).reshape(-1)
    is_message = connection >= 0
    known, piece = np.unique(connection[is_message] * width + part[is_message], return_inverse=True)
    piece_of_row = np.full(len(draft), -1, np.int64)
    piece_of_row[is_message] = piece.reshape(-1)
    rank = np.zeros(len(keys), np.int64)
    rank[of_row] = draft.rank
    ends = np.full((4, len(keys)), -1, np.int64)
    for row, (side, column) in enumerate(
        (
            (draft.sends, draft.peer),
            (draft.receives, draft.peer),
            (draft.receives, piece_of_row),
            (draft.sends, piece_of_row),
        )
    ):
        ends[row, of_row[side]] = column[side]
    source, destination, channel = (
        triples[known // width].T if len(known) else np.zeros((3, 0), np.int64)
    )
    send, recv, incoming, outgoing = ends
    return Blocks(
        of_row, rank, keys // width, send, recv, incoming, outgoing, source, destination, channel
    )


def _message_parts(
    draft: StepDraft, lanes: Lanes, cuts: Cuts, connection: Int64Array
) -> Int64Array:
    """Part of every message row: its place among the messages of its connection, in as many parts as either lane asks for."""
    part = np.zeros(len(draft), np.int64)
    if not np.any(cuts.messages > 1):
        return part
    count = int(connection.max(initial=-1)) + 1
    parts = np.ones(count, np.int64)
    is_message = connection >= 0
    np.maximum.at(parts, connection[is_message], cuts.messages[lanes.of_row[is_message]])
    for side in (draft.sends, draft.receives):
        rows = np.flatnonzero(side)
        rows = rows[np.argsort(connection[rows], kind="stable")]
        number = connection[rows]
        ordinal = np.arange(len(rows)) - np.searchsorted(number, number)
        total = np.bincount(number, minlength=count)
        part[rows] = ordinal * np.minimum(parts, total)[number] // total[number]
    return part


def _with_local_parts(
    draft: StepDraft, lanes: Lanes, cuts: Cuts, part: Int64Array, position: Int64Array
) -> Int64Array:
    """Local rows go with the message before them in their lane, or in turn to the blocks of their own."""
    is_local = draft.partner < 0
    if not cuts.is_any or not is_local.any():
        return part
    order = np.lexsort((position, lanes.of_row))
    lane = lanes.of_row[order]
    local = is_local[order]
    start = np.searchsorted(lane, lane)
    latest = np.maximum.accumulate(np.where(local, start, np.arange(len(order))))
    with_message = np.where(local[latest], 0, part[order[latest]])
    ordinal = np.cumsum(local) - 1
    ordinal -= (np.cumsum(local) - local)[start]
    total = np.bincount(lane[local], minlength=lanes.size)
    blocks = np.minimum(cuts.local, total)[lane]
    own = int(part.max(initial=0)) + 1 + ordinal * blocks // np.maximum(total[lane], 1)
    part = part.copy()
    part[order[local]] = np.where(blocks > 0, own, with_message)[local]
    return part


@dataclass(slots=True)
class _Group:
    """Connection parts that must have one channel, as their thread blocks hang together; what each asks of the channel."""

    members: list[int]
    pairs: set[tuple[int, int]]
    ends: Counter[tuple[int, str]]

    def clashes(self, other: _Group) -> bool:
        """Whether one channel cannot serve both: two connections between the same ranks, or too many at one rank."""
        small, large = sorted((self, other), key=lambda group: len(group.ends))
        crowded = any(
            number + large.ends[end] > BLOCKS_PER_CHANNEL for end, number in small.ends.items()
        )
        return crowded or not self.pairs.isdisjoint(other.pairs)

    def add(self, other: _Group) -> None:
        """Take over the other's members."""
        self.members += other.members
        self.pairs |= other.pairs
        self.ends += other.ends


def find_channels(blocks: Blocks, limit: int) -> tuple[Int64Array | None, Int64Array]:
    """Channels of the connection parts, each below `limit`: the producer's where possible, else the lowest free one.

    Returns them, or None where they do not suffice, and the lanes whose blocks cannot have one channel for both
    their ends, which then have to be parted.
    """
    groups, apart = _groups(blocks)
    parted = np.unique(blocks.lane[apart]) if apart else np.zeros(0, np.int64)
    channel = np.full(len(blocks.source), -1, np.int64)
    used: dict[tuple[int, int], set[int]] = defaultdict(set)
    load: dict[tuple[int, str], Counter[int]] = defaultdict(Counter)
    for group in groups:
        wish = int(blocks.channel[group.members[0]])
        choices = [wish, *range(limit)] if wish < limit else list(range(limit))
        found = next((number for number in choices if _is_free(number, group, used, load)), None)
        if found is None:
            return None, parted
        channel[group.members] = found
        for pair in group.pairs:
            used[pair].add(found)
        for end, number in group.ends.items():
            load[end][found] += number
    return channel, parted


def _is_free(
    number: int,
    group: _Group,
    used: dict[tuple[int, int], set[int]],
    load: dict[tuple[int, str], Counter[int]],
) -> bool:
    is_crowded = any(
        load[end][number] + more > BLOCKS_PER_CHANNEL for end, more in group.ends.items()
    )
    return not is_crowded and all(number not in used[pair] for pair in group.pairs)


def _groups(blocks: Blocks) -> tuple[list[_Group], list[int]]:
    """Groups of connection parts in the order of their first one, and the blocks whose two ends cannot be of one group."""
    pairs = list(zip(blocks.source.tolist(), blocks.destination.tolist(), strict=True))
    group_of = [
        _Group([part], {pair}, Counter({(pair[0], "send"): 1, (pair[1], "recv"): 1}))
        for part, pair in enumerate(pairs)
    ]
    apart: list[int] = []
    for block, (one, other) in enumerate(
        zip(blocks.incoming.tolist(), blocks.outgoing.tolist(), strict=True)
    ):
        if one < 0 or other < 0 or group_of[one] is group_of[other]:
            continue
        into, group = group_of[one], group_of[other]
        if into.clashes(group):
            apart.append(block)
            continue
        if len(into.members) < len(group.members):
            into, group = group, into
        into.add(group)
        for member in group.members:
            group_of[member] = into
    firsts = {id(group): min(group.members) for group in group_of}
    unique = {firsts[id(group)]: group for group in group_of}
    for first, group in unique.items():
        group.members.sort(key=lambda part: (part != first, part))
    return [unique[first] for first in sorted(unique)], apart
