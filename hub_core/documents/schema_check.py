"""Hold a parsed JSON document against a shipped schema, and name the path of what violates it."""

from __future__ import annotations

import importlib.resources
import json
from typing import TYPE_CHECKING

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
_LONGEST_MESSAGE = 200


def first_violation(document: object, schema_file: str) -> tuple[str, str] | None:
    """`($.path, message)` of the violation nearest to the root, or None. 1.0 is no integer here."""
    # Imported here: a quarter of the time that reading a small file takes.
    import jsonschema

    resource = importlib.resources.files("hub_core.schemas").joinpath(schema_file)
    draft = jsonschema.Draft202012Validator
    types = draft.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    strict = jsonschema.validators.extend(draft, type_checker=types)  # type: ignore[no-untyped-call]
    validator = strict(json.loads(resource.read_bytes()))
    nearest = min(validator.iter_errors(document), key=_depth_and_path, default=None)
    return nearest and (nearest.json_path, _message(nearest))


def _depth_and_path(error: ValidationError) -> tuple[int, list[str]]:
    return len(error.path), list(map(str, error.path))


def _message(error: ValidationError) -> str:
    """The message of a violation, without the offending value where that may be long."""
    if error.validator == "type":
        wanted = error.validator_value
        names = " or ".join(map(str, wanted)) if isinstance(wanted, list) else wanted
        return f"expected {names}, got {TYPE_NAMES[type(error.instance)]}"
    if len(error.message) <= _LONGEST_MESSAGE:
        return error.message
    return f"{error.message[:_LONGEST_MESSAGE]}..."
