"""Attributes and tensors of nodes without a column in the model: texts in `Workload.extras`.

An extra is a sequence of tokens of a record (see `records`). An extra that begins with `+` adds
attributes to the record that the writer creates for a node.

Chakra's converter of PyTorch traces writes tensors as texts of Python lists, one entry per argument
of the operator (`IOInfo` of `et_def.proto`): `[[16, 8], []]` and `['Tensor(float)', 'Scalar']`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collhub_job_traces.records import ATTRIBUTE, attribute, attribute_field, fields
from hub_core.chakra import Kind

MORE = "+"
"""First token of an extra that adds attributes to a record created by the writer."""


def attributes_extra(attributes: Mapping[str, str]) -> str:
    """Create the extra of a node with these texts as attributes of kind STRING.

    Job documents preserve the extra; the writer of traces writes the attributes, and the reader
    restores the extra.
    """
    written = [
        attribute_field(name, Kind.STRING, text.encode()) for name, text in attributes.items()
    ]
    return " ".join([MORE, *(f"={field.hex()}" for field in written)])


def attributes_of_extra(extra: str) -> dict[str, str]:
    """Return the text attributes in an extra by name.

    Empty for extras of other formats.
    """
    texts = {}
    for token in extra.split():
        for raw in _raw(token):
            read = attribute(raw)
            if read.kind == Kind.STRING:
                texts[read.name] = read.text
    return texts


def _raw(token: str) -> Iterator[bytes]:
    """Yield the encoded attributes in a token with bytes."""
    if token[0] not in "=!":
        return
    try:
        record = list(fields(bytes.fromhex(token[1:])))
    except ValueError:
        # Extras of other formats have other contents.
        return
    for number, value, _ in record:
        if number == ATTRIBUTE and isinstance(value, bytes):
            yield value


INPUTS, OUTPUTS = 8, 9
_VALUES, _SHAPES, _TYPES = 1, 2, 3
# Maximum length of a list of shapes in characters.
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
    """Argument of an operator: shape of a tensor, or a number.

    `element`: numpy name of the element type, empty if unknown to numpy.
    """

    shape: tuple[int, ...] | None
    element: str = ""
    number: float | None = None


def tensors_of_extra(extra: str, number: int = INPUTS) -> tuple[StatedInput, ...]:
    """Parse the tensors and numbers among the inputs (or `OUTPUTS`) recorded in an extra."""
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
    """Parse the entries of an `IOInfo` that are tensors or numbers."""
    texts = {field: value for field, value, _ in fields(body) if isinstance(value, bytes)}
    values, shapes, types = (
        _parse_list(texts.get(number, b"")) for number in (_VALUES, _SHAPES, _TYPES)
    )
    arguments = []
    for position, kind in enumerate(types):
        if str(kind).startswith("Tensor(") and position < len(shapes):
            shape = shapes[position]
            if all(isinstance(size, int) for size in shape):
                element = _ELEMENTS.get(str(kind)[len("Tensor(") : -1], "")
                arguments.append(StatedInput(tuple(shape), element))
        elif position < len(values) and isinstance(values[position], int | float):
            arguments.append(StatedInput(None, number=float(values[position])))
    return arguments


def _parse_list(text: bytes) -> list[Any]:
    """Parse a list in Python or JSON notation; empty for any other text."""
    if len(text) > _LONGEST:
        return []
    try:
        value = ast.literal_eval(text.decode("utf-8", "replace"))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return list(value) if isinstance(value, list | tuple) else []
