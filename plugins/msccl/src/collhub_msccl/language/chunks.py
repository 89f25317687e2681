"""Chunks and sums of chunks in buffers while a program is traced, and references to them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collhub_msccl.language.program import MSCCLProgram


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
        """Build the sum of `parts` (chunks or sums) without listing its chunks.

        `chunks` lists them when they are first needed: along a ring, the lists of all partial sums
        would grow quadratically.
        """
        total = cls(creation_rank, [])
        total._parts = parts
        total._chunks = None
        return total

    @property
    def chunks(self) -> list[Chunk]:
        """Return the chunks of the sum, each as often as it was added, in no particular order.

        The list is computed at the first use and cached; the references to the parts of the sum are
        then dropped.
        """
        if self._chunks is not None:
            return self._chunks
        chunks: list[Chunk] = []
        # A stack instead of recursion: a ring of a thousand ranks nests a thousand deep.
        waiting: list[Value] = [self]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Chunk):
                chunks.append(value)
            elif value._chunks is not None:
                chunks.extend(value._chunks)
            else:
                waiting.extend(value._parts)
        self._chunks, self._parts = chunks, ()
        return chunks

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
    """List the chunks that are added up in a slot: all chunks of a sum, a single chunk, or none.

    A chunk that is added several times occurs several times. An empty slot (None) gives [].
    For a sum, the result is its own list, in no defined order: do not change it.
    """
    if value is None:
        return []
    if isinstance(value, Chunk):
        return [value]
    return value.chunks


@dataclass(frozen=True, slots=True)
class Ref:
    """Reference to `size` chunks of a buffer of a rank, from `index` on."""

    rank: int
    buffer: Hashable
    index: int
    size: int
    prog: MSCCLProgram

    def copy(
        self,
        dst: int,
        buffer: Hashable = None,
        index: int = -1,
        sendtb: int = -1,
        recvtb: int = -1,
        ch: int = -1,
    ) -> Ref | None:
        """Copy the chunks to rank `dst`, and record the operation.

        Returns a reference to the copy, or None if source and destination are identical. Without
        `buffer` and `index`: to the same buffer and index; with only a scratch buffer: to its end.
        `sendtb`, `recvtb`: thread blocks on the source's and the destination's rank; `ch`: channel;
        -1: not given.
        """
        return self.prog.copy(self, dst, buffer, index, (sendtb, recvtb, ch))

    def reduce(self, other: Ref, sendtb: int = -1, recvtb: int = -1, ch: int = -1) -> Ref:
        """Add `other`, of any rank, to this reference's chunks in place; returns this reference."""
        return self.prog.reduce(self, other, (sendtb, recvtb, ch))

    def split(self, num: int) -> list[Ref]:
        """Split the reference into `num` consecutive references of equal size, in ascending order.

        No step is recorded, and this reference stays valid. Raises `AssertionError` if the size is
        not a multiple of `num`, or if `num` is below 1 or above the size.
        """
        # Assertions in the public language too.
        assert num in range(1, self.size + 1), f"{num} parts cannot be made of {self.size} chunks"
        assert self.size % num == 0, (
            f"a reference of {self.size} chunks cannot be split in {num} equal parts"
        )
        size = self.size // num
        return [
            Ref(self.rank, self.buffer, self.index + part * size, size, self.prog)
            for part in range(num)
        ]

    def group(self, other: Ref) -> Ref:
        """Return the reference from the lower start to the higher end of both references.

        It includes chunks between the two. Raises `ValueError` for different ranks or buffers.
        """
        if (self.rank, self.buffer) != (other.rank, other.buffer):
            raise ValueError(f"{self} and {other} are in different buffers and cannot be grouped")
        # Chunks between the two are included, as in the public language.
        start = min(self.index, other.index)
        end = max(self.index + self.size, other.index + other.size)
        return Ref(self.rank, self.buffer, start, end - start, self.prog)

    def get_origin_index(self, index: int = 0) -> int:
        """Initial index of the chunk at `index` of this reference."""
        return self._get_chunk(index).origin_index

    def get_origin_rank(self, index: int = 0) -> int:
        """Initial rank of the chunk at `index` of this reference."""
        return self._get_chunk(index).origin_rank

    def get_dst_index(self, index: int = 0) -> int:
        """Intended final index of the chunk at `index` of this reference."""
        return self._get_chunk(index).dst_index

    def get_dst_rank(self, index: int = 0) -> int:
        """Intended final rank of the chunk at `index` of this reference."""
        return self._get_chunk(index).dst_rank

    def print_chunk_info(self, index: int = 0) -> None:
        """Print the content of the slot at `index` of this reference."""
        print(self.prog.value(self, index))

    def _get_chunk(self, index: int) -> Chunk:
        """Return the chunk in slot `index`, counted from the first slot of this reference.

        `index` may exceed the size of the reference. Raise `TypeError` if the slot contains a
        sum, and `ValueError` if it is empty or outside the buffer.
        """
        value = self.prog.value(self, index)
        if not isinstance(value, Chunk):
            raise TypeError(
                f"{self} holds {value}: only a single chunk has an origin and a destination"
            )
        return value

    def __str__(self) -> str:
        end = f"..{self.index + self.size - 1}" if self.size > 1 else ""
        return f"rank {self.rank}: {self.buffer}[{self.index}{end}]"

    __repr__ = __str__
