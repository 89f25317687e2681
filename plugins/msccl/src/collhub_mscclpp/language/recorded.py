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
    """The program. Raises `RuntimeError` outside of one."""
    program = _CURRENT.get()
    if program is None:
        raise RuntimeError("is used outside of `with CollectiveProgram(...)`")
    return program


def enter_program(program: CollectiveProgram | None) -> None:
    """Make a program the current one; None: there is none any more."""
    _CURRENT.set(program)


class BufferType(Enum):
    """The memories of a rank, by their letters in plans."""

    input = "i"
    output = "o"
    scratch = "s"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of chunks of a buffer of a rank."""

    rank: int
    buffer: BufferType
    index: int
    size: int

    def overlaps(self, other: Chunk) -> bool:
        """Whether the two share a chunk, where they are of one rank."""
        first = max(self.index, other.index)
        last = min(self.index + self.size, other.index + other.size)
        return self.buffer is other.buffer and first < last


class RemoteRange(Chunk):
    """A range that a channel accesses at its other end, which may be the same rank."""


class SwitchRange(Chunk):
    """The same range of the buffers of all ranks of a switch channel, `rank` among them."""


class BaseBuffer:
    """A buffer: `buffer[a:b]` are chunks a to b - 1 of it."""

    def __init__(self, rank: int, buffer_type: BufferType, offset: int, size: int) -> None:
        self.rank = rank
        self.buffer_type = buffer_type
        self.offset = offset
        # The end, as programs of the package may expect.
        self.size = offset + size

    def __getitem__(self, key: slice) -> Chunk:
        """Raises `ValueError` for a range outside the buffer."""
        length = self.size - self.offset
        start = 0 if key.start is None else key.start
        stop = length if key.stop is None else key.stop
        if key.step not in (None, 1) or not 0 <= start <= stop <= length:
            name = self.buffer_type.name
            raise ValueError(f"chunks {start}:{stop} of an {name} buffer of {length} chunks")
        return Chunk(self.rank, self.buffer_type, self.offset + start, stop - start)


class Buffer(BaseBuffer):
    """Scratch of a rank, behind what it has already."""

    def __init__(self, rank: int, size: int) -> None:
        offset = current_program().allocate_scratch(rank, size)
        super().__init__(rank, BufferType.scratch, offset, size)


class SyncType(Flag):
    """Where the threads of a block meet around an operation that synchronises."""

    none = 0
    before = 1
    after = 2
    both = 3


class ReduceOperationType(Enum):
    """Operators that programs may name; executors always add."""

    sum = "sum"
    min = "min"
    max = "max"


class ReplicationPolicy(Enum):
    """How instances share the chunks: in turns; the package itself always fails on `none`."""

    interleaved = "interleaved"
    none = "none"


class ThreadBlockGroup:
    """Thread blocks that share the work of an operation."""

    def __init__(self, tb_list: Sequence[int]) -> None:
        # A block that stands twice would do two parts at once.
        if not tb_list or len(set(tb_list)) != len(tb_list):
            raise ValueError(f"a group of the thread blocks {list(tb_list)}")
        self.tb_list = list(tb_list)

    def get_internal_id(self, tb: int) -> int:
        """The part of the work that a block does."""
        return self.tb_list.index(tb)

    def numtb(self) -> int:
        """Number of thread blocks."""
        return len(self.tb_list)


MEETINGS = ("nop", "barrier")
"""Operations at which all threads of a block meet."""


@dataclass(slots=True)
class Recorded:
    """An operation of a thread block of `rank`.

    `channels`: ordinals of its type within the rank. `part`: (which, of how many) of a group of
    thread blocks. `sync`: where the threads of the block meet. `semaphores`: ordinals within the
    rank. `barrier`: number within the rank, or -1, and `barrier_blocks`: number of thread blocks
    that it names. `body`: operations of a pipeline, `loop`: its bytes of a slice and chunks.
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
        """Whether the operation may state meetings of its own."""
        return self.name in _SYNCHRONISATIONS

    @property
    def starts_with_meeting(self) -> bool:
        """Whether the threads of the block meet before the operation's work."""
        if self.body:
            return self.body[0].starts_with_meeting
        return self.name in MEETINGS or SyncType.before in self.sync

    @property
    def ends_with_meeting(self) -> bool:
        """Whether the threads of the block meet after the operation's work."""
        if self.body:
            return self.body[-1].ends_with_meeting
        return self.name in MEETINGS or SyncType.after in self.sync


_SYNCHRONISATIONS = (
    "signal", "wait", "rlxsignal", "rlxwait", "flush", "sem_acquire", "sem_release",
)  # fmt: skip
