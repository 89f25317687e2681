"""The instructions of MSCCL-IR, and operations in the form of a program's `instr_dag`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum


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
