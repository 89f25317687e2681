"""Infer missing statements of nodes from a table of operator names, and report every inference.

The table gives the operations. Shapes and element types are those of the tensors that nodes state,
as PyTorch traces do. Otherwise shapes follow from the bytes of collectives, as vectors, and the
user gives the element type. Nodes that remain undetermined are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from collhub_job_traces import INPUTS, OUTPUTS, StatedInput, tensors_of_extra

from collhub_coconet.documents.from_workload import (
    build_program,
    create_error,
    describe_node,
    get_attribute,
    parse_statement,
)
from collhub_coconet.documents.json_document import BoundProgram, type_fields
from collhub_coconet.program.operations import (
    LOCAL,
    REPLICATED,
    TRAITS,
    ElementType,
    Kind,
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
    "exp": Kind.EXP,
    "log": Kind.LOG,
    "erf": Kind.ERF,
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
"""Operators of PyTorch by name, without the prefix `aten::` and the suffix `_` (in place)."""

_COLLECTIVES = {
    JobCollective.ALL_REDUCE: (Kind.ALL_REDUCE, LOCAL),
    JobCollective.REDUCE_SCATTER: (Kind.REDUCE_SCATTER, LOCAL),
    JobCollective.ALL_GATHER: (Kind.ALL_GATHER, sliced(0)),
}
_ATTRIBUTES: dict[str, object] = {"reduction": "sum", "dimension": 0}
# Value of an additional operand of an operator with which it equals the operation of the table.
_IGNORED_OPERANDS = {Kind.ADD: 1.0, Kind.SUBTRACT: 1.0, Kind.NORM: 2.0}
Fields = dict[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Inference:
    """Program, and descriptions of the inferred nodes, one line each."""

    bound: BoundProgram
    filled_in: tuple[str, ...]


def infer_program(workload: Workload, element: str | None) -> Inference:
    """Infer the program of a workload in which all ranks perform the same operations.

    Only the nodes of rank 0 are read, level by level: a level has all nodes whose data parents are
    in earlier levels, in the order of rows. Control dependencies do not count. A node with a JSON
    statement keeps it. For any other node, the statement is inferred from the operator name or the
    kind of collective (`_StatementInference`). A line about each of these nodes is added to
    `filled_in`, in the same order. `build_program` makes the program of all statements.

    `element`: element type of tensors for which neither the node nor its readers record one; None
    if not given. There must be at least one rank.

    Raises `InputError`:

    - a rank has other nodes than rank 0 (`_check_equal_ranks`); checked first
    - nodes wait for each other's data
    - a statement is malformed, or contradicts another one (errors of `build_program`)
    - a node has an operator or collective that the table lacks, an unknown shape, or operands that
      do not fit

    Raises `UsageError` if an element type is needed and unknown.
    """
    _check_equal_ranks(workload)
    inference = _StatementInference(workload, element)
    first, stop = workload.nodes.rank_indptr[:2].tolist()
    # Sort the rows of one rank after the rows whose data they read.
    order: list[int] = []
    done: set[int] = set()
    waiting = list(range(first, stop))
    # One round per level; the traces of one rank are short.
    while waiting:
        ready = [row for row in waiting if done.issuperset(_parents(workload, row))]
        if not ready:
            raise create_error(workload, waiting[0], "waits for itself", "see collhub verify")
        order += ready
        done.update(ready)
        waiting = [row for row in waiting if row not in done]
    for row in order:
        inference.add(row)
    program = build_program(workload, inference.statements)
    return Inference(program, tuple(inference.report))


def _check_equal_ranks(workload: Workload) -> None:
    """Raise `InputError` unless all ranks have the same nodes as rank 0.

    The number of nodes is compared, and in the order of rows their kind, name, collective and
    bytes. Dependencies and all other columns are not compared. The error names the first rank that
    differs. It is located at the first node of this rank, not at the node that differs. For a rank
    without nodes, it is located at the next node of the workload, or at the last one.
    """
    nodes = workload.nodes
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
            raise create_error(workload, row, message, "let the nodes state their program")


def _parents(workload: Workload, row: int) -> list[int]:
    """Return the rows on whose data a node depends, in the stored order; empty for none."""
    nodes = workload.nodes
    begin, end = nodes.data_indptr[row : row + 2].tolist()
    parents: list[int] = nodes.data_indices[begin:end].tolist()
    return parents


@dataclass(slots=True)
class _StatementInference:
    """Statements of the rows of rank 0.

    `report`: descriptions of the inferred nodes. `value`: name and shape of the value of each row,
    None for an unknown shape. `readers`: rows that read the value of a row.
    """

    workload: Workload
    element: str | None
    statements: dict[int, Fields] = field(default_factory=dict)
    report: list[str] = field(default_factory=list)
    value: dict[int, tuple[str, Shape | None]] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, stop = self.workload.nodes.rank_indptr[:2].tolist()
        for row in range(first, stop):
            for parent in _parents(self.workload, row):
                self.readers.setdefault(parent, []).append(row)

    def add(self, row: int) -> None:
        """Store the statement of a row in `statements`, and name and shape of its value in `value`.

        Rows must be added after the rows that they read.

        - The node has a statement as text: the text is parsed. The value has the name of the last
          operation and the shape None. If the statement has no operations, no value is stored.
        - Otherwise the statement is inferred from the operator name, or the kind of collective, and
          the inputs. It has one operation, `n` and the id of the node, and new arguments for
          missing operands. The shape is None if it is unknown. A line is appended to `report`.

        Raises `InputError` if the text is malformed, or if the operation or an operand cannot be
        inferred. Raises `UsageError` if a new argument has no element type.
        """
        text = get_attribute(self.workload, row)
        if text:
            self.statements[row] = parse_statement(self.workload, row, text)
            operations = self.statements[row].get("operations", [])
            if operations:
                self.value[row] = operations[-1]["name"], None
            return
        kind, layout = self._find_kind(row)
        shape = self._find_shape(row, kind)
        operands, arguments = self._find_operands(row, kind, layout, shape)
        name = f"n{int(self.workload.nodes.identity[row])}"
        operation: Fields = {"name": name, "kind": kind, "operands": operands}
        operation |= {key: _ATTRIBUTES[key] for key in TRAITS[kind].attributes}
        self.statements[row] = {"operations": [operation], "arguments": arguments}
        self.value[row] = name, shape
        argument_text = (
            f", with {', '.join(argument['name'] for argument in arguments)}" if arguments else ""
        )
        self.report.append(
            f"filled in: node {name[1:]} is {kind}({', '.join(map(str, operands))}){argument_text}"
        )

    def _get_parent_values(self, row: int) -> list[tuple[str, Shape | None]]:
        """Return name and shape of the value of each parent of a node, in the stored order.

        A parent is a node whose data this node reads; a repeated parent is repeated. Its value
        is the result of the last operation of its statement. The shape is None if it is
        unknown: the statement was recorded in the workload, or no shape could be inferred.
        Raise `InputError` at the node for the first parent whose statement has no operations.
        """
        parents = _parents(self.workload, row)
        without_value = [parent for parent in parents if parent not in self.value]
        if without_value:
            parent_text = describe_node(self.workload, without_value[0])
            raise create_error(self.workload, row, f"reads {parent_text}, which has no operation")
        return [self.value[parent] for parent in parents]

    def _find_kind(self, row: int) -> tuple[Kind, Layout]:
        """Return the kind of operation of a node, and the layout of arguments created for it.

        A collective is looked up by its kind: all-reduce and reduce-scatter with the layout local,
        all-gather with the layout sliced along dimension 0. A computation is looked up in
        `OPERATORS` by its name after the last `::`, without any `_` at its end (`aten::add_` is
        `add`); its layout is replicated.

        Raises `InputError` for other collectives, collectives with counts per rank or pair, other
        kinds of nodes, and names that are not in `OPERATORS`.
        """
        nodes = self.workload.nodes
        if nodes.kind[row] == NodeKind.COLLECTIVE:
            known = _COLLECTIVES.get(JobCollective(nodes.collective[row]))
            if known is None or nodes.counts[row] >= 0:
                raise create_error(
                    self.workload, row, "is a collective that the table does not have"
                )
            return known
        name = self.workload.names[nodes.name[row]] if nodes.name[row] >= 0 else ""
        plain = name.rpartition("::")[2].rstrip("_")
        if nodes.kind[row] != NodeKind.COMPUTE or plain not in OPERATORS:
            known_names = ", ".join(sorted(OPERATORS))
            message = "lacks its operation, and its name is not in the table of operators"
            raise create_error(self.workload, row, message, f"the table has {known_names}")
        return OPERATORS[plain], REPLICATED

    def _find_shape(self, row: int, kind: Kind) -> Shape | None:
        """Find the shape of a node's value: () for scalars, None if it is unknown.

        "Recorded" tensors are inputs or outputs of the node whose shape the workload records. The
        first rule that applies decides:

        1. Norm, sum or maximum: ().
        2. Collective: the shape of `_find_collective_shape`, which may raise errors.
        3. The node has a recorded output: the shape of the first one.
        4. Matrix product: the dimensions of the first recorded input, with the last one replaced
           by the last one of the second input. Further inputs are ignored. `InputError` for fewer
           than two inputs, or if one of the first two has no dimensions.
        5. Otherwise the shape with most elements among the known shapes of the values that the
           node reads from its parents, then of its recorded inputs; ties: the first one. None if
           no shape is known. `InputError` if a parent has no value, i.e. no operation was written
           for it.
        """
        if kind in (Kind.NORM, Kind.SUM, Kind.MAX):
            return ()
        if self.workload.nodes.kind[row] == NodeKind.COLLECTIVE:
            return self._find_collective_shape(row, kind)
        stated_shapes = [tensor.shape for tensor in self._get_tensors(row, OUTPUTS)]
        if stated_shapes:
            return stated_shapes[0]
        if kind in (Kind.MATMUL, Kind.BATCH_MATMUL):
            shapes = [tensor.shape or () for tensor in self._get_tensors(row)][:2]
            if len(shapes) < 2 or not all(shapes):
                raise create_error(self.workload, row, "lacks the shapes of its operands")
            return (*shapes[0][:-1], shapes[1][-1])
        known = [shape for _, shape in self._get_parent_values(row)]
        known += [tensor.shape for tensor in self._get_tensors(row)]
        # The largest operand of a pointwise operation has the shape of the result.
        return max((shape for shape in known if shape is not None), key=prod, default=None)

    def _find_collective_shape(self, row: int, kind: Kind) -> Shape:
        """Return the shape of a collective's result, from the bytes of one rank's input.

        For a ReduceScatter it is the shape of the blocks of all ranks together. n is the bytes of
        the input divided by those of an element (`_find_element`). R is the number of ranks of the
        workload. The first rule that applies:

        1. An input tensor of the node has n elements: its shape. For an AllGather the first
           dimension is multiplied by R.
        2. An input tensor of a node that reads the result fits. It needs n * R elements for an
           AllGather, n / R for a ReduceScatter, otherwise n. The shape is that of the tensor, for a
           ReduceScatter with the first dimension multiplied by R.
        3. (n,); for an AllGather (n * R,).

        Nodes and tensors are examined in order; tensors without dimensions are skipped. Raises
        `UsageError` for an unknown element type, then `InputError` if n is below 1 or no integer.
        """
        element = self._find_element(row)
        if element is None:
            message = "element type of what is filled in is not stated"
            raise UsageError(message, cure="-O element=float16, float32 or float64")
        # The bytes of a collective are those of the input of a rank.
        length, remainder = divmod(
            int(self.workload.nodes.bytes[row]), ElementType(element).element_bytes
        )
        if length < 1 or remainder:
            raise create_error(self.workload, row, f"has no whole number of {element}")
        ranks = self.workload.num_ranks if kind is Kind.ALL_GATHER else 1
        for tensor in self._get_tensors(row):
            if tensor.shape and prod(tensor.shape) == length:
                return (tensor.shape[0] * ranks, *tensor.shape[1:])
        total = length * ranks
        # Readers of a ReduceScatter state a block, with the first dimension of one rank.
        blocks = self.workload.num_ranks if kind is Kind.REDUCE_SCATTER else 1
        for reader in self.readers.get(row, ()):
            for tensor in self._get_tensors(reader):
                if tensor.shape and prod(tensor.shape) * blocks == total:
                    return (tensor.shape[0] * blocks, *tensor.shape[1:])
        return (total,)

    def _get_tensors(self, row: int, side: int = INPUTS) -> list[StatedInput]:
        """Return the inputs or outputs (`side`) of a node that are tensors with a stated shape."""
        return [tensor for tensor in self._get_stated(row, side) if tensor.shape is not None]

    def _get_stated(self, row: int, side: int = INPUTS) -> tuple[StatedInput, ...]:
        """Return the inputs (or outputs, by `side`) that a node records; empty without a record.

        They are tensors with shape and element type, and numbers, in their order.
        """
        extra = int(self.workload.nodes.extra[row])
        return tensors_of_extra(self.workload.extras[extra], side) if extra >= 0 else ()

    def _find_element(self, row: int) -> str | None:
        """Return the element type of a node, such as `float16`; None if it is unknown.

        It is that of the first recorded tensor with a shape and an element type among the
        inputs of the node, then of the nodes that read it, by row. Without such a tensor, it is
        that of the option `element`.
        """
        for candidate_row in (row, *self.readers.get(row, ())):
            for tensor in self._get_tensors(candidate_row):
                if tensor.element:
                    return tensor.element
        return self.element

    def _find_operands(
        self, row: int, kind: Kind, layout: Layout, shape: Shape | None
    ) -> tuple[list[str | float], list[Fields]]:
        """Return the operands of a node, and the arguments that were created for missing ones.

        A computation that records inputs is passed to `_match_inputs`, which ignores `layout` and
        `shape`. For any other node the operands are the names of the parents' values, in order,
        followed by new arguments `n<id>_<i>` with `shape`, the recorded or default element type,
        and `layout`, until `kind` has its operands. Raises `InputError` for more parents than
        operands of `kind`, for a parent whose statement has no operations, and for a missing
        operand if the shape is unknown or empty. Raises `UsageError` for a missing operand without
        an element type.
        """
        inputs = self._get_stated(row)
        is_computed = self.workload.nodes.kind[row] == NodeKind.COMPUTE
        if inputs and is_computed:
            return self._match_inputs(row, kind, inputs)
        # Operands that nodes produce come first, followed by new arguments.
        operands: list[str | float] = [name for name, _ in self._get_parent_values(row)]
        missing = TRAITS[kind].operands - len(operands)
        if missing < 0:
            raise create_error(self.workload, row, f"reads {len(operands)} nodes, {kind} fewer")
        arguments: list[Fields] = []
        for _ in range(missing):
            if not shape:
                raise create_error(
                    self.workload, row, "lacks the shape of an operand, which none makes"
                )
            arguments.append(
                self._create_argument(row, len(arguments), shape, self._find_element(row), layout)
            )
            operands.append(arguments[-1]["name"])
        return operands, arguments

    def _match_inputs(
        self, row: int, kind: Kind, inputs: tuple[StatedInput, ...]
    ) -> tuple[list[str | float], list[Fields]]:
        """Match the recorded inputs of a node in order; return its operands and its new arguments.

        `kind` has n operands, one for each of the first n inputs:

        - A number becomes a number operand.
        - A tensor becomes the name of the first unused parent value of equal or unknown shape.
        - Any other tensor becomes a new replicated argument `n<id>_<i>`, i from 0, with the
          recorded shape (else ()) and element type (else that of the option).

        Further inputs are ignored if each is the number 1 for add and subtract, or 2 for norm.
        Errors in order: `InputError` for other further inputs, then for a parent without
        operations; `UsageError` for an argument without element type; `InputError` for an unused
        parent value or fewer than n inputs.
        """
        count = TRAITS[kind].operands
        # A tensor has no number, and neither has a kind without a neutral one.
        if any(
            stated_input.number is None or stated_input.number != _IGNORED_OPERANDS.get(kind)
            for stated_input in inputs[count:]
        ):
            raise create_error(
                self.workload, row, f"states more than the {count} operands of {kind}"
            )
        waiting = self._get_parent_values(row)
        operands: list[str | float] = []
        arguments: list[Fields] = []
        for stated_input in inputs[:count]:
            producers = [value for value in waiting if value[1] in (stated_input.shape, None)]
            if stated_input.number is not None:
                operands.append(stated_input.number)
            elif producers:
                waiting.remove(producers[0])
                operands.append(producers[0][0])
            else:
                element = stated_input.element or self.element
                shape = stated_input.shape or ()
                argument = self._create_argument(row, len(arguments), shape, element, REPLICATED)
                arguments.append(argument)
                operands.append(argument["name"])
        if waiting or len(operands) < count:
            shapes = ", ".join(f"{name} {shape}" for name, shape in waiting) or "too few"
            message = f"reads {shapes}, which its stated inputs have not"
            raise create_error(self.workload, row, message, "state its inputs as it reads them")
        return operands, arguments

    def _create_argument(
        self, row: int, index: int, shape: Shape, element: str | None, layout: Layout
    ) -> Fields:
        """Return the fields of a new argument, for an operand that no node produces.

        `name` is `n<id>_<index>`, where id is the identity of the node in `row`. The other fields
        are those of `type_fields` for the element type, shape and layout, with the shape as a list.
        The argument is not recorded; the caller does that. Raise `UsageError` if `element` is None
        (unknown), and `ValueError` if it is no `ElementType`.
        """
        if element is None:
            message = "element type of what is filled in is not stated"
            raise UsageError(message, cure="-O element=float16, float32 or float64")
        # Named after the first node that reads it.
        name = f"n{int(self.workload.nodes.identity[row])}_{index}"
        kind = TensorType(ElementType(element), shape, layout)
        return {"name": name, **type_fields(kind), "shape": list(shape)}
