"""Statements of programs in workload nodes: write them, and read the program back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from collhub_job_traces import attributes_extra, attributes_of_extra

from collhub_coconet.documents.json_document import (
    SCHEMA,
    BoundProgram,
    argument_fields,
    operation_fields,
    parse_program,
    stage_fields,
    type_fields,
)
from collhub_coconet.program.operations import Binding, Kind, Operation, Placement
from collhub_coconet.program.program import Program, order_groups
from hub_core import InputError, Location, Workload, parse_json_object
from hub_core.model import NodeColumns, NodeKind

ATTRIBUTE = "collhub_tensors"
"""Name of the attribute of a node that contains its statement."""


@dataclass(slots=True)
class Statements:
    """Statements of all nodes of one program, in the order of the nodes.

    Views (Slice) have no node of their own; the next node states them.
    """

    bound: BoundProgram
    _statements: list[dict[str, object]] = field(default_factory=list)
    _views: list[Operation] = field(default_factory=list)
    _declared: set[str] = field(default_factory=set)
    _stage_numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._stage_numbers = {
            name: number
            for number, stage in enumerate(self.bound.program.stages)
            for name in stage.members
        }

    def view(self, operation: Operation) -> None:
        """Add a view, which has no node.

        It becomes one of the first operations of the next statement.
        """
        self._views.append(operation)

    def add(self, operations: Iterable[Operation]) -> int:
        """Add the JSON statement of the node that performs these operations; return its number.

        Statements are numbered from 0 in the order of the calls. The operations of a statement are
        first the views (operations without a node) that were added with `view` since the last
        statement, then `operations`. Both keep their order and may be empty. The statement has the
        fields:

        - `operations`: these operations
        - `arguments`: declarations of the program's arguments that they read and that no earlier
          statement declares, in the order of reading
        - `fused_group`, only if some of them are in fused stages: the name of the stage that is
          first in the list of stages of the program

        The object records the statement and the declared arguments, and forgets the views.
        """
        # Several nodes may state one operation. Results serve tools without typing rules.
        operations_of_node = [*self._views, *operations]
        self._views = []
        self._statements.append(
            {"operations": [self._operation(operation) for operation in operations_of_node]}
        )
        self._declare(
            self._statements[-1],
            (name for operation in operations_of_node for name in operation.reads),
        )
        numbers = [
            self._stage_numbers[operation.name]
            for operation in operations_of_node
            if operation.name in self._stage_numbers
        ]
        if numbers:
            self._statements[-1]["fused_group"] = self.bound.program.stages[min(numbers)].name
        return len(self._statements) - 1

    def extras(self) -> tuple[str, ...]:
        """Return the texts of all statements, in order, as extras of a workload.

        Call this once, at the end: without statements an empty one is added; the first statement
        gets the member `program` and all unread arguments, the last one the views that no statement
        contains yet. `program` has, in this order: `name`, `sizes` (bounds by symbol), the names of
        the `arguments`, `outputs`, the fields of stages and chains, `bound` (size of each symbol),
        `num_ranks` of a group, for a mesh `mesh` and `mesh_sizes`, and the `history`.
        """
        if not self._statements:
            self.add(())
        last = self._statements[-1]["operations"]
        assert isinstance(last, list)
        # Unread views are added to the last statement, unread arguments to the first.
        last += [self._operation(operation) for operation in self._views]
        self._declare(
            self._statements[0], (argument.name for argument in self.bound.program.arguments)
        )
        program, binding = self.bound.program, self.bound.binding
        header: dict[str, object] = {
            "name": program.name,
            "sizes": {name: list(bounds) for name, bounds in program.sizes.items()},
            # Only their names: they are declared by the nodes that read them.
            "arguments": [argument.name for argument in program.arguments],
            "outputs": program.outputs,
            **stage_fields(program),
            "bound": dict(binding.sizes),
            "num_ranks": binding.num_ranks,
        }
        if program.mesh:
            header |= {"mesh": program.mesh, "mesh_sizes": binding.axis_sizes}
        self._statements[0]["program"] = header | {"history": list(self.bound.history)}
        return tuple(
            attributes_extra({ATTRIBUTE: json.dumps(statement, separators=(",", ":"))})
            for statement in self._statements
        )

    def _operation(self, operation: Operation) -> dict[str, object]:
        """Convert an operation to JSON fields: its attributes, its result and its place.

        The fields are those of `operation_fields`; `result` has the fields of its type (element
        type, shape, layout); `place` is its position in the order of the program.
        """
        program = self.bound.program
        fields = operation_fields(operation)
        fields["result"] = type_fields(program.types[operation.name], program.mesh)
        fields["place"] = program.places[operation.name]
        return fields

    def _declare(self, statement: dict[str, object], names: Iterable[str]) -> None:
        """Append the declarations of new arguments to the list `arguments` of a statement.

        The arguments are those of `names` that the program declares and that no earlier call
        has declared, each once, in the order of `names`. Other names are ignored. A declaration
        has the JSON fields of `argument_fields`. The list is created if it is missing, also
        without new arguments. The names of the new arguments are recorded in this object.
        """
        declared = self.bound.program.declared
        new = (name for name in dict.fromkeys(names) if name not in self._declared)
        arguments = [name for name in new if name in declared]
        self._declared.update(arguments)
        fields = statement.setdefault("arguments", [])
        assert isinstance(fields, list)
        mesh = self.bound.program.mesh
        fields += [argument_fields(declared[name], mesh) for name in arguments]


Fields = dict[str, Any]
"""A JSON object; its contents are checked with the schema of programs before they are used."""

_DEFAULT_CURE = (
    "state the attribute in the trace, read the program itself, or fill it in from the table of"
    " operator names: -O infer=true"
)
_FIELD_TYPES = {"operations": list, "arguments": list, "program": dict}


class LoweredStatements(tuple[str, ...]):
    """Texts of the statements of a lowered program, with this program and its nodes."""

    bound: BoundProgram
    nodes: NodeColumns

    @classmethod
    def create(
        cls, texts: Iterable[str], bound: BoundProgram, nodes: NodeColumns
    ) -> LoweredStatements:
        """Create a tuple of the given texts that also stores a lowered program and its nodes.

        `texts`: the extras of a workload, in order. `bound`: the program that was lowered to this
        workload. `nodes`: node columns of the workload. `find_program` returns the stored `bound`
        instead of parsing the texts, as long as the workload has this `nodes` object. Nothing is
        checked.
        """
        result = cls(texts)
        result.bound, result.nodes = bound, nodes
        return result


def find_program(workload: Workload) -> BoundProgram:
    """Return the program of a workload.

    If `lower` created the workload, and its nodes were not replaced since, the program is the one
    that was stored with it, which saves parsing thousands of statements. Otherwise it is built from
    the JSON statements of its nodes (`extract_program`). Raises `InputError` if a statement is
    missing, malformed or contradicts another one, and for an ill-typed program.
    """
    extras = workload.extras
    if isinstance(extras, LoweredStatements) and extras.nodes is workload.nodes:
        return extras.bound
    return extract_program(workload)


def extract_program(workload: Workload) -> BoundProgram:
    """Build the program that the JSON statements of a workload's nodes describe.

    Every node must have a statement. Nodes with equal text count as one, at the lowest row. The
    statements are combined as in `build_program`, which also gives the defaults of missing fields.

    Raises `InputError` with the node for the first statement, by row, that is missing, is no JSON
    object or is malformed. It is also raised if statements contradict each other, for operations
    that read each other in a cycle, and for a program that violates the typing rules. The errors
    on arguments and cycles have no node.
    """
    # Parse all distinct statements, by the first row of each, in the order of rows.
    nodes = workload.nodes
    # Nodes of different ranks share one record.
    _, first = np.unique(nodes.extra, return_index=True)
    statements: dict[int, Fields] = {}
    seen: set[str] = set()
    for row in np.sort(first).tolist():
        text = get_attribute(workload, row)
        if text not in seen:
            statements[row] = parse_statement(workload, row, text)
            seen.add(text)
    return build_program(workload, statements)


def build_program(workload: Workload, statements: Mapping[int, Fields]) -> BoundProgram:
    """Build the program that statements of nodes describe, with its sizes and its history.

    `statements`: fields by row of the node. The first `program` in them is the header. If the
    header lacks a field, or there is none:

    - name: name of the source file up to the first dot, or "workload"
    - outputs: names of operations that no operation reads; arguments: all that are declared
    - number of ranks: that of the workload
    - symbols with sizes, stages, chains, mesh, mesh sizes and history: empty

    Raises `InputError` for unequal declarations of one name, an operation without `kind` or
    `operands`, cyclic operations, an invalid program, and a `result` that differs from the type
    that follows from the operands. Then raises it for a number of ranks or a size that is no
    integer (`tensor-attributes`), for fewer than 2 ranks (`ranks`), a size below 1 (`size`) and a
    wrong `mesh`.
    """
    headers = [fields["program"] for fields in statements.values() if "program" in fields]
    file_name = (workload.provenance.source_name or "workload").partition(".")[0]
    header: Fields = {"name": file_name or "workload", "sizes": {}}
    header |= headers[0] if headers else {}
    document = {"schema": SCHEMA, "name": header["name"], "sizes": header["sizes"]}
    document["arguments"] = _collect_arguments(workload, statements.values(), header)
    document["operations"] = _collect_operations(workload, statements)
    # The outputs of the header, or else all values that no operation reads.
    operations = document["operations"]
    read = {name for operation in operations for name in operation["operands"]}
    last = [operation["name"] for operation in operations if operation["name"] not in read]
    outputs: list[str] = header.get("outputs", last)
    document["outputs"] = outputs
    for name in ("stages", "chains"):
        document[name] = header.get(name, [])
    if "mesh" in header:
        document["mesh"] = header["mesh"]
    program = parse_program(document, workload.provenance.source_name or "workload")
    _check_results(workload, statements, program)
    # Read ranks and sizes of the header; the default is one group of all ranks.
    ranks, sizes = header.get("num_ranks", workload.num_ranks), header.get("bound", {})
    mesh = header.get("mesh_sizes", [])
    is_valid = (isinstance(sizes, dict) and isinstance(mesh, list)) and all(
        type(number) is int for number in (ranks, *mesh, *sizes.values())
    )
    if not is_valid:
        location = Location(workload.provenance.source_name or None)
        message = "num_ranks, mesh_sizes and bound of the program are no numbers"
        raise InputError(message, location=location, code="tensor-attributes")
    binding = Binding(ranks, sizes, tuple(mesh))
    return BoundProgram(program, binding, tuple(header.get("history", ())))


def get_attribute(workload: Workload, row: int) -> str:
    """Return the JSON text of the statement of a node; "" if the node has none.

    It is an attribute in the node's extra, the text that preserves attributes without a column.
    """
    extra = int(workload.nodes.extra[row])
    return attributes_of_extra(workload.extras[extra]).get(ATTRIBUTE, "") if extra >= 0 else ""


def describe_node(workload: Workload, row: int) -> str:
    """Describe a node in messages: `node 3 (compute 'aten::add')`, without the name if it has none.

    The number is the id of the node, followed by its kind.
    """
    nodes = workload.nodes
    name = workload.names[nodes.name[row]] if nodes.name[row] >= 0 else ""
    kind = NodeKind(int(nodes.kind[row])).name.lower()
    return f"node {int(nodes.identity[row])} ({kind}{f' {name!r}' if name else ''})"


def create_error(
    workload: Workload, row: int, message: str, cure: str = _DEFAULT_CURE
) -> InputError:
    """Create (not raise) an `InputError` (`tensor-attributes`) about the statement of a node.

    The message is the description of the node, followed by `message`.
    """
    location = workload.nodes.location(row, workload.provenance.source_name or None)
    text = f"{describe_node(workload, row)} {message}"
    return InputError(text, location=location, cure=cure, code="tensor-attributes")


def parse_statement(workload: Workload, row: int, text: str) -> Fields:
    """Parse the text of a node's statement; check the fields that are read before the typing.

    Returns the JSON object unchanged. `row`: the node, for messages. All fields may be missing.
    Fields of the object:

    - `operations` and `arguments`: lists of objects, each with a text `name`
    - `program`: an object

    Fields of each object in these lists, and of `program` (`_find_flaw`):

    - `operands`: a list of names and numbers
    - `place`: an integer; `result`: an object or null
    - `arguments`: a list of names or null; `history`: a list of objects

    Raises `InputError` (`tensor-attributes`) for an empty text or a malformed field. For a text
    that is no JSON object, raises the error of `parse_json_object`.
    """
    if not text:
        lacks = "operation, operands, element type, shape and layout"
        raise create_error(workload, row, f"lacks {ATTRIBUTE}: {lacks}")
    location = workload.nodes.location(row, workload.provenance.source_name or "workload")
    fields = parse_json_object(
        text.encode(), f"{location}: {describe_node(workload, row)}: {ATTRIBUTE}"
    )
    for name, kind in _FIELD_TYPES.items():
        part = fields.get(name, kind())
        is_valid = isinstance(part, kind)
        if is_valid and kind is list:
            # The typing rules check all remaining fields.
            is_valid = all(
                isinstance(entry, dict)
                and isinstance(entry.get("name"), str)
                and isinstance(entry.get("operands", []), list)
                for entry in part
            )
        if not is_valid:
            message = f"states no {kind.__name__} of named objects as {name!r}"
            raise create_error(workload, row, message)
    parts = [*fields.get("operations", ()), *fields.get("arguments", ())]
    for part in [*parts, fields.get("program", {})]:
        flaw = _find_flaw(part)
        if flaw:
            raise create_error(workload, row, f"{flaw} in {str(part.get('name'))[:80]!r}")
    return fields


def _find_flaw(fields: Fields) -> str:
    """Describe the first invalid field of an operation, argument or program; "" if all are valid.

    Checked are fields that the schema does not check or that are used before it. Each may be
    missing. Null is invalid unless it is named here. In this order:

    1. `operands`: a list of texts and numbers (also booleans)
    2. `place`: an integer, no boolean
    3. `result`: an object or null
    4. `arguments`: a list of texts, or any value that counts as false, such as null, "" or 0
    5. `history`: a list of objects
    """
    operands, arguments = fields.get("operands", []), fields.get("arguments") or []
    is_list = isinstance(operands, list)
    if not is_list or not all(isinstance(operand, str | int | float) for operand in operands):
        return "states operands that are neither names nor numbers"
    if type(fields.get("place", 0)) is not int:
        return "states a place that is no integer"
    if not isinstance(fields.get("result"), dict | None):
        return "states a result that is no object"
    if not (isinstance(arguments, list) and all(isinstance(name, str) for name in arguments)):
        return "states arguments that are no list of names"
    history = fields.get("history", [])
    if not (isinstance(history, list) and all(isinstance(record, dict) for record in history)):
        return "states a history that is no list of objects"
    return ""


def _collect_arguments(
    workload: Workload, statements: Iterable[Fields], header: Fields
) -> list[Fields]:
    """Collect the arguments that the statements declare.

    If the header has a list `arguments` of names, only these are returned, in its order. An empty
    list gives none, and a name that no statement declares is skipped. Without this list, every
    declared argument is returned once, in the order of the first declarations. Raises
    `InputError` (`tensor-attributes`) if two statements declare an argument in different ways.
    """
    fields_by_name: dict[str, Fields] = {}
    for fields in statements:
        for argument in fields.get("arguments", ()):
            if fields_by_name.setdefault(argument["name"], argument) != argument:
                location = Location(workload.provenance.source_name or None)
                message = f"argument {argument['name']} is declared in two ways"
                raise InputError(message, location=location, code="tensor-attributes")
    order = header.get("arguments")
    return (
        list(fields_by_name.values())
        if order is None
        else [fields_by_name[name] for name in order if name in fields_by_name]
    )


def _collect_operations(workload: Workload, statements: Mapping[int, Fields]) -> list[Fields]:
    """Return the operations of all statements, each once, after their operands.

    `statements`: by row of the node. Several nodes may contain the same operation. Its fields
    `place` and `result` are dropped; all other fields must then be equal.

    Operations are sorted by the `place` in the first node that has them (without one, by the
    row of this node), then by this row. From this order an operation is moved only as far as
    its operands require; operands that are no operations are always available.

    Raises `InputError` (`tensor-attributes`) for an operation without `kind` or `operands`, for
    two different operations with one name, and for operations that read each other in a cycle.
    """
    fields_by_name: dict[str, Fields] = {}
    places: dict[str, tuple[int, int]] = {}
    for row, fields in statements.items():
        for operation in fields.get("operations", ()):
            for key in ("kind", "operands"):
                if key not in operation:
                    raise create_error(
                        workload, row, f"lacks {key!r} of operation {operation['name']}"
                    )
            # The place and the result do not identify an operation.
            plain = {
                key: value for key, value in operation.items() if key not in ("place", "result")
            }
            if fields_by_name.setdefault(operation["name"], plain) != plain:
                message = f"states operation {operation['name']} otherwise than another node"
                raise create_error(
                    workload, row, message, "let all ranks of a group run one program"
                )
            places.setdefault(operation["name"], (operation.get("place", row), row))
    names = sorted(fields_by_name, key=lambda name: places[name])
    # Only the names and operands matter for the order.
    drafts = [Operation(name, Kind.ADD, tuple(fields_by_name[name]["operands"])) for name in names]
    order = order_groups(drafts, [])
    if order is None:
        location = Location(workload.provenance.source_name or None)
        message = "operations that nodes state read one another in a circle"
        raise InputError(message, location=location, code="tensor-attributes")
    return [fields_by_name[draft.name] for (draft,) in order]


def _check_results(workload: Workload, statements: Mapping[int, Fields], program: Program) -> None:
    """Check the types that nodes state for their results against the typing rules.

    `statements`: fields of the statement by node row. An operation may leave `result` out;
    otherwise it must equal the derived type, where lists and tuples count as equal. Raises
    `InputError` for the first operation that differs, with its node.
    """
    for row, fields in statements.items():
        for operation in fields.get("operations", ()):
            derived = type_fields(program.types[operation["name"]], program.mesh)
            result = operation.get("result")
            is_same = result is None or _replace_tuples(result) == _replace_tuples(derived)
            if not is_same and derived["layout"] == Placement.ROOT:
                # Earlier versions wrote the result of a Reduce as local.
                earlier = {**derived, "layout": Placement.LOCAL}
                del earlier["root"]
                is_same = _replace_tuples(result) == _replace_tuples(earlier)
            if not is_same:
                kind = program.types[operation["name"]]
                message = f"states the result of {operation['name']} otherwise than as {kind}"
                cure = "state what the operands give, or leave 'result' out"
                raise create_error(workload, row, message, cure)


def _replace_tuples(fields: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of the fields in which tuples are lists; nested tuples are unchanged."""
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()
    }
