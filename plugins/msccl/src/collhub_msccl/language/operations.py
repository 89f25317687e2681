"""Show recorded operations as instructions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from collhub_msccl.language.instructions import ChunkRef, Instruction, Op
from collhub_msccl.language.trace import COPY

BufferNames = list[dict[int, Hashable]]
"""For each rank, number of a buffer in the trace to the buffer."""


def operations_of(
    operations: Sequence[tuple[int, ...]], numbers: Sequence[dict[Hashable, int]]
) -> list[Op]:
    """One `Op` for a local operation, two for a message.

    `numbers`: for each rank, buffer to its number in the trace.
    """
    # A number stands for one buffer of a rank, so each table can be turned round.
    names = [{number: buffer for buffer, number in of_rank.items()} for of_rank in numbers]
    return [op for operation in operations for op in _ops(operation, names)]


def _ops(operation: tuple[int, ...], names: BufferNames) -> list[Op]:
    # In the order of `OPERATION_FIELDS`.
    (
        kind,
        src_rank,
        src_buffer,
        src_index,
        dst_rank,
        dst_buffer,
        dst_index,
        size,
        send_block,
        receive_block,
        channel,
        line,
    ) = operation
    src = ChunkRef(src_rank, names[src_rank][src_buffer], src_index, size)
    dst = ChunkRef(dst_rank, names[dst_rank][dst_buffer], dst_index, size)
    if src_rank == dst_rank:
        local = Instruction.copy if kind == COPY else Instruction.reduce
        return [Op(local, src_rank, src, dst, send_block, channel, line)]
    receive = Instruction.recv if kind == COPY else Instruction.recv_reduce_copy
    return [
        Op(Instruction.send, src_rank, src, dst, send_block, channel, line),
        Op(receive, dst_rank, src, dst, receive_block, channel, line),
    ]
