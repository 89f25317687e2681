"""The plan of a program: ids for what it names, meetings of threads, instances."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from collhub_mscclpp.language.buffers import Chunk, SwitchRange
from collhub_mscclpp.language.fusion import fused
from collhub_mscclpp.language.recorded import Recorded, SyncType

if TYPE_CHECKING:
    from collhub_mscclpp.language.program import CollectiveProgram

_NOP = {"name": "nop"}


def document_of(program: CollectiveProgram) -> dict[str, Any]:
    """The plan as a JSON document; instances are interleaved.

    Chunk `i` of size `s` of instance `n` of `k` is `i k + n s`; thread blocks, channels,
    semaphores and barriers number `k` times as many.
    """
    return {
        "name": program.name,
        "collective": program.collective.name,
        "protocol": program.protocol,
        "inplace": program.collective.inplace,
        "reuse_resources": program.reuse_resources,
        "gpus": [_Gpu(program, rank).document() for rank in range(program.num_ranks)],
        "num_threads_per_block": program.num_threads_per_block,
        "use_double_scratch_buffer": program.use_double_scratch_buffer,
        "buffer_alignment": program.buffer_alignment,
        "min_message_size": program.min_message_size,
        "max_message_size": program.max_message_size,
    }


class _Gpu:
    """One rank of the plan."""

    def __init__(self, program: CollectiveProgram, rank: int) -> None:
        self._program = program
        self._rank = rank
        self._copies = program.instances
        self._remote: dict[tuple[int, str, str], int] = {}
        self._barriers: dict[tuple[int, ...], int] = {}

    def document(self) -> dict[str, Any]:
        """The rank with all its thread blocks, which are there without gaps."""
        program, copies = self._program, self._copies
        recorded = program.blocks[self._rank]
        # Programs may leave numbers out; ids are positions, so that blocks fill the gaps.
        count = max(recorded, default=-1) + 1
        blocks = [
            _Block(self, tb * copies + copy, copy).document(recorded.get(tb, []))
            for tb in range(count)
            for copy in range(copies)
        ]
        given, made = program.collective.counts()
        return {
            "id": self._rank,
            "input_chunks": given * copies,
            "output_chunks": made * copies,
            "scratch_chunks": program.scratch[self._rank] * copies,
            "threadblocks": blocks,
            "channels": list(self._channels()),
            "remote_buffers": [
                {"rank": rank, "type": buffer, "access_channel_types": [kind]}
                for rank, buffer, kind in self._remote
            ],
            "semaphores": [
                {"init_value": value}
                for value in program.semaphores[self._rank]
                for _ in range(copies)
            ],
        }

    def _channels(self) -> Iterator[dict[str, Any]]:
        """The rank's channels by type."""
        channels = self._program.channels[self._rank]
        for kind in ("memory", "port"):
            # Copies of a channel stand together on both ranks: so the j-th meets the j-th.
            peers = [peer for one, peer in channels if one == kind for _ in range(self._copies)]
            if peers:
                yield {"channel_type": kind, "connected_to": peers}
        for buffer, group in self._program.switches[self._rank]:
            stated = {"size": len(group), "ranks": list(group)}
            groups = [stated for _ in range(self._copies)]
            yield {"channel_type": "switch", "buffer_type": buffer.value, "rank_groups": groups}

    @property
    def auto_sync(self) -> bool:
        """Whether threads meet between operations that depend on each other."""
        return self._program.auto_sync

    @property
    def fuses(self) -> bool:
        """Whether neighbours become one operation."""
        return self._program.instr_fusion

    @property
    def copies(self) -> int:
        """Number of instances."""
        return self._copies

    def remote_buffer(self, chunk: Chunk, kind: str) -> int:
        """Position of a remote buffer in the list of the rank."""
        key = (chunk.rank, chunk.buffer.value, kind)
        return self._remote.setdefault(key, len(self._remote))

    def barrier(self, blocks: tuple[int, ...]) -> int:
        """Number of the barrier of these thread blocks."""
        # Blocks that meet twice meet at one barrier, in any order of naming.
        key = tuple(sorted(set(blocks)))
        return self._barriers.setdefault(key, len(self._barriers))


class _Block:
    """One thread block of the plan."""

    def __init__(self, gpu: _Gpu, position: int, copy: int) -> None:
        self._gpu = gpu
        self._position = position
        self._copy = copy
        self._channels: dict[str, dict[int, int]] = {"memory": {}, "port": {}, "switch": {}}
        self._remote: dict[str, dict[int, int]] = {"memory": {}, "port": {}}

    def document(self, recorded: list[Recorded]) -> dict[str, Any]:
        """The block with its operations."""
        operations = self._operations(recorded)
        return {
            "id": self._position,
            "ops": operations,
            "channels": [
                {"channel_type": kind, "channel_ids": list(ids)}
                for kind, ids in self._channels.items()
                if ids
            ],
            "remote_buffer_refs": [
                {"access_channel_type": kind, "remote_buffer_ids": list(ids)}
                for kind, ids in self._remote.items()
                if ids
            ],
        }

    def _operations(self, recorded: list[Recorded]) -> list[dict[str, Any]]:
        """Operations, and nops where threads are to meet."""
        if self._gpu.fuses:
            recorded = fused(recorded)
        found: list[dict[str, Any]] = []
        since_meeting: list[Recorded] = []
        for one in recorded:
            # There is no implicit meeting between operations of a block.
            depends = any(one.conflicts(other) for other in since_meeting)
            is_before = one.sync in (SyncType.before, SyncType.both)
            if is_before or (depends and self._gpu.auto_sync):
                _meet(found)
                since_meeting = []
            found.append(self._operation(one))
            since_meeting.append(one)
            if one.sync in (SyncType.after, SyncType.both) or one.name in ("nop", "barrier"):
                _meet(found)
                since_meeting = []
        return found

    def _operation(self, one: Recorded) -> dict[str, Any]:
        """One operation with its ids."""
        copies, copy = self._gpu.copies, self._copy
        made: dict[str, Any] = {"name": one.name}
        if one.name == "glre":
            raise RuntimeError(
                f"rank {one.rank} reduces through a switch and broadcasts nothing of it at once: "
                "executors have no such operation"
            )
        if one.channel_type:
            made["channel_type"] = one.channel_type
        if one.channel_type in ("memory", "port"):
            made["channel_ids"] = [
                self._channel(one.channel_type, channel) for channel in one.channels
            ]
        if one.src:
            made["src_buff"] = [self._range(chunk, one) for chunk in one.src]
            made["dst_buff"] = [self._range(chunk, one) for chunk in one.dst]
        # The executor takes a missing group for a group of one.
        if one.part[1] > 1:
            made["tbg_info"] = {"tb_id": one.part[0], "tbg_size": one.part[1]}
        if one.semaphore >= 0:
            made["semaphore_ids"] = [one.semaphore * copies + copy]
        if one.name == "barrier":
            made["barrier_id"] = self._gpu.barrier(one.barrier) * copies + copy
            made["num_threadblocks"] = len(set(one.barrier))
        if one.name == "pipeline":
            unit, chunks = one.loop
            made["iter_context"] = {"unit_size": unit, "num_chunks": chunks}
            made["ops"] = self._operations(one.body)
        return made

    def _channel(self, kind: str, ordinal: int) -> int:
        """Position of a channel among those of the block."""
        known = self._channels[kind]
        number = ordinal * self._gpu.copies + self._copy
        return known.setdefault(number, len(known))

    def _range(self, chunk: Chunk, one: Recorded) -> dict[str, Any]:
        """A range of the instance."""
        # Instances take turns within every chunk, so that ranges stay in one piece.
        index = chunk.index * self._gpu.copies + self._copy * chunk.size
        place = {"index": index, "size": chunk.size}
        if isinstance(chunk, SwitchRange):
            return {"switch_channel_id": self._channel("switch", one.channels[0]), **place}
        if chunk.rank == one.rank:
            return {"type": chunk.buffer.value, **place}
        # Operations name positions in the block's own list, not in that of the rank.
        known = self._remote[one.channel_type]
        buffer = self._gpu.remote_buffer(chunk, one.channel_type)
        return {"buffer_id": known.setdefault(buffer, len(known)), **place}


def _meet(operations: list[dict[str, Any]]) -> None:
    """Let the threads of the block meet, once."""
    # Two in a row would only take one of the 64 places.
    if operations and operations[-1] != _NOP:
        operations.append(_NOP)
