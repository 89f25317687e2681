"""Execution traces for plugins: algorithms of traces, nodes of algorithms, files, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from hub_core.chakra.algorithms.lowering import lower
from hub_core.chakra.algorithms.profile import default_bytes
from hub_core.chakra.algorithms.write import write
from hub_core.chakra.codec.nodes import NodeTable
from hub_core.chakra.codec.records import located
from hub_core.chakra.codec.wire import WireError, record_bounds, varint
from hub_core.chakra.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.chakra.read import read
from hub_core.model import Algorithm
from hub_core.plugin_api import Source, WriteResult

if TYPE_CHECKING:
    from google.protobuf.message import Message


def chakra_algorithm(source: Source, options: ChakraReadOptions) -> Algorithm:
    """The algorithm of a set of traces, one part a rank, by the reader `chakra`.

    Raises `InputError` for what is no algorithm.
    """
    return read(source, options)


def chakra_bytes(algorithm: Algorithm) -> int:
    """The size of the collective, in bytes, that traces are written for unless told otherwise.

    The algorithm's own, else 1 MiB a unit (a byte a unit above 2^20 units).
    """
    return default_bytes(algorithm)


def chakra_nodes(algorithm: Algorithm, collective_bytes: int) -> NodeTable:
    """The nodes of the traces of an algorithm, as columns, for a collective of this size.

    One node a step (a receive-reduce is two), in file order, as `chakra_traces` writes them.
    Raises `InputError` where the algorithm remembers ids of a foreign trace that no longer fit.
    """
    return lower(algorithm, collective_bytes)


def chakra_traces(algorithm: Algorithm, options: ChakraWriteOptions) -> WriteResult:
    """One trace a rank, named `.<rank>.et`, encoded when its content is asked for.

    Raises `UsageError` for options that do not fit the algorithm.
    """
    return write(algorithm, options)


def chakra_record(message: str, **fields: object) -> bytes:
    """One record of a trace file: a message of the schema, such as `Node`, behind its length.

    `fields` are those of the message; a nested message is a dict. Raises `TypeError` or
    `ValueError` for fields that the message has not.
    """
    # Imported here, as below: nodes and traces need no protobuf.
    from hub_core.chakra.codec.schema import message_class

    build = cast("Callable[..., Message]", message_class(message))
    body = build(**fields).SerializeToString(deterministic=True)
    return varint(len(body)) + body


def chakra_messages(content: bytes, file: str) -> Iterator[Message]:
    """The messages of a trace file: one `GlobalMetadata`, then `Node` after `Node`.

    Raises `InputError`, with `file` in it, for bytes that are no such records.
    """
    from google.protobuf.message import DecodeError

    from hub_core.chakra.codec.schema import message_class

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
