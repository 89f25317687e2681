"""Collectives of programs: the chunks of their buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from collhub_mscclpp.language.buffers import BaseBuffer, BufferType


@dataclass
class Collective:
    """A collective of `num_ranks` ranks; `chunk_factor`: chunks of a rank, or of a pair."""

    num_ranks: int
    chunk_factor: int = 1
    inplace: bool = False
    name: ClassVar[str] = "custom"

    def counts(self) -> tuple[int, int]:
        """Chunks of input and output."""
        return self.chunk_factor, self.chunk_factor

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """Input and output of every rank."""
        input_chunks, output_chunks = self.counts()
        return [
            {
                BufferType.input: BaseBuffer(rank, BufferType.input, 0, input_chunks),
                BufferType.output: BaseBuffer(rank, BufferType.output, 0, output_chunks),
            }
            for rank in range(self.num_ranks)
        ]


class AllGather(Collective):
    """Every rank gets the input of all."""

    name = "allgather"

    def counts(self) -> tuple[int, int]:
        """Chunks of input and output."""
        return self.chunk_factor, self.num_ranks * self.chunk_factor


class AllReduce(Collective):
    """Every rank gets the sum; its vector has `chunk_factor` chunks for every rank."""

    name = "allreduce"

    def counts(self) -> tuple[int, int]:
        """Chunks of input and output."""
        count = self.num_ranks * self.chunk_factor
        return count, count


class ReduceScatter(Collective):
    """Every rank gets its part of the sum."""

    name = "reducescatter"

    def counts(self) -> tuple[int, int]:
        """Chunks of input and output."""
        return self.num_ranks * self.chunk_factor, self.chunk_factor


class AllToAll(AllReduce):
    """Every rank gets its part from all."""

    name = "alltoall"


class SendRecv(Collective):
    """Every rank gets the input of the rank before it."""

    name = "sendrecv"


class TestCollective(Collective):
    """Buffers of stated sizes, and no promise."""

    name = "test"
    # Not a test of pytest's, whatever its name.
    __test__ = False

    def __init__(self, num_ranks: int, input_size: int, output_size: int) -> None:
        super().__init__(num_ranks)
        self._counts = (input_size, output_size)

    def counts(self) -> tuple[int, int]:
        """Chunks of input and output."""
        return self._counts
