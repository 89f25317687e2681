"""Instructions of MSCCLang programs, and their construction from recorded operations."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

from collhub_msccl.language.trace import COPY


class ThreadblockPolicy(Enum):
    """Assignment of thread blocks.

    `auto` leaves it to the writer of the runtime's file; `manual` uses sendtb and recvtb.
    """

    auto = "auto"
    manual = "manual"

    def __str__(self) -> str:
        return self.value


class ReplicationPolicy(Enum):
    """Layout of the chunks of instances: adjacent (`interleaved`), or part by part
    (`duplicated`)."""

    duplicated = "duplicated"
    interleaved = "interleaved"

    def __str__(self) -> str:
        return self.value


class Instruction(Enum):
    """Type of a step; the values are the types of MSCCL-IR."""

    nop = "nop"
    send = "s"
    recv = "r"
    recv_copy_send = "rcs"
    recv_reduce_send = "rrs"
    recv_reduce_copy = "rrc"
    recv_reduce_copy_send = "rrcs"
    copy = "cpy"
    reduce = "re"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """`size` chunks of a buffer of a rank, from `index` on."""

    rank: int
    buffer: Hashable
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction of a rank before fusion.

    `tb`: declared thread block or -1; `line`: of the program, or -1.
    """

    inst: Instruction
    rank: int
    src: ChunkRef
    dst: ChunkRef
    tb: int = -1
    channel: int = -1
    line: int = -1


BufferNames = list[dict[int, Hashable]]
"""For each rank, a mapping from the number of a buffer in the trace to the buffer."""


def list_instructions(
    operations: Sequence[tuple[int, ...]], numbers: Sequence[dict[Hashable, int]]
) -> list[Op]:
    """Instructions of operations: one `Op` for a local operation, two for a message.

    `numbers`: for each rank, mapping from buffers to their numbers in the trace.
    """
    # Each number denotes one buffer of a rank, so the tables can be inverted.
    names = [{number: buffer for buffer, number in of_rank.items()} for of_rank in numbers]
    return [op for operation in operations for op in _build_instructions(operation, names)]


def _build_instructions(operation: tuple[int, ...], names: BufferNames) -> list[Op]:
    """Instructions of one operation, given as a row of `OPERATION_FIELDS`."""
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
