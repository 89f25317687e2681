"""Buffers of the ranks of a program, and chunks of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from collhub_mscclpp.language.state import current_program


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
