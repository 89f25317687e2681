"""Scan the first bytes of a JSON text for detection: top-level members and schema.

The head may end anywhere, so this is a scanner of tokens, not a parser. It never raises an error:
readers report invalid JSON with its position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HUB_SCHEMA = "collhub/"
# A quoted string, a bracket, a colon or a comma; other characters are skipped.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]:,]', re.DOTALL)
_START = re.compile(rb"\A(?:\xef\xbb\xbf)?\s*([{\[])")


@dataclass(frozen=True, slots=True)
class JsonHead:
    """Top level of a JSON text, as far as its first bytes show it.

    `is_object`: True for an object, False for a list. `members`: names of its members, in their
    order. `hub_schema`: the member `schema` of a document of the hub (`collhub/algorithm-1`), else
    "". `searched`: bytes in which signatures of formats are searched. For a document of the hub,
    only its schema; for other objects, without the value of `extensions`, which may contain data of
    any other format.
    """

    is_object: bool
    members: tuple[str, ...]
    hub_schema: str
    searched: bytes


def scan_json_head(head: bytes) -> JsonHead | None:
    """Scan the first bytes of a text; None if it begins with neither an object nor a list."""
    start = _START.match(head)
    if start is None:
        return None
    is_object = start[1] == b"{"
    members: list[str] = []
    schema = ""
    depth = 0
    name: str | None = None
    is_name_next = False
    extensions = [len(head), len(head)]
    for token in _TOKEN.finditer(head):
        text = token[0]
        if text in b"{[":
            depth += 1
            is_name_next = depth == 1 and is_object
        elif text in b"}]":
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and text == b",":
            if name == "extensions":
                extensions[1] = token.start()
            name, is_name_next = None, is_object
        elif depth == 1 and text[:1] == b'"' and is_name_next:
            name, is_name_next = text[1:-1].decode("utf-8", "replace"), False
            members.append(name)
            if name == "extensions":
                extensions = [token.end(), len(head)]
        elif depth == 1 and text[:1] == b'"' and name == "schema":
            schema = text[1:-1].decode("utf-8", "replace")
    if not schema.startswith(_HUB_SCHEMA):
        searched = head[: extensions[0]] + head[extensions[1] :]
        return JsonHead(is_object, tuple(members), "", searched)
    return JsonHead(is_object, tuple(members), schema, f'"{schema}"'.encode())
