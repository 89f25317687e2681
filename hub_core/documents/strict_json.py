"""Strict JSON: UTF-8, no repeated keys, no NaN, bounded nesting; defects have lines.

Documents of columns are written with one line per column, so that equal models give equal bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from hub_core.model import InputError, Location

MAX_DEPTH = 64

JsonObject = dict[str, Any]
"""A parsed object. Its content is not checked and must be checked before use."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BLANKS = b" \t\r\n"


class _RefusedError(ValueError):
    """Raised by the hooks of the JSON parser."""


def parse_json_object(content: bytes, file: str) -> JsonObject:
    """Parse the object in a file. Raises `InputError` with `file` and the line.

    Repeated keys are refused; apart from that, the content is not checked.
    """
    # Only the start is copied, because documents may have many megabytes.
    start = content[:4096].lstrip(_BLANKS)
    if not start and not content.strip(_BLANKS):
        _fail(file, "the file is empty, a JSON document was expected")
    if start[:1] != b"{":
        cure = "see 'collhub formats', or name the format with --from"
        _fail(file, "this is not a JSON object", cure=cure)
    try:
        return _parse(content)
    except UnicodeDecodeError as error:
        _fail(file, f"byte {error.start} is not UTF-8")
    except UnicodeEncodeError:
        _fail(file, "a text holds half of a surrogate pair")
    except json.JSONDecodeError as error:
        _fail(file, f"this is not JSON: {error.msg} at column {error.colno}", error.lineno)
    except RecursionError:
        _fail(file, f"values are nested deeper than {MAX_DEPTH} levels")
    except _RefusedError as error:
        _fail(file, str(error))
    except ValueError:
        # The only remaining cause is an integer with more digits than Python converts.
        _fail(file, "an integer has too many digits")


def json_document(
    header: Mapping[str, object], table: str, columns: Iterable[tuple[str, object]]
) -> str:
    """Format an object: members of `header`, one per line, and a table with one line per column.

    Raises `InputError` for values that JSON cannot represent, which extensions may contain.
    """
    lines = [f'  "{name}": {_format_json(name, value)},' for name, value in header.items()]
    # Without blanks, because columns are the largest part of a document.
    rows = [f'    "{name}": {json.dumps(each, separators=(",", ":"))}' for name, each in columns]
    return "\n".join(["{", *lines, f'  "{table}": {{', ",\n".join(rows), "  }", "}", ""])


def _format_json(name: str, value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{name} cannot be written as JSON: {error}"
        raise InputError(message, code="not-json") from None


def _parse(content: bytes) -> JsonObject:
    text = content.decode("utf-8")
    root: JsonObject = json.loads(
        text, object_pairs_hook=_build_unique_object, parse_constant=_refuse_constant
    )
    if _SURROGATE.search(content):
        # Two escapes may form a character; an unpaired one cannot be written as UTF-8.
        json.dumps(root, ensure_ascii=False).encode("utf-8")
    return root


def is_too_deep(value: object) -> bool:
    """Whether values are nested deeper than `MAX_DEPTH`: writing them would exhaust the stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for holder in level:
            if isinstance(holder, dict):
                inner += holder.values()
            elif isinstance(holder, list):
                inner += holder
        level = inner
    return bool(level)


def _fail(file: str, message: str, line: int | None = None, cure: str = "") -> NoReturn:
    raise InputError(message, location=Location(file, line), cure=cure, code="invalid-json")


def _build_unique_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    parsed = dict(pairs)
    if len(parsed) == len(pairs):
        return parsed
    # The parser would silently keep the last value.
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    raise _RefusedError(f"the key {twice[:80]!r} stands twice in one object")


def _refuse_constant(constant: str) -> NoReturn:
    raise _RefusedError(f"{constant} is not JSON")
