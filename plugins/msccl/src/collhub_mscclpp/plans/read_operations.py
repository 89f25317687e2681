"""Parse the operations of thread blocks into columns, with every reference resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from collhub_mscclpp.plans.json_values import MOST_CHUNKS, JsonValue, refuse_old_operation
from collhub_mscclpp.plans.operations import (
    BUFFER_TYPES,
    CHANNEL_TYPES,
    CODES,
    OPERATIONS,
    UNKNOWN_CODE,
    Operation,
    Role,
    Scope,
    scope_of,
)
from collhub_mscclpp.plans.records import (
    Gpu,
    ItemTable,
    OperandTable,
    OperationTable,
    Plan,
    PlanHeader,
    ThreadBlock,
)

_SYNCHRONISING = (Role.SIGNAL, Role.WAIT, Role.FLUSH)
_SCOPE_KEYS = {Scope.LOCAL: "type", Scope.REMOTE: "buffer_id", Scope.SWITCH: "switch_channel_id"}
# Parts of a range are thread blocks of one rank: more than a device can hold is a slip.
_MOST_PARTS = 1024
_MOST_SLICE = (1 << 31) - 1


class OperationReader:
    """Collects operations of one thread block after the other, then makes the plan of them."""

    def __init__(
        self,
        attempt: Callable[[Callable[[], None]], None],
    ) -> None:
        """`attempt` runs the parsing of one operation and notes its defects."""
        self._attempt = attempt
        self._operations: dict[str, list[int]] = {name: [] for name in _names(OperationTable)}
        self._operands: dict[str, list[int]] = {name: [] for name in _names(OperandTable)}
        self._items: dict[str, list[int]] = {name: [] for name in _names(ItemTable)}
        self._unknown: dict[int, str] = {}

    def read(
        self,
        ops: JsonValue,
        block: ThreadBlock,
        number: int,
        gpu: Gpu,
    ) -> None:
        """Add the operations of thread block `number` of the plan."""
        self._read_list(ops, _Surroundings(block, number, gpu, -1))

    def plan(
        self,
        file: str,
        header: PlanHeader,
        gpus: tuple[Gpu, ...],
        blocks: tuple[ThreadBlock, ...],
    ) -> Plan:
        """The plan of all that was read."""
        return Plan(
            file,
            header,
            gpus,
            blocks,
            OperationTable(**_columns(self._operations)),
            OperandTable(**_columns(self._operands)),
            ItemTable(**_columns(self._items)),
            self._unknown,
        )

    def _read_list(
        self,
        ops: JsonValue,
        around: _Surroundings,
    ) -> None:
        for place, one in enumerate(ops.items()):
            self._attempt(partial(self._read, one, place, around))

    def _read(self, value: JsonValue, place: int, around: _Surroundings) -> None:
        """Add one operation, and those in it where it is a pipeline."""
        refuse_old_operation(value)
        name = value.member("name").text()
        row = len(self._operations["block"])
        operation = OPERATIONS.get(name)
        values = {
            "block": around.number,
            "code": CODES.get(name, UNKNOWN_CODE),
            "channel_type": _channel_type(value, operation),
            "pipeline": around.pipeline,
            "place": place,
            "flushed": _flushed(value, operation, around),
            **_part(value),
            **_barrier(value, operation),
            **_slices(value, operation, around),
        }
        for column, one in values.items():
            self._operations[column].append(one)
        if operation is None:
            self._unknown[row] = name
            return
        self._read_items(value, operation, row, around)
        self._read_operands(value, operation, row, around)
        if operation.role is Role.PIPELINE:
            inner = _Surroundings(around.block, around.number, around.gpu, row)
            self._read_list(value.member("ops"), inner)

    def _read_items(
        self, value: JsonValue, operation: Operation, row: int, around: _Surroundings
    ) -> None:
        """Add the channels or semaphores that the operation is about."""
        for item in _items(value, operation, around):
            self._items["operation"].append(row)
            self._items["item"].append(item)

    def _read_operands(
        self,
        value: JsonValue,
        operation: Operation,
        row: int,
        around: _Surroundings,
    ) -> None:
        """Add the ranges of a data operation."""
        if operation.role is not Role.DATA:
            return
        lengths = []
        for is_dst, key in ((False, "src_buff"), (True, "dst_buff")):
            listed = value.member(key)
            entries = listed.items()
            least, most = operation.counts(is_dst)
            if not least <= len(entries) <= most:
                wanted = f"{least}" if least == most else f"at least {least}"
                message = f"{operation.name} takes {wanted} ranges here, not {len(entries)}"
                raise listed.fail(message, "see the operations of the executor")
            lengths.append(len(entries))
            for position, entry in enumerate(entries):
                scope = scope_of(operation, is_dst, position)
                found = _operand(entry, scope, value, around)
                self._add_operand(row, is_dst, position, scope, found)
        if operation.is_each and lengths[0] != lengths[1]:
            message = f"{lengths[0]} ranges in src_buff, {lengths[1]} in dst_buff"
            raise value.fail(message, "list one destination for every source")

    def _add_operand(
        self, row: int, is_dst: bool, position: int, scope: Scope, found: Mapping[str, int]
    ) -> None:
        place = {
            "operation": row,
            "is_dst": int(is_dst),
            "position": position,
            "scope": int(scope),
        }
        for column, one in {**place, **found}.items():
            self._operands[column].append(one)


class _Surroundings:
    """Thread block, rank and pipeline that an operation stands in."""

    __slots__ = ("block", "gpu", "number", "pipeline")

    def __init__(self, block: ThreadBlock, number: int, gpu: Gpu, pipeline: int) -> None:
        self.block = block
        self.number = number
        self.gpu = gpu
        self.pipeline = pipeline


def _names(table: type[OperationTable | OperandTable | ItemTable]) -> list[str]:
    return list(table.__dataclass_fields__)


def _columns(lists: Mapping[str, list[int]]) -> dict[str, np.ndarray]:
    return {name: np.asarray(values, np.int64) for name, values in lists.items()}


def _type_name(value: JsonValue) -> str:
    return value.member("channel_type").choice(CHANNEL_TYPES)


def _channel_type(
    value: JsonValue,
    operation: Operation | None,
) -> int:
    """Code of the channel type; -1 where the operation is local."""
    if operation is None or not operation.channel_types:
        return -1
    name = value.member("channel_type").choice(operation.channel_types)
    return CHANNEL_TYPES.index(name)


def _part(value: JsonValue) -> dict[str, int]:
    """Which part of its ranges the operation works on."""
    if not value.has("tbg_info"):
        return {"part": 0, "parts": 1}
    info = value.member("tbg_info")
    parts = info.member("tbg_size").integer(1, _MOST_PARTS)
    part = info.member("tb_id").integer(0, parts - 1, "count thread blocks of the group from 0")
    return {"part": part, "parts": parts}


def _barrier(
    value: JsonValue,
    operation: Operation | None,
) -> dict[str, int]:
    if operation is None or operation.role is not Role.BARRIER:
        return {"barrier": -1, "barrier_blocks": -1}
    return {
        "barrier": value.member("barrier_id").integer(0, MOST_CHUNKS),
        "barrier_blocks": value.member("num_threadblocks").integer(1, MOST_CHUNKS),
    }


def _slices(
    value: JsonValue,
    operation: Operation | None,
    around: _Surroundings,
) -> dict[str, int]:
    if operation is None or operation.role is not Role.PIPELINE:
        return {"slice_bytes": 0, "slice_chunks": 0}
    if around.pipeline >= 0:
        raise value.fail("a pipeline stands in a pipeline", "take the inner one apart")
    context = value.member("iter_context")
    return {
        "slice_bytes": context.member("unit_size").integer(1, _MOST_SLICE),
        "slice_chunks": context.member("num_chunks").integer(1, MOST_CHUNKS),
    }


def _items(
    value: JsonValue,
    operation: Operation,
    around: _Surroundings,
) -> list[int]:
    """Rank-level ids of channels, or ids of semaphores."""
    if operation.role in (Role.ACQUIRE, Role.RELEASE):
        count = len(around.gpu.semaphores)
        cure = f"the rank has {count} semaphores"
        listed = value.member("semaphore_ids").items()
        return [one.integer(0, count - 1, cure) for one in listed]
    # Data operations name channels only for the proxy: on memory channels they do not signal.
    is_by_proxy = operation.role is Role.DATA and "port" in operation.channel_types
    if operation.role not in _SYNCHRONISING and not is_by_proxy:
        return []
    kind = _type_name(value)
    if is_by_proxy and kind != "port":
        return []
    known = around.block.channels[kind]
    cure = f"the thread block has {len(known)} {kind} channels"
    listed = value.member("channel_ids").items()
    return [known[one.integer(0, len(known) - 1, cure)] for one in listed]


def _flushed(value: JsonValue, operation: Operation | None, around: _Surroundings) -> int:
    """Entries of dst_buff of a flush: the executor waits for that many of its channels.

    The loader resolves their ranges, although a flush does not use them.
    """
    if operation is None or operation.role is not Role.FLUSH or not value.has("dst_buff"):
        return 0
    entries = value.member("dst_buff").items()
    for entry in entries:
        scope = Scope.REMOTE if entry.has("buffer_id") else Scope.LOCAL
        _operand(entry, scope, value, around)
    return len(entries)


def _operand(
    entry: JsonValue,
    scope: Scope,
    operation: JsonValue,
    around: _Surroundings,
) -> dict[str, int]:
    """One range: where it lies, its first chunk and its chunks."""
    key = entry.member(_SCOPE_KEYS[scope])
    found = {
        "index": entry.member("index").integer(0, MOST_CHUNKS),
        "size": entry.member("size").integer(1, MOST_CHUNKS),
    }
    if scope is Scope.LOCAL:
        return {**found, "reference": -1, "buffer": BUFFER_TYPES.index(key.choice(BUFFER_TYPES))}
    if scope is Scope.REMOTE:
        kind = _type_name(operation)
        refs = around.block.remote_buffers.get(kind, ())
        cure = f"the thread block refers to {len(refs)} remote buffers of {kind} channels"
        reference = refs[key.integer(0, len(refs) - 1, cure)]
        buffer = around.gpu.remote_buffers[reference].buffer
        return {**found, "reference": reference, "buffer": buffer}
    groups = around.block.channels["switch"]
    cure = f"the thread block has {len(groups)} switch channels"
    group = groups[key.integer(0, len(groups) - 1, cure)]
    return {**found, "reference": group, "buffer": around.gpu.groups[group].buffer}
