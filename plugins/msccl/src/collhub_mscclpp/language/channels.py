"""Channels of programs; every operation is recorded for the rank that the channel starts at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collhub_mscclpp.language.recorded import (
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


def blocks_of(
    tb: int | None, group: ThreadBlockGroup | None
) -> list[tuple[int, tuple[int, int] | None]]:
    """(thread block, its part in a group) of an operation. Raises `RuntimeError` for none."""
    # A stated block does all of the work, also where a group is given.
    if tb is not None:
        return [(tb, None)]
    if group is None:
        raise RuntimeError("names no thread block: give tb= or tb_group=")
    return [(one, (group.get_internal_id(one), group.numtb())) for one in group.tb_list]


class _Channel:
    """A channel from `src_rank` to `dst_rank`, and back."""

    channel_type = ""

    def __init__(self, dst_rank: int, src_rank: int) -> None:
        self.dst_rank = dst_rank
        self.src_rank = src_rank
        program = current_program()
        # Ids count within the type and the rank, as in plans.
        kind = self.channel_type
        self.channel_id = program.add_channel(kind, src_rank, dst_rank)

    def signal(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Raise the counter at the other end."""
        self._synchronise("rlxsignal" if relaxed else "signal", tb, data_sync)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Wait for the next signal of the other end."""
        self._synchronise("rlxwait" if relaxed else "wait", tb, data_sync)

    def put(self, dst_chunk: Chunk, src_chunk: Chunk, tb: Any = None, tb_group: Any = None) -> None:
        """Copy a local chunk to the other end."""
        self._move("put", [self._here(src_chunk)], [self._there(dst_chunk)], tb, tb_group)

    def put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: Any = None, tb_group: Any = None
    ) -> None:
        """Copy a local chunk as packets to scratch of the other end."""
        self._move("ppkt", [self._here(src_chunk)], [self._there(dst_chunk)], tb, tb_group)

    def read_put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: Any = None, tb_group: Any = None
    ) -> None:
        """Send packets on from own scratch to that of the other end."""
        self._move("rppkt", [self._here(src_chunk)], [self._there(dst_chunk)], tb, tb_group)

    def _synchronise(self, name: str, tb: int, sync: SyncType) -> None:
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
        sizes = [chunk.size for chunk in (*src, *dst)]
        # The package does not compare all of them: the executor would read outside of the chunk.
        if len(set(sizes)) > 1:
            raise RuntimeError(f"{name} of chunks of sizes {sizes}")
        moved = Recorded(name, self.src_rank, self.channel_type, [self.channel_id], src, dst)
        for block, part in blocks_of(tb, group):
            current_program().record(block, replace(moved, part=part, reduce_op=reduce_op))

    def _here(self, chunk: Chunk) -> Chunk:
        """A chunk of the rank that the channel starts at. Raises `RuntimeError` for other ranks."""
        if chunk.rank != self.src_rank:
            raise RuntimeError(
                f"a local chunk of rank {chunk.rank} on a channel from rank {self.src_rank}"
            )
        return chunk

    def _there(self, chunk: Chunk) -> RemoteRange:
        """A chunk of the other end. Raises `RuntimeError` for other ranks."""
        if chunk.rank != self.dst_rank:
            raise RuntimeError(
                f"a remote chunk of rank {chunk.rank} on a channel to rank {self.dst_rank}"
            )
        return RemoteRange(chunk.rank, chunk.buffer, chunk.index, chunk.size)


class MemoryChannel(_Channel):
    """A channel by mapped memory."""

    channel_type = "memory"

    def get(self, dst_chunk: Chunk, src_chunk: Chunk, tb: Any = None, tb_group: Any = None) -> None:
        """Copy a chunk of the other end here."""
        self._move("get", [self._there(src_chunk)], [self._here(dst_chunk)], tb, tb_group)

    def reduce(
        self,
        local_src_chunk: Chunk,
        remote_src_chunks: Sequence[Chunk],
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        local_dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Add chunks of the other end to a local one."""
        # The sum replaces the local operand unless another place is named.
        target = local_dst_chunk or local_src_chunk
        src = [self._here(local_src_chunk), *map(self._there, remote_src_chunks)]
        self._move("rre", src, [self._here(target)], tb, tb_group, reduce_op.value)


class PortChannel(_Channel):
    """A channel by a proxy."""

    channel_type = "port"

    def flush(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Wait until the proxy has sent."""
        self._synchronise("flush", tb, data_sync)

    def put_with_signal(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Put, and signal."""
        self._move("pws", [self._here(src_chunk)], [self._there(dst_chunk)], tb, None)

    def put_with_signal_and_flush(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Put, signal, and wait until the proxy has sent."""
        self._move("pwsf", [self._here(src_chunk)], [self._there(dst_chunk)], tb, None)


class SwitchChannel:
    """A channel by the switch to one buffer of all ranks of a group."""

    def __init__(self, rank_list: Sequence[int], buffer_type: BufferType) -> None:
        program = current_program()
        self.buffer_type = buffer_type
        self.rank_list = tuple(rank_list)
        # The executor meets all of a group at once.
        if len(set(rank_list)) != len(rank_list) or len(rank_list) < 2:
            raise RuntimeError(f"a switch channel of the ranks {list(rank_list)}")
        self.channel_ids = {
            rank: program.add_switch_channel(rank, buffer_type, self.rank_list)
            for rank in self.rank_list
        }

    def at_rank(self, rank: int) -> SwitchChannelAtRank:
        """The channel as a rank of the group uses it."""
        if rank not in self.channel_ids:
            raise RuntimeError(f"rank {rank} is none of the switch channel's {self.rank_list}")
        return SwitchChannelAtRank(rank, self.channel_ids[rank], self.buffer_type)


class SwitchChannelAtRank:
    """What one rank does through a switch. Ranges are chunks of the buffer of every rank."""

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
        """Add up a range over all ranks. Executors do so only for what is broadcast at once."""
        src = [self._range(buffer_offset, size)]
        self._record("glre", src, [dst_chunk], tb, reduce_op.value)

    def broadcast(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Store a local chunk at every rank of the group."""
        self._record("gstore", [src_chunk], [self._range(buffer_offset, size)], tb)

    def broadcast_packets(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Store packets of the scratch at every rank, once they are there."""
        self._record("gstorepkt", [src_chunk], [self._range(buffer_offset, size)], tb)

    def _range(self, first: int, size: int) -> SwitchRange:
        return SwitchRange(self.src_rank, self.buffer_type, first, size)

    def _record(
        self, name: str, src: Sequence[Chunk], dst: Sequence[Chunk], tb: int, reduce_op: str = ""
    ) -> None:
        """Record an operation. Raises `RuntimeError` for chunks of other ranks or sizes."""
        for chunk in (*src, *dst):
            if chunk.rank != self.src_rank or chunk.size != src[0].size:
                raise RuntimeError(f"{name} of {src[0]} on rank {self.src_rank} with {chunk}")
        channels = [self.channel_id]
        recorded = Recorded(name, self.src_rank, "switch", channels, src, dst, reduce_op=reduce_op)
        current_program().record(tb, recorded)
