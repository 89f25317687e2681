"""The thread blocks and steps of a file as sorted, checked numpy columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class StepType(IntEnum):
    """The step types of MSCCL-IR, in the order of `STEP_TYPE_NAMES`."""

    SEND = 0
    RECV = 1
    RECV_COPY_SEND = 2
    RECV_REDUCE_COPY = 3
    RECV_REDUCE_SEND = 4
    RECV_REDUCE_COPY_SEND = 5
    COPY = 6
    REDUCE = 7
    NOP = 8


STEP_TYPE_NAMES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop")
BUFFER_NAMES = ("i", "o", "s")  # in the order of `hub_core.collectives.Buffer`
SENDING = (
    StepType.SEND,
    StepType.RECV_COPY_SEND,
    StepType.RECV_REDUCE_SEND,
    StepType.RECV_REDUCE_COPY_SEND,
)
RECEIVING = (StepType.RECV, *SENDING[1:], StepType.RECV_REDUCE_COPY)


@dataclass(frozen=True, slots=True)
class ThreadBlockProgram:
    """All ranks' programs. Thread blocks are sorted by (rank, id), steps by (rank, thread block, document order).

    Per rank, int64: `input_chunks`, `output_chunks`, `scratch_chunks` as declared, `block_indptr` [ranks + 1]. Per
    thread block, int64: `block_rank`, `block_id`, `send`, `recv`, `channel`, `block_line`. Per step, int64: `block` (row
    of its thread block), `position` (document position in it), `number` (the attribute `s`), `type` (`StepType`),
    `src_buffer`, `src_offset`, `dst_buffer`, `dst_offset`, `count`, `depid` (below 0: none), `deps`, `line`; bool:
    `has_dependents`, the flag `hasdep`.
    """

    input_chunks: Int64Array
    output_chunks: Int64Array
    scratch_chunks: Int64Array
    block_indptr: Int64Array
    block_rank: Int64Array
    block_id: Int64Array
    send: Int64Array
    recv: Int64Array
    channel: Int64Array
    block_line: Int64Array
    block: Int64Array
    position: Int64Array
    number: Int64Array
    type: Int64Array
    src_buffer: Int64Array
    src_offset: Int64Array
    dst_buffer: Int64Array
    dst_offset: Int64Array
    count: Int64Array
    depid: Int64Array
    deps: Int64Array
    has_dependents: BoolArray
    line: Int64Array

    def __len__(self) -> int:
        return len(self.block)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.scratch_chunks)

    @property
    def rank(self) -> Int64Array:
        """Rank of every step."""
        return self.block_rank[self.block]

    def is_type(self, *types: StepType) -> BoolArray:
        """Mask of the steps of one of these types."""
        wanted = np.zeros(len(StepType), np.bool_)
        wanted[list(types)] = True
        return wanted[self.type]

    def name(self, step: int) -> str:
        """How messages call a step."""
        return f"thread block {self.block_id[self.block[step]]}, step {self.position[step]}"

    def with_counts(self, count: Int64Array) -> ThreadBlockProgram:
        """The same program with other counts."""
        return replace(self, count=count)
