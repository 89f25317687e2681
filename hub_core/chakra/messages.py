"""The Chakra messages as protobuf classes, in a pool that disturbs no other `chakra` import."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

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
