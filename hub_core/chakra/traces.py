"""Execution traces for plugins: algorithms of traces, nodes of algorithms, files, messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hub_core.chakra.algorithms.lowering import lower as chakra_nodes
from hub_core.chakra.algorithms.profile import default_bytes as chakra_bytes
from hub_core.chakra.algorithms.write import write
from hub_core.chakra.formats import ChakraWriteOptions, TraceOptions
from hub_core.chakra.read import read as chakra_algorithm
from hub_core.chakra.refusals import input_errors
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
    from collhub_chakra.trace_records import encoded_record

    return encoded_record(message, **fields)


def chakra_messages(content: bytes, file: str) -> Iterator[Message]:
    """The messages of a trace file: one `GlobalMetadata`, then `Node` after `Node`.

    Raises `InputError`, with `file` in it, for bytes that are no such records.
    """
    from collhub_chakra.trace_records import decoded_records

    with input_errors():
        yield from decoded_records(content, file)
