"""Give connections channels: a greedy colouring within a runtime's limits.

Connections whose thread blocks send on one and receive on the other must have one channel, as a
thread block has one; such chains are groups. A channel serves a group if no two connections between
the same ranks share it and no rank has too many peers on it. Groups are taken in order of their
first connection. Cost: groups times channels tried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.runtimes.known_runtimes import MAX_BLOCKS_PER_CHANNEL
from collhub_msccl.writing.blocks import Blocks

Pair = tuple[int, int]  # (source, destination)
End = tuple[int, str]  # (rank, "send" or "recv")


@dataclass(slots=True)
class _Group:
    """Connection parts that must have one channel, and what they ask of it."""

    members: list[int]
    pairs: set[Pair]
    ends: Counter[End]

    @classmethod
    def of(cls, part: int, pair: Pair) -> _Group:
        """A connection part alone."""
        source, destination = pair
        ends = Counter({(source, "send"): 1, (destination, "recv"): 1})
        return cls([part], {pair}, ends)

    def clashes(self, other: _Group) -> bool:
        """Whether one channel cannot serve both.

        Two connections between the same ranks, or too many at one rank.
        """
        if not self.pairs.isdisjoint(other.pairs):
            return True
        # Only ranks of both groups can be crowded.
        small, large = sorted((self, other), key=lambda group: len(group.ends))
        return any(
            number + large.ends[end] > MAX_BLOCKS_PER_CHANNEL for end, number in small.ends.items()
        )

    def add(self, other: _Group) -> None:
        """Take over the other's members."""
        self.members += other.members
        self.pairs |= other.pairs
        self.ends += other.ends


@dataclass(slots=True)
class _ChannelUse:
    """Channels given so far: by pair of ranks, and number of peers by end and channel."""

    channels: dict[Pair, set[int]] = field(default_factory=lambda: defaultdict(set))
    peers: dict[End, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def is_free(self, channel: int, group: _Group) -> bool:
        """Whether a channel can serve a group."""
        if any(channel in self.channels[pair] for pair in group.pairs):
            return False
        return all(
            self.peers[end][channel] + more <= MAX_BLOCKS_PER_CHANNEL
            for end, more in group.ends.items()
        )

    def add(self, channel: int, group: _Group) -> None:
        """Record that a group has a channel."""
        for pair in group.pairs:
            self.channels[pair].add(channel)
        for end, number in group.ends.items():
            self.peers[end][channel] += number


def find_channels(blocks: Blocks, limit: int) -> tuple[Int64Array | None, Int64Array]:
    """Channels of the connection parts, each below `limit`.

    The producer's where possible, else the lowest free one. Returns them, or None where they do not
    suffice, and the lanes whose blocks cannot have one channel for both their ends, which then have
    to be parted.
    """
    groups, apart = _groups(blocks)
    # Told even where channels are too few: parting comes first.
    parted = np.unique(blocks.lane[apart]) if apart else np.zeros(0, np.int64)
    channel = np.full(len(blocks.source), -1, np.int64)
    use = _ChannelUse()
    for group in groups:
        wish = int(blocks.channel[group.members[0]])
        # The producer's first, so that imported files keep their channels.
        choices = [wish, *range(limit)] if wish < limit else list(range(limit))
        found = next((number for number in choices if use.is_free(number, group)), None)
        if found is None:
            return None, parted
        channel[group.members] = found
        use.add(found, group)
    return channel, parted


def _groups(blocks: Blocks) -> tuple[list[_Group], list[int]]:
    """Groups in the order of their first member, and the blocks whose two ends are not of one."""
    pairs = zip(blocks.source.tolist(), blocks.destination.tolist(), strict=True)
    group_of = [_Group.of(part, pair) for part, pair in enumerate(pairs)]
    apart: list[int] = []
    ends = zip(blocks.incoming.tolist(), blocks.outgoing.tolist(), strict=True)
    for block, (incoming, outgoing) in enumerate(ends):
        # A block with one peer ties nothing together.
        if incoming < 0 or outgoing < 0:
            continue
        one, other = group_of[incoming], group_of[outgoing]
        if one is other:
            continue
        if one.clashes(other):
            apart.append(block)
        else:
            _merge(one, other, group_of)
    return _in_order(group_of), apart


def _merge(
    one: _Group,
    other: _Group,
    group_of: list[_Group],
) -> None:
    """Make two groups one. The smaller moves, so that each part moves a few times only."""
    into, group = (other, one) if len(one.members) < len(other.members) else (one, other)
    into.add(group)
    for member in group.members:
        group_of[member] = into


def _in_order(group_of: list[_Group]) -> list[_Group]:
    """The distinct groups by their first member, members ascending."""
    groups: dict[int, _Group] = {}
    for group in group_of:
        groups.setdefault(id(group), group)
    for group in groups.values():
        group.members.sort()
    return list(groups.values())
