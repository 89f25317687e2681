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

    # The package may be installed as a zip archive: a resource, not a path.
    resource = importlib.resources.files("hub_core.schemas").joinpath(schema_file)
    draft = jsonschema.Draft202012Validator
    # JSON Schema counts 1.0 as an integer; numpy and Python do not.
    types = draft.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    extend = jsonschema.validators.extend
    strict = extend(draft, type_checker=types)  # type: ignore[no-untyped-call]
    schema = json.loads(resource.read_bytes())
    errors = strict(schema).iter_errors(document)
    nearest = min(errors, key=_depth_and_path, default=None)
    return None if nearest is None else (nearest.json_path, _message(nearest))


def _depth_and_path(error: ValidationError) -> tuple[int, list[str]]:
    # As texts: a path mixes names and numbers, which have no order.
    path = [str(part) for part in error.path]
    return len(path), path


def _message(error: ValidationError) -> str:
    """The message of a violation, without the offending value where that may be long."""
    if error.validator == "type":
        wanted = error.validator_value
        names = " or ".join(map(str, wanted)) if isinstance(wanted, list) else wanted
        # The type is named, not the value: that may be a whole document.
        found = TYPE_NAMES[type(error.instance)]
        return f"expected {names}, got {found}"
    is_long = len(error.message) > _LONGEST_MESSAGE
    return f"{error.message[:_LONGEST_MESSAGE]}..." if is_long else error.message
