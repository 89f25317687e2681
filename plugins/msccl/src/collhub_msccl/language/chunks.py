"""Contents of buffers while a program is traced: chunks, and sums of chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


# Programs import `Buffer` and `Chunk` by these names, which the core uses for different classes.
class Buffer(Enum):
    """The buffers that every rank has.

    Other names (a text, a tuple) are named scratch buffers of a rank.
    """

    input = "i"
    output = "o"
    scratch = "s"

    def __str__(self) -> str:
        return self.value


@dataclass(slots=True, eq=False)
class Chunk:
    """Data that was initially at (`origin_rank`, `origin_index`), and its intended destination.

    Chunks are equal if their origins are equal, as in the public language.
    """

    origin_rank: int
    origin_index: int
    dst_rank: int = -1
    dst_index: int = -1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunk) and self._origin == other._origin

    def __hash__(self) -> int:
        """Hash of the origin, consistent with equality."""
        return hash(self._origin)

    def __lt__(self, other: Chunk) -> bool:
        """Order by origin, so that sums can be compared as sorted lists."""
        return self._origin < other._origin

    @property
    def _origin(self) -> tuple[int, int]:
        """(rank, index) at the start."""
        return self.origin_rank, self.origin_index

    def __repr__(self) -> str:
        # Appears in messages to the user.
        return f"chunk {self.origin_index} of rank {self.origin_rank}"


class ReduceChunk:
    """A sum of chunks, computed on rank `creation_rank`.

    Sums are equal if they contain the same chunks equally often: adding a chunk twice is an error.
    """

    __slots__ = ("_chunks", "_parts", "creation_rank")

    def __init__(self, creation_rank: int, chunks: list[Chunk]) -> None:
        self.creation_rank = creation_rank
        # Either the list is known, or the parts of the sum.
        self._parts: tuple[Value, ...] = ()
        self._chunks: list[Chunk] | None = chunks

    @classmethod
    def from_parts(cls, creation_rank: int, *parts: Value) -> ReduceChunk:
        """Sum of parts, whose list of chunks is computed on demand.

        Along a ring the lists of all partial sums would grow quadratically.
        """
        total = cls(creation_rank, [])
        total._parts = parts
        total._chunks = None
        return total

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks of the sum, each as often as it was added; computed once."""
        if self._chunks is None:
            self._chunks = list(self._walk())
            self._parts = ()
        return self._chunks

    def _walk(self) -> Iterator[Chunk]:
        """Yield the chunks of all nested parts."""
        # A stack instead of recursion: a ring of a thousand ranks nests a thousand deep.
        waiting: list[Value] = [self]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Chunk):
                yield value
            elif value._chunks is not None:
                yield from value._chunks
            else:
                waiting.extend(value._parts)

    def reduce(self, rank: int, other: Value) -> ReduceChunk:
        """Sum with another value, computed on `rank`."""
        return ReduceChunk.from_parts(rank, self, other)

    def sort(self) -> None:
        """Sort the chunks in place."""
        self.chunks.sort()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceChunk) and sorted(self.chunks) == sorted(other.chunks)

    def __hash__(self) -> int:
        # Sorted, consistent with equality.
        return hash(tuple(sorted(self.chunks)))

    def __repr__(self) -> str:
        """The chunks of the sum in order, so that equal sums have equal texts."""
        return f"sum of {', '.join(map(repr, sorted(self.chunks)))}"


Value = Chunk | ReduceChunk


def list_chunks(value: Value | None) -> list[Chunk]:
    """Chunks in a slot; empty list for an empty slot."""
    if value is None:
        return []
    if isinstance(value, Chunk):
        return [value]
    return value.chunks
