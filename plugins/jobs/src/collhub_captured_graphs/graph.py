"""Records of captured graphs: the program of one rank, with local tensors and collectives.

The graph is in single-assignment form. A collective names a process group, whose ranks are in the
graph if the capture recorded them (a `torch.export` archive does not).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import NoReturn

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
    (replicated), `S(0)` (blocks along dimension 0), `L` (ranks have different values), or "" if the
    capture does not determine it.
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

    `groups`: ranks of the process groups by name, as far as the capture recorded them. `file`: for
    messages. Raises `InputError` for values that are undefined or defined twice.
    """

    name: str
    inputs: tuple[GraphInput, ...]
    nodes: tuple[GraphNode, ...]
    outputs: tuple[GraphOutput, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    producer: str = ""
    file: str = ""
    tensors: Mapping[str, Tensor] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
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
        """Raise the `InputError` of a node: its name, its operator, and the message."""
        text = f"node {node.name} ({node.operator}) {message}"
        raise InputError(text, location=Location(self.file or None), code=code, cure=cure)

    def _define(self, tensors: dict[str, Tensor], tensor: Tensor) -> None:
        """Add a tensor. Raises `InputError` if its name is in use or its shape is too large."""
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
