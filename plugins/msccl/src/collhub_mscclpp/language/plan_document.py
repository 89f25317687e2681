"""Build the plan of a program: ids, barriers of thread blocks, instances.

A barrier (`nop`) precedes or follows a synchronising operation as `data_sync` specifies, and, with
`auto_sync`, precedes an operation that uses data of an earlier one. The executor has no implicit
barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from collhub_mscclpp.language.fusion import fuse, lists_channels
from collhub_mscclpp.language.recorded import (
    BLOCK_BARRIERS,
    BufferType,
    Chunk,
    Recorded,
    RemoteRange,
    SwitchRange,
    SyncType,
)

if TYPE_CHECKING:
    from collhub_mscclpp.language.program import CollectiveProgram


def build_document(program: CollectiveProgram) -> dict[str, Any]:
    """Build the plan of a program as a JSON document; instances are interleaved.

    For instance `n` of `k`, a range of `s` chunks that starts at chunk `i` starts at chunk `i k + n
    s`. The plan has `k` times as many thread blocks, channels, semaphores and barriers.
    """
    return {
        "name": program.name,
        "collective": program.collective.name,
        "protocol": program.protocol,
        "inplace": program.collective.inplace,
        "reuse_resources": program.reuse_resources,
        "gpus": [_Gpu(program, rank).build() for rank in range(program.num_ranks)],
        "num_threads_per_block": program.num_threads_per_block,
        "use_double_scratch_buffer": program.use_double_scratch_buffer,
        "buffer_alignment": program.buffer_alignment,
        "min_message_size": program.min_message_size,
        "max_message_size": program.max_message_size,
    }


class _Gpu:
    """Builds the JSON object of one rank of the plan; thread blocks add their channels to it."""

    def __init__(self, program: CollectiveProgram, rank: int) -> None:
        self.program = program
        self.copies = program.instances
        self._rank = rank
        self._remote = {key: number for number, key in enumerate(program.remote[rank])}

    def build(self) -> dict[str, Any]:
        """Build the JSON object of a rank, with `copies` instances of each thread block.

        - `id`: the rank
        - `input_chunks`, `output_chunks`, `scratch_chunks`: those of the program times `copies`
        - `threadblocks`: instance c of block t has the id and position t * `copies` + c. Unused
          numbers below the largest used one get blocks without operations. The list is empty for
          a rank without operations. Operations are fused, and synchronized by nops, if requested.
        - `channels`: one object per channel type in order of first use, with each peer `copies`
          times; then each switch `copies` times
        - `remote_buffers`: rank, buffer type and channel types, once each
        - `semaphores`: per semaphore `copies` equal entries with its initial value
        """
        program, copies = self.program, self.copies
        recorded = program.blocks[self._rank]
        # Ids are positions, so numbers that a program leaves out need empty blocks.
        count = max(recorded, default=-1) + 1
        blocks = [
            _Block(self, tb * copies + copy, copy).build(operations)
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
            "channels": list(self._build_channels()),
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

    def _build_channels(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of this rank's channels: by channel type, then switch groups.

        There is one object per channel type, in the order of the first channel of each type. Its
        `connected_to` lists the peer rank of every channel, each peer `copies` times in a row,
        where `copies` is the number of instances of the program. Then every switch group follows,
        in the order of the program, as `copies` equal objects with buffer type and ranks. Nothing
        is yielded for a rank without channels and groups.
        """
        channels = self.program.channels[self._rank]
        for kind in dict.fromkeys(kind for kind, _ in channels):
            # Copies of a channel are adjacent on both ranks, so the j-th is paired with the j-th.
            peers = [
                peer
                for channel_type, peer in channels
                if channel_type == kind
                for _ in range(self.copies)
            ]
            yield {"channel_type": kind, "connected_to": peers}
        for buffer, ranks in self.program.switches[self._rank]:
            for _ in range(self.copies):
                group = {"size": len(ranks), "ranks": list(ranks)}
                yield {
                    "channel_type": "switch", "buffer_type": buffer.value, "rank_groups": [group],
                }  # fmt: skip

    def find_remote_buffer(self, chunk: Chunk) -> int:
        """Return the position of a remote buffer in the list of the rank."""
        return self._remote[chunk.rank, chunk.buffer]


def lower_block(program: CollectiveProgram, recorded: Sequence[Recorded]) -> list[Recorded]:
    """Return the operations of a thread block as they are executed; `recorded` is not changed.

    Adjacent operations are fused if `instr_fusion` is set. Then nops (barriers of the
    threads of the block) are inserted where operations request them by `sync` and, if
    `auto_sync` is set, before each operation that depends on one since the last barrier.
    """
    operations = insert_requested_barriers(fuse(recorded) if program.instr_fusion else recorded)
    if program.auto_sync:
        operations = insert_data_barriers(operations, program.locate)
    return operations


class _Block:
    """Builds the JSON object of one thread block: instance `copy` of a block of the program.

    `position`: its id in the list of thread blocks of the rank.
    """

    def __init__(self, gpu: _Gpu, position: int, copy: int) -> None:
        self._gpu = gpu
        self._position = position
        self._copy = copy
        # By type, in the order of their first use: position in the block's list.
        self._channels: dict[str, dict[int, int]] = {}
        self._remote: dict[str, dict[int, int]] = {}

    def build(self, operations: Iterable[Recorded]) -> dict[str, Any]:
        """Build the JSON object of the block: id, operations, channels and remote buffers.

        The operations are built first, in the given order, because they number the channels and
        remote buffers within the block in the order of first use. The lists have one entry per type
        of channel, with ids of the rank.
        """
        return {
            "id": self._position,
            "ops": [self._build_operation(operation) for operation in operations],
            "channels": [
                {"channel_type": kind, "channel_ids": list(ids)}
                for kind, ids in self._channels.items()
            ],
            "remote_buffer_refs": [
                {"access_channel_type": kind, "remote_buffer_ids": list(ids)}
                for kind, ids in self._remote.items()
            ],
        }

    def _build_operation(self, operation: Recorded) -> dict[str, Any]:
        """Build the JSON object of an operation for this instance (copy) of the program.

        A semaphore or barrier has the number n * k + c: n is its number in the program, k the
        number of instances, c this instance. Channels and remote buffers are positions in the lists
        of the thread block. All channels that the lists lack are appended, even if the object has
        no channels.

        - `glre` (a sum through a switch without a broadcast): source, target, channels, channel
          type and reduce operation. Raises `ValueError` unless it has one source and one target.
        - Others: source and target ranges, if there are sources; channels if `lists_channels`.
          Channel type, reduce operation, position in the group of thread blocks, and semaphores
          only if present.
        - Also for `barrier`: its number and its number of thread blocks. Also for `pipeline`: bytes
          of a slice, number of chunks, and its operations, built the same way.
        """
        channels = [
            self._find_channel(operation.channel_type, ordinal) for ordinal in operation.channels
        ]
        if operation.name == "glre":
            # A sum through a switch without a broadcast, which the executor does not support.
            (summed,), (target,) = operation.src, operation.dst
            position = {"index": self._compute_index(target), "size": target.size}
            return {
                "name": operation.name,
                "buffer_type": summed.buffer.value,
                "buffer_offset": self._compute_index(summed),
                "size": summed.size,
                "dst_chunk": {"rank": target.rank, "type": target.buffer.value, **position},
                "channel_ids": channels,
                "channel_type": operation.channel_type,
                "reduce_op": operation.reduce_op,
            }
        members: dict[str, Any] = {"name": operation.name}
        if operation.src:
            members["src_buff"] = [self._build_range(chunk, operation) for chunk in operation.src]
            members["dst_buff"] = [self._build_range(chunk, operation) for chunk in operation.dst]
        if lists_channels(operation):
            members["channel_ids"] = channels
        if operation.channel_type:
            members["channel_type"] = operation.channel_type
        if operation.reduce_op:
            members["reduce_op"] = operation.reduce_op
        if operation.part is not None:
            members["tbg_info"] = {"tb_id": operation.part[0], "tbg_size": operation.part[1]}
        if operation.semaphores:
            members["semaphore_ids"] = [
                self._to_instance_number(ordinal) for ordinal in operation.semaphores
            ]
        if operation.name == "barrier":
            members["barrier_id"] = self._to_instance_number(operation.barrier)
            members["num_threadblocks"] = operation.barrier_blocks
        if operation.name == "pipeline":
            unit, chunks = operation.loop
            members["iter_context"] = {"unit_size": unit, "num_chunks": chunks}
            members["ops"] = [self._build_operation(inner) for inner in operation.body]
        return members

    def _to_instance_number(self, ordinal: int) -> int:
        """Return the number of a channel, semaphore or barrier of this instance."""
        return ordinal * self._gpu.copies + self._copy

    def _compute_index(self, chunk: Chunk) -> int:
        """Return the first chunk of a range of this instance."""
        # Instances are interleaved by range, so that each range stays contiguous.
        return chunk.index * self._gpu.copies + self._copy * chunk.size

    def _find_channel(self, kind: str, ordinal: int) -> int:
        """Return the position of a channel in the block's list of channels of type `kind`.

        `ordinal`: number of the channel in the program. The list has the number of the channel
        for this instance (`_to_instance_number`). A channel that is not in the list is
        appended.
        """
        known = self._channels.setdefault(kind, {})
        return known.setdefault(self._to_instance_number(ordinal), len(known))

    def _build_range(self, chunk: Chunk, operation: Recorded) -> dict[str, Any]:
        """Build the JSON object of a range of chunks for this instance of the program.

        All objects have `size`, the number of chunks, and `index`, the first chunk. It is
        i * k + c * size, with i: first chunk in the program, k: number of instances, c: this
        instance. The kind of range decides the other members:

        - `SwitchRange`: `switch_channel_id`, the position of the operation's first channel in the
          block's list of switch channels.
        - `RemoteRange`: `buffer_id`, the position of its buffer in the block's list of remote
          buffers for the channel type of the operation.
        - Local range: `type`, the name of its buffer, and also `rank`, the rank of the range, if
          the channel type of the operation is `switch`.

        A channel or buffer that is not yet in its list is appended. Raises `KeyError` for a remote
        buffer that is not in the list of the rank.
        """
        position = {"index": self._compute_index(chunk), "size": chunk.size}
        if isinstance(chunk, SwitchRange):
            return {
                "switch_channel_id": self._find_channel("switch", operation.channels[0]),
                **position,
            }
        if not isinstance(chunk, RemoteRange):
            local = {"type": chunk.buffer.value, **position}
            # In plans of the package only operations of switch channels name the local rank.
            return {"rank": chunk.rank, **local} if operation.channel_type == "switch" else local
        # Operations refer to positions in the list of the block, not in that of the rank.
        known = self._remote.setdefault(operation.channel_type, {})
        buffer = self._gpu.find_remote_buffer(chunk)
        return {"buffer_id": known.setdefault(buffer, len(known)), **position}


Locate = Callable[[Chunk], Chunk]
"""Maps a chunk to its memory: in place, chunks of two buffers may be the same memory."""


def insert_requested_barriers(operations: Iterable[Recorded]) -> list[Recorded]:
    """Return the operations with a nop for each barrier that an operation requests with `sync`.

    A nop is the barrier of the threads of a block, on the rank of the operation. `SyncType.before`
    inserts one before the operation, `SyncType.after` one after it; an operation can request both.
    So two nops may follow one another. Operations in the body of a pipeline get their nops within
    the body. The arguments are not changed.
    """
    inserted: list[Recorded] = []
    for operation in operations:
        nop = Recorded("nop", operation.rank)
        if SyncType.before in operation.sync:
            inserted.append(nop)
        body = insert_requested_barriers(operation.body)
        inserted.append(replace(operation, body=body) if body else operation)
        if SyncType.after in operation.sync:
            inserted.append(nop)
    return inserted


def insert_data_barriers(operations: Iterable[Recorded], locate: Locate) -> list[Recorded]:
    """Return the operations of a thread block with a nop inserted between dependent operations.

    Two operations are dependent if one writes data that the other one reads or writes. Only data of
    the same rank count; remote ranges and packets do not. `locate` maps a chunk to the memory that
    contains it, because two buffers may be the same memory.

    A nop is inserted before an operation that depends on any earlier one since the last separator.
    Separators are inserted nops, and existing operations `nop` and `barrier`, before which no nop
    is inserted. `Recorded.sync` is not considered.

    A pipeline counts as one operation with the accesses of all its operations. Separators in its
    body do not separate the operations around it. Nops are also inserted in the body by the same
    rules, starting without earlier operations. The arguments are not changed.
    """
    inserted: list[Recorded] = []
    since_barrier: list[Recorded] = []
    for operation in operations:
        if operation.name in BLOCK_BARRIERS:
            since_barrier = []
        elif any(are_dependent(earlier, operation, locate) for earlier in since_barrier):
            inserted.append(Recorded("nop", operation.rank))
            since_barrier = []
        body = insert_data_barriers(operation.body, locate)
        inserted.append(replace(operation, body=body) if body else operation)
        since_barrier.append(operation)
    return inserted


def insert_data_barriers_as_package(operations: Iterable[Recorded]) -> list[Recorded]:
    """Return the operations with nops (barriers of threads) where the package inserts them.

    The rules reproduce the package, which misses some dependencies. Only accesses to chunks
    of the own rank are tracked (`_list_tracked_accesses`), and only the last access to each
    chunk is stored.

    - Conflict: the last access to a chunk is by an earlier operation, and it or the current
      access writes.
    - At a conflict, one nop is inserted before the operation. All stored accesses are
      deleted, also those of the operation itself, before the current access is stored.
    - `nop` and `barrier` delete all stored accesses.
    - A pipeline has the accesses of all its operations. Its body is also examined in
      isolation and receives its own nops.

    The arguments are not changed. Without operations the result is [].
    """
    inserted: list[Recorded] = []
    last_access: dict[tuple[BufferType, int], tuple[int, bool]] = {}
    for number, operation in enumerate(operations):
        if operation.name in BLOCK_BARRIERS:
            last_access.clear()
        has_conflict = False
        for chunk, is_written in _list_tracked_accesses(operation):
            cells = [(chunk.buffer, chunk.index + offset) for offset in range(chunk.size)]
            accesses = [last_access[cell] for cell in cells if cell in last_access]
            if any(by != number and (is_written or wrote) for by, wrote in accesses):
                last_access.clear()
                has_conflict = True
            last_access.update(dict.fromkeys(cells, (number, is_written)))
        if has_conflict:
            inserted.append(Recorded("nop", operation.rank))
        body = insert_data_barriers_as_package(operation.body)
        inserted.append(replace(operation, body=body) if body else operation)
    return inserted


def find_missing_barrier(
    operations: Sequence[Recorded], locate: Locate
) -> tuple[Recorded, Recorded] | None:
    """Return the first two dependent operations without a barrier in between; None without any.

    It is the pair with the earliest second operation, and of these the earliest first one. Barriers
    are operations `nop` and `barrier` of the list itself. `sync` of an operation is not examined.

    Two operations are dependent if one of them writes plain data of its rank that the other one
    reads or writes (`are_dependent`). `locate` maps a chunk to its memory, because two buffers may
    be the same memory. A pipeline counts as one operation with all accesses of its body. Its body
    is not examined separately, and barriers in it do not count.
    """
    since_barrier: list[Recorded] = []
    for operation in operations:
        if operation.name in BLOCK_BARRIERS:
            since_barrier = []
        for earlier in since_barrier:
            if are_dependent(earlier, operation, locate):
                return earlier, operation
        since_barrier.append(operation)
    return None


def are_dependent(first: Recorded, second: Recorded, locate: Locate) -> bool:
    """Whether one of the operations writes local data that the other one accesses."""
    return any(
        (is_written or is_written_too) and locate(chunk).overlaps(locate(second_chunk))
        for chunk, is_written in _list_accesses(first)
        for second_chunk, is_written_too in _list_accesses(second)
    )


def _list_accesses(operation: Recorded) -> Iterator[tuple[Chunk, bool]]:
    """Yield (range, is written) for the accesses of an operation to plain data of its own rank.

    First come the accesses of the operations in the body of a pipeline, in order, then the sources,
    then the destinations. A range that is read and written is yielded twice. Left out are:

    - remote ranges
    - sources of `upkt`, `rppkt` and `gstorepkt`, and destinations of `cpkt`, which are packets
    - destinations after the first one of sums of packets (`_PACKET_SUMS`)

    Packets are left out because their flags order reads after writes.
    """
    for inner in operation.body:
        yield from _list_accesses(inner)
    if operation.name not in ("upkt", "rppkt", "gstorepkt"):
        yield from _select_local(operation.src, is_written=False)
    if operation.name != "cpkt":
        # A sum of packets writes its first range as plain data, its further ones as packets.
        dst = operation.dst[:1] if operation.name in _PACKET_SUMS else operation.dst
        yield from _select_local(dst, is_written=True)


def _list_tracked_accesses(operation: Recorded) -> Iterator[tuple[Chunk, bool]]:
    """Yield (range, is written) for the accesses of an operation that the package tracks.

    The order is that of the package: first the tracked accesses of the inner operations,
    then the sources (read), then the destinations (written). These are not tracked:

    - ranges of other ranks
    - ranges of an operation on a switch channel, except those of its inner operations
    - sources of `upkt` and `rppkt`, and destinations of `cpkt`
    - in sums of packets (`repkt`, `respkt`, `recpkt`, `recspkt`) the first source, and all
      destinations except the first
    """
    for inner in operation.body:
        yield from _list_tracked_accesses(inner)
    if operation.channel_type == "switch":
        return
    if operation.name not in ("upkt", "rppkt"):
        src = operation.src[1:] if operation.name in _PACKET_SUMS else operation.src
        yield from _select_local(src, is_written=False)
    if operation.name != "cpkt":
        dst = operation.dst[:1] if operation.name in _PACKET_SUMS else operation.dst
        yield from _select_local(dst, is_written=True)


def _select_local(chunks: Sequence[Chunk], *, is_written: bool) -> Iterator[tuple[Chunk, bool]]:
    """Yield the local ranges; accesses to remote ranges are ordered by signals."""
    for chunk in chunks:
        if not isinstance(chunk, RemoteRange):
            yield chunk, is_written


_PACKET_SUMS = ("repkt", "respkt", "recpkt", "recspkt")
