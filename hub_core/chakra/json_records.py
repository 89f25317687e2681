"""Read the JSON forms of traces and convert them to records.

`chakra_jsonizer` does not write one JSON document but consecutive messages without separators:
GlobalMetadata, then the nodes, each in protobuf's JSON mapping (`dataDeps`, enumerations by name,
64-bit numbers as text). Source: src/jsonizer/jsonizer.py of mlcommons/chakra.

The feeder reads one object whose `workload_graph` lists the nodes: `Id`, `Name`, `NodeType` by
number, `data_deps`, `runtime` in microseconds, and attributes as members. The feeder ignores
`ctrlDeps`; here they are control dependencies. Source: src/feeder/json_node.cpp of
mlcommons/chakra.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from hub_core.chakra.nodes import TraceError
from hub_core.chakra.wire import varint

_METADATA_FIELDS = frozenset({"version", "attr"})
_GRAPH = "workload_graph"
_ATTRIBUTES = ("tensor_size", "comm_type", "comm_priority", "comm_size", "comm_src", "comm_dst",
               "comm_tag")  # fmt: skip
_SPACE = re.compile(r"[ \t\r\n]*")
# Maximum length of a text that is parsed in search of the first message.
_MAX_MESSAGE = 64 << 20


def is_json_form(content: bytes) -> bool:
    """Whether a file is in a JSON form.

    It begins with GlobalMetadata, followed by another message or the end, or it contains a
    `workload_graph`.
    """
    if content[:64].lstrip()[:1] != b"{":
        return False
    try:
        text = content[:_MAX_MESSAGE].decode("utf-8", "replace")
        first, end = json.JSONDecoder().raw_decode(text, _skip_space(text, 0))
    except (ValueError, RecursionError):
        return False
    if isinstance(first, dict) and isinstance(first.get(_GRAPH), list):
        return True
    is_followed = text[_skip_space(text, end) :][:1] in ("", "{")
    return is_followed and isinstance(first, dict) and first.keys() <= _METADATA_FIELDS


def convert_json(name: str, content: bytes) -> bytes:
    """Convert a file in JSON form to records.

    Raises `TraceError` with the byte for invalid JSON, and for messages that are not in the schema.
    """
    # Imported here: it loads protobuf, which readers of the usual form do not need.
    from google.protobuf import json_format

    from hub_core.chakra.trace_records import message_class

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _create_error("the text is not UTF-8", name, error.start) from None
    records = []
    for number, (start, value) in enumerate(_parse_messages(text, name)):
        message = message_class("Node" if number else "GlobalMetadata")()
        try:
            json_format.ParseDict(value, message)
        except (json_format.ParseError, RecursionError) as error:
            byte = len(text[:start].encode())
            subject = "a node" if number else "the metadata"
            # Protobuf lists all fields on further lines.
            reason = (str(error).splitlines() or [""])[0].strip()
            raise _create_error(
                f"{subject} is not of the Chakra schema: {reason}", name, byte
            ) from None
        body = message.SerializeToString(deterministic=True)
        records.append(varint(len(body)) + body)
    return b"".join(records)


def _parse_messages(text: str, name: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield metadata and nodes in protobuf's JSON mapping, with their positions in the text."""
    for start, value in _parse_objects(text, name):
        nodes = value.get(_GRAPH)
        if not isinstance(nodes, list):
            yield start, value
            continue
        yield start, {}
        for index, node in enumerate(nodes):
            try:
                yield start, _convert_node(node)
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                reason = f"node {index} of {_GRAPH} cannot be read: {error}"
                raise _create_error(reason, name, len(text[:start].encode())) from None


def _convert_node(node: Mapping[str, object]) -> dict[str, object]:
    """Convert a node of the feeder's form to protobuf's JSON mapping."""
    attributes: list[dict[str, object]] = [
        {"name": key, "int64Val": node[key]} for key in _ATTRIBUTES if key in node
    ]
    if "is_cpu_op" in node:
        attributes.append({"name": "is_cpu_op", "boolVal": bool(node["is_cpu_op"])})
    return {
        "id": node["Id"],
        "name": str(node.get("Name", "")),
        "type": node["NodeType"],
        "ctrlDeps": node.get("ctrlDeps", []),
        "dataDeps": node.get("data_deps", []),
        "durationMicros": int(float(str(node.get("runtime", 0)))),
        "attr": attributes,
    }


def _parse_objects(text: str, name: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the objects of the text with their positions."""
    decode = json.JSONDecoder().raw_decode
    at = _skip_space(text, 0)
    while at < len(text):
        try:
            value, end = decode(text, at)
        except (ValueError, RecursionError) as error:
            position = error.pos if isinstance(error, json.JSONDecodeError) else at
            message = "this is no complete JSON message"
            raise _create_error(message, name, len(text[:position].encode())) from None
        if not isinstance(value, dict):
            raise _create_error("a message is no JSON object", name, len(text[:at].encode()))
        yield at, value
        at = _skip_space(text, end)


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _create_error(reason: str, name: str, byte: int) -> TraceError:
    cure = "write the file again with chakra_jsonizer, or name the trace that it was made from"
    return TraceError(reason, name, code="json-form", byte=byte, cure=cure)
