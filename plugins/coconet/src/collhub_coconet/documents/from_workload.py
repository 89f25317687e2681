"""Statements of programs in workload nodes: write them, and read the program back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from collhub_job_traces import attributes_extra, attributes_of_extra

from collhub_coconet.documents.json_document import (
    SCHEMA,
    BoundProgram,
    argument_fields,
    operation_fields,
    program_of_fields,
    stage_fields,
    type_fields,
)
from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program, contracted_order
from collhub_coconet.program.tensors import Binding
from hub_core import InputError, Location, Workload, parse_json_object
from hub_core.model import NodeKind

ATTRIBUTE = "collhub_tensors"
"""Name of the attribute."""


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


Fields = dict[str, Any]
"""An object of JSON; the schema of programs checks what it holds before it is used."""

_CURE = (
    "state the attribute in the trace, read the program itself, or fill it in from the table of"
    " operator names: -O infer=true"
)
_PARTS = {"operations": list, "arguments": list, "program": dict}


def program_of(workload: Workload) -> BoundProgram:
    """The program that the nodes of a workload state; ranks of a group have to state the same.

    Raises `InputError` with the node and what it lacks, and for what is no program.
    """
    return bound_program(workload, _statements(workload))


def bound_program(workload: Workload, found: Mapping[int, Fields]) -> BoundProgram:
    """The program of statements, which stand by the row that makes them."""
    header = _header(workload, found.values())
    document = {"schema": SCHEMA, "name": header["name"], "sizes": header["sizes"]}
    document["arguments"] = _arguments(workload, found.values(), header)
    document["operations"] = _operations(workload, found)
    document["outputs"] = _outputs(header, document["operations"])
    for name in ("stages", "chains"):
        document[name] = header.get(name, [])
    program = program_of_fields(document, workload.provenance.source_name or "workload")
    _check_results(workload, found, program)
    return BoundProgram(program, _binding(workload, header), tuple(header.get("history", ())))


def stated(workload: Workload, row: int) -> str:
    """The attribute of a node as it stands, empty where there is none."""
    extra = int(workload.nodes.extra[row])
    return attributes_of_extra(workload.extras[extra]).get(ATTRIBUTE, "") if extra >= 0 else ""


def node_text(workload: Workload, row: int) -> str:
    """A node as messages call it."""
    nodes = workload.nodes
    name = workload.names[nodes.name[row]] if nodes.name[row] >= 0 else ""
    kind = NodeKind(int(nodes.kind[row])).name.lower()
    return f"node {int(nodes.identity[row])} ({kind}{f' {name!r}' if name else ''})"


def refuse(workload: Workload, row: int, message: str, cure: str = _CURE) -> InputError:
    """The error for what a node states, or lacks."""
    place = workload.nodes.location(row, workload.provenance.source_name or None)
    text = f"{node_text(workload, row)} {message}"
    return InputError(text, location=place, cure=cure, code="tensor-attributes")


def _statements(workload: Workload) -> dict[int, Fields]:
    """Different statements by the first row that makes them, in the order of rows."""
    nodes = workload.nodes
    # Most nodes share their record with those of other ranks.
    _, first = np.unique(nodes.extra, return_index=True)
    found: dict[int, Fields] = {}
    seen: set[str] = set()
    for row in np.sort(first).tolist():
        text = stated(workload, row)
        if text not in seen:
            found[row] = statement(workload, row, text)
            seen.add(text)
    return found


def statement(workload: Workload, row: int, text: str) -> Fields:
    """The statement of a node. Raises `InputError` for one that lacks it, or states no such."""
    if not text:
        lacks = "operation, operands, element type, shape and layout"
        raise refuse(workload, row, f"lacks {ATTRIBUTE}: {lacks}")
    place = workload.nodes.location(row, workload.provenance.source_name or "workload")
    # Whoever made the trace: a key that stands twice is refused.
    found = parse_json_object(text.encode(), f"{place}: {node_text(workload, row)}: {ATTRIBUTE}")
    for name, kind in _PARTS.items():
        part = found.get(name, kind())
        is_right = isinstance(part, kind)
        if is_right and kind is list:
            is_right = all(isinstance(one, dict) and _is_named(one) for one in part)
        if not is_right:
            message = f"states no {kind.__name__} of named objects as {name!r}"
            raise refuse(workload, row, message)
    return found


def _is_named(fields: Fields) -> bool:
    """Whether an object has a name, and a list of operands where it has some."""
    # Types check all else, and say where.
    return isinstance(fields.get("name"), str) and isinstance(fields.get("operands", []), list)


def _header(workload: Workload, statements: Iterable[Fields]) -> Fields:
    """What is said of the program as a whole; a trace of numbers alone needs none."""
    headers = [one["program"] for one in statements if "program" in one]
    name = (workload.provenance.source_name or "workload").partition(".")[0]
    return {"name": name or "workload", "sizes": {}} | (headers[0] if headers else {})


def _arguments(workload: Workload, statements: Iterable[Fields], header: Fields) -> list[Fields]:
    """All arguments, each as it was declared first."""
    found: dict[str, Fields] = {}
    for fields in statements:
        for one in fields.get("arguments", ()):
            # Ranks repeat what others state.
            if found.setdefault(one["name"], one) != one:
                place = Location(workload.provenance.source_name or None)
                message = f"argument {one['name']} is declared in two ways"
                raise InputError(message, location=place, code="tensor-attributes")
    order = header.get("arguments")
    return (
        list(found.values()) if order is None else [found[name] for name in order if name in found]
    )


def _operations(workload: Workload, statements: Mapping[int, Fields]) -> list[Fields]:
    """All operations in an order in which values are made before they are read."""
    found: dict[str, Fields] = {}
    places: dict[str, tuple[int, int]] = {}
    for row, fields in statements.items():
        for one in fields.get("operations", ()):
            for key in ("kind", "operands"):
                if key not in one:
                    raise refuse(workload, row, f"lacks {key!r} of operation {one['name']}")
            # The place and the result say where and what, not which operation it is.
            plain = {key: value for key, value in one.items() if key not in ("place", "result")}
            if found.setdefault(one["name"], plain) != plain:
                message = f"states operation {one['name']} otherwise than another node"
                raise refuse(workload, row, message, "let all ranks of a group run one program")
            places.setdefault(one["name"], (one.get("place", row), row))
    order = sorted(found, key=lambda name: places[name])
    return _sorted(workload, [found[name] for name in order])


def _sorted(workload: Workload, operations: Sequence[Fields]) -> list[Fields]:
    """Operations that stand behind what they read."""
    by_name = {one["name"]: one for one in operations}
    # Their kinds are looked at where the whole document is.
    drafts = [Operation(one["name"], Kind.ADD, tuple(one["operands"])) for one in operations]
    order = contracted_order(drafts, [])
    if order is None:
        place = Location(workload.provenance.source_name or None)
        message = "operations that nodes state read one another in a circle"
        raise InputError(message, location=place, code="tensor-attributes")
    return [by_name[draft.name] for (draft,) in order]


def _outputs(header: Fields, operations: Sequence[Fields]) -> list[str]:
    """The outputs as stated, or all values that nobody reads."""
    # A value that is read is no output unless it is stated.
    read = {name for one in operations for name in one["operands"]}
    last = [one["name"] for one in operations if one["name"] not in read]
    outputs: list[str] = header.get("outputs", last)
    return outputs


def _check_results(workload: Workload, statements: Mapping[int, Fields], program: Program) -> None:
    """Hold what nodes state of their results against the typing rules."""
    for row, fields in statements.items():
        for one in fields.get("operations", ()):
            derived = type_fields(program.types[one["name"]])
            result = one.get("result")
            is_same = result is None or _plain(result) == _plain(derived)
            if not is_same:
                kind = program.types[one["name"]]
                message = f"states the result of {one['name']} otherwise than as {kind}"
                cure = "state what the operands give, or leave 'result' out"
                raise refuse(workload, row, message, cure)


def _plain(fields: Mapping[str, object]) -> dict[str, object]:
    """A type with lists for tuples."""
    return {key: list(one) if isinstance(one, tuple) else one for key, one in fields.items()}


def _binding(workload: Workload, header: Fields) -> Binding:
    """Ranks and sizes as stated; without them, all ranks are one group."""
    ranks, sizes = header.get("num_ranks", workload.num_ranks), header.get("bound", {})
    is_right = isinstance(sizes, dict) and all(type(one) is int for one in (ranks, *sizes.values()))
    if not is_right:
        place = Location(workload.provenance.source_name or None)
        message = "num_ranks and bound of the program are no numbers"
        raise InputError(message, location=place, code="tensor-attributes")
    return Binding(ranks, sizes)
