"""Check the thread blocks and channels that a program states, and complete the channels.

Source of the rules: MSCCLang's manual thread block policy. Where its first releases set a thread
block whose operation states no channel back to channel 0, so that the two ends of a connection
might differ and hang, the channel that is stated first holds for the whole thread block, as in the
maintained fork (Azure/msccl-tools).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.language.trace import OPERATION_FIELDS
from hub_core.model import InputError, Location

Columns = dict[str, Int64Array]
RankBlock = tuple[int, int]
"""(rank, thread block)"""


def stated_blocks(columns: Columns, is_manual: bool, file: str) -> Columns:
    """The columns of operations with a channel everywhere.

    Thread blocks are there only where the program assigns them (`is_manual`). A thread block has
    one send peer, one receive peer and one channel; a message that states no channel takes that of
    its thread blocks. Operations without thread block share a block of their rank. Raises
    `InputError` with the line of an operation that its thread block cannot execute.
    """
    if not is_manual:
        nowhere = np.full(len(columns["kind"]), -1, np.int64)
        channel = np.maximum(columns["channel"], 0)
        return columns | {"send_block": nowhere, "receive_block": nowhere, "channel": channel}
    columns = columns | _named_blocks(columns)
    channel = _channels(columns, file)
    return columns | {"channel": np.maximum(channel, 0)}


def _channels(columns: Columns, file: str) -> Int64Array:
    """Channel of every operation, by those that its thread blocks' messages state."""
    assignment = _BlockAssignment(file)
    messages = list(_messages(columns))
    # Three rounds: a later message may give an earlier one its channel.
    for message in messages:
        assignment.add(message)
    channel = columns["channel"].copy()
    for message in messages:
        channel[message.operation] = assignment.channel(message)
    for message in messages:
        assignment.connect(message, int(channel[message.operation]))
    return channel


def _named_blocks(columns: Columns) -> Columns:
    """Thread blocks, where what has none gets the first number that its rank leaves free."""
    sender, receiver = columns["src_rank"], columns["dst_rank"]
    send, receive = columns["send_block"], columns["receive_block"]
    # A local operation runs in its send block alone.
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
    """A message by its operation's row, the thread blocks at both ends, stated channel and line."""

    operation: int
    sender: RankBlock
    receiver: RankBlock
    channel: int
    line: int


def _messages(columns: Columns) -> Iterator[_BlockMessage]:
    """The messages among the operations, in the order of the program."""
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
    """Peers of thread blocks, and which of them share a channel because a message joins them.

    Thread blocks that share a channel are a set of a union-find forest (`joined`); `channels` has
    the channel of the root of a set where one is stated. Both ends of a message are in one set, so
    that a connection has one channel. Work is close to linear in the number of messages.
    """

    file: str
    send_peer: dict[RankBlock, int] = field(default_factory=dict)
    receive_peer: dict[RankBlock, int] = field(default_factory=dict)
    joined: dict[RankBlock, RankBlock] = field(default_factory=dict)
    channels: dict[RankBlock, int] = field(default_factory=dict)
    connections: dict[tuple[str, int, int, int], RankBlock] = field(default_factory=dict)

    def add(self, message: _BlockMessage) -> None:
        """Take a message's peers, and join its thread blocks."""
        self._check_peers(message)
        one, other = self._root(message.sender), self._root(message.receiver)
        found = [self.channels[root] for root in (one, other) if root in self.channels]
        if message.channel >= 0:
            found.append(message.channel)
        if len(set(found)) > 1:
            words = " and ".join(map(str, sorted(set(found))))
            self._refuse(message, message.sender, f"would need channels {words}")
        self.joined[other] = one
        if found:
            self.channels[one] = found[0]

    def _check_peers(self, message: _BlockMessage) -> None:
        sender, receiver = message.sender, message.receiver
        for word, peers, block, (peer, _) in (
            ("sends to", self.send_peer, sender, receiver),
            ("receives from", self.receive_peer, receiver, sender),
        ):
            known = peers.setdefault(block, peer)
            if known != peer:
                what = f"{word} rank {known} already, and here rank {peer}"
                self._refuse(message, block, what)

    def channel(self, message: _BlockMessage) -> int:
        """The channel of a message.

        0 where no message of its thread blocks states one.
        """
        return self.channels.get(self._root(message.sender), 0)

    def connect(self, message: _BlockMessage, channel: int) -> None:
        """Take the connection of a message, which belongs to one thread block on each side."""
        source, destination = message.sender[0], message.receiver[0]
        for side, block in (("send", message.sender), ("receive", message.receiver)):
            owner = self.connections.setdefault((side, source, destination, channel), block)
            if owner != block:
                self._refuse(
                    message,
                    block,
                    f"{side}s what thread block {owner[1]} {side}s too: "
                    f"rank {source} to {destination} on channel {channel}",
                )

    def _root(self, block: RankBlock) -> RankBlock:
        """The thread block that stands for all that share a channel with this one."""
        root = block
        while self.joined.get(root, root) != root:
            root = self.joined[root]
        # Every block on the way points to the root from now on.
        while self.joined.get(block, block) != root:
            self.joined[block], block = root, self.joined.get(block, block)
        return root

    def _refuse(self, message: _BlockMessage, block: RankBlock, what: str) -> NoReturn:
        """Refuse a message with its line, beginning with the public compiler's own words."""
        raise InputError(
            f"Illegal threadblock assignment: thread block {block[1]} of rank {block[0]} {what}",
            location=Location(self.file, message.line if message.line > 0 else None),
            cure="a thread block has one peer to send to, one to receive from, and one channel",
            code="thread-block-assignment",
        )
