"""Read the JSON form of traces: what `chakra_jsonizer` writes becomes records.

The file is no JSON document but messages one after the other, without separators: GlobalMetadata,
then the nodes, each in protobuf's JSON mapping (`dataDeps`, enumerations by name, 64-bit numbers as
text). Source: src/jsonizer/jsonizer.py of mlcommons/chakra.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from collhub_chakra.errors import TraceError
from collhub_chakra.wire import varint

_METADATA_FIELDS = frozenset({"version", "attr"})
_SPACE = re.compile(r"[ \t\r\n]*")
# Beyond it a text is not parsed further in search of a first message.
_LARGEST_MESSAGE = 64 << 20


def is_json_form(content: bytes) -> bool:
    """Whether a file begins with GlobalMetadata in JSON, followed by another message or its end."""
    if content[:64].lstrip()[:1] != b"{":
        return False
    try:
        text = content[:_LARGEST_MESSAGE].decode("utf-8", "replace")
        first, end = json.JSONDecoder().raw_decode(text, _after_space(text, 0))
    except (ValueError, RecursionError):
        return False
    is_followed = text[_after_space(text, end) :][:1] in ("", "{")
    return is_followed and isinstance(first, dict) and first.keys() <= _METADATA_FIELDS


def records_of_json(name: str, content: bytes) -> bytes:
    """The records of a file in JSON form.

    Raises `TraceError` with the byte of what is no JSON, and of messages that the schema has not.
    """
    # Imported here: it loads protobuf, which readers of the usual form do not need.
    from google.protobuf import json_format

    from collhub_chakra.messages import message_class

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _error("the text is not UTF-8", name, error.start) from None
    records = []
    for number, (start, value) in enumerate(_values(text, name)):
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
