"""Check the thread blocks and channels that a program states, and complete the channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from collhub_msccl.language.trace import OPERATION_FIELDS
from hub_core.model import InputError, Location

__all__ = ["stated_blocks"]

Int64Array = npt.NDArray[np.int64]
Columns = dict[str, Int64Array]
Block = tuple[int, int]
"""(rank, thread block)"""


def stated_blocks(columns: Columns, is_manual: bool, file: str) -> Columns:
    """The columns with a channel everywhere, and with thread blocks only where the program assigns them (`is_manual`).

    A thread block has one send peer, one receive peer and one channel; a message that states no channel takes that of
    its thread blocks. Operations without thread block share a block of their rank. Raises `InputError` with the line
    of an operation that its thread block cannot execute.
    """
    if not is_manual:
        nowhere = np.full(len(columns["kind"]), -1, np.int64)
        channel = np.maximum(columns["channel"], 0)
        return columns | {"send_block": nowhere, "receive_block": nowhere, "channel": channel}
    columns = columns | _named_blocks(columns)
    assignment = _Assignment(file)
    messages = list(_messages(columns))
    for message in messages:
        assignment.add(message)
    channel = columns["channel"].copy()
    for message in messages:
        channel[message.operation] = assignment.channel(message)
    for message in messages:
        assignment.connect(message, int(channel[message.operation]))
    return columns | {"channel": np.maximum(channel, 0)}


def _named_blocks(columns: Columns) -> Columns:
    """Thread blocks, where what has none gets the first number that its rank leaves free."""
    is_message = columns["src_rank"] != columns["dst_rank"]
    ranks = int(max(columns["src_rank"].max(initial=0), columns["dst_rank"].max(initial=0))) + 1
    free = np.zeros(ranks, np.int64)
    np.maximum.at(free, columns["src_rank"], columns["send_block"] + 1)
    np.maximum.at(free, columns["dst_rank"][is_message], columns["receive_block"][is_message] + 1)
    send, receive = columns["send_block"], columns["receive_block"]
    return {
        "send_block": np.where(send < 0, free[columns["src_rank"]], send),
        "receive_block": np.where(
            is_message, np.where(receive < 0, free[columns["dst_rank"]], receive), -1
        ),
    }


@dataclass(frozen=True, slots=True)
class _Message:
    operation: int
    sender: Block
    receiver: Block
    channel: int
    line: int


def _messages(columns: Columns) -> Iterator[_Message]:
    rows = np.flatnonzero(columns["src_rank"] != columns["dst_rank"])
    table = np.stack([columns[name][rows] for name in OPERATION_FIELDS], axis=1).tolist()
    for operation, values in zip(rows.tolist(), table, strict=True):
        row = dict(zip(OPERATION_FIELDS, values, strict=True))
        sender, receiver = (
            (row["src_rank"], row["send_block"]),
            (row["dst_rank"], row["receive_block"]),
        )
        yield _Message(operation, sender, receiver, row["channel"], row["line"])


@dataclass(slots=True)
class _Assignment:
    """Peers of thread blocks, and which of them share a channel because a message joins them (union-find)."""

    file: str
    send_peer: dict[Block, int] = field(default_factory=dict)
    receive_peer: dict[Block, int] = field(default_factory=dict)
    joined: dict[Block, Block] = field(default_factory=dict)
    channels: dict[Block, int] = field(default_factory=dict)
    connections: dict[tuple[str, int, int, int], Block] = field(default_factory=dict)

    def add(self, message: _Message) -> None:
        sender, receiver = message.sender, message.receiver
        for word, peers, block, peer in (
            ("sends to", self.send_peer, sender, receiver[0]),
            ("receives from", self.receive_peer, receiver, sender[0]),
        ):
            if peers.setdefault(block, peer) != peer:
                self._refuse(
                    message, block, f"{word} rank {peers[block]} already, and here rank {peer}"
                )
        one, other = self._root(sender), self._root(receiver)
        found = [self.channels[root] for root in (one, other) if root in self.channels]
        found += [message.channel] if message.channel >= 0 else []
        if len(set(found)) > 1:
            self._refuse(
                message, sender, f"would need channels {' and '.join(map(str, sorted(set(found))))}"
            )
        self.joined[other] = one
        if found:
            self.channels[one] = found[0]

    def channel(self, message: _Message) -> int:
        return self.channels.get(self._root(message.sender), 0)

    def connect(self, message: _Message, channel: int) -> None:
        """A connection belongs to one thread block on each side."""
        source, destination = message.sender[0], message.receiver[0]
        for side, block in (("send", message.sender), ("receive", message.receiver)):
            owner = self.connections.setdefault((side, source, destination, channel), block)
            if owner != block:
                what = f"{side}s what thread block {owner[1]} {side}s too: rank {source} to {destination} on channel {channel}"
                self._refuse(message, block, what)

    def _root(self, block: Block) -> Block:
        root = block
        while self.joined.get(root, root) != root:
            root = self.joined[root]
        while self.joined.get(block, block) != root:
            self.joined[block], block = root, self.joined.get(block, block)
        return root

    def _refuse(self, message: _Message, block: Block, what: str) -> None:
        raise InputError(
            f"Illegal threadblock assignment: thread block {block[1]} of rank {block[0]} {what}",
            location=Location(self.file, message.line if message.line > 0 else None),
            cure="a thread block has one peer to send to, one to receive from, and one channel",
            code="thread-block-assignment",
        )
