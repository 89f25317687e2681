"""What a program does, as recorded, before ids are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag

from collhub_mscclpp.language.buffers import Chunk


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
