"""What buffers hold while a program is traced: chunks, and sums of chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


# Programs import `Buffer` and `Chunk` by these names, which the core uses for things of its own.
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
    """Data that stood at (`origin_rank`, `origin_index`) at the start, and where it is meant to go.

    Chunks are equal by origin, as in the public language.
    """

    origin_rank: int
    origin_index: int
    dst_rank: int = -1
    dst_index: int = -1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunk) and self._origin == other._origin

    def __hash__(self) -> int:
        """By origin, as equality is."""
        return hash(self._origin)

    def __lt__(self, other: Chunk) -> bool:
        """By origin, so that sums can be compared as sorted lists."""
        return self._origin < other._origin

    @property
    def _origin(self) -> tuple[int, int]:
        return self.origin_rank, self.origin_index

    def __repr__(self) -> str:
        # Stands in messages to the user.
        return f"chunk {self.origin_index} of rank {self.origin_rank}"


class ReduceChunk:
    """A sum of chunks, made on rank `creation_rank`.

    Sums are equal where the same chunks are in them equally often: adding a chunk twice is wrong.
    """

    __slots__ = ("_chunks", "_parts", "creation_rank")

    def __init__(self, creation_rank: int, chunks: list[Chunk]) -> None:
        self.creation_rank = creation_rank
        # Either the list is known, or the parts that it is made of.
        self._parts: tuple[Value, ...] = ()
        self._chunks: list[Chunk] | None = chunks

    @classmethod
    def of(cls, creation_rank: int, *parts: Value) -> ReduceChunk:
        """The sum of parts, whose list of chunks is made only when it is asked for.

        Along a ring the lists of all partial sums would grow quadratically.
        """
        made = cls(creation_rank, [])
        made._parts = parts
        made._chunks = None
        return made

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks that are in it, each as often as it was added."""
        if self._chunks is None:
            self._chunks = list(self._walk())
            self._parts = ()
        return self._chunks

    def _walk(self) -> Iterator[Chunk]:
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
        """The sum with another value."""
        return ReduceChunk.of(rank, self, other)

    def sort(self) -> None:
        """Put the chunks in order."""
        self.chunks.sort()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceChunk) and sorted(self.chunks) == sorted(other.chunks)

    def __hash__(self) -> int:
        # In order, as equality is of sorted lists.
        return hash(tuple(sorted(self.chunks)))

    def __repr__(self) -> str:
        """The chunks of the sum in order, so that equal sums read alike."""
        return f"sum of {', '.join(map(repr, sorted(self.chunks)))}"


Value = Chunk | ReduceChunk


def chunks_of(value: Value | None) -> list[Chunk]:
    """The chunks in a slot."""
    if value is None:
        return []
    if isinstance(value, Chunk):
        return [value]
    return value.chunks
