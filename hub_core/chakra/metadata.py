"""The GlobalMetadata record: a version and attributes by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hub_core.chakra.nodes import AttributeKind
from hub_core.chakra.wire import WireError, WireType, encode_varints, varint

# Field numbers of GlobalMetadata, AttributeProto and the list messages.
_VERSION, _ATTR, _NAME, _VALUES = 1, 2, 1, 1

AttributeValue = int | float | bool | str | bytes | tuple["AttributeValue", ...] | None


@dataclass(frozen=True, slots=True)
class Metadata:
    """Record 0 of a file.

    `attributes`: values by name; `kinds`: None for an attribute without value.
    """

    version: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    kinds: Mapping[str, AttributeKind | None] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return the value of an attribute if it is a text; otherwise, and if it is absent, ""."""
        value = self.attributes.get(name)
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """An attribute to write."""

    name: str
    kind: AttributeKind
    value: int | bool | str | Sequence[int]


def encode_metadata(version: str, entries: Sequence[MetadataEntry]) -> bytes:
    """Encode record 0 of a trace file: its length as a varint, then the GlobalMetadata message.

    The bytes are those that protobuf would write; protobuf is not imported. An empty `version` is
    omitted. `entries` keep their order; neither repeated names nor the fit of a value to its kind
    are checked.

    The value is the field of AttributeProto with the number `kind`. The type of the value decides:
    a text becomes a UTF-8 string, an integer or boolean a varint (modulo 2^64), and a list of
    int64 a message with one packed field, which is empty for an empty list.
    """
    body = _encode_field(_VERSION, version.encode()) if version else b""
    for entry in entries:
        if isinstance(entry.value, str):
            value = _encode_field(entry.kind, entry.value.encode())
        elif isinstance(entry.value, int):
            value = varint(entry.kind << 3 | WireType.VARINT) + varint(entry.value)
        else:
            packed, _ = encode_varints(np.asarray(entry.value, np.int64).view(np.uint64))
            # proto3 writes an empty list as an empty message.
            numbers = _encode_field(_VALUES, packed.tobytes()) if len(packed) else b""
            value = _encode_field(entry.kind, numbers)
        body += _encode_field(_ATTR, _encode_field(_NAME, entry.name.encode()) + value)
    return varint(len(body)) + body


def _encode_field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes: tag, length, content."""
    # Field numbers of lists and texts are above 15, so their tags have two bytes.
    return varint(number << 3 | WireType.BYTES) + varint(len(content)) + content


def decode_metadata(body: bytes) -> Metadata:
    """Decode the body of record 0: version, and value and kind of each attribute, both by name.

    The version is "" if absent. An attribute without value has value and kind None. Usual records
    (see `_decode_usual`) are decoded here, all others by protobuf, whose import takes longer (0.1
    s) than reading a small trace. Raises `WireError` at position 0 for bytes that protobuf refuses
    (`malformed-metadata`) and for an attribute that occurs twice (`duplicate-attribute`).
    """
    decoded = _decode_usual(body)
    if decoded is None:
        decoded = _decode_by_protobuf(body)
    version, entries = decoded
    attributes: dict[str, AttributeValue] = {}
    kinds: dict[str, AttributeKind | None] = {}
    for name, kind, value in entries:
        if name in attributes:
            reason = f"the metadata attribute {name!r} occurs twice"
            raise WireError(reason, 0, "duplicate-attribute")
        kinds[name], attributes[name] = kind, value
    return Metadata(version, attributes, kinds)


_Entries = list[tuple[str, AttributeKind | None, AttributeValue]]
_UNSIGNED = {AttributeKind.UINT32: 1 << 32, AttributeKind.UINT64: 1 << 64, AttributeKind.BOOL: 2}
_SIGNED = {AttributeKind.INT32: 1 << 31, AttributeKind.INT64: 1 << 63}


def _decode_usual(body: bytes) -> tuple[str, _Entries] | None:
    """Decode a metadata record without protobuf if all its fields are usual; otherwise return None.

    Returns (version, attributes in their order as name, kind and value). The version is "" if the
    record has none; names may repeat. In a usual record, no version follows a nonempty one, and
    each attribute is exactly a name and after it a value of bytes, UTF-8 text, an integer in its
    range, or a boolean. All other records give None, for example with a double, a list, an
    attribute without value, an unknown field, or damaged bytes. Never raises.
    """
    version = ""
    entries: _Entries = []
    try:
        for number, content in _walk_usual_fields(body):
            if not isinstance(content, bytes):
                return None
            if number == _VERSION and not version:
                version = content.decode()
            elif number == _ATTR:
                (name_number, name), (kind, value) = _walk_usual_fields(content)
                if name_number != _NAME or not isinstance(name, bytes):
                    return None
                entries.append(
                    (
                        name.decode(),
                        AttributeKind(kind),
                        _decode_usual_value(AttributeKind(kind), value),
                    )
                )
            else:
                return None
    except ValueError:
        return None
    return version, entries


def _walk_usual_fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of the fields of a protobuf message in their order.

    The value of a varint field is an integer, whose bits beyond 64 are kept; the value of a
    length-delimited field is its bytes. An empty `body` yields no fields. Raise
    `ValueError` for another wire type, for a varint of more than 10 bytes, and for a field
    that extends beyond `body`; the fields before it have been yielded.
    """
    at = 0
    while at < len(body):
        tag, at = _read_varint(body, at)
        value, at = _read_varint(body, at)
        if tag & 7 == WireType.VARINT:
            yield tag >> 3, value
        elif tag & 7 == WireType.BYTES and at + value <= len(body):
            yield tag >> 3, body[at : at + value]
            at += value
        else:
            raise ValueError("an unusual field")


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return (number, position after it) for the varint at `body[at]`, of at most 10 bytes.

    Bits beyond 64 are kept. Raise `ValueError` if it does not end within 10 bytes and
    within `body`, also if `at` is the end of `body`.
    """
    number = shift = 0
    while at < len(body) and shift < 64:
        number |= (body[at] & 127) << shift
        shift += 7
        at += 1
        if body[at - 1] < 128:
            return number, at
    raise ValueError("a number does not end")


def _decode_usual_value(kind: AttributeKind, value: int | bytes) -> AttributeValue:
    """Return the value of an attribute: bytes, text, integer or boolean.

    `value`: the bytes of the field, or its varint as a non-negative integer. By kind:

    - BYTES: the bytes. STRING: the text of the bytes in UTF-8.
    - INT32, INT64: a varint modulo 2^64, so that 2^64 - 1 is -1 for both kinds.
    - UINT32, UINT64: the varint. BOOL: a varint of 0 or 1.

    Raises `ValueError` for other kinds, such as zigzag and fixed-size integers, for bytes where a
    varint is necessary and the reverse, for invalid UTF-8, and for numbers outside the range of
    the kind. The caller decodes such records by protobuf.
    """
    if isinstance(value, bytes):
        if kind == AttributeKind.BYTES:
            return value
        if kind == AttributeKind.STRING:
            return value.decode()
    elif kind in _SIGNED:
        number = value - (1 << 64) if value >> 63 else value
        if value < 1 << 64 and -_SIGNED[kind] <= number < _SIGNED[kind]:
            return number
    elif value < _UNSIGNED.get(kind, 0):
        return bool(value) if kind == AttributeKind.BOOL else value
    raise ValueError("an unusual value")


def _decode_by_protobuf(body: bytes) -> tuple[str, _Entries]:
    """Decode a GlobalMetadata record by protobuf: (version, attributes).

    An attribute is (name, kind, value), in the order of the record; names may repeat. The
    value of a list is a tuple; without a value, kind and value are None. The version is ""
    if it is missing. Unknown fields are ignored. Raise `WireError` (`malformed-metadata`,
    position 0) if protobuf cannot parse the body.
    """
    from google.protobuf.message import DecodeError

    from hub_core.chakra.trace_records import message_class

    message: Any = message_class("GlobalMetadata")()
    try:
        message.ParseFromString(body)
    except DecodeError:
        reason = "record 0 is not a GlobalMetadata record"
        raise WireError(reason, 0, "malformed-metadata") from None
    entries: _Entries = []
    for attribute in message.attr:
        one_of = attribute.WhichOneof("value")
        if one_of is None:
            entries.append((attribute.name, None, None))
            continue
        # The kind is the number of the field.
        kind = AttributeKind(attribute.DESCRIPTOR.fields_by_name[one_of].number)
        value: Any = getattr(attribute, one_of)
        if hasattr(value, "values"):
            value = tuple(value.values)
        entries.append((attribute.name, kind, value))
    return message.version, entries
