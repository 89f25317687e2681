"""Decode the attributes of many nodes at once: one record teaches how all of its shape are read.

Two records have one shape when they differ only in the values of numbers, not in field order,
names, kinds or varint widths. A trace of a million nodes has some dozens of shapes. The first
record of a shape is walked field by field; the others are recognised by a masked comparison, 8
bytes at a time, and their numbers are read as columns. Cost: records of one length times their
shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hub_core.chakra.nodes import INTEGER_KINDS, INTEGER_LIST_KINDS, Kind
from hub_core.chakra.wire import Bytes, Field, WireError, WireType, walk
from hub_core.columns import Int64Array, UInt64Array, run_starts

NO_KIND = 0
"""The attribute is absent."""
WRONG_LENGTH = 255
"""An integer list that is not a triple."""

_ATTRIBUTE = 10
_LAST_FIELD = 10
_LANE = 8
# Beyond this many shapes of one length the next ones are decoded one by one, which keeps hostile
# input linear.
_MANY_SHAPES = 256
_HEADER_SCALARS: Mapping[int, str] = {1: "node.id", 3: "node.type", 7: "node.duration_micros"}
_DEPENDENCIES: Mapping[int, str] = {4: "control", 5: "data"}
_WIRE_OF_FIXED: Mapping[Kind, WireType] = {
    Kind.FIXED32: WireType.FIXED32,
    Kind.SFIXED32: WireType.FIXED32,
    Kind.FIXED64: WireType.FIXED64,
    Kind.SFIXED64: WireType.FIXED64,
}
_NARROW: Mapping[Kind, type[np.generic]] = {
    Kind.INT32: np.int32,
    Kind.SFIXED32: np.int32,
    Kind.UINT32: np.uint32,
    Kind.FIXED32: np.uint32,
    Kind.BOOL: np.bool_,
}


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a number stands in every record of a shape, and the column that it goes to."""

    column: str
    start: int
    width: int
    kind: Kind


@dataclass(slots=True)
class Shape:
    """What the records of one shape have in common.

    `attributes`: (name, kind) in order, None for an attribute without a value; `slots`: numbers to
    read; `segments`: packed dependencies as (column, first byte, bytes); `kinds`: of the wanted
    attributes. A record has the shape where it equals `template` in the bits of `mask`.
    """

    attributes: list[tuple[str, Kind | None]] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    segments: list[tuple[str, int, int]] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    template: UInt64Array = field(default_factory=lambda: np.zeros(0, np.uint64))
    mask: UInt64Array = field(default_factory=lambda: np.zeros(0, np.uint64))

    def repeated(self) -> str | None:
        """Name of an attribute that stands more than once."""
        seen: set[str] = set()
        for name, _ in self.attributes:
            if name in seen:
                return name
            seen.add(name)
        return None


@dataclass(frozen=True, slots=True)
class AttributeColumns:
    """Values of the wanted attributes, one entry a node, and the shapes with the nodes of each.

    `values`: int64; a triple has the columns `name.0`, `name.1` and `name.2`. `kind[name]`: uint8,
    the `Kind` of the value, NO_KIND where the attribute is absent.
    """

    values: Mapping[str, Int64Array]
    kind: Mapping[str, npt.NDArray[np.uint8]]
    groups: list[tuple[Shape, Int64Array]]


class ShapeBook:
    """The shapes learnt so far. `scalars` and `triples` name the attributes to decode."""

    def __init__(self, scalars: Iterable[str], triples: Iterable[str]) -> None:
        """Other attributes are counted, not decoded."""
        # Sets, for they are asked for every attribute of every new shape.
        self._scalars = frozenset(scalars)
        self._triples = frozenset(triples)
        # By length of the record.
        self._known: dict[int, list[Shape]] = {}

    def decode(self, data: Bytes, starts: Int64Array, stops: Int64Array) -> AttributeColumns:
        """Decode `data[starts[i]:stops[i]]`, with 8 spare bytes behind. Raises `WireError`."""
        names = {*self._scalars, *_HEADER_SCALARS.values()}
        entries = {f"{name}.{entry}" for name in self._triples for entry in range(3)}
        values = {name: np.zeros(len(starts), np.int64) for name in names | entries}
        kinds = {name: np.zeros(len(starts), np.uint8) for name in names | self._triples}
        columns = AttributeColumns(values, kinds, [])
        lengths = stops - starts
        # Records of one shape are of one length, so that only these are compared.
        order = np.argsort(lengths, kind="stable")
        for rows in np.split(order, run_starts(lengths[order])[1:]):
            if len(rows) and lengths[rows[0]]:
                self._decode_length(columns, data, starts, rows, int(lengths[rows[0]]))
        return columns

    def _decode_length(
        self,
        columns: AttributeColumns,
        data: Bytes,
        starts: Int64Array,
        rows: Int64Array,
        length: int,
    ) -> None:
        """Decode the records `rows`, which all have this length."""
        padded = -(-length // _LANE) * _LANE
        window = np.lib.stride_tricks.sliding_window_view(data, padded)[starts[rows]]
        # Positions in `rows` of the records that no shape has taken yet.
        left = np.arange(len(rows))
        known = self._known.setdefault(length, [])
        for shape in known:
            left = _take(shape, columns, window, rows, left)
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
        """The shape of the record in `data[start:stop]`; errors name the byte of the buffer."""
        content = data[start:stop].tobytes()
        lesson = _Lesson(content, self._scalars, self._triples)
        try:
            return lesson.shape()
        # The lesson sees the record alone.
        except WireError as error:
            raise WireError(error.reason, start + error.position, error.code) from None


class _Lesson:
    """The walk through the first record of a shape."""

    def __init__(self, content: bytes, scalars: frozenset[str], triples: frozenset[str]) -> None:
        """`content`: one record without its header."""
        self._shape, self._content = Shape(), content
        self._scalars, self._triples = scalars, triples
        # Bits that all records of the shape have in common.
        self._mask = np.full(len(content), 0xFF, np.uint8)

    def shape(self) -> Shape:
        """Walk through all fields. Raises `WireError`."""
        for item in walk(self._content, 0, len(self._content)):
            self._field(item)
        # Beyond the record the mask is 0: the bytes there belong to the next one.
        spare = -len(self._content) % _LANE
        content = np.frombuffer(self._content, np.uint8)
        self._shape.mask = np.pad(self._mask, (0, spare)).view(np.uint64)
        self._shape.template = np.pad(content & self._mask, (0, spare)).view(np.uint64)
        return self._shape

    def _field(self, item: Field) -> None:
        """Learn what a field of Node is, and which of its bytes may differ."""
        if item.number > _LAST_FIELD:
            _refuse_foreign_field(item)
        is_bytes, is_number = item.wire is WireType.BYTES, item.wire is WireType.VARINT
        if item.number == _ATTRIBUTE and is_bytes:
            self._attribute(item)
        elif item.number in _DEPENDENCIES and (is_bytes or is_number):
            column = _DEPENDENCIES[item.number]
            self._shape.segments.append((column, item.start, item.stop - item.start))
            self._mask[item.start : item.stop] = 0
        elif item.number in _HEADER_SCALARS and is_number:
            name = _HEADER_SCALARS[item.number]
            self._shape.kinds[name] = Kind.UINT64
            self._number(name, name, item, Kind.UINT64)
        else:
            self._open(item)

    def _open(self, item: Field) -> None:
        """Let the value differ between records; varints must stay as wide as this one."""
        # Of a varint the continuation bits are fixed: they say how wide it is.
        fixed_bits = 0x80 if item.wire is WireType.VARINT else 0
        self._mask[item.start : item.stop] = fixed_bits

    def _number(self, name: str, column: str, value: Field, kind: Kind) -> None:
        """Read this number, an entry of the attribute `name`, into a column."""
        if value.wire is not _WIRE_OF_FIXED.get(kind, WireType.VARINT):
            reason = f"the value of attribute {name} is not encoded as {kind.field}"
            raise WireError(reason, value.start)
        self._open(value)
        self._shape.slots.append(Slot(column, value.start, value.stop - value.start, kind))

    def _attribute(self, item: Field) -> None:
        """Learn an attribute; only the wanted ones get slots."""
        name, value = self._name_and_value(item)
        shape = self._shape
        kind = Kind(value.number) if value else None
        shape.attributes.append((name, kind))
        if value is None or kind is None:
            return
        is_wanted = name in self._scalars or name in self._triples
        if not is_wanted or name in shape.kinds:
            self._open(value)
            return
        shape.kinds[name] = kind
        if kind in INTEGER_KINDS and name in self._scalars:
            self._number(name, name, value, kind)
        elif kind in INTEGER_LIST_KINDS and name in self._triples:
            self._triple(name, value, Kind(kind - 1))

    def _name_and_value(self, item: Field) -> tuple[str, Field | None]:
        """The last name and the last value of an attribute."""
        name = ""
        value = None
        # Unknown fields of an attribute are skipped, as parsers do.
        for part in walk(self._content, item.start, item.stop):
            if part.number == 1 and part.wire is WireType.BYTES:
                try:
                    name = self._content[part.start : part.stop].decode()
                except UnicodeDecodeError:
                    reason = "an attribute name that is not UTF-8"
                    raise WireError(reason, part.start) from None
            elif part.number in _KIND_NUMBERS:
                # Of several values the last one counts, as in every oneof.
                value = part
        return name, value

    def _triple(self, name: str, value: Field, kind: Kind) -> None:
        """Read a list of three numbers, whatever its encoding."""
        entries = list(_list_entries(self._content, value, kind))
        # Whoever wants the attribute refuses the node; the others need not.
        if len(entries) != 3:
            self._shape.kinds[name] = WRONG_LENGTH
            return
        # The entries are columns of their own.
        for number, entry in enumerate(entries):
            self._number(name, f"{name}.{number}", entry, kind)


_KIND_NUMBERS = frozenset(Kind)


def _refuse_foreign_field(item: Field) -> None:
    # Field numbers of the schema's history: release notes of mlcommons/chakra, 2023.
    node = f"a node with field {item.number}"
    if item.number == 11:
        reason = f"{node}: schema 0.0.2 or 0.0.3 of 2023, which is not supported"
        raise WireError(reason, item.start, "old-schema")
    if item.number <= 20:
        reason = f"{node}: an execution graph (.eg) of before June 2023"
        raise WireError(reason, item.start, "legacy-eg")
    raise WireError(f"{node}, which no schema has", item.start)


def _list_entries(content: bytes, value: Field, kind: Kind) -> Iterator[Field]:
    """The entries of a numeric list, packed or not: parsers must take both."""
    wire = _WIRE_OF_FIXED.get(kind, WireType.VARINT)
    for part in walk(content, value.start, value.stop):
        # Anything but bytes is one entry; a wrong wire type is refused where it is read.
        if part.number != 1 or part.wire is not WireType.BYTES:
            yield part
            continue
        # Packed: one field holds all entries, without tags between them.
        position = part.start
        while position < part.stop:
            end = _entry_end(content, position, part.stop, wire)
            yield Field(1, wire, position, end)
            position = end


def _entry_end(content: bytes, position: int, stop: int, wire: WireType) -> int:
    """Where the entry of a packed list ends that begins at `position`."""
    if wire is WireType.VARINT:
        end = position + 1
        while end <= stop and content[end - 1] >= 128:
            end += 1
    else:
        end = position + (8 if wire is WireType.FIXED64 else 4)
    if end > stop:
        raise WireError("a list ends inside a number", position)
    return end


def _take(
    shape: Shape, columns: AttributeColumns, window: Bytes, rows: Int64Array, left: Int64Array
) -> Int64Array:
    """Decode those of the `left` records that have this shape; return the others."""
    chosen = window if len(left) == len(window) else window[left]
    # The bits that the shape fixes: tags, names, lengths, continuation bits.
    fixed = chosen.view(np.uint64) & shape.mask
    is_same = np.all(fixed == shape.template, axis=1)
    hits = rows[left[is_same]]
    if not len(hits):
        return left
    records = chosen if len(hits) == len(chosen) else chosen[is_same]
    for slot in shape.slots:
        columns.values[slot.column][hits] = _numbers(records, slot)
    for name, kind in shape.kinds.items():
        columns.kind[name][hits] = kind
    columns.groups.append((shape, hits))
    others: Int64Array = left[~is_same]
    return others


def _numbers(records: Bytes, slot: Slot) -> Int64Array:
    """The numbers of one slot, converted as protobuf converts them for this kind."""
    bits, digit = (8, 255) if slot.kind in _WIRE_OF_FIXED else (7, 127)
    value = np.zeros(len(records), np.uint64)
    for index in range(slot.width):
        digits = (records[:, slot.start + index] & np.uint8(digit)).astype(np.uint64)
        value |= digits << np.uint64(bits * index)
    # Parsers cut values of 64 bits down to the kind, without complaint.
    if slot.kind in _NARROW:
        return value.astype(_NARROW[slot.kind]).astype(np.int64)
    if slot.kind in (Kind.SINT32, Kind.SINT64):
        # Zigzag: the sign is in the lowest bit.
        value = (value >> np.uint64(1)) ^ (np.uint64(0) - (value & np.uint64(1)))
    return value.view(np.int64)
