"""Tensors that a node of a Chakra trace states: shapes and types of its inputs and outputs.

Chakra's converter of PyTorch traces writes them as texts of Python lists, one entry an argument of
the operator (`IOInfo` of `et_def.proto`): `[[16, 8], []]` beside `['Tensor(float)', 'Scalar']`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from collhub_job_traces.records import fields

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
    values, shapes, types = (_listed(texts.get(one, b"")) for one in (_VALUES, _SHAPES, _TYPES))
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


def _listed(text: bytes) -> list[Any]:
    """A list in the notation of Python or JSON; empty for any other text."""
    if len(text) > _LONGEST:
        return []
    try:
        found = ast.literal_eval(text.decode("utf-8", "replace"))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return list(found) if isinstance(found, list | tuple) else []
