"""Check the thread blocks and channels that a program assigns, and complete the channels.

Source of the rules: MSCCLang's manual thread block policy. Its first releases reset a thread block
to channel 0 at an operation without a channel, so that the two sides of a connection could differ
and hang. As in the maintained fork (Azure/msccl-tools), the first given channel applies to the
complete thread block here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from collhub_msccl.language.trace import OPERATION_FIELDS
from hub_core.columns import Int64Array
from hub_core.model import InputError, Location

Columns = dict[str, Int64Array]
RankBlock = tuple[int, int]
"""(rank, thread block)"""


def assign_blocks(columns: Columns, is_manual: bool, file: str) -> Columns:
    """Columns of operations with a channel everywhere.

    Thread blocks are kept only if the program assigns them (`is_manual`). A thread block has one
    send peer, one receive peer and one channel; a message without channel takes that of its thread
    blocks. Operations without thread block share one block of their rank. Raises `InputError` with
    the line of an operation that its thread block cannot execute.
    """
    if not is_manual:
        nowhere = np.full(len(columns["kind"]), -1, np.int64)
        channel = np.maximum(columns["channel"], 0)
        return columns | {"send_block": nowhere, "receive_block": nowhere, "channel": channel}
    columns = columns | _complete_blocks(columns)
    channel = _assign_channels(columns, file)
    return columns | {"channel": np.maximum(channel, 0)}


def _assign_channels(columns: Columns, file: str) -> Int64Array:
    """Channel of every operation, from the given channels of its thread blocks' messages."""
    assignment = _BlockAssignment(file)
    messages = list(_iterate_messages(columns))
    # Three rounds, because a later message may determine the channel of an earlier one.
    for message in messages:
        assignment.add(message)
    channel = columns["channel"].copy()
    for message in messages:
        channel[message.operation] = assignment.get_channel(message)
    for message in messages:
        assignment.connect(message, int(channel[message.operation]))
    return channel


def _complete_blocks(columns: Columns) -> Columns:
    """Columns of thread blocks.

    Operations without one get the first unused number of their rank.
    """
    sender, receiver = columns["src_rank"], columns["dst_rank"]
    send, receive = columns["send_block"], columns["receive_block"]
    # A local operation uses only its send block.
    is_message = sender != receiver
    ranks = int(max(sender.max(initial=0), receiver.max(initial=0))) + 1
    free = np.zeros(ranks, np.int64)
    np.maximum.at(free, sender, send + 1)
    np.maximum.at(free, receiver[is_message], receive[is_message] + 1)
    receive = np.where(receive < 0, free[receiver], receive)
    return {
        "send_block": np.where(send < 0, free[sender], send),
        "receive_block": np.where(is_message, receive, -1),
    }


@dataclass(frozen=True, slots=True)
class _BlockMessage:
    """A message: its operation's row, the thread blocks on both sides, the given channel, and
    line."""

    operation: int
    sender: RankBlock
    receiver: RankBlock
    channel: int
    line: int


def _iterate_messages(columns: Columns) -> Iterator[_BlockMessage]:
    """Yield the messages among the operations in program order."""
    rows = np.flatnonzero(columns["src_rank"] != columns["dst_rank"])
    table = np.stack([columns[name][rows] for name in OPERATION_FIELDS], axis=1)
    for operation, values in zip(rows.tolist(), table.tolist(), strict=True):
        row = dict(zip(OPERATION_FIELDS, values, strict=True))
        yield _BlockMessage(
            operation,
            sender=(row["src_rank"], row["send_block"]),
            receiver=(row["dst_rank"], row["receive_block"]),
            channel=row["channel"],
            line=row["line"],
        )


@dataclass(slots=True)
class _BlockAssignment:
    """Peers of thread blocks, and the sets of thread blocks that must share a channel.

    The sets are a union-find forest (`joined`); `channels` has the given channel of a set, by its
    root. Both sides of a message are in one set, because a connection has one channel. Cost: almost
    linear in the number of messages.
    """

    file: str
    send_peer: dict[RankBlock, int] = field(default_factory=dict)
    receive_peer: dict[RankBlock, int] = field(default_factory=dict)
    joined: dict[RankBlock, RankBlock] = field(default_factory=dict)
    channels: dict[RankBlock, int] = field(default_factory=dict)
    connections: dict[tuple[str, int, int, int], RankBlock] = field(default_factory=dict)

    def add(self, message: _BlockMessage) -> None:
        """Record a message's peers, and join the sets of its thread blocks.

        Raises `InputError` for conflicting peers or channels.
        """
        self._check_peers(message)
        sender_root, receiver_root = (
            self._find_root(message.sender),
            self._find_root(message.receiver),
        )
        channels = [
            self.channels[root] for root in (sender_root, receiver_root) if root in self.channels
        ]
        if message.channel >= 0:
            channels.append(message.channel)
        if len(set(channels)) > 1:
            words = " and ".join(map(str, sorted(set(channels))))
            self._refuse(message, message.sender, f"would need channels {words}")
        self.joined[receiver_root] = sender_root
        if channels:
            self.channels[sender_root] = channels[0]

    def _check_peers(self, message: _BlockMessage) -> None:
        """Record the peers of both thread blocks; raise `InputError` if they have others."""
        sender, receiver = message.sender, message.receiver
        for word, peers, block, (peer, _) in (
            ("sends to", self.send_peer, sender, receiver),
            ("receives from", self.receive_peer, receiver, sender),
        ):
            known = peers.setdefault(block, peer)
            if known != peer:
                conflict = f"{word} rank {known} already, and here rank {peer}"
                self._refuse(message, block, conflict)

    def get_channel(self, message: _BlockMessage) -> int:
        """Channel of a message; 0 if no message of its set gives one."""
        return self.channels.get(self._find_root(message.sender), 0)

    def connect(self, message: _BlockMessage, channel: int) -> None:
        """Record the connection of a message, which must belong to one thread block on each
        side."""
        source, destination = message.sender[0], message.receiver[0]
        for side, block in (("send", message.sender), ("receive", message.receiver)):
            owner = self.connections.setdefault((side, source, destination, channel), block)
            if owner != block:
                self._refuse(
                    message,
                    block,
                    f"{side}s on a connection of thread block {owner[1]}: "
                    f"rank {source} to {destination} on channel {channel}",
                )

    def _find_root(self, block: RankBlock) -> RankBlock:
        """Representative of the set of a thread block; shortens the path to it."""
        root = block
        while self.joined.get(root, root) != root:
            root = self.joined[root]
        # Every block on the path refers to the root from now on.
        while self.joined.get(block, block) != root:
            self.joined[block], block = root, self.joined.get(block, block)
        return root

    def _refuse(self, message: _BlockMessage, block: RankBlock, reason: str) -> NoReturn:
        """Raise `InputError` at a message's line, beginning with the text of the public
        compiler."""
        raise InputError(
            f"Illegal threadblock assignment: thread block {block[1]} of rank {block[0]} {reason}",
            location=Location(self.file, message.line if message.line > 0 else None),
            cure="a thread block has one peer to send to, one to receive from, and one channel",
            code="thread-block-assignment",
        )
