"""Captured graphs: the program of one rank, with local tensors and collectives, and its document.

The graph is in single-assignment form. A collective names a process group, whose ranks are in the
graph if the capture recorded them (a `torch.export` archive does not). Documents
`collhub/captured-graph-1` are graphs as JSON; reading one executes no code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Any, NoReturn

from hub_core import parse_json_object, schema_violations
from hub_core.model import InputError, Location

ELEMENT_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
"""Bytes of one element by the name of its type."""

MAX_NODES = 1_000_000
MAX_DIMENSIONS = 64
MAX_SIZE = 1 << 48
"""Limits of a graph that is read: nodes, dimensions of a tensor, and elements of a dimension."""


class InputRole(StrEnum):
    """Role of an input: the sources of `torch.export` signatures, and states of optimizers."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    STATE = "state"
    CONSTANT = "constant"
    INPUT = "input"


class OutputRole(StrEnum):
    """Role of an output; MUTATION: the new value of the input named by `target`."""

    OUTPUT = "output"
    LOSS = "loss"
    GRADIENT = "gradient"
    MUTATION = "mutation"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Local tensor of one rank: name, element type and shape."""

    name: str
    element: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return self.num_elements * ELEMENT_BYTES[self.element]


@dataclass(frozen=True, slots=True)
class Reference:
    """Argument that is a value of the graph."""

    name: str


@dataclass(frozen=True, slots=True)
class ElementName:
    """Argument that is an element type, such as the result type of a cast."""

    name: str


ArgumentValue = (
    bool | int | float | str | Reference | ElementName | tuple["ArgumentValue", ...] | None
)
"""Argument of an operator; devices, memory formats and strides of results are left out."""


@dataclass(frozen=True, slots=True)
class GraphInput:
    """Input of a graph.

    `target`: name of the parameter or buffer in its module, "" for none. `placement`: `R`
    (replicated), `S(d)` (blocks along dimension d), `L` (ranks have different values), one of these
    per axis of a mesh, such as `(S(0), R)`, or "" if the capture does not determine it.
    """

    tensor: Tensor
    role: InputRole
    target: str = ""
    placement: str = ""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """Call of an operator, such as `aten.mm.default`.

    `arguments`: by the names of the operator's schema, in order; `keywords`: names of those that
    are passed by keyword. `results`: one per result, None for a result that is no tensor or unused.
    """

    name: str
    operator: str
    arguments: Mapping[str, ArgumentValue]
    results: tuple[Tensor | None, ...]
    keywords: frozenset[str] = frozenset()

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values among the arguments, in order, with repetitions."""
        return tuple(_find_references(tuple(self.arguments.values())))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Results that are tensors."""
        return tuple(result for result in self.results if result is not None)


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """Output of a graph: the value and its role.

    `target`: of a gradient the parameter; of a mutation the target (or, without one, the name) of
    the input.
    """

    value: str
    role: OutputRole
    target: str = ""


@dataclass(frozen=True)
class CapturedGraph:
    """Program of one rank as PyTorch captured it.

    `groups`: ranks of the process groups by name, as far as the capture recorded them. `mesh`:
    names of the axes of the device mesh, the slowest first, and `mesh_sizes` the ranks along them;
    empty for a single axis. `file`: for messages. Raises `InputError` for values that are undefined
    or defined twice, and for an axis without a size.
    """

    name: str
    inputs: tuple[GraphInput, ...]
    nodes: tuple[GraphNode, ...]
    outputs: tuple[GraphOutput, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    producer: str = ""
    file: str = ""
    mesh: tuple[str, ...] = ()
    mesh_sizes: tuple[int, ...] = ()
    tensors: Mapping[str, Tensor] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.mesh) != len(self.mesh_sizes) or len(set(self.mesh)) != len(self.mesh):
            message = f"the mesh has {len(self.mesh)} axes and {len(self.mesh_sizes)} sizes"
            cure = "state every axis once, and its ranks in mesh_sizes"
            raise InputError(message, location=Location(self.file or None), cure=cure, code="mesh")
        tensors: dict[str, Tensor] = {}
        for entry in self.inputs:
            self._define(tensors, entry.tensor)
        for node in self.nodes:
            for name in node.reads:
                if name not in tensors:
                    self.refuse(node, f"reads {name}, which no earlier node defines", "undefined")
            for tensor in node.tensors:
                self._define(tensors, tensor)
        for output in self.outputs:
            if output.value not in tensors:
                message = f"output {output.value} is not defined"
                raise InputError(message, location=Location(self.file or None), code="undefined")
        object.__setattr__(self, "tensors", tensors)

    def refuse(self, node: GraphNode, message: str, code: str, cure: str = "") -> NoReturn:
        """Raise `InputError` with the text `node NAME (OPERATOR) MESSAGE` for a node.

        `code`: rule of the error; `cure`: its remedy, "" for none. The location is the file of the
        graph, if it is known.
        """
        text = f"node {node.name} ({node.operator}) {message}"
        raise InputError(text, location=Location(self.file or None), code=code, cure=cure)

    def _define(self, tensors: dict[str, Tensor], tensor: Tensor) -> None:
        """Add a tensor to the dict by its name.

        Raises `InputError` if the name is in use (`name`), or (`size`) if the tensor has more than
        `MAX_DIMENSIONS` (64) dimensions, a negative size, or more than `MAX_SIZE` (2^48) elements
        or entries in one dimension.
        """
        location = Location(self.file or None)
        if tensor.name in tensors:
            message = f"value {tensor.name} is defined twice"
            raise InputError(message, location=location, code="name")
        is_valid = len(tensor.shape) <= MAX_DIMENSIONS and all(
            0 <= size <= MAX_SIZE for size in tensor.shape
        )
        if not is_valid or tensor.num_elements > MAX_SIZE:
            message = f"value {tensor.name} has more than {MAX_SIZE} elements or a negative size"
            raise InputError(message, location=location, code="size")
        tensors[tensor.name] = tensor


def _find_references(value: ArgumentValue) -> Iterator[str]:
    """Yield the names of all values in an argument, in order."""
    if isinstance(value, Reference):
        yield value.name
    elif isinstance(value, tuple):
        for entry in value:
            yield from _find_references(entry)


SCHEMA = "collhub/captured-graph-1"
_SCHEMA_FILE = "captured-graph-1.json"


def graph_to_json(graph: CapturedGraph) -> str:
    """Format a graph as a JSON document in ASCII, with one line per input, node and output.

    `graph_from_json` reads it. It ends with a line break. The fields are, in this order: `schema`
    (`SCHEMA`), `name`, `producer`, `groups`, `mesh`, `mesh_sizes`, `inputs`, `nodes`, `outputs`.
    `mesh` and `mesh_sizes` are omitted if they are empty; other empty lists are `[]`. Entries are
    in the order of the graph. Inputs and results of nodes have the fields of their tensor; a
    missing result is null. Keywords of a node are sorted. Floats that are infinite or nan are
    written as `{"float": "inf"}`. The file of the graph is omitted.
    """
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
    mesh = {"mesh": graph.mesh, "mesh_sizes": graph.mesh_sizes}
    parts = [
        f'  "schema": {json.dumps(SCHEMA)}',
        f'  "name": {json.dumps(graph.name)}',
        f'  "producer": {json.dumps(graph.producer)}',
        f'  "groups": {json.dumps(groups)}',
        *(f'  "{name}": {json.dumps(value)}' for name, value in mesh.items() if value),
    ]
    for name, rows in (("inputs", inputs), ("nodes", nodes), ("outputs", outputs)):
        lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        parts.append(f'  "{name}": [\n{lines}\n  ]' if rows else f'  "{name}": []')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def graph_from_json(content: bytes, file: str) -> CapturedGraph:
    """Read a captured graph from the bytes of a JSON document.

    `file`: name for messages, also stored in the graph. Missing optional members (`target`,
    `placement`, `keywords`, `producer`, `mesh`, `mesh_sizes`) are empty. Raises `InputError` for
    content that is no JSON object in UTF-8 (a syntax error has its line), then for up to 20
    violations of the schema at once, with their `$.path` (`schema`). After that only the first
    defect is raised, in this order:

    - an argument of unknown form (`schema`)
    - a mesh with other numbers of axes and sizes, or with a repeated axis (`mesh`)
    - in the order of inputs, then nodes: a value that a node reads and that is no input or result
      of an earlier node (`undefined`), a value defined twice (`name`), a tensor of more than 64
      dimensions or 2^48 elements, or with a negative size (`size`)
    - an output that is not defined (`undefined`)
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
        document["name"],
        inputs,
        nodes,
        outputs,
        groups,
        document.get("producer", ""),
        file,
        tuple(document.get("mesh", ())),
        tuple(document.get("mesh_sizes", ())),
    )


def _tensor_fields(tensor: Tensor) -> dict[str, object]:
    return {"name": tensor.name, "element": tensor.element, "shape": list(tensor.shape)}


def _read_tensor(fields: Mapping[str, Any]) -> Tensor:
    """Read a tensor whose fields conform to the schema."""
    return Tensor(fields["name"], fields["element"], tuple(fields["shape"]))


def _value_fields(value: ArgumentValue) -> object:
    """Convert an argument to a JSON value.

    References become `{"value": NAME}`, element types `{"element": NAME}`, infinite numbers and
    nan `{"float": TEXT}` with the text `inf`, `-inf` or `nan`. Tuples become lists, with
    converted entries. Other values are unchanged.
    """
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
    """Convert a JSON value of the document to an argument; the inverse of `_value_fields`.

    A list becomes a tuple of arguments. An object with a single member is a reference to a value of
    the graph (`{"value": NAME}`), an element type of `ELEMENT_BYTES` (`{"element": TYPE}`), or a
    float (`{"float": TEXT}` with the text "inf", "-inf" or "nan"). Other JSON values are returned
    as they are. Every other object raises `InputError` (`schema`).
    """
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
