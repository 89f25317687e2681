"""Operations of a program as they are recorded, before ids are given: buffers, chunks, operations.

The program whose `with` block is being executed is kept per thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, Flag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collhub_mscclpp.language.program import CollectiveProgram

_CURRENT: ContextVar[CollectiveProgram | None] = ContextVar("mscclpp_program", default=None)


def current_program() -> CollectiveProgram:
    """Return the program whose `with` block is being executed, per thread.

    It is the one whose block began last. Raises `RuntimeError` outside of such a block, and after
    the end of an inner block in an outer one.
    """
    program = _CURRENT.get()
    if program is None:
        raise RuntimeError("is used outside of `with CollectiveProgram(...)`")
    return program


def set_current_program(program: CollectiveProgram | None) -> None:
    """Make a program the current one; None when its `with` block has ended."""
    _CURRENT.set(program)


class BufferType(Enum):
    """Buffers of a rank; the values are their letters in plans."""

    input = "i"
    output = "o"
    scratch = "s"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunks `index` to `index + size - 1` of a buffer of a rank."""

    rank: int
    buffer: BufferType
    index: int
    size: int

    def overlaps(self, other: Chunk) -> bool:
        """Return whether two ranges are in the same buffer type and have a chunk in common.

        Ranks are not compared.
        """
        first = max(self.index, other.index)
        last = min(self.index + self.size, other.index + other.size)
        return self.buffer is other.buffer and first < last


class RemoteRange(Chunk):
    """A range at the remote end of a channel; the remote rank may be the local one."""


class SwitchRange(Chunk):
    """The same range in the buffers of all ranks of a switch channel; `rank` is one of them."""


class BaseBuffer:
    """A buffer of a rank; `buffer[a:b]` selects its chunks a to b - 1."""

    def __init__(self, rank: int, buffer_type: BufferType, offset: int, size: int) -> None:
        self.rank = rank
        self.buffer_type = buffer_type
        self.offset = offset
        # The end, not the length: programs written for the package may use it.
        self.size = offset + size

    def __getitem__(self, key: slice) -> Chunk:
        """Return the chunks `key.start` to `key.stop - 1`, counted from the start of this buffer.

        A missing bound is that of the buffer. A range with `start` equal to `stop` is
        allowed and has no chunk. Raise `ValueError` for a range outside the buffer, a
        negative bound, a `start` above `stop`, and a step other than 1. An integer as `key`
        raises `AttributeError`.
        """
        length = self.size - self.offset
        start = 0 if key.start is None else key.start
        stop = length if key.stop is None else key.stop
        if key.step not in (None, 1) or not 0 <= start <= stop <= length:
            name = self.buffer_type.name
            raise ValueError(f"chunks {start}:{stop} of an {name} buffer of {length} chunks")
        return Chunk(self.rank, self.buffer_type, self.offset + start, stop - start)


class Buffer(BaseBuffer):
    """`size` further chunks of scratch of a rank, after those allocated before."""

    def __init__(self, rank: int, size: int) -> None:
        offset = current_program().allocate_scratch(rank, size)
        super().__init__(rank, BufferType.scratch, offset, size)


class SyncType(Flag):
    """Where a synchronising operation has a barrier of its thread block: before or after it."""

    none = 0
    before = 1
    after = 2
    both = 3


class ReduceOperationType(Enum):
    """Operators that programs may name; the executor always adds."""

    sum = "sum"
    min = "min"
    max = "max"


class ReplicationPolicy(Enum):
    """How instances share chunks: interleaved. The package itself always fails on `none`."""

    interleaved = "interleaved"
    none = "none"


class ThreadBlockGroup:
    """Thread blocks that share the work of an operation; each processes one part of its ranges."""

    def __init__(self, tb_list: Sequence[int]) -> None:
        # A block that is listed twice would process two parts at once.
        if not tb_list or len(set(tb_list)) != len(tb_list):
            raise ValueError(f"a group of the thread blocks {list(tb_list)}")
        self.tb_list = list(tb_list)

    def get_internal_id(self, tb: int) -> int:
        """Return the number of the part that a block processes."""
        return self.tb_list.index(tb)

    def numtb(self) -> int:
        """Number of thread blocks."""
        return len(self.tb_list)


BLOCK_BARRIERS = ("nop", "barrier")
"""Operations that are a barrier of all threads of a block."""


@dataclass(slots=True)
class Recorded:
    """An operation of a thread block of `rank`.

    `channels`: ordinals among the channels of this type of the rank. `part`: (number of the part,
    number of parts) if a group of thread blocks shares the operation. `sync`: whether a barrier of
    the block precedes or follows it. `semaphores`: ordinals within the rank. `barrier`: number
    within the rank, or -1; `barrier_blocks`: number of thread blocks that use it. `body`:
    operations of a pipeline; `loop`: bytes of a slice and number of chunks of a pipeline.
    """

    name: str
    rank: int
    channel_type: str = ""
    channels: Sequence[int] = ()
    src: Sequence[Chunk] = ()
    dst: Sequence[Chunk] = ()
    part: tuple[int, int] | None = None
    sync: SyncType = SyncType.none
    semaphores: Sequence[int] = ()
    barrier: int = -1
    barrier_blocks: int = 0
    reduce_op: str = ""
    body: list[Recorded] = field(default_factory=list)
    loop: tuple[int, int] = (0, 0)

    @property
    def is_synchronisation(self) -> bool:
        """Whether the operation synchronises, so that `sync` may add barriers around it."""
        return self.name in _SYNCHRONISATIONS

    @property
    def starts_with_barrier(self) -> bool:
        """Return whether a barrier of the threads precedes the work of the operation.

        It does for `nop` and `barrier`, which are barriers themselves, and if `sync` requests
        one before the operation. For a pipeline with operations, its first operation decides.
        """
        if self.body:
            return self.body[0].starts_with_barrier
        return self.name in BLOCK_BARRIERS or SyncType.before in self.sync

    @property
    def ends_with_barrier(self) -> bool:
        """Return whether a barrier of the threads follows the work of the operation.

        It does for `nop` and `barrier`, which are barriers themselves, and if `sync` requests
        one after the operation. For a pipeline with operations, its last operation decides.
        """
        if self.body:
            return self.body[-1].ends_with_barrier
        return self.name in BLOCK_BARRIERS or SyncType.after in self.sync


_SYNCHRONISATIONS = (
    "signal", "wait", "rlxsignal", "rlxwait", "flush", "sem_acquire", "sem_release",
)  # fmt: skip
