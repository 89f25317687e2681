"""An execution plan as parsed: header, ranks, thread blocks, and operations in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collhub_mscclpp.plans.operations import KNOWN, UNKNOWN_CODE, Operation
from hub_core.columns import ColumnTable, Int64Array


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """Members of the plan other than its ranks.

    `min_bytes`, `max_bytes`: message sizes in bytes of the input, in an all-gather of the output.
    """

    name: str
    collective: str
    protocol: str
    in_place: bool
    reuse_resources: bool
    double_scratch: bool
    alignment: int
    threads_per_block: int
    min_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SwitchGroup:
    """Ranks whose buffers of one type a switch channel spans; its id is its index in `groups`."""

    buffer: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoteBuffer:
    """A buffer of another rank and the types of channels that access it."""

    rank: int
    buffer: int
    channel_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One rank. `peers`: connected rank of every rank-level memory and port channel, by type."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    peers: Mapping[str, tuple[int, ...]]
    groups: tuple[SwitchGroup, ...]
    remote_buffers: tuple[RemoteBuffer, ...]
    semaphores: tuple[int, ...]

    def channel_count(self, channel_type: str) -> int:
        """Return the number of rank-level channels of a type."""
        if channel_type == "switch":
            return len(self.groups)
        return len(self.peers[channel_type])


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """Rank-level channel ids and positions of remote buffers of a thread block, by type.

    Operations refer to them by their index in these tuples.
    """

    rank: int
    position: int
    channels: Mapping[str, tuple[int, ...]]
    remote_buffers: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class OperationTable(ColumnTable):
    """Operations in order of thread blocks, those of a pipeline after it; int64 columns.

    `block`: index in `Plan.blocks`; `code`: of `KNOWN`, or -1; `channel_type`: of `CHANNEL_TYPES`,
    or -1; `part`, `parts`: number of the part of every range that is processed, and number of parts
    (0 of 1 for the full range); `barrier`, `barrier_blocks`: of a barrier, else -1; `pipeline`: row
    of the pipeline that contains it, or -1; `slice_bytes`, `slice_chunks`: of a pipeline, else 0;
    `place`: position in its list; `flushed`: number of entries of dst_buff of a flush, for which
    the executor waits, else 0.
    """

    block: Int64Array
    code: Int64Array
    channel_type: Int64Array
    part: Int64Array
    parts: Int64Array
    barrier: Int64Array
    barrier_blocks: Int64Array
    pipeline: Int64Array
    slice_bytes: Int64Array
    slice_chunks: Int64Array
    place: Int64Array
    flushed: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class OperandTable(ColumnTable):
    """Entries of src_buff and dst_buff in order of operations, sources first; int64 columns.

    `operation`: row of the operation; `is_dst`: 0 or 1; `position` in its list; `scope`: a `Scope`;
    `reference`: position in `Gpu.remote_buffers` if REMOTE, in `Gpu.groups` if SWITCH, else -1;
    `buffer`: index in `BUFFER_TYPES`; `index` and `size`: first chunk and number of chunks.
    """

    operation: Int64Array
    is_dst: Int64Array
    position: Int64Array
    scope: Int64Array
    reference: Int64Array
    buffer: Int64Array
    index: Int64Array
    size: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class ItemTable(ColumnTable):
    """Rank-level channels and semaphores of operations, in their order; int64.

    Only channels of synchronising operations, and channels of port operations on data.
    """

    operation: Int64Array
    item: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """An execution plan whose references all resolve.

    `unknown_names`: names of the operations with code -1, by row.
    """

    file: str
    header: PlanHeader
    gpus: tuple[Gpu, ...]
    blocks: tuple[ThreadBlock, ...]
    operations: OperationTable
    operands: OperandTable
    items: ItemTable
    unknown_names: Mapping[int, str]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.gpus)

    def operation(
        self,
        row: int,
    ) -> Operation | None:
        """Return the kind of the operation at a row; None if the executor has no such operation."""
        code = int(self.operations.code[row])
        return None if code == UNKNOWN_CODE else KNOWN[code]

    def path(
        self,
        row: int,
    ) -> str:
        """Return the JSON path of an operation."""
        table = self.operations
        block = self.blocks[int(table.block[row])]
        outer = int(table.pipeline[row])
        position = f"ops[{int(table.place[row])}]"
        if outer >= 0:
            position = f"ops[{int(table.place[outer])}].{position}"
        return f"$.gpus[{block.rank}].threadblocks[{block.position}].{position}"

    def describe(
        self,
        row: int,
    ) -> str:
        """Describe an operation by its name, rank, thread block and position."""
        rank = self.blocks[int(self.operations.block[row])].rank
        name, _, position = self.describe_within_rank(row).partition(" of ")
        return f"{name} of rank {rank}, {position}"

    def describe_within_rank(
        self,
        row: int,
    ) -> str:
        """Describe an operation by its name, thread block and position, without its rank."""
        block = self.blocks[int(self.operations.block[row])]
        known = self.operation(row)
        name = known.name if known else self.unknown_names[row]
        where = self.path(row).partition("threadblocks")[2].partition(".")[2]
        return f"{name} of thread block {block.position}, {where}"
