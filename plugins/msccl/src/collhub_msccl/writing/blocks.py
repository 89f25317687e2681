"""Cut lanes into thread blocks within a runtime's limit of steps, and assign channels to them.

Channels are a greedy colouring. A thread block has one channel, so the connection that it receives
on and the one that it sends on must share a channel; such chains are groups. A channel fits a group
if no two connections between the same ranks share it and no rank has too many peers on it. Groups
are processed in order of their first connection. Cost: groups times channels tried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from collhub_msccl.runtimes.known_runtimes import MAX_BLOCKS_PER_CHANNEL
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
        """Return the channel of every thread block, int64; 0 if it neither sends nor receives.

        If its incoming and outgoing connection part have different channels, it is that of the one
        with the higher number.
        """
        part = np.maximum(self.incoming, self.outgoing)
        # Part -1 reads the appended 0.
        return np.append(self.channel, 0)[part]


def cut_lanes(
    draft: StepDraft,
    lanes: Lanes,
    cuts: Cuts,
    position: Int64Array,
) -> Blocks:
    """Cut every lane (a sequence of steps of one rank) into thread blocks; return these.

    First each row of a lane gets a part. Where rows are divided, each part gets consecutive
    ones, and the sizes differ by at most one.

    - Messages: a connection is divided equally on its two lanes. The number of parts is the
      larger of `cuts.messages` for both lanes, at most one per message.
    - Local rows with `cuts.local` above 0 for the lane: they are divided into this number of
      additional parts, at most one per row, in the order of `position` (int64 per row).
    - Other local rows: the part of the message before them in that order, else part 0.

    Each part with rows is one block. Blocks are sorted by lane (so by rank), then by part. Parts
    of connections are numbered by connection (in the order of `draft.connections`), then part.
    Each has the source, destination and channel of its connection. A block without sends has -1
    as `send` and `outgoing`, one without receives as `recv` and `incoming`. An empty draft gives
    no blocks.
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
    # Number the parts of connections that have a row; -1 for local rows.
    is_message = connection >= 0
    part_keys, part_number = np.unique(
        connection[is_message] * width + part[is_message], return_inverse=True
    )
    connection_part_of_row = np.full(len(draft), -1, np.int64)
    connection_part_of_row[is_message] = part_number.reshape(-1)
    source, destination, channel = triples[part_keys // width].T
    sends, receives = draft.sends, draft.receives
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


def _collect_per_block(
    of_row: Int64Array,
    side: BoolArray,
    column: Int64Array,
    size: int,
) -> Int64Array:
    """Return for each thread block the value of `column` in its selected rows; -1 without any.

    `of_row`: block of each row. `side`: mask of the selected rows, for example all sends; these
    must have the same value within a block. `size`: number of blocks.
    """
    result = np.full(size, -1, np.int64)
    result[of_row[side]] = column[side]
    return result


def _divide_messages(
    draft: StepDraft,
    lanes: Lanes,
    cuts: Cuts,
    connection: Int64Array,
) -> Int64Array:
    """Divide the messages of each connection into parts; return the part of every row: int64[rows].

    Local rows have 0. `connection`: connection of each row, -1 for local rows. The number of
    parts p of a connection is the larger of `cuts.messages` for its two lanes, but at most its
    number of messages m. Message i of the connection, counted from 0 in the order of rows, has
    part i * p // m. This is computed on each side, so the send and the receive of a message
    have the same part. Example: 5 messages in 2 parts have the parts 0, 0, 0, 1, 1. All parts
    are 0 if no lane is cut into more than one part for messages.
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
    """Assign a part of its lane to every local row; return the part of every row: int64[rows].

    A local row has no partner; all others are message rows, which keep their part in `part`. The
    values of `part` for local rows are ignored. The rows of a lane are taken by `position`.

    - If `cuts.local` of the lane is above 0, its m local rows are divided among b =
      min(`cuts.local`, m) separate parts. Local row i, from 0, gets the part i * b // m + 1 + the
      maximum of `part` over all lanes.
    - Otherwise a local row gets the part of the previous message row of its lane, or 0 if there
      is none.

    Returns `part` itself if no lane is cut (`cuts.is_any`) or if there are no local rows.
    Otherwise the result is a new array, and `part` is unchanged.
    """
    is_local = draft.partner < 0
    if not cuts.is_any or not is_local.any():
        return part
    order = np.lexsort((position, lanes.of_row))
    lane, local = lanes.of_row[order], is_local[order]
    first = np.searchsorted(lane, lane)
    # Number of the separate block for local steps of each row, -1 if its lane has none.
    number = np.cumsum(local)
    before_lane: Int64Array = (number - local)[first]
    ordinal = number - 1 - before_lane
    # At most one block per local step.
    total = np.bincount(lane[local], minlength=len(cuts.local))
    blocks = np.minimum(cuts.local, total)[lane]
    block_number = ordinal * blocks // np.maximum(total[lane], 1)
    local_part = np.where(blocks > 0, block_number, -1)
    # Part of the latest message up to each row; 0 before the first message of its lane. Local rows
    # refer to the start of their lane, which never hides a message of the lane.
    candidates = np.where(local, first, np.arange(len(part)))
    latest = np.maximum.accumulate(candidates)
    with_message = np.where(local[latest], 0, part[order][latest])
    target_part = np.where(local_part >= 0, local_part + int(part.max(initial=0)) + 1, with_message)
    part = part.copy()
    part[order[local]] = target_part[local]
    return part


Pair = tuple[int, int]  # (source, destination)
Side = tuple[int, str]  # (rank, "send" or "recv")


@dataclass(slots=True)
class _Group:
    """Connection parts that must share a channel, their pairs of ranks, and peers per rank and
    side."""

    members: list[int]
    pairs: set[Pair]
    peer_counts: Counter[Side]

    @classmethod
    def from_part(cls, part: int, pair: Pair) -> _Group:
        """Build the group of a single connection part between two ranks.

        A group contains parts of connections that must share a channel. `pair`: (source,
        destination). The source counts one peer in direction "send", the destination one in
        direction "recv".
        """
        source, destination = pair
        peer_counts = Counter({(source, "send"): 1, (destination, "recv"): 1})
        return cls([part], {pair}, peer_counts)

    def has_conflict(self, other: _Group) -> bool:
        """Return whether two groups of connection parts cannot share a channel.

        True in these two cases:

        - Both groups have a part with the same source and the same destination.
        - A rank of the groups would have more than `MAX_BLOCKS_PER_CHANNEL` (32) peers in one
          direction (send or receive). Its peers in both groups are added. Exactly 32 are allowed.

        The order of the two groups does not matter, and neither is changed.
        """
        if not self.pairs.isdisjoint(other.pairs):
            return True
        # Only ranks in both groups can exceed the limit.
        small, large = sorted((self, other), key=lambda group: len(group.peer_counts))
        return any(
            number + large.peer_counts[side] > MAX_BLOCKS_PER_CHANNEL
            for side, number in small.peer_counts.items()
        )

    def add(self, other: _Group) -> None:
        """Add the members, the pairs of ranks and the peer counts of another group to this one.

        `other` is not changed.
        """
        self.members += other.members
        self.pairs |= other.pairs
        self.peer_counts += other.peer_counts


@dataclass(slots=True)
class _ChannelUse:
    """Assigned channels by pair of ranks, and number of peers by rank, side and channel."""

    channels: dict[Pair, set[int]] = field(default_factory=lambda: defaultdict(set))
    peers: dict[Side, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def is_free(self, channel: int, group: _Group) -> bool:
        """Return whether all connection parts of a group can use a channel.

        They can if none of its (source, destination) pairs uses the channel yet and no rank gets
        more than `MAX_BLOCKS_PER_CHANNEL` peers on it per direction. No channel is recorded.
        """
        if any(channel in self.channels[pair] for pair in group.pairs):
            return False
        return all(
            self.peers[side][channel] + more <= MAX_BLOCKS_PER_CHANNEL
            for side, more in group.peer_counts.items()
        )

    def add(self, channel: int, group: _Group) -> None:
        """Record that a group of connection parts uses a channel.

        The channel is added to those of each pair of ranks of the group, and the peers of the
        group to the counts of the channel. The caller has checked that the channel is free.
        """
        for pair in group.pairs:
            self.channels[pair].add(channel)
        for side, number in group.peer_counts.items():
            self.peers[side][channel] += number


def find_channels(blocks: Blocks, limit: int) -> tuple[Int64Array | None, Int64Array]:
    """Assign a channel from 0 to `limit` - 1 to each connection part of the thread blocks.

    Parts that must share a channel form groups (`_group_connections`). The groups get channels
    in the order of their first part, and no channel is changed later. A group gets the
    producer's channel of its first part (`blocks.channel`) if that is below `limit` and free.
    Otherwise it gets the lowest free channel. A channel is free for a group if:

    - no earlier group uses it for the same source and destination as a part of this group, and
    - no rank gets more than 32 (`MAX_BLOCKS_PER_CHANNEL`) parts that it sends on this channel,
      or more than 32 that it receives on it.

    Returns (channels, lanes). Channels are int64 per part; they are None if some group has no
    free channel. Lanes are int64, ascending and distinct: those with a block whose incoming and
    outgoing part cannot share a channel. They are complete even if the channels are None. For
    the assignment, such a block does not require equal channels.
    """
    groups, conflicting_blocks = _group_connections(blocks)
    # Reported even if channels do not suffice: separating comes first.
    parted = (
        np.unique(blocks.lane[conflicting_blocks]) if conflicting_blocks else np.zeros(0, np.int64)
    )
    channel = np.full(len(blocks.source), -1, np.int64)
    use = _ChannelUse()
    for group in groups:
        preferred = int(blocks.channel[group.members[0]])
        # The producer's channel first, so that imported files keep their channels.
        choices = [preferred, *range(limit)] if preferred < limit else list(range(limit))
        free_channel = next((number for number in choices if use.is_free(number, group)), None)
        if free_channel is None:
            return None, parted
        channel[group.members] = free_channel
        use.add(free_channel, group)
    return channel, parted


def _group_connections(blocks: Blocks) -> tuple[list[_Group], list[int]]:
    """Return the groups of connection parts that must share a channel, and conflicting blocks.

    A connection part has a pair (source rank, destination rank) and is used by thread blocks. Parts
    with equal pairs can exist. At first each part is a group. Thread blocks are taken in ascending
    order. A block that receives with one part and sends with another merges the two groups of these
    parts. It does nothing if it has only one part, or if both are in one group. It is conflicting,
    and the groups stay separate, if:

    - both groups have a part with the same pair, or
    - a rank would have more than 32 (`MAX_BLOCKS_PER_CHANNEL`) send or 32 receive parts.

    The groups are sorted by their first part, and their members ascend. Every part is in one group.
    The numbers of the conflicting blocks ascend.
    """
    pairs = zip(blocks.source.tolist(), blocks.destination.tolist(), strict=True)
    group_of = [_Group.from_part(part, pair) for part, pair in enumerate(pairs)]
    conflicting_blocks: list[int] = []
    connections = zip(blocks.incoming.tolist(), blocks.outgoing.tolist(), strict=True)
    for block, (incoming, outgoing) in enumerate(connections):
        # A block with one peer imposes no restriction.
        if incoming < 0 or outgoing < 0:
            continue
        incoming_group, outgoing_group = group_of[incoming], group_of[outgoing]
        if incoming_group is outgoing_group:
            continue
        if incoming_group.has_conflict(outgoing_group):
            conflicting_blocks.append(block)
        else:
            # Merge the smaller group into the larger one.
            into, group = incoming_group, outgoing_group
            if len(into.members) < len(group.members):
                into, group = group, into
            into.add(group)
            for member in group.members:
                group_of[member] = into
    # Distinct groups in the order of their first member.
    groups: dict[int, _Group] = {}
    for group in group_of:
        groups.setdefault(id(group), group)
    for group in groups.values():
        group.members.sort()
    return list(groups.values()), conflicting_blocks
