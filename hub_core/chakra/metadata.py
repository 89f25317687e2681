"""The GlobalMetadata record: a version and attributes by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from hub_core.chakra.attributes import Kind
from hub_core.chakra.schema import message_class
from hub_core.chakra.wire import WireError, varint

__all__ = ["AttributeValue", "Metadata", "MetadataEntry", "decode_metadata", "encode_metadata"]

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
    """The framed record."""
    message: Any = message_class("GlobalMetadata")()
    message.version = version
    for entry in entries:
        attribute = message.attr.add(name=entry.name)
        if isinstance(entry.value, int | str):
            setattr(attribute, entry.kind.field, entry.value)
        else:
            getattr(attribute, entry.kind.field).values.extend(entry.value)
            getattr(attribute, entry.kind.field).SetInParent()
    body: bytes = message.SerializeToString(deterministic=True)
    return varint(len(body)) + body


def decode_metadata(body: bytes) -> Metadata:
    """Decode the body of record 0. Raises `WireError` where it is not GlobalMetadata or repeats an attribute."""
    message: Any = message_class("GlobalMetadata")()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise WireError("record 0 is not a GlobalMetadata record", 0, "malformed-metadata") from None
    attributes: dict[str, AttributeValue] = {}
    kinds: dict[str, Kind | None] = {}
    for attribute in message.attr:
        if attribute.name in attributes:
            raise WireError(f"the metadata attribute {attribute.name!r} stands twice", 0, "duplicate-attribute")
        one_of = attribute.WhichOneof("value")
        value: Any = getattr(attribute, one_of) if one_of else None
        kinds[attribute.name] = Kind(attribute.DESCRIPTOR.fields_by_name[one_of].number) if one_of else None
        attributes[attribute.name] = tuple(value.values) if hasattr(value, "values") else value
    return Metadata(message.version, attributes, kinds)
