"""The document of a program, `collhub/tensor-program-1`: one operation a line, byte-stable.

Source: schemas/tensor-program-1.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from collhub_coconet.program.operations import ATTRIBUTES, Argument, Kind, Operation, Reduction
from collhub_coconet.program.program import Chain, Program, Stage
from collhub_coconet.program.tensors import ElementType, Layout, Placement, TensorType
from hub_core import parse_json_object, schema_violations
from hub_core.model import InputError, Location

SCHEMA = "collhub/tensor-program-1"
_SCHEMA_FILE = "tensor-program-1.json"

Fields = Mapping[str, Any]
"""A part of a document that the schema has approved."""


def program_to_json(program: Program, more: Fields | None = None) -> str:
    """The document, ASCII; equal programs give equal texts.

    `more`: what else it states, of `bound`, `num_ranks` and `transformations`.
    """
    parts = [f'  "schema": {json.dumps(SCHEMA)}', f'  "name": {json.dumps(program.name)}']
    sizes = {name: list(bounds) for name, bounds in program.sizes.items()}
    parts.append(f'  "sizes": {json.dumps(sizes)}')
    parts.append(_lines("arguments", map(argument_fields, program.arguments)))
    parts.append(_lines("operations", map(operation_fields, program.operations)))
    parts.append(f'  "outputs": {json.dumps(program.outputs)}')
    for name, rows in stage_fields(program).items():
        parts.append(_lines(name, rows))
    parts += [f'  "{name}": {json.dumps(value)}' for name, value in (more or {}).items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def program_from_json(content: str | bytes, file: str = "program") -> Program:
    """The program of a document.

    Raises `InputError`: the line where it is no JSON, a key that stands twice, the `$.path` where
    it violates the schema, and for a program that is ill typed the operation, the condition and the
    cure.
    """
    document = parse_json_object(content.encode() if isinstance(content, str) else content, file)
    return program_of_fields(document, file)


def program_of_fields(document: Fields, file: str) -> Program:
    """The program of a parsed document. Raises `InputError` as `program_from_json`."""
    # The schema first, so that what follows can take every field for what it is.
    violations = schema_violations(document, _SCHEMA_FILE)
    if violations:
        place = Location(file)
        raise InputError([one.finding(place, "schema") for one in violations])
    return _program(document)


def stage_fields(program: Program) -> dict[str, list[Fields]]:
    """Stages and chains as the document states them."""
    # Lists of one object each, in their order.
    stages: list[Fields] = []
    for stage in program.stages:
        members = {"members": stage.members}
        stages.append({"name": stage.name, "family": stage.family, **members})
    chains: list[Fields] = []
    for chain in program.chains:
        chains.append({"members": chain.members, "dimensions": chain.dimensions})
    return {"stages": stages, "chains": chains}


def _program(document: Fields) -> Program:
    sizes = {name: (low, high) for name, (low, high) in document["sizes"].items()}
    stages = (
        Stage(one["name"], one["family"], tuple(one["members"]))
        for one in document.get("stages", ())
    )
    chains = (
        Chain(tuple(one["members"]), tuple(one["dimensions"])) for one in document.get("chains", ())
    )
    return Program(
        document["name"],
        sizes,
        tuple(map(_argument, document["arguments"])),
        tuple(map(_operation, document["operations"])),
        tuple(document["outputs"]),
        tuple(stages),
        tuple(chains),
    )


def type_fields(kind: TensorType) -> dict[str, object]:
    """A tensor type: element type, shape, layout, sliced dimension and group."""
    fields: dict[str, object] = {"element": kind.element, "shape": kind.shape}
    fields["layout"] = kind.layout.placement
    # What is not stated is what most tensors have.
    if kind.layout.is_sliced:
        fields["dimension"] = kind.layout.dimension
    if kind.group:
        fields["group"] = kind.group
    return fields


def argument_fields(argument: Argument) -> dict[str, object]:
    """An argument as a row of the document."""
    fields: dict[str, object] = {"name": argument.name, **type_fields(argument.type)}
    # Others have no such members: equal programs give equal bytes.
    if argument.is_state:
        fields |= {"state": True, "whole_after": argument.whole_after}
    return fields


def _argument(fields: Fields) -> Argument:
    layout = Layout(Placement(fields["layout"]), fields.get("dimension", -1))
    element = ElementType(fields["element"])
    kind = TensorType(element, tuple(fields["shape"]), layout, fields.get("group", 0))
    is_state = fields.get("state", False)
    return Argument(fields["name"], kind, is_state, fields.get("whole_after", False))


def operation_fields(operation: Operation) -> dict[str, object]:
    """An operation as a row of the document."""
    fields: dict[str, object] = {"name": operation.name, "kind": operation.kind}
    fields["operands"] = operation.operands
    stated = ((name, getattr(operation, name)) for name in ATTRIBUTES)
    return fields | {name: value for name, value in stated if value is not None}


def _operation(fields: Fields) -> Operation:
    attributes = {name: fields[name] for name in ATTRIBUTES if name in fields}
    if "reduction" in attributes:
        attributes["reduction"] = Reduction(attributes["reduction"])
    if "element" in attributes:
        attributes["element"] = ElementType(attributes["element"])
    return Operation(fields["name"], Kind(fields["kind"]), tuple(fields["operands"]), **attributes)


def _lines(name: str, rows: Iterable[Mapping[str, object]]) -> str:
    """A list with one row a line."""
    written = [f"    {json.dumps(row)}" for row in rows]
    if not written:
        return f'  "{name}": []'
    return f'  "{name}": [\n' + ",\n".join(written) + "\n  ]"
