"""Programs: their collectives, the operations of all thread blocks, and the plan of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from collhub_mscclpp.language.plan_document import build_document
from collhub_mscclpp.language.recorded import (
    BaseBuffer,
    BufferType,
    Chunk,
    Recorded,
    RemoteRange,
    ReplicationPolicy,
    current_program,
    set_current_program,
)


@dataclass
class Collective:
    """A collective of `num_ranks` ranks.

    `chunk_factor`: chunks of each rank's part; in an all-to-all, of the data of a pair of ranks.
    """

    num_ranks: int
    chunk_factor: int = 1
    inplace: bool = False
    name: ClassVar[str] = "custom"

    def counts(self) -> tuple[int, int]:
        """Return the numbers of chunks of input and output."""
        return self.chunk_factor, self.chunk_factor

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """Create the input and output buffers of every rank: a list by rank of buffers by type.

        The sizes are those of `counts`, in chunks, and equal on all ranks. Every buffer begins at
        chunk 0.
        """
        input_chunks, output_chunks = self.counts()
        return [
            {
                BufferType.input: BaseBuffer(rank, BufferType.input, 0, input_chunks),
                BufferType.output: BaseBuffer(rank, BufferType.output, 0, output_chunks),
            }
            for rank in range(self.num_ranks)
        ]


class AllGather(Collective):
    """The output of every rank is the input of all ranks."""

    name = "allgather"

    def counts(self) -> tuple[int, int]:
        """Chunks of input and output."""
        return self.chunk_factor, self.num_ranks * self.chunk_factor


class AllReduce(Collective):
    """The output of every rank is the sum. The vector has `chunk_factor` chunks per rank."""

    name = "allreduce"

    def counts(self) -> tuple[int, int]:
        """Return the numbers of chunks of input and output.

        Both are `chunk_factor` times the number of ranks.
        """
        count = self.num_ranks * self.chunk_factor
        return count, count


class ReduceScatter(Collective):
    """The output of rank r is part r of the sum."""

    name = "reducescatter"

    def counts(self) -> tuple[int, int]:
        """Chunks of input and output."""
        return self.num_ranks * self.chunk_factor, self.chunk_factor


class AllToAll(AllReduce):
    """The output of rank r is part r of the input of every rank."""

    name = "alltoall"


class SendRecv(Collective):
    """The output of rank r is the input of rank r - 1, cyclically."""

    name = "sendrecv"


class TestCollective(Collective):
    """Buffers of the given sizes without any expected result."""

    name = "test"
    # pytest would collect the class because of its name.
    __test__ = False

    def __init__(self, num_ranks: int, input_size: int, output_size: int) -> None:
        super().__init__(num_ranks)
        self._counts = (input_size, output_size)

    def counts(self) -> tuple[int, int]:
        """Chunks of input and output."""
        return self._counts


@dataclass
class AlgoSpec:
    """The arguments of a program in one record."""

    name: str
    collective: Collective
    world_size: int
    nranks_per_node: int = 8
    instances: int = 1
    protocol: str = "Simple"
    in_place: bool = False
    instr_fusion: bool = True
    auto_sync: bool = True
    replication_policy: object = None
    reuse_resources: bool = False
    num_threads_per_block: int = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: int = 16
    min_message_size: int = 0
    max_message_size: int = 2**64 - 1
    tags: dict[str, int] = field(default_factory=dict)


_SPEC_ONLY = ("name", "collective", "world_size", "nranks_per_node", "in_place", "tags")


@dataclass
class CollectiveProgram:
    """A program: operations in `with CollectiveProgram(...)` are recorded in it."""

    name: str
    collective: Collective
    num_ranks: int
    instances: int = 1
    protocol: str = "Simple"
    instr_fusion: bool = True
    auto_sync: bool = True
    replication_policy: object = None
    reuse_resources: bool = False
    num_threads_per_block: int = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: int = 16
    min_message_size: int = 0
    max_message_size: int = 2**64 - 1

    def __post_init__(self) -> None:
        if self.protocol not in ("Simple", "LL"):
            raise ValueError(f"protocol {self.protocol!r}, expected Simple or LL")
        if self.replication_policy is ReplicationPolicy.none and self.instances > 1:
            raise ValueError("replication_policy none: instances can only be interleaved")
        self.buffers = self.collective.init_buffers()
        ranks = range(self.num_ranks)
        self.scratch = [0 for _ in ranks]
        # By rank: (type, peer) of every channel, in the order of creation.
        self.channels: list[list[tuple[str, int]]] = [[] for _ in ranks]
        # By rank: (buffer, group) of every switch channel.
        self.switches: list[list[tuple[BufferType, tuple[int, ...]]]] = [[] for _ in ranks]
        self.semaphores: list[list[int]] = [[] for _ in ranks]
        self.blocks: list[dict[int, list[Recorded]]] = [{} for _ in ranks]
        # By rank: types of the channels that access a remote (rank, buffer).
        self.remote: list[dict[tuple[int, BufferType], list[str]]] = [{} for _ in ranks]
        # By rank: number of the barrier of each tuple of thread blocks, in the order of use.
        self.barriers: list[dict[tuple[int, ...], int]] = [{} for _ in ranks]
        self._loop: tuple[int, int] | None = None
        self._bodies: dict[tuple[int, int], Recorded] = {}

    @classmethod
    def from_spec(cls, spec: AlgoSpec) -> CollectiveProgram:
        """Create a program from a specification.

        `nranks_per_node`, `in_place` and `tags` of the specification are ignored; the collective
        determines whether the program is in place. Raises `ValueError` for a protocol other than
        Simple and LL, and for several instances with `ReplicationPolicy.none`.
        """
        arguments: dict[str, Any] = vars(spec)
        shared = {name: value for name, value in arguments.items() if name not in _SPEC_ONLY}
        return cls(spec.name, spec.collective, spec.world_size, **shared)

    def __enter__(self) -> CollectiveProgram:
        set_current_program(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_current_program(None)

    def check_rank(self, rank: int) -> None:
        """Raise `RuntimeError` for a rank that the program does not have.

        Ranks are 0 to `num_ranks` - 1.
        """
        is_known = 0 <= rank < self.num_ranks
        if not is_known:
            raise RuntimeError(f"rank {rank} of a program of {self.num_ranks} ranks")

    def allocate_scratch(self, rank: int, size: int) -> int:
        """Allocate `size` further chunks of scratch on a rank, and return the first chunk's number.

        Allocations are consecutive from chunk 0 on. Raises `RuntimeError` if the program does not
        have the rank.
        """
        self.check_rank(rank)
        first = self.scratch[rank]
        self.scratch[rank] = first + size
        return first

    def add_channel(self, channel_type: str, rank: int, peer: int) -> int:
        """Create a channel from a rank to a peer, and return its number.

        Channels of one type are numbered per rank from 0, over all peers. Every call creates a
        channel, also to the same peer. Raises `RuntimeError` if the program does not have the rank
        or the peer.
        """
        self.check_rank(rank)
        self.check_rank(peer)
        ordinal = sum(kind == channel_type for kind, _ in self.channels[rank])
        self.channels[rank].append((channel_type, peer))
        return ordinal

    def add_switch_channel(self, rank: int, buffer_type: BufferType, group: tuple[int, ...]) -> int:
        """Create a switch channel of a rank, and return its number, counted per rank from 0.

        `group`: ranks of its members, which are not checked. Every call creates a channel. Raises
        `RuntimeError` if the program does not have the rank.
        """
        self.check_rank(rank)
        known = self.switches[rank]
        known.append((buffer_type, group))
        return len(known) - 1

    def add_semaphore(self, rank: int, value: int) -> int:
        """Create a semaphore of a rank, and return its number, counted per rank from 0.

        `value`: initial value. Raises `RuntimeError` if the program does not have the rank.
        """
        self.check_rank(rank)
        known = self.semaphores[rank]
        known.append(value)
        return len(known) - 1

    def locate(self, chunk: Chunk) -> Chunk:
        """Return the chunk's position in the memory that its rank really uses.

        - For a collective out of place, and for a chunk of scratch: the chunk itself.
        - Otherwise, input and output of the rank are one memory, as large as the larger
          of both. The result names this memory as the output buffer, even if the input is
          larger. The index of a chunk of the smaller buffer increases by rank * size of
          the smaller buffer, in chunks. The index is unchanged in the larger buffer, and
          if both sizes are equal.
        """
        if not self.collective.inplace or chunk.buffer is BufferType.scratch:
            return chunk
        buffers = self.buffers[chunk.rank]
        chunks = buffers[chunk.buffer].size
        largest = max(buffers[BufferType.input].size, buffers[BufferType.output].size)
        offset = chunk.rank * chunks if chunks < largest else 0
        return replace(chunk, buffer=BufferType.output, index=chunk.index + offset)

    def number_barrier(self, rank: int, blocks: tuple[int, ...]) -> int:
        """Return the number of the barrier of these thread blocks on a rank, counted from 0.

        A new number is assigned at the first use. The same blocks in another order have another
        barrier. The rank is not checked.
        """
        known = self.barriers[rank]
        return known.setdefault(blocks, len(known))

    def record(self, tb: int, operation: Recorded) -> None:
        """Append an operation to thread block `tb` of its rank, or to the block's current pipeline.

        A block is created at its first operation; its number may be any integer. Between
        `begin_loop` and `end_loop`, the first operation of a block first appends an operation
        `pipeline` to the block. This and all further operations of the block are appended to the
        `body` of that pipeline.

        If a source or destination of the operation is a `RemoteRange`, the operation's channel type
        is also recorded in `self.remote`. The entry is that of the operation's rank, and of the
        rank and type of the remote buffer. It has each channel type once, in the order of first
        use. The rank is not checked here: one of `num_ranks` or more raises `IndexError`.
        """
        known = self.remote[operation.rank]
        for chunk in (*operation.src, *operation.dst):
            if isinstance(chunk, RemoteRange):
                types = known.setdefault((chunk.rank, chunk.buffer), [])
                if operation.channel_type not in types:
                    types.append(operation.channel_type)
        block = self.blocks[operation.rank].setdefault(tb, [])
        if self._loop is None:
            block.append(operation)
            return
        # The first operation of a block in a pipeline creates the block's pipeline.
        key = (operation.rank, tb)
        if key not in self._bodies:
            self._bodies[key] = Recorded("pipeline", operation.rank, loop=self._loop)
            block.append(self._bodies[key])
        self._bodies[key].body.append(operation)

    def begin_loop(self, loop: tuple[int, int]) -> None:
        """Begin a pipeline, which repeats its operations for every slice of the data.

        Until `end_loop`, operations are recorded into it, separately by thread block. `loop`:
        bytes of a slice, and number of chunks. Raise `RuntimeError` inside another pipeline.
        """
        if self._loop is not None:
            raise RuntimeError("a pipeline within a pipeline")
        self._loop = loop

    def end_loop(self) -> None:
        """End the pipeline: operations are recorded into thread blocks again.

        Without a pipeline the call has no effect. A later pipeline is separate, also with the
        same values.
        """
        self._loop = None
        self._bodies = {}

    def to_json(self, indent: int | None = 2, **given: Any) -> str:
        """Return the plan as JSON; `given`: further arguments of `json.dumps`."""
        return json.dumps(build_document(self), indent=indent, **given)


MSCCLPPProgram = CollectiveProgram
"""Name of the class in the first releases of the language."""


def JSON() -> str:  # noqa: N802 - the name in the language
    """Return the plan of the current program as JSON."""
    return current_program().to_json()
