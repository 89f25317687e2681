"""Assign channels to connections: a greedy colouring within the limits of a runtime.

A thread block has one channel, so the connection that it receives on and the one that it sends on
must share a channel; such chains are groups. A channel fits a group if no two connections between
the same ranks share it and no rank has too many peers on it. Groups are processed in order of their
first connection. Cost: groups times channels tried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from collhub_msccl.runtimes.known_runtimes import MAX_BLOCKS_PER_CHANNEL
from collhub_msccl.writing.blocks import Blocks
from hub_core.columns import Int64Array

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
        """Group of a single connection part."""
        source, destination = pair
        peer_counts = Counter({(source, "send"): 1, (destination, "recv"): 1})
        return cls([part], {pair}, peer_counts)

    def has_conflict(self, other: _Group) -> bool:
        """Whether the groups cannot share a channel.

        They cannot if both connect the same ranks, or if a rank would have too many peers.
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
        """Add the members of another group."""
        self.members += other.members
        self.pairs |= other.pairs
        self.peer_counts += other.peer_counts


@dataclass(slots=True)
class _ChannelUse:
    """Assigned channels by pair of ranks, and number of peers by rank, side and channel."""

    channels: dict[Pair, set[int]] = field(default_factory=lambda: defaultdict(set))
    peers: dict[Side, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def is_free(self, channel: int, group: _Group) -> bool:
        """Whether a channel fits a group."""
        if any(channel in self.channels[pair] for pair in group.pairs):
            return False
        return all(
            self.peers[side][channel] + more <= MAX_BLOCKS_PER_CHANNEL
            for side, more in group.peer_counts.items()
        )

    def add(self, channel: int, group: _Group) -> None:
        """Record that a group uses a channel."""
        for pair in group.pairs:
            self.channels[pair].add(channel)
        for side, number in group.peer_counts.items():
            self.peers[side][channel] += number


def find_channels(blocks: Blocks, limit: int) -> tuple[Int64Array | None, Int64Array]:
    """Channels of the connection parts (int64, each below `limit`), and lanes to be separated.

    Prefers the producer's channel, else the lowest free one; None if channels do not suffice. The
    second result are the lanes whose blocks cannot use one channel for both directions.
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
    """Return groups of connections that must share a channel, and the blocks in conflict.

    The incoming and outgoing connection of a block share one channel. Groups are in the order of
    their first member. A block is in conflict if its two groups connect the same two ranks, or
    together give a rank too many peers; its groups remain separate.
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
            _merge(incoming_group, outgoing_group, group_of)
    return _sort_groups(group_of), conflicting_blocks


def _merge(
    first: _Group,
    second: _Group,
    group_of: list[_Group],
) -> None:
    """Merge two groups and update `group_of`.

    The smaller group moves, so that each part moves rarely.
    """
    is_first_smaller = len(first.members) < len(second.members)
    into, group = (second, first) if is_first_smaller else (first, second)
    into.add(group)
    for member in group.members:
        group_of[member] = into


def _sort_groups(group_of: list[_Group]) -> list[_Group]:
    """Distinct groups in the order of their first member; members are sorted ascending in place."""
    groups: dict[int, _Group] = {}
    for group in group_of:
        groups.setdefault(id(group), group)
    for group in groups.values():
        group.members.sort()
    return list(groups.values())
