"""Decode the attributes of many nodes at once: what one record teaches holds for all records of the same shape.

Two records have one shape when they differ only in the values of numbers, not in field order, names, kinds or
varint widths. A trace of a million nodes has some dozens of shapes. The first record of a shape is walked field by
field; the others are recognised by a masked comparison of 8 bytes at a time, and their numbers are read as columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hub_core.chakra.attributes import INTEGER_KINDS, INTEGER_LIST_KINDS, Kind
from hub_core.chakra.wire import Field, WireError, WireType, walk

Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

NO_KIND = 0
"""The attribute is absent."""
WRONG_LENGTH = 255
"""An integer list that has not as many entries as it should."""

_ATTRIBUTE = 10
_LAST_FIELD = 10
_LANE = 8
# Beyond this many shapes of one length the next ones are decoded one by one, which keeps hostile input linear.
_MANY_SHAPES = 256
_HEADER_SCALARS: Mapping[int, str] = {1: "node.id", 3: "node.type", 7: "node.duration_micros"}
_DEPENDENCIES: Mapping[int, str] = {4: "control", 5: "data"}


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a number stands in every record of a shape: target column, entry of a list, first byte, bytes, kind."""

    column: str
    entry: int
    start: int
    width: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class SeenAttribute:
    """An attribute of a shape; `kind` is None where it has no value."""

    name: str
    kind: Kind | None


@dataclass(slots=True)
class Shape:
    """What the records of one shape have in common; `segments`: packed dependencies as (field, first byte, bytes)."""

    attributes: list[SeenAttribute] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    segments: list[tuple[str, int, int]] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    template: UInt64Array = field(default_factory=lambda: np.zeros(0, np.uint64))
    mask: UInt64Array = field(default_factory=lambda: np.zeros(0, np.uint64))

    def repeated(self) -> str | None:
        """Name of an attribute that stands more than once."""
        names = [attribute.name for attribute in self.attributes]
        return next((name for name in names if names.count(name) > 1), None)


@dataclass(frozen=True, slots=True)
class AttributeColumns:
    """Values of the asked attributes, one entry a node (lists: one row), and the shapes with the nodes of each.

    `kind[name]`: uint8, the `Kind` of the value, NO_KIND where the attribute is absent.
    """

    values: Mapping[str, Int64Array]
    kind: Mapping[str, npt.NDArray[np.uint8]]
    groups: list[tuple[Shape, Int64Array]]


class ShapeBook:
    """The shapes learnt so far. `scalars` and `lists` (of a fixed length) name the attributes to decode."""

    def __init__(self, scalars: Iterable[str], lists: Mapping[str, int]) -> None:
        self._lists = dict(lists)
        self._names = frozenset(scalars) | frozenset(lists)
        self._scalars = [*sorted(frozenset(scalars)), *_HEADER_SCALARS.values()]
        self._known: dict[int, list[Shape]] = {}

    def decode(self, data: Bytes, starts: Int64Array, stops: Int64Array) -> AttributeColumns:
        """Decode the fields in `data[starts[i]:stops[i]]` of every node; `data` has 8 spare bytes at its end.

        Raises `WireError` for malformed fields.
        """
        count = len(starts)
        values = {name: np.zeros(count, np.int64) for name in self._scalars}
        values |= {
            name: np.zeros((count, length), np.int64) for name, length in self._lists.items()
        }
        columns = AttributeColumns(values, {name: np.zeros(count, np.uint8) for name in values}, [])
        lengths = stops - starts
        order = np.argsort(lengths, kind="stable")
        cuts = np.flatnonzero(np.diff(lengths[order], prepend=-1, append=-1))
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            rows = order[low:high]
            length = int(lengths[rows[0]])
            if length:
                self._decode_length(columns, data, starts, rows, length)
        return columns

    def _decode_length(
        self,
        columns: AttributeColumns,
        data: Bytes,
        starts: Int64Array,
        rows: Int64Array,
        length: int,
    ) -> None:
        padded = -(-length // _LANE) * _LANE
        window = np.lib.stride_tricks.sliding_window_view(data, padded)[starts[rows]]
        left = np.arange(len(rows))
        known = self._known.setdefault(length, [])
        for shape in known:
            left = _take(shape, columns, window, rows, left)
            if not len(left):
                return
        while len(left):
            first = int(starts[rows[left[0]]])
            shape = self._learn(data, first, first + length)
            if len(known) < _MANY_SHAPES:
                known.append(shape)
                left = _take(shape, columns, window, rows, left)
            else:
                _take(shape, columns, window, rows, left[:1])
                left = left[1:]

    def _learn(self, data: Bytes, start: int, stop: int) -> Shape:
        content = data[start:stop].tobytes()
        shape, mask = Shape(), np.full(len(content), 0xFF, np.uint8)
        try:
            for item in walk(content, 0, len(content)):
                self._learn_field(shape, mask, content, item)
        except WireError as error:
            raise WireError(error.reason, start + error.position, error.code) from None
        spare = -len(content) % _LANE
        shape.template = np.pad(np.frombuffer(content, np.uint8), (0, spare)).view(np.uint64)
        shape.mask = np.pad(mask, (0, spare)).view(np.uint64)
        return shape

    def _learn_field(self, shape: Shape, mask: Bytes, content: bytes, item: Field) -> None:
        if item.number > _LAST_FIELD:
            _refuse_foreign_field(item)
        if item.number == _ATTRIBUTE and item.wire is WireType.BYTES:
            self._learn_attribute(shape, mask, content, item)
        elif item.number in _DEPENDENCIES and item.wire in (WireType.BYTES, WireType.VARINT):
            shape.segments.append((_DEPENDENCIES[item.number], item.start, item.stop - item.start))
            mask[item.start : item.stop] = 0
        elif item.wire is WireType.VARINT:
            mask[item.start : item.stop] = 0x80
            if item.number in _HEADER_SCALARS:
                name = _HEADER_SCALARS[item.number]
                shape.slots.append(Slot(name, 0, item.start, item.stop - item.start, Kind.UINT64))
                shape.kinds[name] = Kind.UINT64
        else:
            mask[item.start : item.stop] = 0

    def _learn_attribute(self, shape: Shape, mask: Bytes, content: bytes, item: Field) -> None:
        name, value = "", None
        for part in walk(content, item.start, item.stop):
            if part.number == 1 and part.wire is WireType.BYTES:
                name = _utf8(content, part)
            elif part.number in _KIND_NUMBERS:
                value = part
        kind = Kind(value.number) if value else None
        shape.attributes.append(SeenAttribute(name, kind))
        if value is None or kind is None:
            return
        if name not in self._names or name in shape.kinds:
            mask[value.start : value.stop] = 0x80 if value.wire is WireType.VARINT else 0
            return
        shape.kinds[name] = kind
        if kind in INTEGER_KINDS and name not in self._lists:
            self._add_slot(shape, mask, name, 0, value, kind)
        elif kind in INTEGER_LIST_KINDS and name in self._lists:
            entries = list(_list_entries(content, value, Kind(kind - 1)))
            if len(entries) != self._lists[name]:
                shape.kinds[name] = WRONG_LENGTH
                return
            for number, entry in enumerate(entries):
                self._add_slot(shape, mask, name, number, entry, Kind(kind - 1))

    @staticmethod
    def _add_slot(
        shape: Shape, mask: Bytes, name: str, entry: int, value: Field, kind: Kind
    ) -> None:
        if value.wire is not _WIRE_OF_KIND.get(kind, WireType.VARINT):
            raise WireError(
                f"the value of attribute {name} is not encoded as {kind.field}", value.start
            )
        mask[value.start : value.stop] = 0x80 if value.wire is WireType.VARINT else 0
        shape.slots.append(Slot(name, entry, value.start, value.stop - value.start, kind))


_KIND_NUMBERS = frozenset(Kind)
_WIRE_OF_KIND: Mapping[Kind, WireType] = {
    Kind.FIXED32: WireType.FIXED32,
    Kind.SFIXED32: WireType.FIXED32,
    Kind.FIXED64: WireType.FIXED64,
    Kind.SFIXED64: WireType.FIXED64,
}


def _refuse_foreign_field(item: Field) -> None:
    if item.number == 11:
        raise WireError(
            "a node with field 11: schema 0.0.2 or 0.0.3 of 2023, which is not supported",
            item.start,
            "old-schema",
        )
    if item.number <= 20:
        raise WireError(
            f"a node with field {item.number}: an execution graph (.eg) of before June 2023",
            item.start,
            "legacy-eg",
        )
    raise WireError(f"a node with field {item.number}, which no schema has", item.start)


def _utf8(content: bytes, part: Field) -> str:
    try:
        return content[part.start : part.stop].decode()
    except UnicodeDecodeError:
        raise WireError("an attribute name that is not UTF-8", part.start) from None


def _list_entries(content: bytes, value: Field, kind: Kind) -> Iterator[Field]:
    """The entries of a numeric list, packed or not."""
    wire = _WIRE_OF_KIND.get(kind, WireType.VARINT)
    for part in walk(content, value.start, value.stop):
        if part.number != 1 or part.wire is not WireType.BYTES:
            yield part
            continue
        position = part.start
        while position < part.stop:
            start, position = position, _entry_end(content, position, part.stop, wire)
            yield Field(1, wire, start, position)


def _entry_end(content: bytes, position: int, stop: int, wire: WireType) -> int:
    end = position + (8 if wire is WireType.FIXED64 else 4)
    if wire is WireType.VARINT:
        end = position + 1
        while end <= stop and content[end - 1] >= 128:
            end += 1
    if end > stop:
        raise WireError("a list ends inside a number", position)
    return end


def _take(
    shape: Shape, columns: AttributeColumns, window: Bytes, rows: Int64Array, left: Int64Array
) -> Int64Array:
    """Decode those of the `left` records that have this shape; return the others."""
    chosen = window if len(left) == len(window) else window[left]
    is_same = ~(((chosen.view(np.uint64) ^ shape.template) & shape.mask).any(axis=1))
    hits = rows[left[is_same]]
    if not len(hits):
        return left
    records = chosen if len(hits) == len(chosen) else chosen[is_same]
    for slot in shape.slots:
        target = columns.values[slot.column]
        numbers = _numbers(records, slot)
        if target.ndim == 1:
            target[hits] = numbers
        else:
            target[hits, slot.entry] = numbers
    for name, kind in shape.kinds.items():
        columns.kind[name][hits] = kind
    columns.groups.append((shape, hits))
    return left[~is_same]


def _numbers(records: Bytes, slot: Slot) -> Int64Array:
    """The numbers of one slot, converted as protobuf converts them for this kind."""
    is_fixed = slot.kind in _WIRE_OF_KIND
    bits, digit = (8, np.uint8(255)) if is_fixed else (7, np.uint8(127))
    value = (records[:, slot.start] & digit).astype(np.uint64)
    for index in range(1, slot.width):
        value |= (records[:, slot.start + index] & digit).astype(np.uint64) << np.uint64(
            bits * index
        )
    if slot.kind in (Kind.INT32, Kind.SFIXED32):
        return value.astype(np.uint32).astype(np.int32).astype(np.int64)
    if slot.kind in (Kind.UINT32, Kind.FIXED32):
        return value.astype(np.uint32).astype(np.int64)
    if slot.kind is Kind.BOOL:
        return value.astype(np.bool_).astype(np.int64)
    if slot.kind in (Kind.SINT32, Kind.SINT64):
        value = (value >> np.uint64(1)) ^ (np.uint64(0) - (value & np.uint64(1)))
    signed: Int64Array = value.view(np.int64)
    return signed
