"""The thread blocks and steps of a file as sorted, checked numpy columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from hub_core.columns import BoolArray, Int64Array, first_positions


class StepType(IntEnum):
    """Step types of MSCCL-IR, in the order of `STEP_TYPE_NAMES`.

    Their semantics: `src/collectives/device/msccl_interpreter.h` of microsoft/msccl. Its type `ra`
    is omitted: it is parsed, but the interpreter then leaves the thread block and drops all later
    steps.
    """

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
BUFFER_NAMES = ("i", "o", "s")  # in the order of `hub_core.model.Buffer`
SENDING = (
    StepType.SEND,
    StepType.RECV_COPY_SEND,
    StepType.RECV_REDUCE_SEND,
    StepType.RECV_REDUCE_COPY_SEND,
)
RECEIVING = (StepType.RECV, *SENDING[1:], StepType.RECV_REDUCE_COPY)


@dataclass(frozen=True, slots=True, eq=False)
class ThreadBlockProgram:
    """Programs of all ranks, as read from a file or as prepared for writing.

    Thread blocks are sorted by (rank, id), steps by (rank, thread block, document order): the
    runtimes execute steps in document order and ignore the attribute `s`. A negative `depid` means
    no dependency.
    """

    # Per rank. Declared sizes: MSCCLang declares the sizes in use, not those of the collective.
    input_chunks: Int64Array
    output_chunks: Int64Array
    scratch_chunks: Int64Array
    block_indptr: Int64Array  # [ranks + 1], first thread block of each rank

    # Per thread block. `send` and `recv`: peer rank, or -1 for none.
    block_rank: Int64Array
    block_id: Int64Array
    send: Int64Array
    recv: Int64Array
    channel: Int64Array
    block_line: Int64Array

    # Per step. `deps`: position in thread block `depid` of the same rank.
    block: Int64Array  # row of its thread block in the columns above
    position: Int64Array  # in the document, from 0 in each thread block
    number: Int64Array  # the attribute `s`
    type: Int64Array  # `StepType`
    src_buffer: Int64Array
    src_offset: Int64Array
    dst_buffer: Int64Array
    dst_offset: Int64Array
    count: Int64Array
    depid: Int64Array
    deps: Int64Array
    has_dependents: BoolArray  # the flag `hasdep`
    line: Int64Array

    def __len__(self) -> int:
        return len(self.block)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.scratch_chunks)

    @property
    def rank(self) -> Int64Array:
        """Rank of every step: int64 per step."""
        return self.block_rank[self.block]

    def is_type(self, *types: StepType) -> BoolArray:
        """Return which steps have one of the given types: bool[steps].

        All are False without types.
        """
        # A table needs one look-up per step for any number of types; `np.isin` would sort.
        is_requested = np.zeros(len(StepType), np.bool_)
        is_requested[list(types)] = True
        return is_requested[self.type]

    def name(self, step: int) -> str:
        """Return the name of a step (row) for messages, such as `thread block 3, step 0`.

        The thread block is named by its attribute `id`, without its rank. The step is named by
        its position in the thread block, not by its attribute `s`.
        """
        block_id = self.block_id[self.block[step]]
        return f"thread block {block_id}, step {self.position[step]}"

    def with_counts(self, count: Int64Array) -> ThreadBlockProgram:
        """Return a copy of the program with the column `count` (int64 per step) replaced."""
        return replace(self, count=count)


def allocate_slots(
    count: Int64Array, block: Int64Array, block_rank: Int64Array, scratch: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the first scratch unit of each block's slot, and the scratch units of each rank.

    Both are int64. A slot is additional scratch of a thread block. It is as large as the largest
    `count` of the block, because a block executes one step at a time; 0 units without any. The
    slots of a rank follow its existing scratch (`scratch`, in units), in the order of the blocks;
    the second result includes them. `count`, `block`: units and thread block of each step that
    needs a slot. `block_rank`: rank of each block, ascending.
    """
    size = np.zeros(len(block_rank), np.int64)
    np.maximum.at(size, block, count)
    slots_of_rank = np.zeros(len(scratch), np.int64)
    np.add.at(slots_of_rank, block_rank, size)
    before, before_rank = first_positions(size), first_positions(slots_of_rank)
    first = scratch[block_rank] + before - before_rank[block_rank]
    return first, scratch + slots_of_rank
