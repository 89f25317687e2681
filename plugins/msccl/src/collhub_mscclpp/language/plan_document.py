"""The plan of a program: ids for what it names, meetings of threads, instances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from collhub_mscclpp.language.fusion import fuse, lists_channels
from collhub_mscclpp.language.meetings import insert_data_meetings, insert_stated_meetings
from collhub_mscclpp.language.recorded import BufferType, Chunk, Recorded, RemoteRange, SwitchRange

if TYPE_CHECKING:
    from collhub_mscclpp.language.program import CollectiveProgram


def build_document(program: CollectiveProgram) -> dict[str, Any]:
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
        self.program = program
        self.copies = program.instances
        self._rank = rank
        self._remote = {key: number for number, key in enumerate(program.remote[rank])}

    def document(self) -> dict[str, Any]:
        """The rank with all its thread blocks, which are there without gaps."""
        program, copies = self.program, self.copies
        recorded = program.blocks[self._rank]
        # Programs may leave numbers out; ids are positions, so that blocks fill the gaps.
        count = max(recorded, default=-1) + 1
        blocks = [
            _Block(self, tb * copies + copy, copy).document(operations)
            for tb in range(count)
            for operations in [lower_block(program, recorded.get(tb, []))]
            for copy in range(copies)
        ]
        buffers = program.buffers[self._rank]
        return {
            "id": self._rank,
            "input_chunks": buffers[BufferType.input].size * copies,
            "output_chunks": buffers[BufferType.output].size * copies,
            "scratch_chunks": program.scratch[self._rank] * copies,
            "threadblocks": blocks,
            "channels": list(self._channels()),
            "remote_buffers": [
                {"rank": rank, "type": buffer.value, "access_channel_types": types}
                for (rank, buffer), types in program.remote[self._rank].items()
            ],
            "semaphores": [
                {"init_value": value}
                for value in program.semaphores[self._rank]
                for _ in range(copies)
            ],
        }

    def _channels(self) -> Iterator[dict[str, Any]]:
        """The rank's channels by type, types in the order of their first channel."""
        channels = self.program.channels[self._rank]
        for kind in dict.fromkeys(kind for kind, _ in channels):
            # Copies of a channel stand together on both ranks: so the j-th meets the j-th.
            peers = [peer for one, peer in channels if one == kind for _ in range(self.copies)]
            yield {"channel_type": kind, "connected_to": peers}
        for buffer, ranks in self.program.switches[self._rank]:
            for _ in range(self.copies):
                group = {"size": len(ranks), "ranks": list(ranks)}
                yield {
                    "channel_type": "switch", "buffer_type": buffer.value, "rank_groups": [group],
                }  # fmt: skip

    def find_remote_buffer(self, chunk: Chunk) -> int:
        """Position of a remote buffer in the list of the rank."""
        return self._remote[chunk.rank, chunk.buffer]


def lower_block(program: CollectiveProgram, recorded: Sequence[Recorded]) -> list[Recorded]:
    """The operations of a thread block as the plan has them, nops included."""
    operations = insert_stated_meetings(fuse(recorded) if program.instr_fusion else recorded)
    if program.auto_sync:
        operations = insert_data_meetings(operations, program.locate)
    return operations


class _Block:
    """One thread block of the plan."""

    def __init__(self, gpu: _Gpu, position: int, copy: int) -> None:
        self._gpu = gpu
        self._position = position
        self._copy = copy
        # By type, in the order of their first use: position in the block's list.
        self._channels: dict[str, dict[int, int]] = {}
        self._remote: dict[str, dict[int, int]] = {}

    def document(self, operations: Iterable[Recorded]) -> dict[str, Any]:
        """The block with its operations."""
        return {
            "id": self._position,
            "ops": [self._operation(operation) for operation in operations],
            "channels": [
                {"channel_type": kind, "channel_ids": list(ids)}
                for kind, ids in self._channels.items()
            ],
            "remote_buffer_refs": [
                {"access_channel_type": kind, "remote_buffer_ids": list(ids)}
                for kind, ids in self._remote.items()
            ],
        }

    def _operation(self, operation: Recorded) -> dict[str, Any]:
        """One operation with its ids."""
        channels = [self._channel(operation.channel_type, one) for one in operation.channels]
        if operation.name == "glre":
            return self._switch_sum(operation, channels)
        members: dict[str, Any] = {"name": operation.name}
        if operation.src:
            members["src_buff"] = [self._range(chunk, operation) for chunk in operation.src]
            members["dst_buff"] = [self._range(chunk, operation) for chunk in operation.dst]
        if lists_channels(operation):
            members["channel_ids"] = channels
        if operation.channel_type:
            members["channel_type"] = operation.channel_type
        if operation.reduce_op:
            members["reduce_op"] = operation.reduce_op
        if operation.part is not None:
            members["tbg_info"] = {"tb_id": operation.part[0], "tbg_size": operation.part[1]}
        if operation.semaphores:
            members["semaphore_ids"] = [self._number(one) for one in operation.semaphores]
        if operation.name == "barrier":
            members["barrier_id"] = self._number(operation.barrier)
            members["num_threadblocks"] = operation.barrier_blocks
        if operation.name == "pipeline":
            unit, chunks = operation.loop
            members["iter_context"] = {"unit_size": unit, "num_chunks": chunks}
            members["ops"] = [self._operation(inner) for inner in operation.body]
        return members

    def _number(self, ordinal: int) -> int:
        """Number of this instance of a channel, semaphore or barrier."""
        return ordinal * self._gpu.copies + self._copy

    def _index(self, chunk: Chunk) -> int:
        """First chunk of a range of this instance."""
        # Instances take turns within every chunk, so that ranges stay in one piece.
        return chunk.index * self._gpu.copies + self._copy * chunk.size

    def _channel(self, kind: str, ordinal: int) -> int:
        """Position of a channel among those of the block."""
        known = self._channels.setdefault(kind, {})
        return known.setdefault(self._number(ordinal), len(known))

    def _range(self, chunk: Chunk, operation: Recorded) -> dict[str, Any]:
        """A range of the instance."""
        place = {"index": self._index(chunk), "size": chunk.size}
        if isinstance(chunk, SwitchRange):
            return {"switch_channel_id": self._channel("switch", operation.channels[0]), **place}
        if not isinstance(chunk, RemoteRange):
            local = {"type": chunk.buffer.value, **place}
            # Only stores through a switch name the rank, in plans of the package.
            return {"rank": chunk.rank, **local} if operation.channel_type == "switch" else local
        # Operations name positions in the block's own list, not in that of the rank.
        known = self._remote.setdefault(operation.channel_type, {})
        buffer = self._gpu.find_remote_buffer(chunk)
        return {"buffer_id": known.setdefault(buffer, len(known)), **place}

    def _switch_sum(self, operation: Recorded, channels: list[int]) -> dict[str, Any]:
        """A sum through the switch that is not broadcast at once: executors do not know it."""
        (summed,), (target,) = operation.src, operation.dst
        place = {"index": self._index(target), "size": target.size}
        return {
            "name": operation.name,
            "buffer_type": summed.buffer.value,
            "buffer_offset": self._index(summed),
            "size": summed.size,
            "dst_chunk": {"rank": target.rank, "type": target.buffer.value, **place},
            "channel_ids": channels,
            "channel_type": operation.channel_type,
            "reduce_op": operation.reduce_op,
        }
