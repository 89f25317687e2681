"""The Chakra messages as protobuf classes, in a pool that disturbs no other `chakra` import."""

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
    """The compiled form of `schema/chakra_et.proto`, as shipped."""
    content = files("hub_core.chakra").joinpath("schema", "chakra_et.binpb").read_bytes()
    return descriptor_pb2.FileDescriptorSet.FromString(content)


@cache
def message_class(name: str) -> type[Message]:
    """The class of a message by its short name, for example `Node`."""
    # Made when it is first asked for, once in a process.
    descriptor = _pool().FindMessageTypeByName(f"{PACKAGE}.{name}")
    return message_factory.GetMessageClass(descriptor)


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    # A pool of our own: the official bindings register the same names in the default one.
    pool = descriptor_pool.DescriptorPool()
    for file in file_descriptor_set().file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


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
