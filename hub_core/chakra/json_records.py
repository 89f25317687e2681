"""Read the JSON forms of traces, which become records.

`chakra_jsonizer` writes no JSON document but messages one after the other, without separators:
GlobalMetadata, then the nodes, each in protobuf's JSON mapping (`dataDeps`, enumerations by name,
64-bit numbers as text). Source: src/jsonizer/jsonizer.py of mlcommons/chakra.

The feeder reads one object whose `workload_graph` lists the nodes: `Id`, `Name`, `NodeType` by
number, `data_deps`, `runtime` in microseconds, and attributes as members. `ctrlDeps`, which it
ignores, are control dependencies here. Source: src/feeder/json_node.cpp of mlcommons/chakra.
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
# Beyond it a text is not parsed further in search of a first message.
_LARGEST_MESSAGE = 64 << 20


def is_json_form(content: bytes) -> bool:
    """Whether a file is in a JSON form.

    It begins with GlobalMetadata, followed by another message or the end, or it holds a
    `workload_graph`.
    """
    if content[:64].lstrip()[:1] != b"{":
        return False
    try:
        text = content[:_LARGEST_MESSAGE].decode("utf-8", "replace")
        first, end = json.JSONDecoder().raw_decode(text, _after_space(text, 0))
    except (ValueError, RecursionError):
        return False
    if isinstance(first, dict) and isinstance(first.get(_GRAPH), list):
        return True
    is_followed = text[_after_space(text, end) :][:1] in ("", "{")
    return is_followed and isinstance(first, dict) and first.keys() <= _METADATA_FIELDS


def records_of_json(name: str, content: bytes) -> bytes:
    """The records of a file in JSON form.

    Raises `TraceError` with the byte of what is no JSON, and of messages that the schema has not.
    """
    # Imported here: it loads protobuf, which readers of the usual form do not need.
    from google.protobuf import json_format

    from hub_core.chakra.trace_records import message_class

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _error("the text is not UTF-8", name, error.start) from None
    records = []
    for number, (start, value) in enumerate(_messages(text, name)):
        message = message_class("Node" if number else "GlobalMetadata")()
        try:
            json_format.ParseDict(value, message)
        except (json_format.ParseError, RecursionError) as error:
            place = len(text[:start].encode())
            what = "a node" if number else "the metadata"
            # Protobuf lists all fields on further lines.
            reason = (str(error).splitlines() or [""])[0].strip()
            raise _error(f"{what} is not of the Chakra schema: {reason}", name, place) from None
        body = message.SerializeToString(deterministic=True)
        records.append(varint(len(body)) + body)
    return b"".join(records)


def _messages(text: str, name: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Metadata and nodes in protobuf's JSON mapping, each with the position at which it begins."""
    for start, value in _values(text, name):
        nodes = value.get(_GRAPH)
        if not isinstance(nodes, list):
            yield start, value
            continue
        yield start, {}
        for place, node in enumerate(nodes):
            try:
                yield start, _node_of_graph(node)
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                reason = f"node {place} of {_GRAPH} cannot be read: {error}"
                raise _error(reason, name, len(text[:start].encode())) from None


def _node_of_graph(node: Mapping[str, object]) -> dict[str, object]:
    """A node of the feeder's form in protobuf's JSON mapping."""
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


def _values(text: str, name: str) -> Iterator[tuple[int, dict[str, object]]]:
    """The objects of the text, each with the position at which it begins."""
    decode = json.JSONDecoder().raw_decode
    at = _after_space(text, 0)
    while at < len(text):
        try:
            value, end = decode(text, at)
        except (ValueError, RecursionError) as error:
            place = error.pos if isinstance(error, json.JSONDecodeError) else at
            message = "this is no complete JSON message"
            raise _error(message, name, len(text[:place].encode())) from None
        if not isinstance(value, dict):
            raise _error("a message is no JSON object", name, len(text[:at].encode()))
        yield at, value
        at = _after_space(text, end)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _error(reason: str, name: str, byte: int) -> TraceError:
    cure = "write the file again with chakra_jsonizer, or name the trace that it was made from"
    return TraceError(reason, name, code="json-form", byte=byte, cure=cure)
