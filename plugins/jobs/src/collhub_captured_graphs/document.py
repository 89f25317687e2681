"""Documents `collhub/captured-graph-1`: captured graphs as JSON. Reading one executes no code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from collhub_captured_graphs.graph import (
    ELEMENT_BYTES,
    ArgumentValue,
    CapturedGraph,
    ElementName,
    GraphInput,
    GraphNode,
    GraphOutput,
    InputRole,
    OutputRole,
    Reference,
    Tensor,
)
from hub_core import parse_json_object, schema_violations
from hub_core.model import InputError, Location

SCHEMA = "collhub/captured-graph-1"
_SCHEMA_FILE = "captured-graph-1.json"


def graph_to_json(graph: CapturedGraph) -> str:
    """Format a graph as a document in ASCII, with one line per input, node and output."""
    inputs: list[dict[str, object]] = [
        {
            **_tensor_fields(entry.tensor),
            "role": entry.role,
            "target": entry.target,
            "placement": entry.placement,
        }
        for entry in graph.inputs
    ]
    nodes: list[dict[str, object]] = [
        {
            "name": node.name,
            "operator": node.operator,
            "arguments": {name: _value_fields(value) for name, value in node.arguments.items()},
            "keywords": sorted(node.keywords),
            "results": [result and _tensor_fields(result) for result in node.results],
        }
        for node in graph.nodes
    ]
    outputs: list[dict[str, object]] = [
        {"value": output.value, "role": output.role, "target": output.target}
        for output in graph.outputs
    ]
    groups = {name: list(ranks) for name, ranks in graph.groups.items()}
    parts = [
        f'  "schema": {json.dumps(SCHEMA)}',
        f'  "name": {json.dumps(graph.name)}',
        f'  "producer": {json.dumps(graph.producer)}',
        f'  "groups": {json.dumps(groups)}',
        *(
            _format_rows(name, rows)
            for name, rows in (("inputs", inputs), ("nodes", nodes), ("outputs", outputs))
        ),
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def graph_from_json(content: bytes, file: str) -> CapturedGraph:
    """Read the graph of a document.

    Raises `InputError` with the line of a syntax error, the `$.path` of a violation of the schema,
    or the node that reads an undefined value.
    """
    document = parse_json_object(content, file)
    violations = schema_violations(document, _SCHEMA_FILE)
    if violations:
        raise InputError([violation.finding(Location(file), "schema") for violation in violations])
    inputs = tuple(
        GraphInput(
            _read_tensor(fields),
            InputRole(fields["role"]),
            fields.get("target", ""),
            fields.get("placement", ""),
        )
        for fields in document["inputs"]
    )
    nodes = tuple(
        GraphNode(
            fields["name"],
            fields["operator"],
            {name: _read_value(value, file) for name, value in fields["arguments"].items()},
            tuple(result and _read_tensor(result) for result in fields["results"]),
            frozenset(fields.get("keywords", ())),
        )
        for fields in document["nodes"]
    )
    outputs = tuple(
        GraphOutput(fields["value"], OutputRole(fields["role"]), fields.get("target", ""))
        for fields in document["outputs"]
    )
    groups = {name: tuple(ranks) for name, ranks in document["groups"].items()}
    return CapturedGraph(
        document["name"], inputs, nodes, outputs, groups, document.get("producer", ""), file
    )


def _tensor_fields(tensor: Tensor) -> dict[str, object]:
    return {"name": tensor.name, "element": tensor.element, "shape": list(tensor.shape)}


def _read_tensor(fields: Mapping[str, Any]) -> Tensor:
    """Read a tensor whose fields conform to the schema."""
    return Tensor(fields["name"], fields["element"], tuple(fields["shape"]))


def _value_fields(value: ArgumentValue) -> object:
    """Convert an argument to JSON; values, element types and infinite numbers are objects."""
    if isinstance(value, Reference):
        return {"value": value.name}
    if isinstance(value, ElementName):
        return {"element": value.name}
    if isinstance(value, tuple):
        return [_value_fields(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _read_value(value: Any, file: str) -> ArgumentValue:
    """Read an argument. Raises `InputError` for an object that is none of the three forms."""
    if isinstance(value, list):
        return tuple(_read_value(entry, file) for entry in value)
    if not isinstance(value, dict):
        result: bool | int | float | str | None = value
        return result
    match value:
        case {"value": str(name)} if len(value) == 1:
            return Reference(name)
        case {"element": str(name)} if len(value) == 1 and name in ELEMENT_BYTES:
            return ElementName(name)
        case {"float": "inf" | "-inf" | "nan" as text} if len(value) == 1:
            return float(text)
    message = f"argument {json.dumps(value):.80} is none"
    cure = 'write {"value": NAME}, {"element": TYPE} or {"float": "inf"}'
    raise InputError(message, location=Location(file), cure=cure, code="schema")


def _format_rows(name: str, rows: list[dict[str, object]]) -> str:
    """Format a named list of objects as JSON with one object per line."""
    lines = [f"    {json.dumps(row)}" for row in rows]
    return f'  "{name}": [\n' + ",\n".join(lines) + "\n  ]" if lines else f'  "{name}": []'
