"""The Chakra messages as protobuf classes, in a separate pool.

The pool does not interfere with other packages that register the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from hub_core.chakra.records import located
from hub_core.chakra.wire import WireError, record_bounds, varint

PACKAGE = "ChakraProtoMsg"


def file_descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    """Read the compiled form of `schema/chakra_et.proto` that is shipped with the package.

    It is read again at each call.
    """
    content = files("hub_core.chakra").joinpath("schema", "chakra_et.binpb").read_bytes()
    return descriptor_pb2.FileDescriptorSet.FromString(content)


@cache
def message_class(name: str) -> type[Message]:
    """Return the protobuf class of a message of the schema by its short name, such as `Node`.

    The class is created on first use and cached. Raises `KeyError` for an unknown name.
    """
    # Created on first use, once per process.
    descriptor = _pool().FindMessageTypeByName(f"{PACKAGE}.{name}")
    return message_factory.GetMessageClass(descriptor)


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    # A separate pool, because the official bindings register the same names in the default one.
    pool = descriptor_pool.DescriptorPool()
    for file in file_descriptor_set().file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def encoded_record(message: str, **fields: object) -> bytes:
    """Encode one record of a trace file: the length as a varint, then the message.

    `message`: name of a message of the schema, such as `Node`. `fields`: its fields; a nested
    message is a dict. Equal fields give equal bytes. Raise KeyError for an unknown message,
    ValueError for an unknown field or a number outside the range of its field, and TypeError
    for a value of another type.
    """
    build = cast("Callable[..., Message]", message_class(message))
    body = build(**fields).SerializeToString(deterministic=True)
    return varint(len(body)) + body


def decoded_records(content: bytes, file: str) -> Iterator[Message]:
    """Yield the protobuf messages of a trace file: one `GlobalMetadata`, then each `Node`.

    Nothing for an empty file. Raises `TraceError` with `file` and the byte: before the first
    message for a file that cannot be split into records (`record_bounds`: truncated, an overlong
    length, an empty node record), and after the messages before it for a record that is no message
    of the schema.
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
