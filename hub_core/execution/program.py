"""The levelled program: what every executor and emitter runs, as columns of plain sends, receives, copies and reductions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hub_core.model.collectives import MemoryLayout
from hub_core.model.kinds import Buffer

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class RecordKind(IntEnum):
    """What a record does. REDUCE: destination := destination op source."""

    SEND = 0
    RECV = 1
    COPY = 2
    REDUCE = 3


@dataclass(frozen=True, slots=True, eq=False)
class LevelledProgram:
    """Records of all ranks, read-only columns of equal length, grouped by rank.

    Within a rank records are sorted by (level, message), the local ones of a level last, in the order in which they run.
    A rank runs its levels in turn: it posts all messages of a level at once, waits for them, then runs the local records
    one after the other. Messages of one level touch no unit in conflict, at either end. A message has the same level at
    both ends, which is why this never deadlocks, not even where a send ends only when it is received: of all levels that
    are not complete take the smallest; every rank has completed all before it, so that both ends of each of its messages
    are posted, and it completes.

    `kind` uint8 (`RecordKind`); `level` int32, messages from 1, local records from 0 (before all messages); `peer` int32
    and `message` int64: the other rank and the number of the message, the same at both ends, -1 in local records;
    `src_buffer`, `src_offset` (SEND, COPY, REDUCE) and `dst_buffer`, `dst_offset` (RECV, COPY, REDUCE): uint8 (`Buffer`)
    and int64, (UNKNOWN, 0) on the unused side; `count` int64; `row` int64: the row of the step table that the record
    serves. Messages of one (source, destination) pair stand in the same order at both ends, so that no tags are needed.

    Offsets and counts are in blocks of `block_units` units of the algorithm; `unit_count` is the full buffer in blocks.
    `rank_indptr` int64[num_ranks + 1]: records of rank r are `rank_indptr[r]:rank_indptr[r + 1]`. `layout`: buffers of all
    ranks in one flat memory of blocks, INPUT and OUTPUT aliased where `in_place`; its sizes of SCRATCH include what
    levelling added.
    """

    kind: npt.NDArray[np.uint8]
    level: npt.NDArray[np.int32]
    peer: npt.NDArray[np.int32]
    message: Int64Array
    src_buffer: npt.NDArray[np.uint8]
    src_offset: Int64Array
    dst_buffer: npt.NDArray[np.uint8]
    dst_offset: Int64Array
    count: Int64Array
    row: Int64Array
    rank_indptr: Int64Array
    unit_count: int
    block_units: int
    in_place: bool
    layout: MemoryLayout

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def num_ranks(self) -> int:
        """Number of ranks, those without records included."""
        return len(self.rank_indptr) - 1

    @property
    def num_messages(self) -> int:
        """Number of messages."""
        return int(np.count_nonzero(self.kind == RecordKind.SEND))

    @property
    def num_levels(self) -> int:
        """The last level that has a message or a local record, and one more; 0 for an empty program."""
        return int(self.level.max(initial=-1)) + 1

    @property
    def rank(self) -> Int64Array:
        """The rank of every record."""
        return np.repeat(np.arange(self.num_ranks), np.diff(self.rank_indptr))

    @property
    def is_local(self) -> BoolArray:
        """Mask of COPY and REDUCE records."""
        local: BoolArray = self.kind >= RecordKind.COPY
        return local

    def addresses(self) -> tuple[Int64Array, Int64Array]:
        """(source, destination): the first block of each record in the flat memory of `layout`, -1 on an unused side."""
        rank = self.rank
        source, destination = (
            np.where(
                buffer <= Buffer.SCRATCH,
                self.layout.base[rank, np.minimum(buffer, Buffer.SCRATCH)] + offset,
                -1,
            )
            for buffer, offset in (
                (self.src_buffer, self.src_offset),
                (self.dst_buffer, self.dst_offset),
            )
        )
        return source, destination

    def rank_memory(self, rank: int) -> slice:
        """The blocks of the flat memory that belong to a rank."""
        base, size = self.layout.base, self.layout.size
        starts = base.min(axis=1)
        return slice(int(starts[rank]), int((base[rank] + size[rank]).max()))

    def message_ends(self) -> tuple[Int64Array, Int64Array]:
        """(send, receive): the two records of every message, by message number."""
        ends = []
        for kind in (RecordKind.SEND, RecordKind.RECV):
            records = np.flatnonzero(self.kind == kind)
            ends.append(records[np.argsort(self.message[records], kind="stable")])
        return ends[0], ends[1]
