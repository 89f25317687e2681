"""Parse the operations of thread blocks into columns, with every reference resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from collhub_mscclpp.plan_records import (
    BUFFER_TYPES,
    CHANNEL_TYPES,
    CODES,
    OPERATIONS,
    UNKNOWN_CODE,
    ItemTable,
    OperandTable,
    OperationTable,
    Plan,
    PlanGpu,
    PlanHeader,
    PlanOperation,
    Role,
    Scope,
    ThreadBlock,
    scope_of,
)
from collhub_mscclpp.reading.json_values import MAX_CHUNKS, JsonValue, refuse_old_operation

_SYNCHRONISING = (Role.SIGNAL, Role.WAIT, Role.FLUSH)
_SCOPE_KEYS = {Scope.LOCAL: "type", Scope.REMOTE: "buffer_id", Scope.SWITCH: "switch_channel_id"}
# Parts of a range are thread blocks of one rank: more than a device can run are an error.
_MOST_PARTS = 1024
_MOST_SLICE = (1 << 31) - 1


class OperationReader:
    """Collects the operations of one thread block after another, then builds the plan."""

    def __init__(
        self,
        attempt: Callable[[Callable[[], None]], None],
    ) -> None:
        """Prepare empty columns for the operations, ranges and items of a plan.

        `attempt`: executes the parser of one operation and records its errors, so that reading
        continues.
        """
        self._attempt = attempt
        self._operations: dict[str, list[int]] = {
            name: [] for name in _list_columns(OperationTable)
        }
        self._operands: dict[str, list[int]] = {name: [] for name in _list_columns(OperandTable)}
        self._items: dict[str, list[int]] = {name: [] for name in _list_columns(ItemTable)}
        self._unknown: dict[int, str] = {}

    def read(
        self,
        ops: JsonValue,
        block: ThreadBlock,
        number: int,
        gpu: PlanGpu,
    ) -> None:
        """Add the operations of thread block `number` of the plan."""
        self._read_list(ops, _Context(block, number, gpu, -1))

    def plan(
        self,
        file: str,
        header: PlanHeader,
        gpus: tuple[PlanGpu, ...],
        blocks: tuple[ThreadBlock, ...],
    ) -> Plan:
        """Build the plan of all operations read so far.

        The tables have the operations, ranges and items in the order of reading. The other parts
        are taken as given; nothing is checked.
        """
        return Plan(
            file,
            header,
            gpus,
            blocks,
            OperationTable(**_to_columns(self._operations)),
            OperandTable(**_to_columns(self._operands)),
            ItemTable(**_to_columns(self._items)),
            self._unknown,
        )

    def _read_list(
        self,
        ops: JsonValue,
        context: _Context,
    ) -> None:
        """Add the operations of a list; errors in one do not hide those in others."""
        for position, operation in enumerate(ops.items()):
            self._attempt(partial(self._read, operation, position, context))

    def _read(self, value: JsonValue, position: int, context: _Context) -> None:
        """Add one operation, and the operations inside it if it is a pipeline.

        Appends one row to the operations, then the items (channels or semaphores) and ranges that
        refer to the row. `position`: index in the list that has the operation. Cases by name:

        - Unknown: a row with `UNKNOWN_CODE`, without items and ranges; the name is recorded.
        - Pipeline: the operations of its list follow as rows, with its row as `pipeline` (outside
          of pipelines: that of `context`, -1). Errors in them are recorded, and reading continues.

        Raises `InputError` for the first invalid or missing member, with code `old-plan` for
        members of plans before July 2025. If the member belongs to the row, nothing is appended. If
        it is in an item or range, or is the list of a pipeline, the row and earlier items and
        ranges remain.
        """
        refuse_old_operation(value)
        name = value.member("name").text()
        row = len(self._operations["block"])
        operation = OPERATIONS.get(name)
        channel_type = -1
        if operation is not None and operation.channel_types:
            type_name = value.member("channel_type").choice(operation.channel_types)
            channel_type = CHANNEL_TYPES.index(type_name)
        values = {
            "block": context.number,
            "code": CODES.get(name, UNKNOWN_CODE),
            "channel_type": channel_type,
            "pipeline": context.pipeline,
            "place": position,
            **_read_numbers(value, operation, context),
        }
        for column, number in values.items():
            self._operations[column].append(number)
        if operation is None:
            self._unknown[row] = name
            return
        for item in _read_items(value, operation, context):
            self._items["operation"].append(row)
            self._items["item"].append(item)
        self._read_operands(value, operation, row, context)
        if operation.role is Role.PIPELINE:
            inner = _Context(context.block, context.number, context.gpu, row)
            self._read_list(value.member("ops"), inner)

    def _read_operands(
        self,
        value: JsonValue,
        operation: PlanOperation,
        row: int,
        context: _Context,
    ) -> None:
        """Add one row per range (a part of a buffer) of an operation that moves data.

        Operations that move no data add no row. For `src_buff`, then for `dst_buff`:

        1. `InputError` if the list is missing, or its length is not permitted for this operation.
        2. The ranges are added in the order of the list. Each has `row` (the number of the
           operation), its side, its position from 0, its kind of location (local, remote or
           switch) and its buffer, index and size. An invalid range raises `InputError`.

        Last, `InputError` if an operation that copies source i to destination i has unequal
        numbers of ranges. Rows that were added before an error are kept.
        """
        if operation.role is not Role.DATA:
            return
        lengths = []
        for is_dst, key in ((False, "src_buff"), (True, "dst_buff")):
            listed = value.member(key)
            entries = listed.items()
            minimum, maximum = operation.counts(is_dst)
            if not minimum <= len(entries) <= maximum:
                expected = f"{minimum}" if minimum == maximum else f"at least {minimum}"
                message = f"{operation.name} takes {expected} ranges here, not {len(entries)}"
                raise listed.fail(message, "see the operations of the executor")
            lengths.append(len(entries))
            for position, entry in enumerate(entries):
                scope = scope_of(operation, is_dst, position)
                operand = _read_operand(entry, scope, value, context)
                row_values = {
                    "operation": row,
                    "is_dst": int(is_dst),
                    "position": position,
                    "scope": int(scope),
                }
                for column, number in {**row_values, **operand}.items():
                    self._operands[column].append(number)
        if operation.is_each and lengths[0] != lengths[1]:
            message = f"{lengths[0]} ranges in src_buff, {lengths[1]} in dst_buff"
            raise value.fail(message, "list one destination for every source")


class _Context:
    """Thread block, rank and pipeline (row, or -1) that contain an operation."""

    __slots__ = ("block", "gpu", "number", "pipeline")

    def __init__(self, block: ThreadBlock, number: int, gpu: PlanGpu, pipeline: int) -> None:
        self.block = block
        self.number = number
        self.gpu = gpu
        self.pipeline = pipeline


def _list_columns(table: type[OperationTable | OperandTable | ItemTable]) -> list[str]:
    return list(table.__dataclass_fields__)


def _to_columns(lists: Mapping[str, list[int]]) -> dict[str, np.ndarray]:
    return {name: np.asarray(values, np.int64) for name, values in lists.items()}


def _read_type_name(value: JsonValue) -> str:
    return value.member("channel_type").choice(CHANNEL_TYPES)


def _read_numbers(
    value: JsonValue, operation: PlanOperation | None, context: _Context
) -> dict[str, int]:
    """Return the columns of an operation that need members which only some operations have.

    In parentheses are the member and its range; in this order they are read:

    - `flushed`: entries in dst_buff of a flush, else 0. The executor waits for so many channels. A
      flush does not use these ranges, but the loader resolves them, so invalid ones raise.
    - `parts` (`tbg_size`, 1 to 1024) and `part` (`tb_id`, from 0) in `tbg_info`; else 1 and 0
    - `barrier` (`barrier_id`, at least 0) and `barrier_blocks` (`num_threadblocks`, at least 1),
      both at most 2^32 - 1; else -1
    - `slice_bytes` (`unit_size`, 1 to 2^31 - 1) and `slice_chunks` (`num_chunks`, 1 to 2^32 - 1) of
      the `iter_context` of a pipeline; else 0

    `operation` None is unknown. Raises `InputError` for the first number that is missing, out of
    range or no integer, and for a pipeline inside a pipeline.
    """
    numbers = {
        "flushed": 0,
        "part": 0,
        "parts": 1,
        "barrier": -1,
        "barrier_blocks": -1,
        "slice_bytes": 0,
        "slice_chunks": 0,
    }
    role = None if operation is None else operation.role
    if role is Role.FLUSH and value.has("dst_buff"):
        entries = value.member("dst_buff").items()
        for entry in entries:
            scope = Scope.REMOTE if entry.has("buffer_id") else Scope.LOCAL
            _read_operand(entry, scope, value, context)
        numbers["flushed"] = len(entries)
    if value.has("tbg_info"):
        info = value.member("tbg_info")
        parts = info.member("tbg_size").integer(1, _MOST_PARTS)
        cure = "count thread blocks of the group from 0"
        numbers["parts"] = parts
        numbers["part"] = info.member("tb_id").integer(0, parts - 1, cure)
    if role is Role.BARRIER:
        numbers["barrier"] = value.member("barrier_id").integer(0, MAX_CHUNKS)
        numbers["barrier_blocks"] = value.member("num_threadblocks").integer(1, MAX_CHUNKS)
    if role is Role.PIPELINE and context.pipeline >= 0:
        raise value.fail("a pipeline within a pipeline", "replace the inner one by its operations")
    if role is Role.PIPELINE:
        iteration = value.member("iter_context")
        numbers["slice_bytes"] = iteration.member("unit_size").integer(1, _MOST_SLICE)
        numbers["slice_chunks"] = iteration.member("num_chunks").integer(1, MAX_CHUNKS)
    return numbers


def _read_items(
    value: JsonValue,
    operation: PlanOperation,
    context: _Context,
) -> list[int]:
    """Return the semaphores or the channels of an operation, as numbers of the rank.

    The first case that applies:

    - acquire and release: the numbers in `semaphore_ids`, as they are
    - signal, wait and flush, and data operations whose `channel_type` is port: the channels in
      `channel_ids`. An id is a position in the thread block's list of channels of this type,
      and is replaced by the number of the channel on the rank.
    - all other operations, such as data operations with memory channels: none

    The order is that of the file, with repetitions. Raises `InputError` if the list or the
    channel type is missing, and for an id below 0 or not below the number of semaphores of the
    rank, or of channels in the list.
    """
    if operation.role in (Role.ACQUIRE, Role.RELEASE):
        count = len(context.gpu.semaphores)
        cure = f"the rank has {count} semaphores"
        listed = value.member("semaphore_ids").items()
        return [entry.integer(0, count - 1, cure) for entry in listed]
    # Data operations use channel ids only on port channels; on memory channels they do not signal.
    is_by_proxy = operation.role is Role.DATA and "port" in operation.channel_types
    if operation.role not in _SYNCHRONISING and not is_by_proxy:
        return []
    kind = _read_type_name(value)
    if is_by_proxy and kind != "port":
        return []
    known = context.block.channels[kind]
    cure = f"the thread block has {len(known)} {kind} channels"
    listed = value.member("channel_ids").items()
    return [known[entry.integer(0, len(known) - 1, cure)] for entry in listed]


def _read_operand(
    entry: JsonValue,
    scope: Scope,
    operation: JsonValue,
    context: _Context,
) -> dict[str, int]:
    """Read one range: the columns `index` and `size` in chunks, `reference` and `buffer`.

    `buffer` is the number of the buffer's type: 0 input, 1 output, 2 scratch. `scope` decides
    which member of `entry` gives the buffer:

    - local: `type` (`i`, `o` or `s`). `reference` is -1.
    - remote: `buffer_id`, a position in the thread block's list of remote buffers for the
      channel type of `operation`. `reference` is the position of this buffer in the list of the
      rank.
    - switch: `switch_channel_id`, a position in the thread block's list of switch channels.
      `reference` is the number of the group on the rank.

    Raises `InputError` for a missing member, an unknown type, an `index` not in 0..2^32 - 1, a
    `size` not in 1..2^32 - 1, and a position that its list does not have.
    """
    key = entry.member(_SCOPE_KEYS[scope])
    chunks = {
        "index": entry.member("index").integer(0, MAX_CHUNKS),
        "size": entry.member("size").integer(1, MAX_CHUNKS),
    }
    if scope is Scope.LOCAL:
        return {**chunks, "reference": -1, "buffer": BUFFER_TYPES.index(key.choice(BUFFER_TYPES))}
    if scope is Scope.REMOTE:
        kind = _read_type_name(operation)
        refs = context.block.remote_buffers.get(kind, ())
        cure = f"the thread block refers to {len(refs)} remote buffers of {kind} channels"
        reference = refs[key.integer(0, len(refs) - 1, cure)]
        buffer = context.gpu.remote_buffers[reference].buffer
        return {**chunks, "reference": reference, "buffer": buffer}
    groups = context.block.channels["switch"]
    cure = f"the thread block has {len(groups)} switch channels"
    group = groups[key.integer(0, len(groups) - 1, cure)]
    return {**chunks, "reference": group, "buffer": context.gpu.groups[group].buffer}
