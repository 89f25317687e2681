"""The GlobalMetadata record: a version and attributes by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collhub_chakra.attributes import Kind
from collhub_chakra.wire import WireError, WireType, encode_varints, varint

# Field numbers of GlobalMetadata, AttributeProto and the list messages.
_VERSION, _ATTR, _NAME, _VALUES = 1, 2, 1, 1

AttributeValue = int | float | bool | str | bytes | tuple["AttributeValue", ...] | None


@dataclass(frozen=True, slots=True)
class Metadata:
    """Record 0 of a file. `attributes`: values by name; `kinds`: None for one without a value."""

    version: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    kinds: Mapping[str, Kind | None] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """An attribute as text, empty where it is absent or of another kind."""
        value = self.attributes.get(name)
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """An attribute to write."""

    name: str
    kind: Kind
    value: int | bool | str | Sequence[int]


def encode_metadata(version: str, entries: Sequence[MetadataEntry]) -> bytes:
    """The framed record in protobuf's own bytes; by hand, so that writers need no protobuf."""
    body = _field(_VERSION, version.encode()) if version else b""
    for entry in entries:
        body += _field(_ATTR, _field(_NAME, entry.name.encode()) + _value(entry))
    return varint(len(body)) + body


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes: tag, length, content."""
    # Kinds of lists and texts have numbers above 15, whose tags are two bytes.
    return varint(number << 3 | WireType.BYTES) + varint(len(content)) + content


def _value(entry: MetadataEntry) -> bytes:
    """The field of AttributeProto that holds the value."""
    if isinstance(entry.value, str):
        return _field(entry.kind, entry.value.encode())
    if isinstance(entry.value, int):
        return varint(entry.kind << 3 | WireType.VARINT) + varint(entry.value)
    packed, _ = encode_varints(np.asarray(entry.value, np.int64).view(np.uint64))
    # proto3 writes an empty list as an empty message.
    return _field(entry.kind, _field(_VALUES, packed.tobytes()) if len(packed) else b"")


def decode_metadata(body: bytes) -> Metadata:
    """Decode the body of record 0. Raises `WireError` for other bytes and doubled attributes."""
    # Imported here: writers need no protobuf, whose import takes longer than a small trace.
    from google.protobuf.message import DecodeError

    from collhub_chakra.messages import message_class

    message: Any = message_class("GlobalMetadata")()
    try:
        message.ParseFromString(body)
    except DecodeError:
        reason = "record 0 is not a GlobalMetadata record"
        raise WireError(reason, 0, "malformed-metadata") from None
    attributes: dict[str, AttributeValue] = {}
    kinds: dict[str, Kind | None] = {}
    for attribute in message.attr:
        name = attribute.name
        if name in attributes:
            reason = f"the metadata attribute {name!r} stands twice"
            raise WireError(reason, 0, "duplicate-attribute")
        kinds[name], attributes[name] = _kind_and_value(attribute)
    return Metadata(message.version, attributes, kinds)


def _kind_and_value(attribute: Any) -> tuple[Kind | None, AttributeValue]:
    """Kind and value of an AttributeProto; lists become tuples."""
    one_of = attribute.WhichOneof("value")
    if one_of is None:
        return None, None
    # A kind is the number of its field.
    field_number = attribute.DESCRIPTOR.fields_by_name[one_of].number
    value: Any = getattr(attribute, one_of)
    if hasattr(value, "values"):
        value = tuple(value.values)
    return Kind(field_number), value
