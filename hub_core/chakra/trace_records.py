"""Single records of trace files as protobuf messages: for tests, tools and odd nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from google.protobuf.message import DecodeError, Message

from hub_core.chakra.messages import message_class
from hub_core.chakra.records import located
from hub_core.chakra.wire import WireError, record_bounds, varint


def encoded_record(message: str, **fields: object) -> bytes:
    """One record of a trace file: a message of the schema, such as `Node`, behind its length.

    `fields` are those of the message; a nested message is a dict. Raises `TypeError` or
    `ValueError` for fields that the message has not.
    """
    build = cast("Callable[..., Message]", message_class(message))
    body = build(**fields).SerializeToString(deterministic=True)
    return varint(len(body)) + body


def decoded_records(content: bytes, file: str) -> Iterator[Message]:
    """The messages of a trace file: one `GlobalMetadata`, then `Node` after `Node`.

    Raises `TraceError`, with `file` in it, for bytes that are no such records.
    """
    try:
        starts, stops = record_bounds(content)
    except WireError as error:
        raise located(error, file) from None
    for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        message = message_class("Node" if number else "GlobalMetadata")()
        try:
            message.ParseFromString(content[start:stop])
        except DecodeError:
            broken = WireError("a record is not a message of the schema", start)
            raise located(broken, file) from None
        yield message
