"""What a program does, as recorded, before ids are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from collhub_mscclpp.language.buffers import Chunk


class SyncType(Enum):
    """Where the threads of a block meet around an operation that synchronises."""

    none = "none"
    before = "before"
    after = "after"
    both = "both"


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


@dataclass(slots=True)
class Recorded:
    """An operation of a thread block. `rank`: where; chunks of other ranks are remote.

    `channels`: (type, ordinal within the rank). `part`: (which, of how many). `sync`: where the
    threads of the block meet. `semaphore`: its ordinal, or -1. `barrier`: blocks that meet.
    `body`: of a pipeline, with its unit and chunks.
    """

    name: str
    rank: int
    channel_type: str = ""
    channels: Sequence[int] = ()
    src: Sequence[Chunk] = ()
    dst: Sequence[Chunk] = ()
    part: tuple[int, int] = (0, 1)
    sync: SyncType = SyncType.none
    semaphore: int = -1
    barrier: tuple[int, ...] = ()
    body: list[Recorded] = field(default_factory=list)
    loop: tuple[int, int] = (0, 0)

    def conflicts(self, other: Recorded) -> bool:
        """Whether one writes what the other accesses, on this rank."""
        mine, theirs = self._ranges(), other._ranges()
        return any(
            (is_written or is_other_written) and one.overlaps(two)
            for one, is_written in mine
            for two, is_other_written in theirs
        )

    def _ranges(self) -> list[tuple[Chunk, bool]]:
        """Local ranges, and whether they are written."""
        # What is far away is ordered by signals, not by meetings.
        reads = [(chunk, False) for chunk in self.src if chunk.rank == self.rank]
        return reads + [(chunk, True) for chunk in self.dst if chunk.rank == self.rank]
