"""The levelled program: plain sends, receives, copies and reductions of all ranks, as columns.

Buffers are measured in blocks, the largest units that divide all regions of the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum

import numpy as np

from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int32Array,
    Int64Array,
    UInt8Array,
    group_of_entry,
)
from hub_core.model import Algorithm, Buffer, Collective, CollectiveKind, MemoryLayout
from hub_core.verification import common_unit


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Sizes of buffers in blocks, the largest units that divide all regions.

    `full_buffer`: blocks of the full buffer of the collective. `inputs`: int64[num_ranks], blocks
    of every rank's INPUT.
    """

    full_buffer: int
    inputs: Int64Array

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.inputs)


def find_units_per_block(algorithm: Algorithm) -> int:
    """Return the number of units of the algorithm per block."""
    if algorithm.collective.kind is CollectiveKind.CUSTOM:
        # Its contract refers to single units, which must remain addressable.
        return 1
    return common_unit(algorithm)


def convert_to_blocks(collective: Collective, block_units: int) -> Collective:
    """Return the collective with blocks as its units."""
    return replace(collective, unit_count=collective.unit_count // block_units)


def block_counts(algorithm: Algorithm) -> BlockCounts:
    """Return the block counts of an algorithm, in time linear in its steps."""
    block_units = find_units_per_block(algorithm)
    collective = convert_to_blocks(algorithm.collective, block_units)
    return BlockCounts(collective.unit_count, collective.input_units())


class RecordKind(IntEnum):
    """The operation of a record. REDUCE: destination := destination op source."""

    SEND = 0
    RECV = 1
    COPY = 2
    REDUCE = 3


@dataclass(frozen=True, slots=True, eq=False)
class LevelledProgram(ColumnTable):
    """Records of all ranks, read-only columns of equal length, grouped by rank.

    Within a rank records are sorted by (level, message), the local ones of a level last, in the
    order of execution. A rank runs its levels in sequence: it posts all messages of a level at
    once, waits for them, then runs the local records one after the other. Messages of one level
    have no conflicting accesses, at either end. A message has the same level at both ends, so the
    program never deadlocks, even if a send completes only when it is received: among all incomplete
    levels consider the smallest; every rank has completed all previous levels, so both ends of each
    of its messages are posted, and it completes.

    `kind` uint8 (`RecordKind`); `level` int32, messages from 1, local records from 0 (before all
    messages); `peer` int32 and `message` int64: the other rank and the number of the message, equal
    at both ends, -1 in local records; `src_buffer`, `src_offset` (SEND, COPY, REDUCE) and
    `dst_buffer`, `dst_offset` (RECV, COPY, REDUCE): uint8 (`Buffer`) and int64, (UNKNOWN, 0) on the
    unused side; `count` int64; `row` int64: the row of the step table that the record implements.
    Messages of one (source, destination) pair have the same order at both ends, so no tags are
    needed.

    Offsets and counts are in blocks of `block_units` units of the algorithm; `unit_count` is the
    full buffer in blocks. `rank_indptr` int64[num_ranks + 1]: records of rank r are
    `rank_indptr[r]:rank_indptr[r + 1]`. `layout`: buffers of all ranks in one flat memory of
    blocks, INPUT and OUTPUT aliased if `in_place`; its sizes of SCRATCH include the slots added by
    levelling.
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
        # Read-only, because executors share programs among processes and threads.
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def num_ranks(self) -> int:
        """Number of ranks, including those without records."""
        return len(self.rank_indptr) - 1

    @property
    def num_messages(self) -> int:
        """Number of messages."""
        sends = self.kind == RecordKind.SEND
        return int(np.count_nonzero(sends))

    @property
    def num_levels(self) -> int:
        """One more than the last level that has a message or a local record; 0 without records."""
        last = self.level.max(initial=-1)
        return int(last) + 1

    @property
    def num_rounds(self) -> int:
        """Number of levels with messages."""
        return max(self.num_levels - 1, 0)

    @property
    def blocks(self) -> BlockCounts:
        """Block counts that inputs must fit."""
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
        """Return (source, destination): the first block of each record in the memory of `layout`.

        -1 on an unused side.
        """
        source = self._compute_addresses(self.src_buffer, self.src_offset)
        destination = self._compute_addresses(self.dst_buffer, self.dst_offset)
        return source, destination

    def _compute_addresses(self, buffer: UInt8Array, offset: Int64Array) -> Int64Array:
        """Return the addresses of one side of all records, -1 if unused."""
        is_used = buffer <= Buffer.SCRATCH
        # Any known buffer works for an unused side, whose address is discarded.
        known = np.where(is_used, buffer, Buffer.SCRATCH)
        address = self.layout.base[self.rank, known] + offset
        return np.where(is_used, address, -1)

    def rank_memory(self, rank: int) -> slice:
        """Return the range of blocks of the flat memory that belongs to a rank."""
        # In place, buffers alias, and their order depends on the collective.
        base, size = self.layout.base[rank], self.layout.size[rank]
        return slice(int(base.min()), int((base + size).max()))

    def message_ends(self) -> tuple[Int64Array, Int64Array]:
        """Return (send, receive): the two records of every message, by message number."""
        return self._find_ends(RecordKind.SEND), self._find_ends(RecordKind.RECV)

    def _find_ends(self, kind: RecordKind) -> Int64Array:
        """Return the records of one kind by message number; at most one per message."""
        records = np.flatnonzero(self.kind == kind)
        order = np.argsort(self.message[records], kind="stable")
        return records[order]
