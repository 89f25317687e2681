"""The levelled program: plain sends, receives, copies and reductions of all ranks, as columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from collhub_execution.levelling.blocks import BlockCounts
from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int32Array,
    Int64Array,
    UInt8Array,
    group_of_entry,
)
from hub_core.model import Buffer, MemoryLayout


class RecordKind(IntEnum):
    """What a record does. REDUCE: destination := destination op source."""

    SEND = 0
    RECV = 1
    COPY = 2
    REDUCE = 3


@dataclass(frozen=True, slots=True, eq=False)
class LevelledProgram(ColumnTable):
    """Records of all ranks, read-only columns of equal length, grouped by rank.

    Within a rank records are sorted by (level, message), the local ones of a level last, in the
    order in which they run. A rank runs its levels in turn: it posts all messages of a level at
    once, waits for them, then runs the local records one after the other. Messages of one level
    touch no unit in conflict, at either end. A message has the same level at both ends, which is
    why this never deadlocks, not even where a send ends only when it is received: of all levels
    that are not complete take the smallest; every rank has completed all before it, so that both
    ends of each of its messages are posted, and it completes.

    `kind` uint8 (`RecordKind`); `level` int32, messages from 1, local records from 0 (before all
    messages); `peer` int32 and `message` int64: the other rank and the number of the message, the
    same at both ends, -1 in local records; `src_buffer`, `src_offset` (SEND, COPY, REDUCE) and
    `dst_buffer`, `dst_offset` (RECV, COPY, REDUCE): uint8 (`Buffer`) and int64, (UNKNOWN, 0) on the
    unused side; `count` int64; `row` int64: the row of the step table that the record serves.
    Messages of one (source, destination) pair stand in the same order at both ends, so that no
    tags are needed.

    Offsets and counts are in blocks of `block_units` units of the algorithm; `unit_count` is the
    full buffer in blocks. `rank_indptr` int64[num_ranks + 1]: records of rank r are
    `rank_indptr[r]:rank_indptr[r + 1]`. `layout`: buffers of all ranks in one flat memory of
    blocks, INPUT and OUTPUT aliased where `in_place`; its sizes of SCRATCH include what levelling
    added.
    """

    kind: UInt8Array
    level: Int32Array
    peer: Int32Array
    message: Int64Array
    src_buffer: UInt8Array
    src_offset: Int64Array
    dst_buffer: UInt8Array
    dst_offset: Int64Array
    count: Int64Array
    row: Int64Array
    rank_indptr: Int64Array
    unit_count: int
    block_units: int
    in_place: bool
    layout: MemoryLayout

    def __post_init__(self) -> None:
        # Read-only: executors share programs among processes and threads.
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def num_ranks(self) -> int:
        """Number of ranks, those without records included."""
        return len(self.rank_indptr) - 1

    @property
    def num_messages(self) -> int:
        """Number of messages."""
        sends = self.kind == RecordKind.SEND
        return int(np.count_nonzero(sends))

    @property
    def num_levels(self) -> int:
        """The last level that has a message or a local record, and one more; 0 without records."""
        last = self.level.max(initial=-1)
        return int(last) + 1

    @property
    def num_rounds(self) -> int:
        """The levels that have messages, as people count them."""
        return max(self.num_levels - 1, 0)

    @property
    def blocks(self) -> BlockCounts:
        """What inputs must fit."""
        return BlockCounts(self.unit_count, self.layout.size[:, Buffer.INPUT])

    @property
    def rank(self) -> Int64Array:
        """The rank of every record."""
        return group_of_entry(self.rank_indptr)

    @property
    def is_local(self) -> BoolArray:
        """Mask of COPY and REDUCE records."""
        local: BoolArray = self.kind >= RecordKind.COPY
        return local

    def addresses(self) -> tuple[Int64Array, Int64Array]:
        """(source, destination): the first block of each record in the memory of `layout`.

        -1 on an unused side.
        """
        source = self._address(self.src_buffer, self.src_offset)
        destination = self._address(self.dst_buffer, self.dst_offset)
        return source, destination

    def _address(self, buffer: UInt8Array, offset: Int64Array) -> Int64Array:
        """Addresses of one side of all records."""
        is_used = buffer <= Buffer.SCRATCH
        # Any known buffer will do on an unused side, whose address is thrown away.
        known = np.where(is_used, buffer, Buffer.SCRATCH)
        address = self.layout.base[self.rank, known] + offset
        return np.where(is_used, address, -1)

    def rank_memory(self, rank: int) -> slice:
        """The blocks of the flat memory that belong to a rank."""
        # In place buffers alias, and which of them comes first depends on the collective.
        base, size = self.layout.base[rank], self.layout.size[rank]
        return slice(int(base.min()), int((base + size).max()))

    def message_ends(self) -> tuple[Int64Array, Int64Array]:
        """(send, receive): the two records of every message, by message number."""
        return self._ends(RecordKind.SEND), self._ends(RecordKind.RECV)

    def _ends(self, kind: RecordKind) -> Int64Array:
        """Records of one kind by message number; of each message at most one."""
        records = np.flatnonzero(self.kind == kind)
        order = np.argsort(self.message[records], kind="stable")
        return records[order]
