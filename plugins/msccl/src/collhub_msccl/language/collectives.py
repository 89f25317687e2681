"""The collectives of the language.

They say what the buffers hold at the start, where in-place data lies, and what must come out.
Source of sizes and index maps: `msccl/language/collectives.py` of MSCCLang (microsoft/msccl-tools,
Azure/msccl-tools), but for its known defects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

from collhub_msccl.language.chunks import Buffer, Chunk, Value, chunks_of

# What `from msccl.language.collectives import *` gives a program.
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
"""(rank, index) of a chunk at the start."""
Place = tuple[Hashable, int]
"""(buffer, index) of a slot."""
ExpectedSlot = tuple[int, Hashable, int, list[Origin]]
"""(rank, buffer, index, origins of all chunks in it)."""


class HasBuffers(Protocol):
    """What `check` gets of a program: for every rank, buffer to its slots."""

    @property
    def buffers(self) -> Sequence[RankBuffers]:
        """The buffers of every rank after the program."""
        ...


# Programs derive from `Collective` by this name, which the core uses for a model of its own.
class Collective:
    """A collective of `num_ranks` ranks; programs derive their own from it.

    They override `init_buffers`, and `check` where they state an outcome. `chunk_factor` counts the
    chunks as the class says; `inplace`: the runtime is called with one buffer for both. Other
    keywords of the language's releases are accepted and have no meaning here.
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
        # No abstract method: Python's own words for that would not say what is missing.
        raise TypeError(
            f"{type(self).__name__} does not say what the buffers hold: it has no init_buffers"
        )

    def check(self, prog: HasBuffers) -> bool | None:
        """Whether `prog.buffers` hold what they must after the program.

        None where the collective states nothing.
        """
        return None

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """Where a slot of a rank really lies, for collectives in place."""
        return buffer, index

    def get_destination(self, source: int, rank: int, buffer: Hashable, index: int) -> Place:
        """Where a copy from rank `source` to a slot of `rank` lands."""
        return self.get_buffer_index(rank, buffer, index)


class _Stated(Collective, ABC):
    """A collective whose outcome is a table."""

    @abstractmethod
    def _rank_buffers(self, rank: int) -> RankBuffers:
        """What the buffers of one rank hold at the start."""

    @abstractmethod
    def _expected(self) -> Iterator[ExpectedSlot]:
        """Every slot of the outcome."""

    def init_buffers(self) -> list[RankBuffers]:
        """What the buffers of every rank hold at the start."""
        return [self._rank_buffers(rank) for rank in self._ranks()]

    def check(self, prog: HasBuffers) -> bool:
        """Whether the outcome is right; one line is printed for a wrong slot."""
        is_right = True
        for rank, buffer, index, origins in self._expected():
            value = prog.buffers[rank][buffer][index]
            # Each contribution once: a chunk that was added twice makes the sum wrong.
            if _origins_in(value) != origins:
                print(_wrong_slot(rank, buffer, index, value, origins))
                is_right = False
        return is_right

    @property
    def _result(self) -> Buffer:
        """The buffer that holds the outcome: in place the input, else the output."""
        return Buffer.input if self.inplace else Buffer.output

    def _ranks(self) -> range:
        return range(self.num_ranks)

    def _pair(self, data: Slots, output_size: int) -> RankBuffers:
        """Both buffers of a rank: one list in place, else an empty output."""
        # The same list, so that what is written under one name is read under the other.
        output = data if self.inplace else _empty(output_size)
        return {Buffer.input: data, Buffer.output: output}

    def _to_input(self, buffer: Hashable) -> Hashable:
        """The one buffer that a collective in place has."""
        if self.inplace and buffer is Buffer.output:
            return Buffer.input
        return buffer


def _empty(size: int) -> Slots:
    return [None] * size


def _origins_in(value: Value | None) -> list[Origin]:
    """Where the chunks in a slot stood at the start, in order."""
    return sorted((chunk.origin_rank, chunk.origin_index) for chunk in chunks_of(value))


def _wrong_slot(
    rank: int, buffer: Hashable, index: int, value: Value | None, origins: list[Origin]
) -> str:
    """The line that `Check()` prints for a slot."""
    expected = " + ".join(f"chunk {chunk} of rank {origin}" for origin, chunk in origins)
    held = "nothing" if value is None else value
    return f"rank {rank}: {buffer}[{index}] holds {held}, expected {expected}"


class AllReduce(_Stated):
    """Every rank gets the sum of all vectors of `chunk_factor` chunks.

    In place, output is input.
    """

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

    def _rank_buffers(self, rank: int) -> RankBuffers:
        size = self.chunk_factor
        data: Slots = [Chunk(rank, index, -1, index) for index in range(size)]
        return self._pair(data, size)

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """In place, output is input."""
        return self._to_input(buffer), index

    def _expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for index in range(self.chunk_factor):
                origins = [(origin, index) for origin in self._ranks()]
                yield rank, self._result, index, origins


class AllGather(_Stated):
    """Every rank gets the `chunk_factor` chunks of each rank.

    In place, input k is output rank * chunk_factor + k.
    """

    def __init__(
        self, num_ranks: int, chunk_factor: int, inplace: bool, create_all_chunks: bool = False
    ) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        if create_all_chunks:
            raise ValueError(
                "create_all_chunks is not supported: it declares data that the ranks do not have"
            )
        self.name = "allgather"

    def _rank_buffers(self, rank: int) -> RankBuffers:
        share = self.chunk_factor
        first = rank * share
        data: Slots = [Chunk(rank, index, -1, first + index) for index in range(share)]
        output = _empty(self.num_ranks * share)
        # Two lists, of which programs only ever reach the output: see `get_buffer_index`.
        if self.inplace:
            output[first : first + share] = data
        return {Buffer.input: data, Buffer.output: output}

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """In place, a rank's input is its share of the output."""
        if self.inplace and buffer is Buffer.input:
            return Buffer.output, rank * self.chunk_factor + index
        return buffer, index

    def get_destination(self, source: int, rank: int, buffer: Hashable, index: int) -> Place:
        """In place, the sender's share of the output of `rank`."""
        # Programs write `c.copy(peer, Buffer.input, k)` and mean the sender's part of the peer's
        # output: the language has always mapped this with the sender's rank.
        return self.get_buffer_index(source, buffer, index)

    def _expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for index in range(self.num_ranks * self.chunk_factor):
                origin = divmod(index, self.chunk_factor)
                yield rank, Buffer.output, index, [origin]


class AllToAll(_Stated):
    """Rank r sends `chunk_factor` chunks to every rank q.

    They go from r's input q * chunk_factor on to q's output r * chunk_factor on. In place, input
    and output are one list without an index map: what is overwritten is gone.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        """As for `Collective`; the name is `alltoall`."""
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "alltoall"

    def _rank_buffers(self, rank: int) -> RankBuffers:
        share = self.chunk_factor
        data: Slots = []
        for index in range(self.num_ranks * share):
            receiver, part = divmod(index, share)
            data.append(Chunk(rank, index, receiver, rank * share + part))
        return self._pair(data, len(data))

    def _expected(self) -> Iterator[ExpectedSlot]:
        share = self.chunk_factor
        for rank in self._ranks():
            for index in range(self.num_ranks * share):
                sender, part = divmod(index, share)
                yield rank, Buffer.output, index, [(sender, rank * share + part)]


class ReduceScatter(_Stated):
    """Rank r gets the sum of part r, `chunk_factor` chunks.

    In place, output k is input rank * chunk_factor + k, and there is no list for the output.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        # As in the files of the first runtime; those of its successors have no underscore.
        self.name = "reduce_scatter"

    def _rank_buffers(self, rank: int) -> RankBuffers:
        share = self.chunk_factor
        data: Slots = []
        for index in range(self.num_ranks * share):
            receiver, part = divmod(index, share)
            data.append(Chunk(rank, index, receiver, part))
        if self.inplace:
            return {Buffer.input: data}
        return {Buffer.input: data, Buffer.output: _empty(share)}

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """In place, a rank's output is its part of the input."""
        if self.inplace and buffer is Buffer.output:
            return Buffer.input, rank * self.chunk_factor + index
        return buffer, index

    def _expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for part in range(self.chunk_factor):
                place = rank * self.chunk_factor + part
                origins = [(origin, place) for origin in self._ranks()]
                yield rank, self._result, place if self.inplace else part, origins


class Broadcast(_Stated):
    """Every rank gets the `chunk_factor` chunks of rank `root`.

    No other rank holds data at the start, in place either: where they do, as in the public
    language, its check passes for any program.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool, root: int = 0) -> None:
        super().__init__(num_ranks, chunk_factor, inplace, root)
        if not 0 <= root < num_ranks:
            raise ValueError(f"root {root} is not one of ranks 0..{num_ranks - 1}")
        self.name = "broadcast"

    def _rank_buffers(self, rank: int) -> RankBuffers:
        size = self.chunk_factor
        data = _empty(size)
        if rank == self.root:
            data = [Chunk(rank, index, -1, index) for index in range(size)]
        return self._pair(data, size)

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """In place, output is input."""
        return self._to_input(buffer), index

    def _expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for index in range(self.chunk_factor):
                yield rank, self._result, index, [(self.root, index)]


class SendRecv(_Stated):
    """Two ranks exchange their `chunk_factor` chunks."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        # A rank's partner is 1 - rank.
        if num_ranks != 2:
            raise ValueError(f"SendRecv is between 2 ranks, not {num_ranks}")
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "sendrecv"

    def _rank_buffers(self, rank: int) -> RankBuffers:
        size = self.chunk_factor
        data: Slots = [Chunk(rank, index, 1 - rank, index) for index in range(size)]
        return self._pair(data, size)

    def _expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for index in range(self.chunk_factor):
                yield rank, Buffer.output, index, [(1 - rank, index)]
