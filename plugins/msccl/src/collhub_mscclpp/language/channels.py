"""Operations of programs: on channels between ranks, and of thread blocks within a rank.

Operations of a channel are recorded for its local rank (`src_rank`). Operations within a rank are
copies, sums, barriers, semaphores and pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collhub_mscclpp.language.recorded import (
    BaseBuffer,
    BufferType,
    Chunk,
    Recorded,
    ReduceOperationType,
    RemoteRange,
    SwitchRange,
    SyncType,
    ThreadBlockGroup,
    current_program,
)


def list_blocks(
    tb: int | None, group: ThreadBlockGroup | None
) -> list[tuple[int, tuple[int, int] | None]]:
    """List (thread block, part) for all thread blocks that execute an operation.

    `part` is None if `tb` is given: that block executes the entire operation, even if a group is
    given too. Otherwise it is (number of the block in the group, number of blocks). Raises
    `RuntimeError` if neither is given.
    """
    if tb is not None:
        return [(tb, None)]
    if group is None:
        raise RuntimeError("names no thread block: give tb= or tb_group=")
    return [(block, (group.get_internal_id(block), group.numtb())) for block in group.tb_list]


class _Channel:
    """A bidirectional channel of the local rank `src_rank` with the remote rank `dst_rank`."""

    channel_type = ""

    def __init__(self, dst_rank: int, src_rank: int) -> None:
        self.dst_rank = dst_rank
        self.src_rank = src_rank
        program = current_program()
        # Ids are numbered by type and rank, as in plans.
        kind = self.channel_type
        self.channel_id = program.add_channel(kind, src_rank, dst_rank)

    def signal(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Increment the counter of the remote rank; a relaxed signal does not order stores."""
        self._synchronise("rlxsignal" if relaxed else "signal", tb, data_sync)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Wait for the next signal of the remote rank."""
        self._synchronise("rlxwait" if relaxed else "wait", tb, data_sync)

    def put(self, dst_chunk: Chunk, src_chunk: Chunk, tb: Any = None, tb_group: Any = None) -> None:
        """Copy a local chunk to a chunk of the remote rank."""
        self._move(
            "put", [self._check_local(src_chunk)], [self._to_remote(dst_chunk)], tb, tb_group
        )

    def put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: Any = None, tb_group: Any = None
    ) -> None:
        """Copy a local chunk as packets to the scratch of the remote rank.

        On port channels the chunk must be in the scratch and consist of packets already.
        """
        self._move(
            "ppkt", [self._check_local(src_chunk)], [self._to_remote(dst_chunk)], tb, tb_group
        )

    def read_put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: Any = None, tb_group: Any = None
    ) -> None:
        """Forward packets from the local scratch to the scratch of the remote rank."""
        self._move(
            "rppkt", [self._check_local(src_chunk)], [self._to_remote(dst_chunk)], tb, tb_group
        )

    def _synchronise(self, name: str, tb: int, sync: SyncType) -> None:
        """Record a signal, wait or flush of a thread block on this channel in the current program.

        `name`: name of the operation. `sync`: whether the threads of the block meet before it,
        after it or both. Raises `RuntimeError` if there is no current program.
        """
        channels = [self.channel_id]
        recorded = Recorded(name, self.src_rank, self.channel_type, channels, sync=sync)
        current_program().record(tb, recorded)

    def _move(
        self,
        name: str,
        src: Sequence[Chunk],
        dst: Sequence[Chunk],
        tb: int | None,
        group: ThreadBlockGroup | None,
        reduce_op: str = "",
    ) -> None:
        """Record an operation on data for a thread block, or for each block of a group.

        If both `tb` and `group` are given, it is recorded for the block `tb` only. Raises
        `RuntimeError` if chunks have different sizes, if neither `tb` nor `group` is given, or if
        there is no current program.
        """
        sizes = [chunk.size for chunk in (*src, *dst)]
        # The package does not compare all sizes; the executor would read outside the chunk.
        if len(set(sizes)) > 1:
            raise RuntimeError(f"{name} of chunks of sizes {sizes}")
        moved = Recorded(name, self.src_rank, self.channel_type, [self.channel_id], src, dst)
        for block, part in list_blocks(tb, group):
            current_program().record(block, replace(moved, part=part, reduce_op=reduce_op))

    def _check_local(self, chunk: Chunk) -> Chunk:
        """Return the chunk if its rank is the one whose program uses the channel (`src_rank`).

        Raises `RuntimeError` otherwise. Its buffer and size are not checked.
        """
        if chunk.rank != self.src_rank:
            raise RuntimeError(
                f"a local chunk of rank {chunk.rank} on a channel from rank {self.src_rank}"
            )
        return chunk

    def _to_remote(self, chunk: Chunk) -> RemoteRange:
        """Return the range of a chunk if its rank is the other end of the channel (`dst_rank`).

        Raises `RuntimeError` otherwise. Its buffer and size are not checked.
        """
        if chunk.rank != self.dst_rank:
            raise RuntimeError(
                f"a remote chunk of rank {chunk.rank} on a channel to rank {self.dst_rank}"
            )
        return RemoteRange(chunk.rank, chunk.buffer, chunk.index, chunk.size)


class MemoryChannel(_Channel):
    """A channel through memory of the remote rank that is mapped into the local one."""

    channel_type = "memory"

    def get(self, dst_chunk: Chunk, src_chunk: Chunk, tb: Any = None, tb_group: Any = None) -> None:
        """Copy a chunk of the remote rank to a local chunk."""
        self._move(
            "get", [self._to_remote(src_chunk)], [self._check_local(dst_chunk)], tb, tb_group
        )

    def reduce(
        self,
        local_src_chunk: Chunk,
        remote_src_chunks: Sequence[Chunk],
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        local_dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Record the reduction (`reduce_op`) of a local chunk and chunks of the remote rank.

        The result is written to `local_dst_chunk`; by default it replaces the local chunk. Thread
        block `tb` executes it or, without `tb`, each block of `tb_group` a part. Raises
        `RuntimeError` if a chunk belongs to another rank, if sizes differ, if neither `tb` nor
        `tb_group` is given, or outside of the `with` block of a program.
        """
        target = local_dst_chunk or local_src_chunk
        src = [self._check_local(local_src_chunk), *map(self._to_remote, remote_src_chunks)]
        self._move("rre", src, [self._check_local(target)], tb, tb_group, reduce_op.value)


class PortChannel(_Channel):
    """A channel through a proxy thread of the host."""

    channel_type = "port"

    def flush(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Wait until the proxy has completed all earlier puts."""
        self._synchronise("flush", tb, data_sync)

    def put_with_signal(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Put a chunk, then signal."""
        self._move("pws", [self._check_local(src_chunk)], [self._to_remote(dst_chunk)], tb, None)

    def put_with_signal_and_flush(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Put a chunk, signal, and wait until the proxy has completed both."""
        self._move("pwsf", [self._check_local(src_chunk)], [self._to_remote(dst_chunk)], tb, None)


class SwitchChannel:
    """A channel through a switch to one buffer of all ranks of a group (NVLS)."""

    def __init__(self, rank_list: Sequence[int], buffer_type: BufferType) -> None:
        program = current_program()
        self.buffer_type = buffer_type
        self.rank_list = tuple(rank_list)
        # The set-up of the executor waits for all ranks of the group.
        if len(set(rank_list)) != len(rank_list) or len(rank_list) < 2:
            raise RuntimeError(f"a switch channel of the ranks {list(rank_list)}")
        self.channel_ids = {
            rank: program.add_switch_channel(rank, buffer_type, self.rank_list)
            for rank in self.rank_list
        }

    def at_rank(self, rank: int) -> SwitchChannelAtRank:
        """Return the channel as seen by a rank, which records its operations.

        Raises `RuntimeError` if the rank is not in the group.
        """
        if rank not in self.channel_ids:
            raise RuntimeError(f"rank {rank} is none of the switch channel's {self.rank_list}")
        return SwitchChannelAtRank(rank, self.channel_ids[rank], self.buffer_type)


class SwitchChannelAtRank:
    """Switch channel of one rank. Offsets and sizes are chunks of the buffer of every rank."""

    def __init__(self, rank: int, channel_id: int, buffer_type: BufferType) -> None:
        self.src_rank = rank
        self.channel_id = channel_id
        self.buffer_type = buffer_type

    def reduce(
        self,
        buffer_offset: int,
        size: int,
        dst_chunk: Chunk,
        tb: int,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Record the reduction (`reduce_op`) of a range over all ranks of the switch channel.

        The range has `size` chunks of the channel's buffer from `buffer_offset` on; the result
        is written to `dst_chunk`. The executor requires a broadcast of the result directly
        after it. Raise `RuntimeError` if `dst_chunk` is on another rank or has another size,
        and without a current program.
        """
        src = [self._build_range(buffer_offset, size)]
        self._record("glre", src, [dst_chunk], tb, reduce_op.value)

    def broadcast(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Store a local chunk on every rank of the group."""
        self._record("gstore", [src_chunk], [self._build_range(buffer_offset, size)], tb)

    def broadcast_packets(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Wait for packets in the local scratch and store them on every rank of the group."""
        self._record("gstorepkt", [src_chunk], [self._build_range(buffer_offset, size)], tb)

    def _build_range(self, first: int, size: int) -> SwitchRange:
        return SwitchRange(self.src_rank, self.buffer_type, first, size)

    def _record(
        self, name: str, src: Sequence[Chunk], dst: Sequence[Chunk], tb: int, reduce_op: str = ""
    ) -> None:
        """Record an operation of the switch channel for a thread block in the current program.

        `name`: name of the operation; `src` must not be empty. Raise `RuntimeError` in
        these cases:

        - a chunk of `src` or `dst` is on another rank than the rank of this channel
        - its size differs from the size of the first source
        - there is no current program
        """
        for chunk in (*src, *dst):
            if chunk.rank != self.src_rank or chunk.size != src[0].size:
                raise RuntimeError(f"{name} of {src[0]} on rank {self.src_rank} with {chunk}")
        channels = [self.channel_id]
        recorded = Recorded(name, self.src_rank, "switch", channels, src, dst, reduce_op=reduce_op)
        current_program().record(tb, recorded)


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
        """Record the reduction (`reduce_op`) of `src_chunk` and other chunks of the rank.

        The result is written to `dst_chunk`; by default it replaces `src_chunk`. `packet`: the
        other chunks are packets in scratch, whereas `src_chunk` is plain data. Thread block
        `tb` executes it or, without `tb`, each block of `tb_group` a part. Raise `RuntimeError`
        if a chunk is on another rank, if sizes differ, if neither `tb` nor `tb_group` is given,
        and without a current program.
        """
        name = "repkt" if packet else "re"
        src, dst = [src_chunk, *other_chunks], [dst_chunk or src_chunk]
        self._move(name, src, dst, tb, tb_group, reduce_op.value)

    def barrier(self, tb_list: Sequence[int]) -> None:
        """Record a barrier at which thread blocks of the rank wait for each other.

        For a list of one block, it is a barrier of the threads of this block (`nop`). Otherwise
        each entry of the list records an operation `barrier` for its block, with one number for
        these blocks in this order; a new number is assigned at the first use. Repeated blocks
        are not refused. Raise `RuntimeError` if the list is empty or there is no current
        program.
        """
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
        """Record an operation within the rank for a thread block, or for each block of a group.

        Raise `RuntimeError` if a chunk is on another rank or has another size than the first
        source, if neither `tb` nor `group` is given, or if there is no current program.
        """
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
