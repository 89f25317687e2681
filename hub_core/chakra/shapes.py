"""Decode the attributes of many nodes at once, by record shapes.

Two records have the same shape if they differ only in the values of numbers, not in field order,
names, kinds or varint widths. A trace of a million nodes has some dozens of shapes. The first
record of a shape is parsed field by field. The others are recognised by a masked comparison, 8
bytes at a time, and their numbers are read as columns. Cost: records of one length times their
shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hub_core.chakra.nodes import INTEGER_KINDS, INTEGER_LIST_KINDS, AttributeKind
from hub_core.chakra.wire import Bytes, Field, WireError, WireType, walk
from hub_core.columns import Int64Array, UInt64Array, run_starts

NO_KIND = 0
"""The attribute is absent."""
WRONG_LENGTH = 255
"""An integer list that is not a triple."""

_ATTRIBUTE = 10
_LAST_FIELD = 10
_LANE = 8
# Maximum number of shapes of one length that are kept. Further shapes are parsed one by one, so
# that hostile input has linear cost.
_MAX_SHAPES = 256
_HEADER_SCALARS: Mapping[int, str] = {1: "node.id", 3: "node.type", 7: "node.duration_micros"}
_UNREAD = {2: WireType.BYTES, 6: WireType.VARINT, 8: WireType.BYTES, 9: WireType.BYTES}
_DEPENDENCIES: Mapping[int, str] = {4: "control", 5: "data"}
_WIRE_OF_FIXED: Mapping[AttributeKind, WireType] = {
    **dict.fromkeys((AttributeKind.FIXED32, AttributeKind.SFIXED32), WireType.FIXED32),
    **dict.fromkeys((AttributeKind.FIXED64, AttributeKind.SFIXED64), WireType.FIXED64),
}
_NARROW: Mapping[AttributeKind, type[np.generic]] = {
    AttributeKind.INT32: np.int32,
    AttributeKind.SFIXED32: np.int32,
    AttributeKind.UINT32: np.uint32,
    AttributeKind.FIXED32: np.uint32,
    AttributeKind.BOOL: np.bool_,
}


@dataclass(frozen=True, slots=True)
class Slot:
    """Position of a number in every record of a shape, and its column."""

    column: str
    start: int
    width: int
    kind: AttributeKind


@dataclass(slots=True)
class RecordShape:
    """Common properties of the records of one shape.

    `attributes`: (name, kind) in order, None for an attribute without a value. `slots`: numbers to
    read. `segments`: packed dependencies as (column, first byte, bytes). `kinds`: of the attributes
    to decode. A record has the shape if it equals `template` in the bits of `mask`.
    """

    attributes: list[tuple[str, AttributeKind | None]] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    segments: list[tuple[str, int, int]] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    template: UInt64Array = field(default_factory=lambda: np.zeros(0, np.uint64))
    mask: UInt64Array = field(default_factory=lambda: np.zeros(0, np.uint64))

    def repeated(self) -> str | None:
        """Return the first attribute name that already occurred earlier in the record, or None."""
        seen: set[str] = set()
        for name, _ in self.attributes:
            if name in seen:
                return name
            seen.add(name)
        return None


@dataclass(frozen=True, slots=True)
class AttributeColumns:
    """Values of the decoded attributes, one entry per node, and the shapes with their nodes.

    `values`: int64; a triple has the columns `name.0`, `name.1` and `name.2`. `kind[name]`: uint8,
    the `AttributeKind` of the value, NO_KIND if the attribute is absent.
    """

    values: Mapping[str, Int64Array]
    kind: Mapping[str, npt.NDArray[np.uint8]]
    groups: list[tuple[RecordShape, Int64Array]]


class ShapeBook:
    """Shapes so far. `scalars`, `triples`: attributes to decode as one or three integers."""

    def __init__(self, scalars: Iterable[str], triples: Iterable[str]) -> None:
        """Create an empty book: `scalars` are decoded as one integer, `triples` as three."""
        # Sets, because they are searched for every attribute of every new shape.
        self._scalars = frozenset(scalars)
        self._triples = frozenset(triples)
        # Shapes by length of the record.
        self._known: dict[int, list[RecordShape]] = {}

    def decode(self, data: Bytes, starts: Int64Array, stops: Int64Array) -> AttributeColumns:
        """Decode attributes and header numbers in `data[starts[i]:stops[i]]` of many nodes at once.

        `data` must have 8 spare bytes at its end. Entry i of each column is that of node i. An
        absent attribute has value and kind 0, one of a wrong kind value 0. Headers are `node.id`,
        `node.type` and `node.duration_micros`. Of repeated attributes the first counts. `groups`
        lists nodes by shape; empty records have only zeros and no shape. Up to 256 shapes per
        record length are kept for later. Raises `WireError`, with the position in `data`.
        """
        names = {*self._scalars, *_HEADER_SCALARS.values()}
        entries = {f"{name}.{entry}" for name in self._triples for entry in range(3)}
        values = {name: np.zeros(len(starts), np.int64) for name in names | entries}
        kinds = {name: np.zeros(len(starts), np.uint8) for name in names | self._triples}
        columns = AttributeColumns(values, kinds, [])
        lengths = stops - starts
        # Only records of equal length can have the same shape.
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
        """Decode the records `rows`, which all have `length` (at least 1) bytes, into `columns`.

        Shapes known for this length are tried first, in the order in which they were found. Then
        the first remaining record is parsed as a new shape, until none remains. The new shape is
        stored and decodes all records that match it. If `_MAX_SHAPES` (256) of this length are
        stored, it is dropped and decodes only this record. Raises `WireError`, with the position
        in `data`, for a malformed record; earlier ones are then already decoded.
        """
        padded = -(-length // _LANE) * _LANE
        window = np.lib.stride_tricks.sliding_window_view(data, padded)[starts[rows]]
        # Positions in `rows` of the records without a shape so far.
        left = np.arange(len(rows))
        known = self._known.setdefault(length, [])
        for shape in known:
            left = _decode_matching(shape, columns, window, rows, left)
        while len(left):
            first = int(starts[rows[left[0]]])
            content = data[first : first + length].tobytes()
            try:
                shape = _ShapeParser(content, self._scalars, self._triples).shape()
            except WireError as error:
                raise WireError(error.reason, first + error.position, error.code) from None
            if len(known) < _MAX_SHAPES:
                known.append(shape)
                left = _decode_matching(shape, columns, window, rows, left)
            else:
                _decode_matching(shape, columns, window, rows, left[:1])
                left = left[1:]


class _ShapeParser:
    """Parser of the first record of a shape; `content`: the record without its header."""

    def __init__(self, content: bytes, scalars: frozenset[str], triples: frozenset[str]) -> None:
        """Prepare to parse `content`: `scalars` are decoded as one integer, `triples` as three."""
        self._shape, self._content = RecordShape(), content
        self._scalars, self._triples = scalars, triples
        # Bits that all records of the shape have in common.
        self._mask = np.full(len(content), 0xFF, np.uint8)

    def shape(self) -> RecordShape:
        """Parse all fields of the record and return its shape; raise `WireError` for a bad field.

        Bits set in its mask are fixed in the shape; its template has their values (both uint64[]).
        """
        for item in walk(self._content, 0, len(self._content)):
            self._add_field(item)
        # The mask is 0 after the end of the record, where the next record begins.
        spare = -len(self._content) % _LANE
        content = np.frombuffer(self._content, np.uint8)
        self._shape.mask = np.pad(self._mask, (0, spare)).view(np.uint64)
        self._shape.template = np.pad(content & self._mask, (0, spare)).view(np.uint64)
        return self._shape

    def _add_field(self, item: Field) -> None:
        """Add a field of Node to the shape, and mark the bytes that may differ between its records.

        Header numbers (fields 1, 3, 7) get slots; of a repeated number the last counts. Attributes
        (10) are added by `_add_attribute`. Dependencies (4, 5; packed or single) become segments.
        Fields 2, 6, 8 and 9 are not decoded and may differ, but not in length. Raises `WireError`
        for other wire types and for fields above 10 (`old-schema`: 11, `legacy-eg`: 12 to 20).
        """
        if item.number > _LAST_FIELD:
            # Field numbers of the schema's history: release notes of mlcommons/chakra, 2023.
            node = f"a node with field {item.number}"
            if item.number == 11:
                reason = f"{node}: schema 0.0.2 or 0.0.3 of 2023, which is not supported"
                raise WireError(reason, item.start, "old-schema")
            if item.number <= 20:
                reason = f"{node}: an execution graph (.eg) of before June 2023"
                raise WireError(reason, item.start, "legacy-eg")
            raise WireError(f"{node}, which no schema has", item.start)
        is_bytes, is_number = item.wire is WireType.BYTES, item.wire is WireType.VARINT
        if item.number == _ATTRIBUTE and is_bytes:
            self._add_attribute(item)
        elif item.number in _DEPENDENCIES and (is_bytes or is_number):
            column = _DEPENDENCIES[item.number]
            self._shape.segments.append((column, item.start, item.stop - item.start))
            self._mask[item.start : item.stop] = 0
        elif item.number in _HEADER_SCALARS and is_number:
            name = _HEADER_SCALARS[item.number]
            self._shape.kinds[name] = AttributeKind.UINT64
            self._add_number(name, name, item, AttributeKind.UINT64)
        elif item.wire is _UNREAD.get(item.number):
            self._mark_variable(item)
        else:
            raise WireError(f"field {item.number} of a node has another wire type", item.start)

    def _mark_variable(self, item: Field) -> None:
        """Let the value differ between records; a varint must keep its number of bytes."""
        # The continuation bits of a varint are fixed, because they determine its width.
        fixed_bits = 0x80 if item.wire is WireType.VARINT else 0
        self._mask[item.start : item.stop] = fixed_bits

    def _add_number(self, name: str, column: str, value: Field, kind: AttributeKind) -> None:
        """Add a slot, by which the number `value` of the attribute `name` is read into `column`.

        Records of a shape may differ in this number. Raises `WireError` for a wrong wire type.
        """
        if value.wire is not _WIRE_OF_FIXED.get(kind, WireType.VARINT):
            reason = f"the value of attribute {name} is not encoded as {kind.field}"
            raise WireError(reason, value.start)
        self._mark_variable(value)
        self._shape.slots.append(Slot(column, value.start, value.stop - value.start, kind))

    def _add_attribute(self, item: Field) -> None:
        """Add an attribute to the shape, and slots (positions of numbers) for a requested value.

        The name and the kind (None without a value) are appended to `attributes`. A first value
        gets a slot if it is an integer or boolean of a name in `scalars`, or three if it is a list
        of three integers of a name in `triples`. Without slots (`WRONG_LENGTH` for another length),
        first values of these names are equal in all records of the shape. All other values may
        differ. Raises `WireError` as `_parse_attribute`, and for malformed lists and numbers.
        """
        name, value = self._parse_attribute(item)
        shape = self._shape
        kind = AttributeKind(value.number) if value else None
        shape.attributes.append((name, kind))
        if value is None or kind is None:
            return
        is_decoded = name in self._scalars or name in self._triples
        if not is_decoded or name in shape.kinds:
            self._mark_variable(value)
            return
        shape.kinds[name] = kind
        if kind in INTEGER_KINDS and name in self._scalars:
            self._add_number(name, name, value, kind)
        elif kind in INTEGER_LIST_KINDS and name in self._triples:
            self._add_triple(name, value, AttributeKind(kind - 1))

    def _parse_attribute(self, item: Field) -> tuple[str, Field | None]:
        """Return the name of an attribute, "" without one, and the field of its value or None.

        The name is field 1 of wire type BYTES. The number of the value's field is an
        `AttributeKind` (3 to 32), its wire type is any; its position is that in the record. The
        last of each counts. Raises `WireError` for malformed fields and names not in UTF-8.
        """
        name = ""
        value = None
        for part in walk(self._content, item.start, item.stop):
            if part.number == 1 and part.wire is WireType.BYTES:
                try:
                    name = self._content[part.start : part.stop].decode()
                except UnicodeDecodeError:
                    reason = "an attribute name that is not UTF-8"
                    raise WireError(reason, part.start) from None
            elif part.number in _KIND_NUMBERS:
                value = part
        return name, value

    def _add_triple(self, name: str, value: Field, kind: AttributeKind) -> None:
        """Add a slot for each of the three numbers of the list attribute `name`, packed or not.

        A slot is the position of a number in all records of the shape. Its column is `name.0`,
        `name.1` or `name.2`. `kind`: of a single number. A list of another length gets no slots;
        its kind becomes `WRONG_LENGTH`, so that only readers that use the attribute refuse the
        node. Raises `WireError` for malformed fields, for a list that breaks off within a number,
        and in a list of three for a number that is not encoded as `kind`.
        """
        entries = list(_parse_entries(self._content, value, kind))
        if len(entries) != 3:
            self._shape.kinds[name] = WRONG_LENGTH
            return
        for number, entry in enumerate(entries):
            self._add_number(name, f"{name}.{number}", entry, kind)


_KIND_NUMBERS = frozenset(AttributeKind)


def _parse_entries(content: bytes, value: Field, kind: AttributeKind) -> Iterator[Field]:
    """Yield the entries of a numeric list, packed or not, as fields in their order.

    Entries of a packed list (field 1, BYTES) get number 1 and the wire type of `kind` (of one
    entry). Any other field is yielded unchanged. Positions are those in `content`. Raises
    `WireError` for malformed fields and a list that ends inside an entry.
    """
    wire = _WIRE_OF_FIXED.get(kind, WireType.VARINT)
    for part in walk(content, value.start, value.stop):
        if part.number != 1 or part.wire is not WireType.BYTES:
            yield part
            continue
        position = part.start
        while position < part.stop:
            end = _find_entry_end(content, position, part.stop, wire)
            yield Field(1, wire, position, end)
            position = end


def _find_entry_end(content: bytes, position: int, stop: int, wire: WireType) -> int:
    """Return the position after the entry of a packed list that begins at `position`.

    An entry has 8 bytes (FIXED64), 4 bytes (FIXED32), or is a varint of any length. Raise
    `WireError` at `position` if the entry extends beyond `stop`.
    """
    if wire is WireType.VARINT:
        end = position + 1
        while end <= stop and content[end - 1] >= 128:
            end += 1
    else:
        end = position + (8 if wire is WireType.FIXED64 else 4)
    if end > stop:
        raise WireError("a list ends inside a number", position)
    return end


def _decode_matching(
    shape: RecordShape, columns: AttributeColumns, window: Bytes, rows: Int64Array, left: Int64Array
) -> Int64Array:
    """Decode those of the `left` records that have this shape; return the others in their order.

    `left`, result: positions in `rows`. Record i, row i of `window`, has the shape if it equals
    `template` in the bits of `mask`. Then its numbers and attribute kinds are written to row
    `rows[i]` of `columns`. (shape, these rows), if there are any, is appended to `columns.groups`.
    """
    chosen = window if len(left) == len(window) else window[left]
    fixed = chosen.view(np.uint64) & shape.mask
    is_same = np.all(fixed == shape.template, axis=1)
    hits = rows[left[is_same]]
    if not len(hits):
        return left
    records = chosen if len(hits) == len(chosen) else chosen[is_same]
    for slot in shape.slots:
        columns.values[slot.column][hits] = _read_numbers(records, slot)
    for name, kind in shape.kinds.items():
        columns.kind[name][hits] = kind
    columns.groups.append((shape, hits))
    remaining: Int64Array = left[~is_same]
    return remaining


def _read_numbers(records: Bytes, slot: Slot) -> Int64Array:
    """Return the numbers in one slot of all records: int64, one per row of `records`.

    `slot`: first byte, number of bytes, and kind. Varints have 7 bits per byte, fixed numbers 8,
    the lowest first; bits above 64 are dropped. Kinds of 32 bits except sint32 are truncated to
    them. Booleans are 0 or 1; sint32 and sint64 are decoded from zigzag. uint64 and fixed64 above
    2^63 - 1 become negative.
    """
    bits, digit = (8, 255) if slot.kind in _WIRE_OF_FIXED else (7, 127)
    value = np.zeros(len(records), np.uint64)
    for index in range(slot.width):
        digits = (records[:, slot.start + index] & np.uint8(digit)).astype(np.uint64)
        value |= digits << np.uint64(bits * index)
    # Parsers truncate values of 64 bits to the kind, without an error.
    if slot.kind in _NARROW:
        return value.astype(_NARROW[slot.kind]).astype(np.int64)
    if slot.kind in (AttributeKind.SINT32, AttributeKind.SINT64):
        value = (value >> np.uint64(1)) ^ (np.uint64(0) - (value & np.uint64(1)))
    return value.view(np.int64)
