"""Check a parsed JSON document against a shipped schema; each violation has a path and a cure."""

from __future__ import annotations

import difflib
import importlib.resources
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from hub_core.model import Diagnostic, Location

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

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
    """Find the violations of a shipped schema, nearest to the root first, at most 20.

    Every missing or unknown member is one violation; the cure of an unknown member is the most
    similar missing member of the schema. 1.0 is not an integer.
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
    errors = itertools.islice(strict(schema).iter_errors(document), _MAX_ERRORS)
    violations = itertools.chain.from_iterable(
        _convert_error(error) for error in sorted(errors, key=_get_sort_key)
    )
    return list(itertools.islice(violations, _MAX_VIOLATIONS))


def _get_sort_key(error: ValidationError) -> tuple[int, list[str]]:
    # As texts, because a path contains names and numbers, which cannot be compared.
    path = [str(part) for part in error.path]
    return len(path), path


def _convert_error(error: ValidationError) -> Iterator[SchemaViolation]:
    """Yield the violations of one error: one for each unknown member."""
    known = error.schema.get("properties") if isinstance(error.schema, dict) else None
    if error.validator != "additionalProperties" or not known or error.validator_value is not False:
        yield SchemaViolation(error.json_path, _format_message(error))
        return
    present = set(cast("dict[str, object]", error.instance))
    missing = sorted(known.keys() - present)
    for member in sorted(present - known.keys()):
        # For src_index, src_offset is suggested, not source_line, which has more common letters.
        same_start = [name for name in missing if name.split("_")[0] == member.split("_")[0]]
        near = difflib.get_close_matches(member, same_start or missing, 1, _MIN_SIMILARITY)
        cure = (
            f"did you mean {near[0]!r}?" if near else f"the schema has {', '.join(sorted(known))}"
        )
        yield SchemaViolation(error.json_path, f"unknown member {member!r:.60}", cure)


def _format_message(error: ValidationError) -> str:
    """Return the message of a violation, without the value if that may be long."""
    if error.validator == "type":
        types = error.validator_value
        names = " or ".join(map(str, types)) if isinstance(types, list) else types
        # The type is reported instead of the value, which may be a large document.
        actual = TYPE_NAMES[type(error.instance)]
        return f"expected {names}, got {actual}"
    is_long = len(error.message) > _MAX_MESSAGE
    return f"{error.message[:_MAX_MESSAGE]}..." if is_long else error.message
