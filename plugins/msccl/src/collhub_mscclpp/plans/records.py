"""An execution plan as parsed: header, ranks, thread blocks, and operations in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collhub_mscclpp.plans.operations import KNOWN, UNKNOWN_CODE, Operation
from hub_core.columns import ColumnTable, Int64Array


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """Members of the plan itself; sizes are bytes of the input (all-gather: of the output)."""

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
    """Ranks whose buffers of one type a switch channel spans; its id is its place in the rank."""

    buffer: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoteBuffer:
    """A buffer of another rank, and the types of channel by which it is reached."""

    rank: int
    buffer: int
    channel_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One rank. `peers`: for memory and port the connected rank of every rank-level channel."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    peers: Mapping[str, tuple[int, ...]]
    groups: tuple[SwitchGroup, ...]
    remote_buffers: tuple[RemoteBuffer, ...]
    semaphores: tuple[int, ...]

    def channel_count(self, channel_type: str) -> int:
        """Number of rank-level channels of a type."""
        if channel_type == "switch":
            return len(self.groups)
        return len(self.peers[channel_type])


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """Rank-level channel ids and positions of remote buffers, by type, as its operations count."""

    rank: int
    position: int
    channels: Mapping[str, tuple[int, ...]]
    remote_buffers: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class OperationTable(ColumnTable):
    """Operations in order of thread blocks, those in pipelines behind their pipeline; int64.

    `block`: index in `Plan.blocks`; `code`: of `KNOWN`, or -1; `channel_type`: of `CHANNEL_TYPES`,
    or -1; `part`, `parts`: which part of how many of every range (0 of 1 for all of it);
    `barrier`, `barrier_blocks`: of a barrier, else -1; `pipeline`: row of the pipeline that it is
    in, or -1; `slice_bytes`, `slice_chunks`: of a pipeline, else 0; `place`: position in its list;
    `flushed`: of a flush the entries of dst_buff, as many as the executor flushes channels, else 0.
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

    `operation`: row of it; `is_dst` 0 or 1; `position` in its list; `scope`: a `Scope`;
    `reference`: of a LOCAL operand -1, REMOTE: position in `Gpu.remote_buffers`, SWITCH: in
    `Gpu.groups`;
    `buffer`: of `BUFFER_TYPES`; `index` and `size`: in chunks.
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

    Channels are those of synchronisation, and those through which a port operation moves data.
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
        """Kind of the operation at a row; None where the executor does not know its name."""
        code = int(self.operations.code[row])
        return None if code == UNKNOWN_CODE else KNOWN[code]

    def path(
        self,
        row: int,
    ) -> str:
        """JSON path of an operation."""
        table = self.operations
        block = self.blocks[int(table.block[row])]
        outer = int(table.pipeline[row])
        place = f"ops[{int(table.place[row])}]"
        if outer >= 0:
            place = f"ops[{int(table.place[outer])}].{place}"
        return f"$.gpus[{block.rank}].threadblocks[{block.position}].{place}"

    def describe(
        self,
        row: int,
    ) -> str:
        """An operation in words: its name, rank, thread block and place."""
        rank = self.blocks[int(self.operations.block[row])].rank
        name, _, place = self.describe_within_rank(row).partition(" of ")
        return f"{name} of rank {rank}, {place}"

    def describe_within_rank(
        self,
        row: int,
    ) -> str:
        """An operation in words where its rank is known."""
        block = self.blocks[int(self.operations.block[row])]
        known = self.operation(row)
        name = known.name if known else self.unknown_names[row]
        where = self.path(row).partition("threadblocks")[2].partition(".")[2]
        return f"{name} of thread block {block.position}, {where}"
