"""Operations of thread blocks within a rank: copies, sums, barriers, semaphores, pipelines."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_mscclpp.language.channels import list_blocks
from collhub_mscclpp.language.recorded import (
    BaseBuffer,
    BufferType,
    Chunk,
    Recorded,
    ReduceOperationType,
    SyncType,
    ThreadBlockGroup,
    current_program,
)


class Rank:
    """A rank of the current program. Raises `RuntimeError` for a rank outside it."""

    def __init__(self, rank: int) -> None:
        current_program().check_rank(rank)
        self.rank = rank

    def get_input_buffer(self) -> BaseBuffer:
        """Return the input buffer of the rank."""
        return current_program().buffers[self.rank][BufferType.input]

    def get_output_buffer(self) -> BaseBuffer:
        """Return the output buffer of the rank."""
        return current_program().buffers[self.rank][BufferType.output]

    def copy(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Copy one chunk of the rank to another."""
        self._move("copy", [src_chunk], [dst_chunk], tb, tb_group)

    def unpack_packets(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Wait for packets in the scratch and copy their data to a chunk."""
        self._move("upkt", [src_chunk], [dst_chunk], tb, tb_group)

    def copy_packets(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Copy a chunk to the scratch as packets, that is data with flags."""
        self._move("cpkt", [src_chunk], [dst_chunk], tb, tb_group)

    def reduce(
        self,
        src_chunk: Chunk,
        other_chunks: Sequence[Chunk],
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
        packet: bool = False,
    ) -> None:
        """Add chunks to `src_chunk`, and write the sum to `dst_chunk` (default: `src_chunk`).

        `packet`: the other chunks are packets in the scratch; `src_chunk` is always plain data.
        """
        name = "repkt" if packet else "re"
        src, dst = [src_chunk, *other_chunks], [dst_chunk or src_chunk]
        self._move(name, src, dst, tb, tb_group, reduce_op.value)

    def barrier(self, tb_list: Sequence[int]) -> None:
        """Let thread blocks wait for each other. For a single block: a barrier of its threads."""
        blocks = tuple(tb_list)
        # The executor would wait for ever.
        if not blocks:
            raise RuntimeError("a barrier of no thread block")
        # The barrier of the threads of one block needs no counter.
        name = "barrier" if len(blocks) > 1 else "nop"
        program = current_program()
        number = program.number_barrier(self.rank, blocks) if len(blocks) > 1 else -1
        for tb in blocks:
            recorded = Recorded(name, self.rank, barrier=number, barrier_blocks=len(blocks))
            program.record(tb, recorded)

    def _move(
        self,
        name: str,
        src: Sequence[Chunk],
        dst: Sequence[Chunk],
        tb: int | None,
        group: ThreadBlockGroup | None,
        reduce_op: str = "",
    ) -> None:
        """Record an operation. Raises `RuntimeError` for chunks of other ranks or sizes."""
        for chunk in (*src, *dst):
            is_elsewhere = chunk.rank != self.rank
            if is_elsewhere or chunk.size != src[0].size:
                raise RuntimeError(f"{name} of {src[0]} on rank {self.rank} with {chunk}")
        for block, part in list_blocks(tb, group):
            moved = Recorded(name, self.rank, src=src, dst=dst, part=part, reduce_op=reduce_op)
            current_program().record(block, moved)


class Semaphore:
    """A counting semaphore between thread blocks of a rank."""

    def __init__(self, rank: int, initial_value: int) -> None:
        self.rank = rank
        self.initial_value = initial_value
        program = current_program()
        self.id = program.add_semaphore(rank, initial_value)

    def acquire(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Wait until the value is above 0, then subtract 1."""
        self._record("sem_acquire", tb, data_sync)

    def release(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Add 1 to the value."""
        self._record("sem_release", tb, data_sync)

    def _record(self, name: str, tb: int, sync: SyncType) -> None:
        recorded = Recorded(name, self.rank, sync=sync, semaphores=[self.id])
        current_program().record(tb, recorded)


class LoopIterationContext:
    """A pipeline: operations in its `with` block are repeated for every slice of `unit` bytes."""

    def __init__(self, unit: int, num_chunks: int) -> None:
        self.unit = unit
        self.num_chunks = num_chunks

    def __enter__(self) -> LoopIterationContext:
        current_program().begin_loop((self.unit, self.num_chunks))
        return self

    def __exit__(self, *_: object) -> None:
        current_program().end_loop()
