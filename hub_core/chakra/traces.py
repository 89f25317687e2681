"""Execution traces for plugins: algorithms of traces, nodes of algorithms, files, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from hub_core.chakra.algorithms.lowering import lower as chakra_nodes
from hub_core.chakra.algorithms.profile import default_bytes as chakra_bytes
from hub_core.chakra.algorithms.write import write
from hub_core.chakra.codec.records import located
from hub_core.chakra.codec.wire import WireError, record_bounds, varint
from hub_core.chakra.formats import ChakraWriteOptions, TraceOptions
from hub_core.chakra.read import read as chakra_algorithm
from hub_core.model import Algorithm
from hub_core.plugin_api import WriteResult

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = [
    "chakra_algorithm", "chakra_bytes", "chakra_messages", "chakra_nodes", "chakra_record",
    "chakra_traces",
]  # fmt: skip


def chakra_traces(algorithm: Algorithm, options: TraceOptions) -> WriteResult:
    """One trace a rank, named `.<rank>.et`, encoded when its content is asked for.

    Raises `UsageError` for options that do not fit the algorithm.
    """
    return write(algorithm, ChakraWriteOptions(options.size, options.dialect, options.flatten))


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
