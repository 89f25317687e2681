"""The GlobalMetadata record: a version and attributes by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hub_core.chakra.attributes import Kind
from hub_core.chakra.wire import WireError, WireType, encode_varints, varint

# Field numbers of GlobalMetadata, AttributeProto and the list messages.
_VERSION, _ATTR, _NAME, _VALUES = 1, 2, 1, 1

AttributeValue = int | float | bool | str | bytes | tuple["AttributeValue", ...] | None


@dataclass(frozen=True, slots=True)
class Metadata:
    """Record 0 of a file. `attributes`: values by name; `kinds`: their kinds, None for an attribute without a value."""

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
    value: int | bool | str | Sequence[int] | Sequence[bool]


def encode_metadata(version: str, entries: Sequence[MetadataEntry]) -> bytes:
    """The framed record, in protobuf's own bytes; by hand, because writing thus needs no import of protobuf."""
    attributes = [
        _field(_ATTR, _field(_NAME, entry.name.encode()) + _value(entry)) for entry in entries
    ]
    body = b"".join([_field(_VERSION, version.encode()) if version else b"", *attributes])
    return varint(len(body)) + body


def decode_metadata(body: bytes) -> Metadata:
    """Decode the body of record 0. Raises `WireError` where it is not GlobalMetadata or repeats an attribute."""
    # Imported here: writers need no protobuf, and its import takes longer than writing a small trace.
    from google.protobuf.message import DecodeError

    from hub_core.chakra.schema import message_class

    message: Any = message_class("GlobalMetadata")()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise WireError(
            "record 0 is not a GlobalMetadata record", 0, "malformed-metadata"
        ) from None
    attributes: dict[str, AttributeValue] = {}
    kinds: dict[str, Kind | None] = {}
    for attribute in message.attr:
        if attribute.name in attributes:
            raise WireError(
                f"the metadata attribute {attribute.name!r} stands twice", 0, "duplicate-attribute"
            )
        one_of = attribute.WhichOneof("value")
        value: Any = getattr(attribute, one_of) if one_of else None
        kinds[attribute.name] = (
            Kind(attribute.DESCRIPTOR.fields_by_name[one_of].number) if one_of else None
        )
        attributes[attribute.name] = tuple(value.values) if hasattr(value, "values") else value
    return Metadata(message.version, attributes, kinds)


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | WireType.BYTES) + varint(len(content)) + content


def _value(entry: MetadataEntry) -> bytes:
    if isinstance(entry.value, str):
        return _field(entry.kind, entry.value.encode())
    if isinstance(entry.value, int):
        return varint(entry.kind << 3 | WireType.VARINT) + varint(entry.value % 2**64)
    values = np.asarray(entry.value, np.int64).view(np.uint64)
    packed = encode_varints(values)[0].tobytes() if len(values) else b""
    return _field(entry.kind, _field(_VALUES, packed) if len(values) else b"")
