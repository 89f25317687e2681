"""Hold a parsed JSON document against one of the shipped schemas; the first violation is named by its path."""

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

    schema = json.loads(
        importlib.resources.files("hub_core.schemas").joinpath(schema_file).read_bytes()
    )
    types = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: type(value) is int
    )
    validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
    errors = sorted(
        validator(schema).iter_errors(document),
        key=lambda error: (len(error.path), list(map(str, error.path))),
    )
    return (errors[0].json_path, _message(errors[0])) if errors else None


def _message(error: ValidationError) -> str:
    """The message of a violation, without the offending value where that may be long."""
    if error.validator == "type":
        wanted = error.validator_value
        names = (
            wanted
            if isinstance(wanted, str)
            else " or ".join(map(str, wanted if isinstance(wanted, list) else []))
        )
        return f"expected {names}, got {TYPE_NAMES[type(error.instance)]}"
    return (
        error.message
        if len(error.message) <= _LONGEST_MESSAGE
        else f"{error.message[:_LONGEST_MESSAGE]}..."
    )
