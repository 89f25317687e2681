"""The collectives of the language.

They define the initial contents of the buffers, the location of in-place data, and the required
result. Source of sizes and index maps: `msccl/language/collectives.py` of MSCCLang
(microsoft/msccl-tools, Azure/msccl-tools), except its known defects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

from collhub_msccl.language.chunks import Buffer, Chunk, Value, list_chunks

# Names that `from msccl.language.collectives import *` imports.
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
    """The view of a program that `check` receives: for every rank, a mapping from buffers to
    slots."""

    @property
    def buffers(self) -> Sequence[RankBuffers]:
        """Buffers of every rank after the program."""
        ...


# Programs derive from `Collective` by this name, which the core uses for a different class.
class Collective:
    """Base class of collectives of `num_ranks` ranks, from which programs derive their own classes.

    Subclasses override `init_buffers`, and `check` if they define a result. `chunk_factor`: number
    of chunks, counted as the class defines; `inplace`: the runtime is called with one buffer for
    input and output. Further keywords of the language's releases are accepted and ignored.
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
        """Return the initial buffers: for every rank a dictionary from buffers to lists of slots.

        The dictionary contains `Buffer.input`, and usually `Buffer.output`, as lists of `Chunk` or
        None. Raises `TypeError` if the subclass does not override it.
        """
        # Not an abstract method: Python's message for those would not explain what is missing.
        raise TypeError(
            f"{type(self).__name__} does not define the contents of buffers: it has no init_buffers"
        )

    def check(self, prog: HasBuffers) -> bool | None:
        """Return whether `prog.buffers` have the required contents; None if the class defines no
        result.
        """
        return None

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """Actual (buffer, index) of a slot of a rank, for in-place collectives."""
        return buffer, index

    def get_destination(self, source: int, rank: int, buffer: Hashable, index: int) -> Place:
        """Actual (buffer, index) of a copy from rank `source` to a slot of `rank`."""
        return self.get_buffer_index(rank, buffer, index)


class _TabulatedCollective(Collective, ABC):
    """A collective whose result is defined slot by slot."""

    @abstractmethod
    def _build_rank_buffers(self, rank: int) -> RankBuffers:
        """Initial contents of the buffers of one rank."""

    @abstractmethod
    def _iterate_expected(self) -> Iterator[ExpectedSlot]:
        """Yield every required slot of the result."""

    def init_buffers(self) -> list[RankBuffers]:
        """Initial contents of the buffers of every rank."""
        return [self._build_rank_buffers(rank) for rank in self._ranks()]

    def check(self, prog: HasBuffers) -> bool:
        """Return whether every required slot contains exactly its required chunks, each once.

        A slot is one position (rank, buffer, index). Chunks are identified by (rank of origin,
        index of origin); their order in a sum does not matter. A slot is wrong if it is empty,
        lacks a chunk, has an additional chunk, or has a chunk twice. Slots without a requirement
        are not checked. Prints one line to standard output per wrong slot, by ascending rank, then
        index. Raises `KeyError` or `IndexError` if `prog` lacks a required slot.
        """
        is_right = True
        for rank, buffer, index, origins in self._iterate_expected():
            value = prog.buffers[rank][buffer][index]
            # Each contribution once: a chunk that is added twice makes the sum wrong.
            chunks = list_chunks(value)
            if sorted((chunk.origin_rank, chunk.origin_index) for chunk in chunks) != origins:
                expected = " + ".join(
                    f"chunk {chunk} of rank {origin}" for origin, chunk in origins
                )
                content = "nothing" if value is None else value
                print(f"rank {rank}: {buffer}[{index}] holds {content}, expected {expected}")
                is_right = False
        return is_right

    @property
    def _result_buffer(self) -> Buffer:
        """Buffer of the result: in place the input, else the output."""
        return Buffer.input if self.inplace else Buffer.output

    def _ranks(self) -> range:
        """All ranks."""
        return range(self.num_ranks)

    def _build_buffer_pair(self, data: Slots, output_size: int) -> RankBuffers:
        """Return the input and output buffers of a rank; the input is `data`, the output is empty.

        If the collective is in place, both are the same list, so that data written to one is read
        from the other, and `output_size` is ignored. Otherwise the output has `output_size` empty
        slots.
        """
        # The same list, so that data written under one name is read under the other.
        output = data if self.inplace else _build_empty_slots(output_size)
        return {Buffer.input: data, Buffer.output: output}

    def _to_input(self, buffer: Hashable) -> Hashable:
        """Return `Buffer.input` for the output of an in-place collective, else `buffer` itself.

        In place, both are one list of slots, which is stored as the input.
        """
        if self.inplace and buffer is Buffer.output:
            return Buffer.input
        return buffer


def _build_empty_slots(size: int) -> Slots:
    """A list of empty slots."""
    return [None] * size


class AllReduce(_TabulatedCollective):
    """Every rank gets the sum of all vectors of `chunk_factor` chunks.

    In place, output and input are the same buffer.
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

    def _build_rank_buffers(self, rank: int) -> RankBuffers:
        size = self.chunk_factor
        data: Slots = [Chunk(rank, index, -1, index) for index in range(size)]
        return self._build_buffer_pair(data, size)

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """In place, the output is the input."""
        return self._to_input(buffer), index

    def _iterate_expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for index in range(self.chunk_factor):
                origins = [(origin, index) for origin in self._ranks()]
                yield rank, self._result_buffer, index, origins


class AllGather(_TabulatedCollective):
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

    def _build_rank_buffers(self, rank: int) -> RankBuffers:
        share = self.chunk_factor
        first = rank * share
        data: Slots = [Chunk(rank, index, -1, first + index) for index in range(share)]
        output = _build_empty_slots(self.num_ranks * share)
        # Two lists, of which programs access only the output: see `get_buffer_index`.
        if self.inplace:
            output[first : first + share] = data
        return {Buffer.input: data, Buffer.output: output}

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """Return the (buffer, index) in which slot `index` of a rank's buffer is stored.

        If the collective is in place, input slot i of rank r is output slot r * `chunk_factor` + i.
        All other slots are returned unchanged.
        """
        if self.inplace and buffer is Buffer.input:
            return Buffer.output, rank * self.chunk_factor + index
        return buffer, index

    def get_destination(self, source: int, rank: int, buffer: Hashable, index: int) -> Place:
        """Map a copy to an input to the part of rank `source` in the output of `rank`, if in place.

        Otherwise the slot itself.
        """
        # Programs write `c.copy(peer, Buffer.input, k)` for the sender's part of the peer's output:
        # the language has always mapped this with the sender's rank.
        return self.get_buffer_index(source, buffer, index)

    def _iterate_expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for index in range(self.num_ranks * self.chunk_factor):
                origin = divmod(index, self.chunk_factor)
                yield rank, Buffer.output, index, [origin]


class AllToAll(_TabulatedCollective):
    """Rank r sends `chunk_factor` chunks to every rank q.

    They are moved from r's input at q * chunk_factor to q's output at r * chunk_factor. In place,
    input and output are one list without an index map: overwritten data is lost.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        """Create the collective; its name is `alltoall`, as the runtimes write it.

        `chunk_factor` is the number of chunks that each rank sends to each rank. With
        `inplace`, input and output are one list. Raise `ValueError` if `num_ranks` or
        `chunk_factor` is below 1.
        """
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "alltoall"

    def _build_rank_buffers(self, rank: int) -> RankBuffers:
        share = self.chunk_factor
        data: Slots = []
        for index in range(self.num_ranks * share):
            receiver, part = divmod(index, share)
            data.append(Chunk(rank, index, receiver, rank * share + part))
        return self._build_buffer_pair(data, len(data))

    def _iterate_expected(self) -> Iterator[ExpectedSlot]:
        share = self.chunk_factor
        for rank in self._ranks():
            for index in range(self.num_ranks * share):
                sender, part = divmod(index, share)
                yield rank, Buffer.output, index, [(sender, rank * share + part)]


class ReduceScatter(_TabulatedCollective):
    """Rank r gets the sum of part r, `chunk_factor` chunks.

    In place, output k is input rank * chunk_factor + k, and there is no list for the output.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        # As in the files of the first runtime; its successors use no underscore.
        self.name = "reduce_scatter"

    def _build_rank_buffers(self, rank: int) -> RankBuffers:
        share = self.chunk_factor
        data: Slots = []
        for index in range(self.num_ranks * share):
            receiver, part = divmod(index, share)
            data.append(Chunk(rank, index, receiver, part))
        if self.inplace:
            return {Buffer.input: data}
        return {Buffer.input: data, Buffer.output: _build_empty_slots(share)}

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """Return the (buffer, index) in which slot `index` of a rank's buffer is stored.

        If the collective is in place, output slot i of rank r is input slot r * `chunk_factor` + i.
        All other slots are returned unchanged.
        """
        if self.inplace and buffer is Buffer.output:
            return Buffer.input, rank * self.chunk_factor + index
        return buffer, index

    def _iterate_expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for part in range(self.chunk_factor):
                position = rank * self.chunk_factor + part
                origins = [(origin, position) for origin in self._ranks()]
                yield rank, self._result_buffer, position if self.inplace else part, origins


class Broadcast(_TabulatedCollective):
    """Every rank gets the `chunk_factor` chunks of rank `root`.

    The buffers of all other ranks are empty at the start, also in place: in the public language
    they are not, so its check passes for any program.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool, root: int = 0) -> None:
        super().__init__(num_ranks, chunk_factor, inplace, root)
        if not 0 <= root < num_ranks:
            raise ValueError(f"root {root} is not one of ranks 0..{num_ranks - 1}")
        self.name = "broadcast"

    def _build_rank_buffers(self, rank: int) -> RankBuffers:
        size = self.chunk_factor
        data = _build_empty_slots(size)
        if rank == self.root:
            data = [Chunk(rank, index, -1, index) for index in range(size)]
        return self._build_buffer_pair(data, size)

    def get_buffer_index(self, rank: int, buffer: Hashable, index: int) -> Place:
        """In place, the output is the input."""
        return self._to_input(buffer), index

    def _iterate_expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for index in range(self.chunk_factor):
                yield rank, self._result_buffer, index, [(self.root, index)]


class SendRecv(_TabulatedCollective):
    """Two ranks exchange their `chunk_factor` chunks."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        # The partner of a rank is 1 - rank.
        if num_ranks != 2:
            raise ValueError(f"SendRecv is between 2 ranks, not {num_ranks}")
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "sendrecv"

    def _build_rank_buffers(self, rank: int) -> RankBuffers:
        size = self.chunk_factor
        data: Slots = [Chunk(rank, index, 1 - rank, index) for index in range(size)]
        return self._build_buffer_pair(data, size)

    def _iterate_expected(self) -> Iterator[ExpectedSlot]:
        for rank in self._ranks():
            for index in range(self.chunk_factor):
                yield rank, Buffer.output, index, [(1 - rank, index)]
