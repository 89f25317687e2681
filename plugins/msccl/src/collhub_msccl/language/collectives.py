"""The collectives of the language: what the buffers hold at the start, where in-place data lies, what must come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

from collhub_msccl.language.chunks import Buffer, Chunk, Value, chunks_of

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "Collective",
    "ReduceScatter",
    "SendRecv",
]

Slots = list[Value | None]
RankBuffers = dict[Hashable, Slots]
Origin = tuple[int, int]


class _Program(Protocol):
    @property
    def buffers(self) -> Sequence[RankBuffers]: ...


class Collective:
    """A collective of `num_ranks` ranks; programs derive their own from it and override `init_buffers` and `check`.

    `chunk_factor` counts the chunks as the class says; `inplace`: the runtime is called with one buffer for both.
    Other keywords of the language's releases are accepted and have no meaning here.
    """

    def __init__(
        self,
        num_ranks: int,
        chunk_factor: int,
        inplace: bool,
        root: int = 0,
        num_ranks_per_node: int = -1,
        **kwargs: object,
    ) -> None:
        if num_ranks < 1 or chunk_factor < 1:
            raise ValueError(
                f"a collective of {num_ranks} ranks with chunk factor {chunk_factor} has no chunks"
            )
        self.num_ranks = num_ranks
        self.chunk_factor = chunk_factor
        self.inplace = inplace
        self.root = root
        self.num_ranks_per_node = num_ranks_per_node
        self.name = "custom"

    def init_buffers(self) -> list[RankBuffers]:
        """For every rank its `Buffer.input` and `Buffer.output` as lists of `Chunk` or None."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say what the buffers hold: it has no init_buffers"
        )

    def check(self, prog: _Program) -> bool | None:
        """Whether `prog.buffers` hold what they must after the program; None where the collective states nothing."""
        return None

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> tuple[Hashable, int]:
        """Where a slot of a rank really lies, for collectives in place."""
        return buffer, index

    def get_destination(
        self, source: int, rank: int, buffer: Hashable, index: int
    ) -> tuple[Hashable, int]:
        """Where a copy from rank `source` to a slot of `rank` lands."""
        return self.get_buffer_index(rank, buffer, index)


class _Stated(Collective, ABC):
    """A collective whose outcome is a table."""

    @abstractmethod
    def _expected(self) -> Iterator[tuple[int, Hashable, int, list[Origin]]]:
        """(rank, buffer, index, origins of all chunks in it) of every slot of the outcome."""

    def check(self, prog: _Program) -> bool:
        """Print one line a wrong slot."""
        is_right = True
        for rank, buffer, index, origins in self._expected():
            value = prog.buffers[rank][buffer][index]
            if (
                sorted((chunk.origin_rank, chunk.origin_index) for chunk in chunks_of(value))
                != origins
            ):
                expected = " + ".join(
                    f"chunk {chunk} of rank {origin}" for origin, chunk in origins
                )
                print(
                    f"rank {rank}: {buffer}[{index}] holds {'nothing' if value is None else value}, expected {expected}"
                )
                is_right = False
        return is_right

    @property
    def _result(self) -> Buffer:
        return Buffer.input if self.inplace else Buffer.output

    def _ranks(self) -> range:
        return range(self.num_ranks)

    def _empty(self, size: int) -> Slots:
        return [None] * size

    def _pair(self, data: Slots, output_size: int) -> RankBuffers:
        """Both buffers of a rank: one list in place, else an empty output."""
        return {
            Buffer.input: data,
            Buffer.output: data if self.inplace else self._empty(output_size),
        }


class AllReduce(_Stated):
    """Every rank gets the sum of all vectors of `chunk_factor` chunks; in place, output is input."""

    def __init__(
        self,
        num_ranks: int,
        chunk_factor: int,
        inplace: bool,
        num_ranks_per_node: int = -1,
        **kwargs: object,
    ) -> None:
        super().__init__(num_ranks, chunk_factor, inplace, num_ranks_per_node=num_ranks_per_node)
        self.name = "allreduce"

    def init_buffers(self) -> list[RankBuffers]:
        size = self.chunk_factor
        return [self._pair([Chunk(r, c, -1, c) for c in range(size)], size) for r in self._ranks()]

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> tuple[Hashable, int]:
        return (Buffer.input if self.inplace and buffer is Buffer.output else buffer), index

    def _expected(self) -> Iterator[tuple[int, Hashable, int, list[Origin]]]:
        for rank in self._ranks():
            for index in range(self.chunk_factor):
                yield rank, self._result, index, [(origin, index) for origin in self._ranks()]


class AllGather(_Stated):
    """Every rank gets the `chunk_factor` chunks of each rank; in place, input k is output rank * chunk_factor + k."""

    def __init__(
        self, num_ranks: int, chunk_factor: int, inplace: bool, create_all_chunks: bool = False
    ) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        if create_all_chunks:
            raise ValueError(
                "create_all_chunks is not supported: it declares data that the ranks do not have"
            )
        self.name = "allgather"

    def init_buffers(self) -> list[RankBuffers]:
        return [self._rank_buffers(rank) for rank in self._ranks()]

    def _rank_buffers(self, rank: int) -> RankBuffers:
        share, size = self.chunk_factor, self.num_ranks * self.chunk_factor
        data: Slots = [Chunk(rank, c, -1, rank * share + c) for c in range(share)]
        output = self._empty(size)
        if self.inplace:
            output[rank * share : (rank + 1) * share] = data
        return {Buffer.input: data, Buffer.output: output}

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> tuple[Hashable, int]:
        if self.inplace and buffer is Buffer.input:
            return Buffer.output, rank * self.chunk_factor + index
        return buffer, index

    def get_destination(
        self, source: int, rank: int, buffer: Hashable, index: int
    ) -> tuple[Hashable, int]:
        # In place, programs write `c.copy(peer, Buffer.input, k)` and mean the sender's part of the peer's output:
        # the language has always mapped this with the sender's rank.
        return self.get_buffer_index(source, buffer, index)

    def _expected(self) -> Iterator[tuple[int, Hashable, int, list[Origin]]]:
        for rank in self._ranks():
            for index in range(self.num_ranks * self.chunk_factor):
                yield rank, Buffer.output, index, [divmod(index, self.chunk_factor)]


class AllToAll(_Stated):
    """Rank r sends `chunk_factor` chunks to every rank q, from input q * chunk_factor to q's output r * chunk_factor."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "alltoall"

    def init_buffers(self) -> list[RankBuffers]:
        share, size = self.chunk_factor, self.num_ranks * self.chunk_factor
        return [
            self._pair([Chunk(r, c, c // share, c % share + r * share) for c in range(size)], size)
            for r in self._ranks()
        ]

    def _expected(self) -> Iterator[tuple[int, Hashable, int, list[Origin]]]:
        share = self.chunk_factor
        for rank in self._ranks():
            for index in range(self.num_ranks * share):
                yield rank, Buffer.output, index, [(index // share, rank * share + index % share)]


class ReduceScatter(_Stated):
    """Rank r gets the sum of part r, `chunk_factor` chunks; in place, output k is input rank * chunk_factor + k."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "reduce_scatter"

    def init_buffers(self) -> list[RankBuffers]:
        share, size = self.chunk_factor, self.num_ranks * self.chunk_factor
        data: list[Slots] = [
            [Chunk(r, c, c // share, c % share) for c in range(size)] for r in self._ranks()
        ]
        if self.inplace:
            return [{Buffer.input: slots} for slots in data]
        return [{Buffer.input: slots, Buffer.output: self._empty(share)} for slots in data]

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> tuple[Hashable, int]:
        if self.inplace and buffer is Buffer.output:
            return Buffer.input, rank * self.chunk_factor + index
        return buffer, index

    def _expected(self) -> Iterator[tuple[int, Hashable, int, list[Origin]]]:
        for rank in self._ranks():
            for part in range(self.chunk_factor):
                place = rank * self.chunk_factor + part
                yield (
                    rank,
                    self._result,
                    place if self.inplace else part,
                    [(origin, place) for origin in self._ranks()],
                )


class Broadcast(_Stated):
    """Every rank gets the `chunk_factor` chunks of rank `root`; no other rank holds data at the start."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool, root: int = 0) -> None:
        super().__init__(num_ranks, chunk_factor, inplace, root)
        if not 0 <= root < num_ranks:
            raise ValueError(f"root {root} is not one of ranks 0..{num_ranks - 1}")
        self.name = "broadcast"

    def init_buffers(self) -> list[RankBuffers]:
        size = self.chunk_factor
        data: Slots = [Chunk(self.root, c, -1, c) for c in range(size)]
        return [
            self._pair(data if rank == self.root else self._empty(size), size)
            for rank in self._ranks()
        ]

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> tuple[Hashable, int]:
        return (Buffer.input if self.inplace and buffer is Buffer.output else buffer), index

    def _expected(self) -> Iterator[tuple[int, Hashable, int, list[Origin]]]:
        for rank in self._ranks():
            for index in range(self.chunk_factor):
                yield rank, self._result, index, [(self.root, index)]


class SendRecv(_Stated):
    """Two ranks exchange their `chunk_factor` chunks."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        if num_ranks != 2:
            raise ValueError(f"SendRecv is between 2 ranks, not {num_ranks}")
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "sendrecv"

    def init_buffers(self) -> list[RankBuffers]:
        size = self.chunk_factor
        return [
            self._pair([Chunk(r, c, 1 - r, c) for c in range(size)], size) for r in self._ranks()
        ]

    def _expected(self) -> Iterator[tuple[int, Hashable, int, list[Origin]]]:
        for rank in self._ranks():
            for index in range(self.chunk_factor):
                yield rank, Buffer.output, index, [(1 - rank, index)]
