"""Fill in what nodes do not state, from a table of operator names; everything that is, is told.

The table says what operators are. Shapes come from the bytes of collectives, as vectors; the
element type is stated by the user. What neither tells is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collhub_coconet.documents.from_workload import (
    bound_program,
    refuse,
    stated,
    statement,
)
from collhub_coconet.documents.json_document import type_fields
from collhub_coconet.documents.node_statements import BoundProgram
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
}
"""Operators of PyTorch by name, without `aten::` in front and `_` (in place) behind."""

_COLLECTIVES = {
    JobCollective.ALL_REDUCE: (Kind.ALL_REDUCE, LOCAL),
    JobCollective.REDUCE_SCATTER: (Kind.REDUCE_SCATTER, LOCAL),
    JobCollective.ALL_GATHER: (Kind.ALL_GATHER, sliced(0)),
}
_ATTRIBUTES: dict[str, object] = {"reduction": "sum", "dimension": 0}
Fields = dict[str, Any]


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
    """Statements of the rows of rank 0; `value`: name and length of what each row makes."""

    workload: Workload
    element: str | None
    found: dict[int, Fields] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    value: dict[int, tuple[str, int]] = field(default_factory=dict)

    def add(self, row: int) -> None:
        """Take or make the statement of a row."""
        # The table adds to what is stated, and replaces nothing.
        text = stated(self.workload, row)
        if text:
            self.found[row] = statement(self.workload, row, text)
            operations = self.found[row].get("operations", [])
            if operations:
                self.value[row] = operations[-1]["name"], -1
            return
        kind, layout = self._kind(row)
        length = self._length(row, kind)
        operands, arguments = self._operands(row, kind, layout, length)
        name = f"n{int(self.workload.nodes.identity[row])}"
        operation: Fields = {"name": name, "kind": kind, "operands": operands}
        operation |= {key: _ATTRIBUTES[key] for key in TRAITS[kind].attributes}
        self.found[row] = {"operations": [operation], "arguments": arguments}
        self.value[row] = name, length
        given = f", with {', '.join(one['name'] for one in arguments)}" if arguments else ""
        self.told.append(f"filled in: node {name[1:]} is {kind}({', '.join(operands)}){given}")

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

    def _length(self, row: int, kind: Kind) -> int:
        """Elements of the value of a node, as a vector; scalars have 0."""
        if kind in (Kind.NORM, Kind.SUM, Kind.MAX):
            return 0
        nodes = self.workload.nodes
        if nodes.kind[row] != NodeKind.COLLECTIVE:
            return max((self.value[one][1] for one in _parents(self.workload, row)), default=-1)
        if self.element is None:
            message = "element type of what is filled in is not stated"
            raise UsageError(message, cure="-O element=float16, float32 or float64")
        width = ElementType(self.element).element_bytes
        # Bytes of a collective are those that a rank puts in.
        length, rest = divmod(int(nodes.bytes[row]), width)
        if length < 1 or rest:
            raise refuse(self.workload, row, f"has no whole number of {self.element}")
        return length * self.workload.num_ranks if kind is Kind.ALL_GATHER else length

    def _operands(
        self, row: int, kind: Kind, layout: Layout, length: int
    ) -> tuple[list[str], list[Fields]]:
        """Values that other nodes make, and arguments for those that none makes."""
        # Operands that no node makes come behind those that one makes.
        operands = [self.value[one][0] for one in _parents(self.workload, row)]
        missing = TRAITS[kind].operands - len(operands)
        if missing < 0:
            raise refuse(self.workload, row, f"reads {len(operands)} nodes, {kind} fewer")
        arguments = []
        for place in range(missing):
            if length < 1:
                raise refuse(self.workload, row, "lacks the shape of an operand, which none makes")
            name = f"n{int(self.workload.nodes.identity[row])}_{place}"
            assert self.element is not None
            vector = TensorType(ElementType(self.element), (length,), layout)
            arguments.append({"name": name, **_lists(type_fields(vector))})
            operands.append(name)
        return operands, arguments


def _lists(fields: Fields) -> Fields:
    """Shapes as JSON has them."""
    return {**fields, "shape": list(fields["shape"])}
