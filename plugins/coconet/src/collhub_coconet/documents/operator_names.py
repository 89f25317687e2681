"""Fill in what nodes do not state, from a table of operator names; everything that is, is told.

The table says what operators are. Shapes and element types are those of the tensors that nodes
state, as traces of PyTorch do; else shapes come from the bytes of collectives, as vectors, and the
user states the element type. What neither tells is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from collhub_job_traces import INPUTS, OUTPUTS, StatedInput, tensors_of_extra

from collhub_coconet.documents.from_workload import bound_program, refuse, stated, statement
from collhub_coconet.documents.json_document import BoundProgram, type_fields
from collhub_coconet.program.operations import TRAITS, Kind
from collhub_coconet.program.tensors import (
    LOCAL,
    REPLICATED,
    ElementType,
    Layout,
    TensorType,
    sliced,
)
from hub_core.model import JobCollective, NodeKind, UsageError, Workload

OPERATORS = {
    "add": Kind.ADD,
    "sub": Kind.SUBTRACT,
    "mul": Kind.MULTIPLY,
    "div": Kind.DIVIDE,
    "pow": Kind.POWER,
    "sqrt": Kind.SQRT,
    "tanh": Kind.TANH,
    "lt": Kind.LESS,
    "gt": Kind.GREATER,
    "eq": Kind.EQUAL,
    "norm": Kind.NORM,
    "linalg_vector_norm": Kind.NORM,
    "sum": Kind.SUM,
    "max": Kind.MAX,
    "mm": Kind.MATMUL,
    "matmul": Kind.MATMUL,
    "bmm": Kind.BATCH_MATMUL,
}
"""Operators of PyTorch by name, without `aten::` in front and `_` (in place) behind."""

_COLLECTIVES = {
    JobCollective.ALL_REDUCE: (Kind.ALL_REDUCE, LOCAL),
    JobCollective.REDUCE_SCATTER: (Kind.REDUCE_SCATTER, LOCAL),
    JobCollective.ALL_GATHER: (Kind.ALL_GATHER, sliced(0)),
}
_ATTRIBUTES: dict[str, object] = {"reduction": "sum", "dimension": 0}
# Numbers behind the operands of an operator, which the operations here have as well.
_BEHIND = {Kind.ADD: 1.0, Kind.SUBTRACT: 1.0, Kind.NORM: 2.0}
Fields = dict[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Inference:
    """A program, and what was filled in to get it: one line a node."""

    bound: BoundProgram
    filled_in: tuple[str, ...]


def with_inferred(workload: Workload, element: str | None) -> Inference:
    """The program of a workload in which all ranks do the same, names of operators understood.

    What a node states itself stays. Raises `InputError` for a node whose operator is not in the
    table, or whose shape nothing tells, `UsageError` where no element type is stated.
    """
    _check_alike(workload)
    filler = _Filler(workload, element)
    first, stop = workload.nodes.rank_indptr[:2].tolist()
    for row in _in_order(workload, first, stop):
        filler.add(row)
    return Inference(bound_program(workload, filler.found), tuple(filler.told))


def _check_alike(workload: Workload) -> None:
    """Refuse ranks that do something else than rank 0: one program is run by all."""
    nodes = workload.nodes
    # Equal columns mean equal programs, since names and sizes are among them.
    sizes = np.diff(nodes.rank_indptr)
    count = int(sizes[0]) if len(sizes) else 0
    for rank in range(workload.num_ranks):
        begin = int(nodes.rank_indptr[rank])
        same = int(sizes[rank]) == count and all(
            np.array_equal(column[:count], column[begin : begin + count])
            for column in (nodes.kind, nodes.name, nodes.collective, nodes.bytes)
        )
        if not same:
            row = min(begin, len(nodes) - 1)
            message = f"is of rank {rank}, which does not do the same as rank 0"
            raise refuse(workload, row, message, "let the nodes state their program")


def _in_order(workload: Workload, first: int, stop: int) -> list[int]:
    """Rows of one rank, each behind those that it waits for."""
    order: list[int] = []
    done: set[int] = set()
    waiting = list(range(first, stop))
    # A round a level; traces of one rank are short enough.
    while waiting:
        ready = [row for row in waiting if done.issuperset(_parents(workload, row))]
        if not ready:
            raise refuse(workload, waiting[0], "waits for itself", "see collhub verify")
        order += ready
        done.update(ready)
        waiting = [row for row in waiting if row not in done]
    return order


def _parents(workload: Workload, row: int) -> list[int]:
    """Rows whose data a node reads."""
    nodes = workload.nodes
    begin, end = nodes.data_indptr[row : row + 2].tolist()
    parents: list[int] = nodes.data_indices[begin:end].tolist()
    return parents


@dataclass(slots=True)
class _Filler:
    """Statements of the rows of rank 0.

    `value`: name and shape of what each row makes, None for a shape that nothing tells. `readers`:
    rows that read what a row makes.
    """

    workload: Workload
    element: str | None
    found: dict[int, Fields] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    value: dict[int, tuple[str, Shape | None]] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, stop = self.workload.nodes.rank_indptr[:2].tolist()
        for row in range(first, stop):
            for parent in _parents(self.workload, row):
                self.readers.setdefault(parent, []).append(row)

    def add(self, row: int) -> None:
        """Take or make the statement of a row."""
        # The table adds to what is stated, and replaces nothing.
        text = stated(self.workload, row)
        if text:
            self.found[row] = statement(self.workload, row, text)
            operations = self.found[row].get("operations", [])
            if operations:
                self.value[row] = operations[-1]["name"], None
            return
        kind, layout = self._kind(row)
        shape = self._shape(row, kind)
        operands, arguments = self._operands(row, kind, layout, shape)
        name = f"n{int(self.workload.nodes.identity[row])}"
        operation: Fields = {"name": name, "kind": kind, "operands": operands}
        operation |= {key: _ATTRIBUTES[key] for key in TRAITS[kind].attributes}
        self.found[row] = {"operations": [operation], "arguments": arguments}
        self.value[row] = name, shape
        given = f", with {', '.join(one['name'] for one in arguments)}" if arguments else ""
        self.told.append(
            f"filled in: node {name[1:]} is {kind}({', '.join(map(str, operands))}){given}"
        )

    def _kind(self, row: int) -> tuple[Kind, Layout]:
        """The operation of a node, and the layout of an operand that no other node makes."""
        nodes = self.workload.nodes
        # Collectives say themselves what they are.
        if nodes.kind[row] == NodeKind.COLLECTIVE:
            known = _COLLECTIVES.get(JobCollective(int(nodes.collective[row])))
            if known is None:
                raise refuse(self.workload, row, "is a collective that the table does not have")
            return known
        name = self.workload.names[nodes.name[row]] if nodes.name[row] >= 0 else ""
        plain = name.rpartition("::")[2].rstrip("_")
        if nodes.kind[row] != NodeKind.COMPUTE or plain not in OPERATORS:
            known_names = ", ".join(sorted(OPERATORS))
            message = "lacks its operation, and its name is not in the table of operators"
            raise refuse(self.workload, row, message, f"the table has {known_names}")
        return OPERATORS[plain], REPLICATED

    def _shape(self, row: int, kind: Kind) -> Shape | None:
        """The shape of the value of a node; scalars have (), None is unknown."""
        if kind in (Kind.NORM, Kind.SUM, Kind.MAX):
            return ()
        if self.workload.nodes.kind[row] == NodeKind.COLLECTIVE:
            return self._exchanged(row, kind)
        stated_shapes = [one.shape for one in self._tensors(row, OUTPUTS)]
        if stated_shapes:
            return stated_shapes[0]
        if kind in (Kind.MATMUL, Kind.BATCH_MATMUL):
            shapes = [one.shape or () for one in self._tensors(row)][:2]
            if len(shapes) < 2 or not all(shapes):
                raise refuse(self.workload, row, "lacks the shapes of its operands")
            return (*shapes[0][:-1], shapes[1][-1])
        known = [self.value[one][1] for one in _parents(self.workload, row)]
        known += [one.shape for one in self._tensors(row)]
        # Of pointwise operations the largest operand has the shape of the result.
        return max((one for one in known if one is not None), key=prod, default=None)

    def _exchanged(self, row: int, kind: Kind) -> Shape:
        """The shape of what a collective gives: as stated, as its readers state it, or a vector."""
        element = self._element(row)
        if element is None:
            message = "element type of what is filled in is not stated"
            raise UsageError(message, cure="-O element=float16, float32 or float64")
        # Bytes of a collective are those that a rank puts in.
        length, rest = divmod(
            int(self.workload.nodes.bytes[row]), ElementType(element).element_bytes
        )
        if length < 1 or rest:
            raise refuse(self.workload, row, f"has no whole number of {element}")
        ranks = self.workload.num_ranks if kind is Kind.ALL_GATHER else 1
        for one in self._tensors(row):
            if one.shape and prod(one.shape) == length:
                return (one.shape[0] * ranks, *one.shape[1:])
        whole = length * ranks
        # Of a ReduceScatter readers state a block: its first dimension is that of a rank.
        blocks = self.workload.num_ranks if kind is Kind.REDUCE_SCATTER else 1
        for reader in self.readers.get(row, ()):
            for one in self._tensors(reader):
                if one.shape and prod(one.shape) * blocks == whole:
                    return (one.shape[0] * blocks, *one.shape[1:])
        return (whole,)

    def _tensors(self, row: int, side: int = INPUTS) -> list[StatedInput]:
        """The tensors that a node states."""
        return [one for one in self._stated(row, side) if one.shape is not None]

    def _stated(self, row: int, side: int = INPUTS) -> tuple[StatedInput, ...]:
        """What a node states of its inputs or outputs; nothing where it has no extra."""
        extra = int(self.workload.nodes.extra[row])
        return tensors_of_extra(self.workload.extras[extra], side) if extra >= 0 else ()

    def _element(self, row: int) -> str | None:
        """The element type that a node states, or one that reads it; else that of the user."""
        for one in (row, *self.readers.get(row, ())):
            for tensor in self._tensors(one):
                if tensor.element:
                    return tensor.element
        return self.element

    def _operands(
        self, row: int, kind: Kind, layout: Layout, shape: Shape | None
    ) -> tuple[list[str | float], list[Fields]]:
        """Values that other nodes make, arguments for those that none makes, and numbers."""
        inputs = self._stated(row)
        is_computed = self.workload.nodes.kind[row] == NodeKind.COMPUTE
        if inputs and is_computed:
            return self._as_stated(row, kind, inputs)
        # Operands that no node makes come behind those that one makes.
        operands: list[str | float] = [self.value[one][0] for one in _parents(self.workload, row)]
        missing = TRAITS[kind].operands - len(operands)
        if missing < 0:
            raise refuse(self.workload, row, f"reads {len(operands)} nodes, {kind} fewer")
        arguments: list[Fields] = []
        for _ in range(missing):
            if not shape:
                raise refuse(self.workload, row, "lacks the shape of an operand, which none makes")
            arguments.append(self._argument(row, len(arguments), shape, self._element(row), layout))
            operands.append(arguments[-1]["name"])
        return operands, arguments

    def _as_stated(
        self, row: int, kind: Kind, inputs: tuple[StatedInput, ...]
    ) -> tuple[list[str | float], list[Fields]]:
        """Operands in the order of the inputs: each a parent of its shape, or an argument."""
        count = TRAITS[kind].operands
        if any(one.number != _BEHIND.get(kind) for one in inputs[count:]):
            raise refuse(self.workload, row, f"states more than the {count} operands of {kind}")
        waiting = [self.value[one] for one in _parents(self.workload, row)]
        operands: list[str | float] = []
        arguments: list[Fields] = []
        for one in inputs[:count]:
            made = [value for value in waiting if value[1] in (one.shape, None)]
            if one.number is not None:
                operands.append(one.number)
            elif made:
                waiting.remove(made[0])
                operands.append(made[0][0])
            else:
                element = one.element or self.element
                shape = one.shape or ()
                argument = self._argument(row, len(arguments), shape, element, REPLICATED)
                arguments.append(argument)
                operands.append(argument["name"])
        if waiting or len(operands) < count:
            made_shapes = ", ".join(f"{name} {shape}" for name, shape in waiting) or "too few"
            message = f"reads {made_shapes}, which its stated inputs have not"
            raise refuse(self.workload, row, message, "state its inputs as it reads them")
        return operands, arguments

    def _argument(
        self, row: int, place: int, shape: Shape, element: str | None, layout: Layout
    ) -> Fields:
        """An operand that no node makes."""
        if element is None:
            message = "element type of what is filled in is not stated"
            raise UsageError(message, cure="-O element=float16, float32 or float64")
        # Named after the node that reads it first.
        name = f"n{int(self.workload.nodes.identity[row])}_{place}"
        kind = TensorType(ElementType(element), shape, layout)
        return {"name": name, **_lists(type_fields(kind))}


def _lists(fields: Fields) -> Fields:
    """Shapes as JSON has them."""
    return {**fields, "shape": list(fields["shape"])}
