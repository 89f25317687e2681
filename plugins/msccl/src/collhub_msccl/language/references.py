"""References: names of chunks in programs, and the operations on them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collhub_msccl.language.chunks import Chunk

if TYPE_CHECKING:
    from collhub_msccl.language.program import MSCCLProgram


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
        """Copy to rank `dst`.

        Reference to the copy, or None if source and destination are identical.

        Without `buffer` and `index`: to the same buffer and index; with only a scratch buffer: to
        its end. `sendtb`, `recvtb`: thread blocks on the source's and the destination's rank; `ch`:
        channel.
        """
        return self.prog.copy(self, dst, buffer, index, (sendtb, recvtb, ch))

    def reduce(self, other: Ref, sendtb: int = -1, recvtb: int = -1, ch: int = -1) -> Ref:
        """Add `other`, of any rank, to this reference's chunks in place; returns this reference."""
        return self.prog.reduce(self, other, (sendtb, recvtb, ch))

    def split(self, num: int) -> list[Ref]:
        """Split into `num` references of equal size.

        Raises `AssertionError` if the size is not divisible.
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
        """Reference from the lower start to the higher end of both references.

        Raises `ValueError` if they refer to different buffers.
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
        """The chunk at `index`. Raises `TypeError` for a sum, and `ValueError` if it is empty."""
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
