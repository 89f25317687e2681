"""Attributes of nodes for which the model has no column: texts in `Workload.extras`.

An extra is the row of tokens of a record (see `records`). One that begins with `+` stands for the
record that the writer makes of a node, with more attributes behind it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collhub_job_traces.records import ATTRIBUTE, attribute, attribute_field, fields
from hub_core.chakra import Kind

MORE = "+"
"""First token of an extra that adds to a record of the writer's own making."""


def attributes_extra(attributes: Mapping[str, str]) -> str:
    """The extra by which a node carries these texts, as attributes of kind STRING.

    Documents of jobs keep it, traces write the attributes, and their reader gives them back.
    """
    written = [
        attribute_field(name, Kind.STRING, text.encode()) for name, text in attributes.items()
    ]
    return " ".join([MORE, *(f"={field.hex()}" for field in written)])


def attributes_of_extra(extra: str) -> dict[str, str]:
    """The texts among the attributes that an extra carries, by name.

    Empty for an extra of another making.
    """
    found = {}
    for token in extra.split():
        for raw in _raw(token):
            read = attribute(raw)
            if read.kind == Kind.STRING:
                found[read.name] = read.text
    return found


def _raw(token: str) -> Iterator[bytes]:
    """Encoded attributes in a token that holds bytes."""
    if token[0] not in "=!":
        return
    try:
        record = list(fields(bytes.fromhex(token[1:])))
    except ValueError:
        # Other formats keep other things in their extras.
        return
    for number, value, _ in record:
        if number == ATTRIBUTE and isinstance(value, bytes):
            yield value


INPUTS, OUTPUTS = 8, 9
_VALUES, _SHAPES, _TYPES = 1, 2, 3
# Texts beyond this length are no lists of shapes.
_LONGEST = 1 << 16
_ELEMENTS = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "int": "int32",
    "long int": "int64",
    "bool": "bool",
}


@dataclass(frozen=True, slots=True)
class StatedInput:
    """An argument of an operator: a tensor by its shape, or a number.

    `element`: the type as numpy names it, empty where the trace states none that it has.
    """

    shape: tuple[int, ...] | None
    element: str = ""
    number: float | None = None


def tensors_of_extra(extra: str, number: int = INPUTS) -> tuple[StatedInput, ...]:
    """Tensors and numbers that a node states as its inputs, or as its `OUTPUTS`; else nothing."""
    for token in extra.split():
        if token[0] not in "=!":
            continue
        try:
            record = list(fields(bytes.fromhex(token[1:])))
        except ValueError:
            continue
        for field, body, _ in record:
            if field == number and isinstance(body, bytes):
                return tuple(_arguments(body))
    return ()


def _arguments(body: bytes) -> list[StatedInput]:
    """The entries of an `IOInfo`; those that are neither tensor nor number are left out."""
    texts = {field: value for field, value, _ in fields(body) if isinstance(value, bytes)}
    values, shapes, types = (_parse_list(texts.get(one, b"")) for one in (_VALUES, _SHAPES, _TYPES))
    found = []
    for place, kind in enumerate(types):
        if str(kind).startswith("Tensor(") and place < len(shapes):
            shape = shapes[place]
            if all(isinstance(size, int) for size in shape):
                element = _ELEMENTS.get(str(kind)[len("Tensor(") : -1], "")
                found.append(StatedInput(tuple(shape), element))
        elif place < len(values) and isinstance(values[place], int | float):
            found.append(StatedInput(None, number=float(values[place])))
    return found


def _parse_list(text: bytes) -> list[Any]:
    """A list in the notation of Python or JSON; empty for any other text."""
    if len(text) > _LONGEST:
        return []
    try:
        found = ast.literal_eval(text.decode("utf-8", "replace"))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return list(found) if isinstance(found, list | tuple) else []
