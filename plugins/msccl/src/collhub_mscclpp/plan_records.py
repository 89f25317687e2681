"""An execution plan as parsed, and the operations of the executor by name.

A plan consists of a header, ranks, thread blocks, and operations in columns. The table of
operations defines how each of them uses the ranges of its operands. Source: microsoft/mscclpp,
`execution_kernel.hpp` and `execution_plan.cc` (release of August 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

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
class PlanGpu:
    """One rank. `peers`: connected rank of every rank-level memory and port channel, by type."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    peers: Mapping[str, tuple[int, ...]]
    groups: tuple[SwitchGroup, ...]
    remote_buffers: tuple[RemoteBuffer, ...]
    semaphores: tuple[int, ...]

    def channel_count(self, channel_type: str) -> int:
        """Return the number of channels of a type (memory, port, switch) that the rank has.

        For `switch`, the number of groups. Raises `KeyError` for other types.
        """
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
    `reference`: position in `PlanGpu.remote_buffers` if REMOTE, in `PlanGpu.groups` if SWITCH, else
    -1; `buffer`: index in `BUFFER_TYPES`; `index` and `size`: first chunk and number of chunks.
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
    gpus: tuple[PlanGpu, ...]
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
    ) -> PlanOperation | None:
        """Return the kind of the operation in a row, with the rules of its operands.

        None if the executor does not have the operation.
        """
        code = int(self.operations.code[row])
        return None if code == UNKNOWN_CODE else KNOWN[code]

    def path(
        self,
        row: int,
    ) -> str:
        """Return the JSON path of an operation, such as `$.gpus[0].threadblocks[1].ops[2]`.

        `row`: row of the operation in the plan. An operation inside a pipeline has the positions of
        both, such as `ops[2].ops[0]`.
        """
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
        """Return a text for an operation, such as "put of rank 0, thread block 1, ops[2]".

        `row`: row of the operation in the plan. Unknown operations and operations inside a
        pipeline are described as in `describe_within_rank`.
        """
        rank = self.blocks[int(self.operations.block[row])].rank
        # Names of unknown operations come from the file, and may contain " of ".
        name, _, position = self.describe_within_rank(row).rpartition(" of ")
        return f"{name} of rank {rank}, {position}"

    def describe_within_rank(
        self,
        row: int,
    ) -> str:
        """Return a text for an operation, such as "put of thread block 1, ops[2]".

        `row`: row of the operation in the plan. The thread block is numbered within its rank.
        An unknown operation has its name in the file. An operation inside a pipeline has the
        positions of both, such as `ops[2].ops[0]`.
        """
        block = self.blocks[int(self.operations.block[row])]
        known = self.operation(row)
        name = known.name if known else self.unknown_names[row]
        where = self.path(row).partition("threadblocks")[2].partition(".")[2]
        return f"{name} of thread block {block.position}, {where}"


CHANNEL_TYPES = ("memory", "port", "switch")
"""Types of channels; the index is the code of the type in columns."""

BUFFER_TYPES = ("i", "o", "s")
"""Input, output, scratch; the index is the code of the type in columns, as `Buffer` counts."""

# Larger than any operand position: no operand is packets, or no limit.
NEVER = 99


class Role(IntEnum):
    """How an operation takes part in the order of operations."""

    NOP = 0
    SIGNAL = 1
    WAIT = 2
    ACQUIRE = 3
    RELEASE = 4
    BARRIER = 5
    FLUSH = 6
    DATA = 7
    PIPELINE = 8
    UNKNOWN = 9


_COUNTING = (Role.SIGNAL, Role.WAIT, Role.ACQUIRE, Role.RELEASE)


class Scope(IntEnum):
    """Location of the range of an operand: local, at a remote rank, or in a switch group."""

    LOCAL = 0
    REMOTE = 1
    SWITCH = 2


@dataclass(frozen=True, slots=True)
class PlanOperation:
    """One kind of operation.

    `is_each`: if true, src[i] is copied to dst[i] for every i; else the sum of all src is written
    to every dst. `src`, `dst`: scopes of the first and of the further operands. `src_packets`,
    `dst_packets`: position of the first operand that is packets. `least_src`, `most_src`,
    `least_dst`, `most_dst`: minimum and maximum numbers of operands. `signals`: whether a signal
    follows; `flushes`: whether it then waits for the proxy; both on port channels only.
    """

    name: str
    role: Role
    is_each: bool = False
    src: tuple[Scope, Scope] = (Scope.LOCAL, Scope.LOCAL)
    dst: tuple[Scope, Scope] = (Scope.LOCAL, Scope.LOCAL)
    src_packets: int = NEVER
    dst_packets: int = NEVER
    most_src: int = NEVER
    most_dst: int = NEVER
    least_src: int = 1
    least_dst: int = 1
    channel_types: tuple[str, ...] = ()
    signals: bool = False
    flushes: bool = False

    @property
    def counts_items(self) -> bool:
        """Whether the operation increments or awaits counters of channels or semaphores."""
        return self.signals or self.role in _COUNTING

    def scope(
        self,
        is_dst: bool,
        position: int,
    ) -> Scope:
        """Return where operand `position` of one side is located (local, remote or switch).

        `is_dst`: True for destinations, False for sources. `position` counts from 0. Operand 0 may
        have another location than the other operands of its side. The second destination of
        `recspkt` is an exception, for which only `scope_of` is right.
        """
        first, rest = self.dst if is_dst else self.src
        return rest if position else first

    def has_packets(self, is_dst: bool, position: int) -> bool:
        """Return whether operand `position` of one side consists of packets.

        `is_dst`: True for destinations, False for sources. Each kind of operation has a first
        position from which on operands are packets.
        """
        first = self.dst_packets if is_dst else self.src_packets
        return position >= first

    def counts(self, is_dst: bool) -> tuple[int, int]:
        """Return the minimum and the maximum number of operands of one side.

        `is_dst`: True for destinations, False for sources. A maximum of 99 means no limit.
        """
        if is_dst:
            return self.least_dst, self.most_dst
        return self.least_src, self.most_src


_L, _R, _S = Scope.LOCAL, Scope.REMOTE, Scope.SWITCH
# Short names, so that the table below has one row per operation.
_BOTH, _MEMORY, _PORT, _SWITCH = ("memory", "port"), ("memory",), ("port",), ("switch",)
_LOCAL, _REMOTE, _GROUP, _SPREAD = (_L, _L), (_R, _R), (_S, _S), (_L, _R)


def _order(
    name: str,
    role: Role,
    channel_types: tuple[str, ...] = (),
) -> PlanOperation:
    return PlanOperation(name, role, least_src=0, least_dst=0, channel_types=channel_types)


def _put(
    name: str, packets: int = NEVER, *, signals: bool = False, flushes: bool = False
) -> PlanOperation:
    return PlanOperation(
        name,
        Role.DATA,
        is_each=True,
        dst=_REMOTE,
        dst_packets=packets,
        channel_types=_BOTH,
        signals=signals,
        flushes=flushes,
    )


_LIST = (
    _order("nop", Role.NOP),
    _order("barrier", Role.BARRIER),
    _order("signal", Role.SIGNAL, _BOTH),
    _order("rlxsignal", Role.SIGNAL, _BOTH),
    _order("wait", Role.WAIT, _BOTH),
    _order("rlxwait", Role.WAIT, _BOTH),
    _order("sem_acquire", Role.ACQUIRE),
    _order("sem_release", Role.RELEASE),
    _order("flush", Role.FLUSH, _PORT),
    _order("pipeline", Role.PIPELINE),
    _put("put"),
    _put("pws", signals=True),
    _put("pwsf", signals=True, flushes=True),
    _put("ppkt", 0),
    PlanOperation("get", Role.DATA, is_each=True, src=_REMOTE, channel_types=_MEMORY),
    PlanOperation("copy", Role.DATA, most_src=1, most_dst=1),
    PlanOperation("cpkt", Role.DATA, dst_packets=0, most_src=1, most_dst=1),
    PlanOperation("upkt", Role.DATA, src_packets=0, most_src=1, most_dst=1),
    PlanOperation(
        "rppkt",
        Role.DATA,
        dst=_REMOTE,
        src_packets=0,
        dst_packets=0,
        most_src=1,
        channel_types=_BOTH,
    ),
    PlanOperation("re", Role.DATA, most_dst=1),
    PlanOperation("res", Role.DATA, dst=_SPREAD, channel_types=_MEMORY),
    PlanOperation("rre", Role.DATA, src=_SPREAD, most_dst=1, channel_types=_MEMORY),
    PlanOperation("rres", Role.DATA, src=_SPREAD, dst=_SPREAD, channel_types=_MEMORY),
    PlanOperation("repkt", Role.DATA, src_packets=1, most_dst=1),
    PlanOperation(
        "respkt", Role.DATA, dst=_SPREAD, src_packets=1, dst_packets=1, channel_types=_MEMORY
    ),
    PlanOperation("recpkt", Role.DATA, src_packets=1, dst_packets=1, least_dst=2, most_dst=2),
    PlanOperation(
        "recspkt", Role.DATA, dst=_SPREAD, src_packets=1, dst_packets=1, least_dst=2,
        channel_types=_MEMORY,
    ),
    PlanOperation(
        "glres", Role.DATA, src=_GROUP, dst=_GROUP, most_src=1, most_dst=1, channel_types=_SWITCH
    ),
    PlanOperation("gstore", Role.DATA, dst=_GROUP, most_src=1, most_dst=1, channel_types=_SWITCH),
    PlanOperation(
        "gstorepkt", Role.DATA, dst=_GROUP, src_packets=0, dst_packets=0, most_src=1, most_dst=1,
        channel_types=_SWITCH,
    ),
)  # fmt: skip

OPERATIONS: Mapping[str, PlanOperation] = {operation.name: operation for operation in _LIST}
"""All operations of the executor, by name in plans."""

CODES: Mapping[str, int] = {operation.name: code for code, operation in enumerate(_LIST)}
"""Code of an operation in columns, by name."""

KNOWN: tuple[PlanOperation, ...] = _LIST
"""All operations of the executor; the index is the code."""

UNKNOWN_CODE = -1
"""Code of an operation that the executor does not have."""


def scope_of(
    operation: PlanOperation,
    is_dst: bool,
    position: int,
) -> Scope:
    """Return where operand `position` of one side of an operation is located.

    It is the result of `PlanOperation.scope`, except that the second destination of `recspkt` is
    local.
    """
    # The second result is the local copy of the packets, the further ones are remote.
    if operation.name == "recspkt" and is_dst and position == 1:
        return Scope.LOCAL
    return operation.scope(is_dst, position)
