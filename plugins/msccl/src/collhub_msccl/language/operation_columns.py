"""Complete the columns of operations: thread blocks, channels, and locations in instances.

Source of the rules: MSCCLang's manual thread block policy. Its first releases reset a thread block
to channel 0 at an operation without a channel, so that the two sides of a connection could differ
and hang. As in the maintained fork (Azure/msccl-tools), the first given channel applies to the
complete thread block here. A program can run in several instances, each with separate chunks,
thread blocks and channels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from collhub_msccl.language.trace import FIRST_SCRATCH, OPERATION_FIELDS, Trace
from hub_core.columns import Int64Array, counted_positions
from hub_core.model import InputError, Location

Columns = dict[str, Int64Array]
"""Columns of operations, by the names in `OPERATION_FIELDS`."""

RankBlock = tuple[int, int]
"""(rank, thread block)"""


def assign_blocks(columns: Columns, is_manual: bool, file: str) -> Columns:
    """Return a copy of the operations' columns with `send_block`, `receive_block` and `channel`.

    -1 means missing. Without `is_manual` (the program assigns no blocks), all blocks become -1 and
    a missing channel 0. Otherwise, with "message" for an operation between two ranks:

    1. Missing blocks are filled in by `_complete_blocks`.
    2. A block sends to at most one rank and receives from at most one. Blocks that messages
       connect, directly or through others, have one channel.
    3. A message without a channel gets that channel; without one, all operations get 0.
    4. Messages of one source, destination and channel have equal blocks on each side.

    Raises `InputError` (`thread-block-assignment`) for the first message against rule 2, else 4.
    """
    if not is_manual:
        nowhere = np.full(len(columns["kind"]), -1, np.int64)
        channel = np.maximum(columns["channel"], 0)
        return columns | {"send_block": nowhere, "receive_block": nowhere, "channel": channel}
    columns = columns | _complete_blocks(columns)
    assignment = _BlockAssignment(file)
    # The operations between different ranks, in program order.
    messages: list[_BlockMessage] = []
    rows = np.flatnonzero(columns["src_rank"] != columns["dst_rank"])
    table = np.stack([columns[name][rows] for name in OPERATION_FIELDS], axis=1)
    for operation, values in zip(rows.tolist(), table.tolist(), strict=True):
        row = dict(zip(OPERATION_FIELDS, values, strict=True))
        message = _BlockMessage(
            operation,
            sender=(row["src_rank"], row["send_block"]),
            receiver=(row["dst_rank"], row["receive_block"]),
            channel=row["channel"],
            line=row["line"],
        )
        messages.append(message)
    # Three rounds, because a later message may determine the channel of an earlier one.
    for message in messages:
        assignment.add(message)
    channel = columns["channel"].copy()
    for message in messages:
        channel[message.operation] = assignment.get_channel(message)
    for message in messages:
        assignment.connect(message, int(channel[message.operation]))
    return columns | {"channel": np.maximum(channel, 0)}


def _complete_blocks(columns: Columns) -> Columns:
    """Fill in missing thread blocks; return the columns `send_block` and `receive_block`.

    A block below 0 is missing. On each rank, all operations without a block get the same block: the
    first number above all blocks of the rank, 0 if it has none. These are the send blocks of
    operations whose source it is, and the receive blocks of messages to it. A local operation
    (equal source and destination rank) uses only its send block; its receive block becomes -1 and
    does not count. The given columns are not changed.
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
        """Record the peers of a message, and merge the sets of its two thread blocks.

        All blocks of a set have the same channel, or no channel yet. A negative channel of the
        message means no channel. The merged set has the one channel that its two sets and the
        message have, or none if all three have none.

        Raises `InputError` (`thread-block-assignment`) for the first of these defects:

        - The sending block already sends to another rank.
        - The receiving block already receives from another rank.
        - The two sets and the message have different channels.

        After an error the sets are unchanged, but peers recorded before it remain.
        """
        # A thread block sends to one rank and receives from one rank.
        sides = (
            ("sends to", self.send_peer, message.sender, message.receiver),
            ("receives from", self.receive_peer, message.receiver, message.sender),
        )
        for word, peers, block, (peer, _) in sides:
            known = peers.setdefault(block, peer)
            if known != peer:
                conflict = f"{word} rank {known} already, and here rank {peer}"
                self._refuse(message, block, conflict)
        sender_root = self._find_root(message.sender)
        receiver_root = self._find_root(message.receiver)
        roots = (sender_root, receiver_root)
        channels = [self.channels[root] for root in roots if root in self.channels]
        if message.channel >= 0:
            channels.append(message.channel)
        if len(set(channels)) > 1:
            words = " and ".join(map(str, sorted(set(channels))))
            self._refuse(message, message.sender, f"would need channels {words}")
        self.joined[receiver_root] = sender_root
        if channels:
            self.channels[sender_root] = channels[0]

    def get_channel(self, message: _BlockMessage) -> int:
        """Channel of a message; 0 if no message of its set gives one."""
        return self.channels.get(self._find_root(message.sender), 0)

    def connect(self, message: _BlockMessage, channel: int) -> None:
        """Record which thread blocks use the connection of a message on `channel`.

        A connection is (source rank, destination rank, channel). On each side, the thread block
        of its first message owns it. Raises `InputError` (`thread-block-assignment`) if another
        thread block of the same rank sends or receives on it; the sending side is checked
        first.
        """
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
        """Return the representative of the set that contains a thread block.

        A block that is in no set represents itself. Shortens the path in `joined` for later lookups
        (union-find); the sets do not change.
        """
        root = block
        while self.joined.get(root, root) != root:
            root = self.joined[root]
        # Every block on the path refers to the root from now on.
        while self.joined.get(block, block) != root:
            self.joined[block], block = root, self.joined.get(block, block)
        return root

    def _refuse(self, message: _BlockMessage, block: RankBlock, reason: str) -> NoReturn:
        """Raise `InputError` for a thread block, beginning with the text of the public compiler.

        The line is that of the message, or none if it is not known (not above 0); the code is
        "thread-block-assignment". `reason`: end of the sentence about the block.
        """
        raise InputError(
            f"Illegal threadblock assignment: thread block {block[1]} of rank {block[0]} {reason}",
            location=Location(self.file, message.line if message.line > 0 else None),
            cure="a thread block has one peer to send to, one to receive from, and one channel",
            code="thread-block-assignment",
        )


_SPLIT_BY_RANK = ("all-gather", "reduce-scatter", "all-to-all")
_SIDES = ("src", "dst")


class Instances:
    """Location of chunk k of a buffer in instance i of `number`.

    A buffer is divided into cells of several chunks, and the instances' copies of a cell are
    adjacent: chunk k of instance i is chunk (k // cell * number + i) * cell + k % cell.

    Interleaved programs: the cells of input and output are the largest that no reference crosses,
    so that all references agree on the location of a chunk. (The public compiler uses the size of
    each reference, so that overlapping references of different sizes read other instances' data.)
    Other programs: cells are the part of each rank (for collectives with parts) or the full buffer.
    Each scratch buffer is one cell; they follow each other. `scratch_units`: int64 per rank.
    """

    def __init__(self, trace: Trace, columns: Columns, number: int) -> None:
        self.trace = trace
        self.number = number
        self._columns = columns
        # Chunks per cell of every rank and buffer, numbered as in the trace.
        self._cell = self._compute_cells()
        # Start of every buffer in the hub's buffer: the scratch buffers of a rank are consecutive.
        self._base = np.zeros_like(self._cell)
        self.scratch_units = np.zeros(trace.num_ranks, np.int64)
        for rank, sizes in enumerate(trace.scratch_sizes):
            stops = np.cumsum([0, *sizes]) * number
            self.scratch_units[rank] = stops[-1]
            self._base[rank, FIRST_SCRATCH : FIRST_SCRATCH + len(sizes)] = stops[:-1]

    def compute_offsets(
        self, rank: Int64Array, buffer: Int64Array, index: Int64Array, copy: int
    ) -> Int64Array:
        """Return the offsets in units of chunks of instance `copy` in the hub's buffers.

        The hub's buffers INPUT, OUTPUT and SCRATCH have the data of all `number` instances (copies
        of the program). `rank`, `buffer`, `index`: int64 by chunk, in the buffers of one instance,
        numbered as in the trace. A buffer consists of cells of c consecutive chunks; c depends on
        rank and buffer. Chunk k becomes chunk (k // c * `number` + `copy`) * c + k % c. The scratch
        buffers of a rank follow one another in SCRATCH, so the first chunk of the buffer there is
        added.
        """
        cell = self._cell[rank, buffer]
        first_of_cell = (index // cell * self.number + copy) * cell
        offset: Int64Array = self._base[rank, buffer] + first_of_cell + index % cell
        return offset

    def replicate(self, columns: Columns) -> Columns:
        """Return new columns with the operations of all instances, indexed in the hub's buffers.

        The operations keep their order; the instances (copies) of an operation are consecutive,
        from instance 0 on. With several instances, operations that cross the end of a cell are
        first divided, so there may be more rows than operations times instances. In instance i:

        - send and receive block b: b x `number` + i, or -1 if b is negative
        - channel c: c + i x number of channels of one instance
        - index of source and destination: the offset in the hub's buffer (`compute_offsets`)
        - buffer of source and destination: 0 and 1 (input, output) remain, scratch buffers become 2

        Other columns are repeated. The given columns are not changed.
        """
        # A single instance has only one copy of each cell, so no operation must be cut.
        parts = columns if self.number == 1 else self._cut_operations(columns)
        channels = int(parts["channel"].max(initial=0)) + 1
        copies = []
        for copy in range(self.number):
            moved = dict(parts)
            for side in _SIDES:
                buffer = parts[f"{side}_buffer"]
                moved[f"{side}_index"] = self.compute_offsets(
                    parts[f"{side}_rank"], buffer, parts[f"{side}_index"], copy
                )
                # The hub has one scratch buffer per rank.
                moved[f"{side}_buffer"] = np.minimum(buffer, FIRST_SCRATCH)
            # Copies of a thread block, and of a channel, are separate.
            for name in ("send_block", "receive_block"):
                block = parts[name]
                moved[name] = np.where(block < 0, -1, block * self.number + copy)
            moved["channel"] = parts["channel"] + copy * channels
            copies.append(moved)
        return {name: np.stack([copy[name] for copy in copies], axis=1).ravel() for name in parts}

    def _cut_operations(self, columns: Columns) -> Columns:
        """Divide operations that cross the end of a cell into equal parts that do not.

        A cell is the part of a buffer that stays contiguous in every instance; cells have equal
        sizes within a buffer. An operation crosses on a side (source, destination) if its chunks on
        that side are in several cells. Its parts then have the greatest common divisor of its size
        and of the cell size and index on each side on which it crosses. 6 chunks from index 2 on
        with cells of 4 chunks become three parts of 2 chunks.

        Returns new columns in the order of the operations; the parts of an operation are
        consecutive and ascending in index. `size` and both indices are those of the part, other
        columns are repeated. Operations that do not cross remain one row.
        """
        size = columns["size"]
        part_size = size.copy()
        for side in _SIDES:
            index = columns[f"{side}_index"]
            cell = self._cell[columns[f"{side}_rank"], columns[f"{side}_buffer"]]
            crosses = index % cell + size > cell
            # Parts of this size begin and end at cell borders.
            fitting = np.gcd(np.gcd(part_size, cell), index)
            part_size = np.where(crosses, fitting, part_size)
        # The size of a part divides that of its operation.
        part_count = size // part_size
        part = counted_positions(part_count)
        cut = {name: np.repeat(column, part_count) for name, column in columns.items()}
        cut["size"] = np.repeat(part_size, part_count)
        for side in _SIDES:
            cut[f"{side}_index"] = cut[f"{side}_index"] + part * cut["size"]
        return cut

    def _compute_cells(self) -> Int64Array:
        """Compute the number of chunks per cell: int64[ranks, buffers], at least 1.

        A cell is the part of a buffer that stays contiguous in every instance. The columns are
        input, output, and as many scratch buffers as the rank with the most has. Later rules
        replace earlier ones:

        1. A cell is the full buffer. It is 1 for an empty buffer, and for one that the rank does
           not have.
        2. For an all-gather, reduce-scatter or all-to-all whose `chunk_factor` is not 0, cells of
           input and output have `chunk_factor` chunks.
        3. All cells of input and output of all ranks get one number in two cases: the program is
           interleaved; or it is custom and in place, and the list of input sizes differs from that
           of output sizes. The number is the greatest common divisor of these cells by rules 1 and
           2, and of index and size of all sources and destinations in an input or output.

        Scratch buffers always are one cell.
        """
        trace = self.trace
        # Chunks of every buffer; 1 for scratch buffers that a rank does not have.
        max_scratch_buffers = max(map(len, trace.scratch_sizes), default=0)
        rows = []
        for rank, scratch in enumerate(trace.scratch_sizes):
            padding = [1] * (max_scratch_buffers - len(scratch))
            rows.append([trace.input_sizes[rank], trace.output_sizes[rank], *scratch, *padding])
        cells = np.maximum(np.asarray(rows, np.int64), 1)
        if trace.kind in _SPLIT_BY_RANK and trace.chunk_factor:
            cells[:, :FIRST_SCRATCH] = trace.chunk_factor
        # Input and output that are one memory with different lengths: cells of the full buffers
        # would divide it differently.
        is_aliased = trace.kind == "custom" and trace.is_in_place
        has_uneven_aliases = is_aliased and trace.input_sizes != trace.output_sizes
        if trace.is_interleaved or has_uneven_aliases:
            # The largest cell that divides all buffers and that no reference crosses.
            numbers = [cells[:, :FIRST_SCRATCH].ravel()]
            for side in _SIDES:
                is_chunk = self._columns[f"{side}_buffer"] < FIRST_SCRATCH
                numbers.append(self._columns[f"{side}_index"][is_chunk])
                numbers.append(self._columns["size"][is_chunk])
            cells[:, :FIRST_SCRATCH] = int(np.gcd.reduce(np.concatenate(numbers)))
        return cells
