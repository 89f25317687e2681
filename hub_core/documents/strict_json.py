"""Parse JSON without guessing: UTF-8, no key twice, no NaN, bounded nesting; each defect is named with its line."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from hub_core.model.diagnostics import InputError, Location

MAX_DEPTH = 64

JsonObject = dict[str, Any]
"""A parsed object. What it holds is to be checked before anything is taken out of it."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class _RefusedError(ValueError):
    """What the hooks of the JSON parser raise."""


def parse_object(content: bytes, file: str) -> JsonObject:
    """Return the object that `content` holds. Raises `InputError` naming `file` and, where known, the line."""
    start = content[:4096].lstrip(b" \t\r\n")
    if not start and not content.strip(b" \t\r\n"):
        _fail(file, "the file is empty, a JSON document was expected")
    if start[:1] != b"{":
        _fail(
            file,
            "this is not a JSON object",
            cure="see 'collhub formats', or name the format with --from",
        )
    try:
        root: JsonObject = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_object,
            parse_constant=_refuse_constant,
        )
        if _SURROGATE.search(content):
            json.dumps(root, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        _fail(file, f"byte {error.start} is not UTF-8")
    except UnicodeEncodeError:
        _fail(file, "a text holds half of a surrogate pair")
    except json.JSONDecodeError as error:
        _fail(file, f"this is not JSON: {error.msg} at column {error.colno}", error.lineno)
    except RecursionError:
        _fail(file, f"values are nested deeper than {MAX_DEPTH} levels")
    except ValueError as error:  # ours, and integers of more digits than Python converts
        _fail(
            file,
            str(error) if isinstance(error, _RefusedError) else "an integer has too many digits",
        )
    return root


def is_too_deep(value: object) -> bool:
    """Whether arrays and objects are nested deeper than `MAX_DEPTH`: writing them back would exhaust the stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        holders = [holder for holder in level if isinstance(holder, dict | list)]
        level = [
            child
            for holder in holders
            for child in (holder.values() if isinstance(holder, dict) else holder)
        ]
    return bool(level)


def _fail(file: str, message: str, line: int | None = None, cure: str = "") -> NoReturn:
    raise InputError(message, location=Location(file, line), cure=cure, code="invalid-json")


def _unique_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _RefusedError(f"the key {twice[:80]!r} stands twice in one object")
    return found


def _refuse_constant(constant: str) -> NoReturn:
    raise _RefusedError(f"{constant} is not JSON")
