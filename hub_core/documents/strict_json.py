"""Strict JSON: UTF-8, unique keys, no NaN, bounded nesting. Defects and schema errors have lines.

Documents of columns are written with one line per column, so that equal models give equal bytes.
"""

from __future__ import annotations

import codecs
import importlib.resources
import itertools
import json
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard, cast

from hub_core.model import Diagnostic, InputError, Location, closest

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

MAX_DEPTH = 64

JsonObject = dict[str, Any]
"""A parsed object. Its content is not checked and must be checked before use."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BLANKS = b" \t\r\n"
TYPE_NAMES: dict[type, str] = {
    int: "an integer",
    float: "a number with a fraction or exponent",
    bool: "a boolean",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}
_MAX_MESSAGE = 200
# A document of which every row is invalid has as many errors as rows.
_MAX_ERRORS = 1_000
_MAX_VIOLATIONS = 20
_MIN_SIMILARITY = 0.5
# `collhub/workload-1` and `collhub-machine/1`.
_VERSION = re.compile(r"[-/][0-9]{1,9}\Z")


class _RefusedError(ValueError):
    """Raised by the hooks of the JSON parser."""


def parse_json_object(content: bytes, file: str, allow_nan: bool = False) -> JsonObject:
    """Parse the JSON object in a file; its members keep their order and are not checked.

    White space is allowed after the object, and up to 4095 bytes before it. Raises `InputError`
    (`invalid-json`) with `file` for:

    - a file that is empty or has only white space
    - a byte order mark, another JSON value, or 4096 or more bytes of white space at the start
    - text that is not UTF-8, or has half of a surrogate pair
    - invalid JSON (only this error has a line)
    - a key that occurs twice in one object
    - the words NaN, Infinity and -Infinity unless `allow_nan`; 1e999 becomes infinity
    - nesting at which Python's parser gives up (about 1000 levels)
    - integers with too many digits for Python
    """
    # Only the start is copied, because documents may have many megabytes.
    start = content[:4096].lstrip(_BLANKS)
    if not start and not content.strip(_BLANKS):
        _fail(file, "the file is empty, a JSON document was expected")
    if start.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        _fail(file, "the file begins with a byte order mark", cure="save it as UTF-8 without one")
    if start[:1] != b"{":
        cure = "give a file that begins with {"
        _fail(file, "this is not a JSON object", cure=cure)
    try:
        text = content.decode("utf-8")
        refuse = None if allow_nan else _refuse_constant
        root: JsonObject = json.loads(
            text, object_pairs_hook=_build_unique_object, parse_constant=refuse
        )
        if _SURROGATE.search(content):
            # Two escapes may form a character; an unpaired one cannot be written as UTF-8.
            json.dumps(root, ensure_ascii=False).encode("utf-8")
        return root
    except UnicodeDecodeError as error:
        _fail(file, f"byte {error.start} is not UTF-8")
    except UnicodeEncodeError:
        _fail(file, "a text holds half of a surrogate pair")
    except json.JSONDecodeError as error:
        _fail(file, f"this is not JSON: {error.msg} at column {error.colno}", error.lineno)
    except RecursionError:
        # The parser's limit depends on the version of Python, but is always higher than ours.
        _fail(file, "values are nested too deeply", cure=f"nest at most {MAX_DEPTH} levels")
    except _RefusedError as error:
        _fail(file, str(error))
    except ValueError:
        # The only remaining cause is an integer with more digits than Python converts.
        _fail(file, "an integer has too many digits")


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value of parsed JSON is a number that `float` converts to a finite one.

    False for booleans, which are integers in Python, for NaN and infinity, and for integers beyond
    the range of floats.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Written so that NaN fails, too. `math.isfinite` raises an error for an integer of 400 digits.
    return is_number and abs(cast("float", value)) <= sys.float_info.max


def json_document(
    header: Mapping[str, object], table: str, columns: Iterable[tuple[str, object]]
) -> str:
    """Format a JSON object with the members of `header` and, as the last member, one table.

    `table`: name of the table. `columns`: (name, JSON values) of its columns. Each member
    of the header and each column is on one line; columns have no blanks between their
    values. The text has a final line break. Raise `InputError` (`not-json`) for values of
    `header` that JSON cannot represent, which extensions may contain; the values of columns
    must be representable.
    """
    lines = [f'  "{name}": {_format_json(name, value)},' for name, value in header.items()]
    # Without blanks, because columns are the largest part of a document.
    rows = [
        f'    "{name}": {json.dumps(values, separators=(",", ":"))}' for name, values in columns
    ]
    return "\n".join(["{", *lines, f'  "{table}": {{', ",\n".join(rows), "  }", "}", ""])


def _format_json(name: str, value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{name} cannot be written as JSON: {error}"
        raise InputError(message, code="not-json") from None


def is_too_deep(value: object) -> bool:
    """Return whether lists and dictionaries are nested in more than 64 levels (`MAX_DEPTH`).

    The value itself is level 1, its entries are level 2, and so on. Any value at level 65 is too
    deep, even a text or number.
    """
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
    raise _RefusedError(f"the key {twice[:80]!r} occurs twice in one object")


def _refuse_constant(constant: str) -> NoReturn:
    raise _RefusedError(f"{constant} is not JSON")


@dataclass(frozen=True, slots=True)
class SchemaViolation:
    """A violation of the schema: `$.path`, message, cure ("" for none)."""

    path: str
    message: str
    cure: str = ""

    def finding(self, place: Location, code: str) -> Diagnostic:
        """Convert the violation to an error of a file."""
        return Diagnostic(code, f"{self.path}: {self.message}", location=place, cure=self.cure)


def schema_violations(document: object, schema_file: str) -> list[SchemaViolation]:
    """Return the violations of a shipped schema, those nearest to the root first, at most 20.

    `schema_file`: name of a file in `hub_core.schemas`. The list is empty for a valid document.
    If `document["schema"]` is the title of the schema with another version number at its end,
    the only violation is that one. Otherwise every missing and every unknown member is one
    violation, and so is every other wrong value.

    Violations at equal depth are sorted by the texts of their paths. The remedy for an unknown
    member is a similar missing one, or the list of all members. 1.0 is not accepted as an
    integer. Only the first 1000 errors of the validator are considered; they are sorted
    afterwards.
    """
    # Imported here: a quarter of the time that reading a small file takes.
    import jsonschema

    # The package may be installed as a zip archive: a resource, not a path.
    resource = importlib.resources.files("hub_core.schemas").joinpath(schema_file)
    draft = jsonschema.Draft202012Validator
    # JSON Schema counts 1.0 as an integer; numpy and Python do not.
    types = draft.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    extend = jsonschema.validators.extend
    strict = extend(draft, type_checker=types)  # type: ignore[no-untyped-call]
    schema = json.loads(resource.read_bytes())
    name, known = document.get("schema") if isinstance(document, dict) else None, schema["title"]
    if isinstance(name, str) and name != known and _strip_version(name) == _strip_version(known):
        return [SchemaViolation("$.schema", *describe_other_version(name, known))]
    errors = itertools.islice(strict(schema).iter_errors(document), _MAX_ERRORS)
    violations = itertools.chain.from_iterable(
        _convert_error(error) for error in sorted(errors, key=_get_sort_key)
    )
    return list(itertools.islice(violations, _MAX_VIOLATIONS))


def empty_arrays(value: object, arrays: Container[str], path: str = "$") -> object:
    """Return a document in which long lists and the extensions are empty; do not change `value`.

    The schema validator is too slow for long lists, so these are checked separately.

    - A list whose JSON path is in `arrays` becomes `[]`.
    - An object at `$.extensions` becomes `{}`.
    - All other values are kept. Objects are copied; lists and the values in them are not searched.

    `path` is the JSON path of `value`. A member adds a point and its key, such as `$.nodes.kind`.
    """
    if isinstance(value, list):
        return [] if path in arrays else value
    if not isinstance(value, dict):
        return value
    if path == "$.extensions":
        return {}
    return {key: empty_arrays(inner, arrays, f"{path}.{key}") for key, inner in value.items()}


def find_other_version(name: str) -> str | None:
    """Return the title of a shipped schema that differs from `name` only in the version.

    Titles end with the version, such as `collhub/topology-1`; `name` may lack it. If
    several versions are shipped, the first in alphabetical order is returned. The result is
    None if `name` is the title of a shipped schema, and if no version of it is shipped.
    Reads all shipped schemas.
    """
    files = importlib.resources.files("hub_core.schemas").iterdir()
    contents = (file.read_bytes() for file in files if file.name.endswith(".json"))
    titles: set[str] = {json.loads(content)["title"] for content in contents}
    others = sorted(title for title in titles if _strip_version(title) == _strip_version(name))
    return None if name in others else next(iter(others), None)


def describe_other_version(name: str, known: str) -> tuple[str, str]:
    """Return message and cure for a document of schema `name` where `known` is expected."""
    return f"the schema is {name[:80]!r}, this version reads {known!r}", "upgrade collhub"


def _strip_version(schema: str) -> str:
    """Return the name of a schema without its version; a text of another form is returned as is."""
    return _VERSION.sub("", schema) if schema.startswith("collhub") else schema


def _get_sort_key(error: ValidationError) -> tuple[int, list[str]]:
    # As texts, because a path contains names and numbers, which cannot be compared.
    path = [str(part) for part in error.path]
    return len(path), path


def _convert_error(error: ValidationError) -> Iterator[SchemaViolation]:
    """Yield the violations of one error of the schema validator: path, message and remedy.

    If the schema lists members and forbids others, each unknown member gives one violation, in
    alphabetical order, at the path of the object. Its remedy is the most similar listed member that
    the object lacks. Candidates with the same first word (up to `_`) as the unknown member exclude
    all others. If none is similar enough, the remedy lists all members of the schema.

    Any other error gives one violation without a remedy. A wrong type gives `expected TYPE, got
    TYPE`, with several permitted types joined by ` or `. Other texts of the validator are cut after
    200 characters, with `...`.
    """
    known = error.schema.get("properties") if isinstance(error.schema, dict) else None
    if error.validator != "additionalProperties" or not known or error.validator_value is not False:
        message = error.message
        if error.validator == "type":
            types = error.validator_value
            names = " or ".join(map(str, types)) if isinstance(types, list) else types
            # The type is reported instead of the value, which may be a large document.
            message = f"expected {names}, got {TYPE_NAMES[type(error.instance)]}"
        elif len(message) > _MAX_MESSAGE:
            message = f"{message[:_MAX_MESSAGE]}..."
        yield SchemaViolation(error.json_path, message)
        return
    present = set(cast("dict[str, object]", error.instance))
    missing = sorted(known.keys() - present)
    for member in sorted(present - known.keys()):
        # For src_index, src_offset is suggested, not source_line, which has more common letters.
        same_start = [name for name in missing if name.split("_")[0] == member.split("_")[0]]
        cure = closest(member, same_start or missing, _MIN_SIMILARITY)
        cure = cure or f"the schema has {', '.join(sorted(known))}"
        yield SchemaViolation(error.json_path, f"unknown member {member!r:.60}", cure)
