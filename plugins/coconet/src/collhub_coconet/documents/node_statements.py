"""What nodes of a workload state of the program that they are made of: the hub's tensor attributes.

Every node has one attribute, a JSON object: `operations` that the node carries out, each with the
type of its `result` and its `place` in the program; `arguments` that it is the first to read;
`fused_group`, the stage that it is part of. The first node of the program states the rest as
`program`: name, sizes with their bounds, outputs, stages, chains, numbers for all sizes, ranks of a
group, and the transformations so far.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collhub_job_traces import attributes_extra

from collhub_coconet.documents.json_document import (
    argument_fields,
    operation_fields,
    stage_fields,
    type_fields,
)
from collhub_coconet.program.operations import Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from hub_core.model import JsonValue

ATTRIBUTE = "collhub_tensors"
"""Name of the attribute."""

History = tuple[Mapping[str, JsonValue], ...]
"""The legality records of the transformations that made a program, the first one first."""


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A program with the numbers of its workload, and the transformations that made it."""

    program: Program
    binding: Binding
    history: History = ()


@dataclass(slots=True)
class Statements:
    """The statements of all nodes of one program, in the order of the nodes.

    Views (Slice) make no node: the next node states them.
    """

    bound: BoundProgram
    _made: list[dict[str, object]] = field(default_factory=list)
    _views: list[Operation] = field(default_factory=list)
    _declared: set[str] = field(default_factory=set)

    def view(self, operation: Operation) -> None:
        """Let the next node state an operation that makes none."""
        self._views.append(operation)

    def add(self, operations: Iterable[Operation]) -> int:
        """The number of the statement of a node that carries out these operations."""
        stated = [*self._views, *operations]
        self._views = []
        # A node may state an operation that another one began.
        # Types stand beside operations, for tools that know no typing rules.
        self._made.append({"operations": [self._operation(one) for one in stated]})
        self._declare(self._made[-1], (name for one in stated for name in one.reads))
        group = self._group_of(stated)
        if group:
            self._made[-1]["fused_group"] = group
        return len(self._made) - 1

    def extras(self) -> tuple[str, ...]:
        """The extras of a workload, by number of the statement."""
        if not self._made:
            self.add(())
        last = self._made[-1]["operations"]
        assert isinstance(last, list)
        # Views that nothing reads are stated at the end, arguments likewise at the beginning.
        last += [self._operation(one) for one in self._views]
        self._declare(self._made[0], (one.name for one in self.bound.program.arguments))
        self._made[0]["program"] = self._program()
        return tuple(attributes_extra({ATTRIBUTE: _text(one)}) for one in self._made)

    def _operation(self, operation: Operation) -> dict[str, object]:
        """An operation with its result and its place."""
        program = self.bound.program
        fields = operation_fields(operation)
        fields["result"] = type_fields(program.types[operation.name])
        fields["place"] = program.places[operation.name]
        return fields

    def _declare(self, statement: dict[str, object], names: Iterable[str]) -> None:
        """Let a node declare the arguments that nobody declared before."""
        declared = self.bound.program.declared
        new = (name for name in dict.fromkeys(names) if name not in self._declared)
        wanted = [name for name in new if name in declared]
        self._declared.update(wanted)
        found = [argument_fields(declared[name]) for name in wanted]
        known = statement.setdefault("arguments", [])
        assert isinstance(known, list)
        known += found

    def _group_of(self, operations: Sequence[Operation]) -> str:
        """The stage that operations are part of."""
        names = {operation.name for operation in operations}
        stages = self.bound.program.stages
        return next((one.name for one in stages if not names.isdisjoint(one.members)), "")

    def _program(self) -> dict[str, object]:
        """What is said of the program as a whole."""
        # Arguments by name alone: the nodes that read them declare them.
        program, binding = self.bound.program, self.bound.binding
        return {
            "name": program.name,
            "sizes": {name: list(bounds) for name, bounds in program.sizes.items()},
            "arguments": [one.name for one in program.arguments],
            "outputs": program.outputs,
            **stage_fields(program),
            "bound": dict(binding.sizes),
            "num_ranks": binding.num_ranks,
            "history": list(self.bound.history),
        }


def _text(statement: Mapping[str, object]) -> str:
    return json.dumps(statement, separators=(",", ":"))
