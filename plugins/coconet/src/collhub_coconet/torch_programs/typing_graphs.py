"""Type a captured graph: the program of one rank becomes a program of global tensors and layouts.

The graph describes the local tensors of one rank. A value that all ranks have is replicated, a
block along a dimension is sliced, and everything else is local, which is always correct: a local
value is the rank's value. So an operator without a kind in the language becomes an opaque
operation on local values, and views of no cost convert blocks to local values and back. On a mesh
of several axes this is the case on every axis.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from collhub_captured_graphs import (
    CapturedGraph,
    GraphInput,
    GraphNode,
    GraphOutput,
    Layouts,
    Tensor,
    describe_node,
    find_contradiction,
    is_collective,
)
from collhub_captured_graphs.graph import ArgumentValue, InputRole, OutputRole, Reference

from collhub_coconet.documents.json_document import CAPTURE, BoundProgram
from collhub_coconet.program.checking import type_operation
from collhub_coconet.program.operands import TypingMistakeError
from collhub_coconet.program.operations import (
    LOCAL,
    POINTWISE,
    REPLICATED,
    Argument,
    Binding,
    ElementType,
    Kind,
    Layout,
    LayoutRule,
    Operand,
    Operation,
    Placement,
    Reduction,
    Shape,
    TensorType,
    on_mesh,
    sliced,
)
from collhub_coconet.program.program import Program
from collhub_coconet.program.shape_rules import match_dimensions
from collhub_coconet.program.uneven_rows import RowBlocks, list_row_blocks
from collhub_coconet.torch_programs.graph_meshes import find_blocks, find_group_axes, find_mesh
from collhub_coconet.torch_programs.operator_kinds import EXPANSIONS, Expansion
from hub_core.model import InputError, JsonValue, Location

_MAX_NESTING = 8

_SHARD = re.compile(r"S\(([0-9]{1,2})\)")

_REDUCTIONS = {
    "sum": Reduction.SUM,
    "avg": Reduction.SUM,
    "product": Reduction.PROD,
    "min": Reduction.MIN,
    "max": Reduction.MAX,
}
# Operators that only check their operands, and return nothing.
_CHECKS = ("aten._assert", "aten.sym_constrain_range")
_ALIASES = frozenset(
    {"aten.detach", "aten.alias", "aten.clone", "aten.contiguous", "aten.lift_fresh_copy"}
)
# Operators that change nothing if the result has the shape and element type of the operand.
_VIEWS = frozenset(
    {"aten.view", "aten._unsafe_view", "aten.reshape", "aten._to_copy", "aten.expand"}
)


@dataclass(frozen=True, slots=True)
class TypingChoices:
    """Decisions that a graph does not contain.

    `num_ranks`: None for the number in the graph. `parameters`: placement of parameters, buffers
    and states without one. `placements`: by name or target of an input, before all others.
    `takes_unknown_as_local`: whether an operator outside of the table reads the block of a sliced
    operand as a local value; otherwise it is refused. `mesh`: ranks by the name of an axis, the
    slowest first, and `groups`: axes by the name of a process group; empty for those of the graph.
    """

    num_ranks: int | None = None
    parameters: str = "L"
    placements: Mapping[str, str] = field(default_factory=dict)
    takes_unknown_as_local: bool = False
    mesh: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)


def type_graph(graph: CapturedGraph, choices: TypingChoices) -> BoundProgram:
    """Convert a captured graph to a program, bound to its number of ranks.

    Several process groups are axes of a mesh; see `find_mesh`. Raises `InputError` for placements
    that do not fit, groups that form no mesh, unequal splits of an all-to-all, element types that
    the language does not have, and operators outside of the table that read a sliced value.
    """
    return _GraphTyper(graph, choices).type_program()


def parse_placement(text: str, num_axes: int = 1) -> Layout | None:
    """Return the layout of a placement: `R`, `L` or `S(d)`; None for any other text.

    R is replicated, L local (a different value per rank), `S(d)` sliced along dimension d.
    `num_axes`: axes of the mesh. A single `R` or `L` applies to all axes. Otherwise several
    axes need one placement per axis, in parentheses, such as `(S(0), R)`; one axis may have
    parentheses.
    """
    if text in ("R", "L"):
        return on_mesh(*(REPLICATED if text == "R" else LOCAL,) * num_axes)
    if num_axes > 1 or text.startswith("("):
        parts = text.removeprefix("(").removesuffix(")").split(",")
        layouts = [parse_placement(part.strip()) for part in parts]
        known = [layout for layout in layouts if layout is not None]
        is_complete = text.startswith("(") and text.endswith(")") and len(known) == len(layouts)
        return on_mesh(*known) if is_complete and len(known) == num_axes else None
    match = _SHARD.fullmatch(text)
    return sliced(int(match[1])) if match else None


class _GraphTyper:
    """Program under construction. `values`: names of program values by names of graph values."""

    def __init__(self, graph: CapturedGraph, choices: TypingChoices) -> None:
        self.graph = graph
        self.mesh = find_mesh(graph, choices.num_ranks, choices.mesh, choices.groups)
        self.types: dict[str, TensorType] = {}
        self._choices = choices
        self._operations: dict[str, Operation] = {}
        self._values: dict[str, str] = {}
        self._inputs: dict[str, GraphInput] = {}
        self._updates: dict[str, str] = {}

    def type_program(self) -> BoundProgram:
        """Return the program of the graph, bound to the number of ranks and the mesh; call it once.

        Inputs, nodes and outputs are typed in the order of the graph. Every input is an argument,
        also an unused one. It is a state if an output updates it (`_add_output`); the new value of
        a parameter or a buffer must then be complete on each rank after the step.

        Equal outputs occur once. Pointwise operations that are read exactly once get names with
        `_`, so that they belong to the statement of their reader (`_merge_statements`). The mesh of
        the program is empty for a single group. The history has one record, the capture, with the
        number of ranks.

        Raises `InputError` for the first input (`_add_input`) or node (`_add_node`) that cannot be
        typed. Then it raises `InputError` (`splits`) for operations or outputs with rows that an
        AllToAllV leaves empty on other ranks.
        """
        blocks = find_blocks(self.graph, self.mesh)
        for entry in self.graph.inputs:
            self._add_input(entry, blocks.get(entry.tensor.name, frozenset()))
        for node in self.graph.nodes:
            self._add_node(node)
        outputs = [self._add_output(output) for output in self.graph.outputs]
        self._refuse_unfilled_rows(outputs)
        arguments = []
        for name, entry in self._inputs.items():
            is_state = name in self._updates
            # The next step reads complete parameters, but each rank only its part of the states.
            is_whole = is_state and entry.role in (InputRole.PARAMETER, InputRole.BUFFER)
            arguments.append(Argument(name, self.types[name], is_state, is_whole))
        operations = _merge_statements(tuple(self._operations.values()), set(outputs))
        program = Program(
            self.graph.name,
            {},
            tuple(arguments),
            operations,
            tuple(dict.fromkeys(outputs)),
            mesh=self.mesh.names,
        )
        num_ranks = self.mesh.num_ranks
        record: dict[str, JsonValue] = {"transformation": CAPTURE, "num_ranks": num_ranks}
        binding = Binding(num_ranks, {}, self.mesh.sizes if self.mesh.names else ())
        return BoundProgram(program, binding, (record,))

    def emit(self, name: str, kind: Kind, operands: Sequence[Operand], **attributes: object) -> str:
        """Add an operation with its type to the program, and return its name.

        `operands`: names of arguments or operations, or numbers; `attributes`: further fields
        of `Operation`. `name` must be unused: an existing operation of this name is replaced
        without an error. Raise `TypingMistakeError` if the operation is ill-typed, and
        `KeyError` if the program lacks an operand; then the program is unchanged.
        """
        operation = Operation(name, kind, tuple(operands), **attributes)  # type: ignore[arg-type]
        types = [self.types[entry] if isinstance(entry, str) else None for entry in operands]
        self.types[name] = type_operation(operation, types, self.mesh.names)
        self._operations[name] = operation
        return name

    def name_inner(self, node: str) -> str:
        """Return an unused name for an intermediate value: `_NODE_N` with the smallest N from 1.

        NODE is the text `node`. The name is not reserved: a second call returns the same name
        if no value of this name was added.
        """
        number = 1
        while f"_{node}_{number}" in self.types:
            number += 1
        return f"_{node}_{number}"

    def name_value(self, name: str) -> str:
        """Return an unused program name for the value `name` of the graph.

        A leading `_`, which marks intermediate values, gets the prefix `v`; `_` is appended until
        the name is unused. The name is not reserved.
        """
        candidate = f"v{name}" if name.startswith("_") else name
        while candidate in self.types:
            candidate += "_"
        return candidate

    def _add_input(self, entry: GraphInput, block_axes: Collection[int]) -> None:
        """Declare an input of the graph as an argument, with a placement on each axis of the mesh.

        The first placement that is given and not empty counts:

        - the one of the options for its name, then for its target
        - the one in the document
        - R (replicated) for constants, L (local) for inputs, the option `parameters` for all other
          roles

        `parse_placement` converts it to a layout per axis. On the axes `block_axes`, along which
        collectives show that the value is a block, a local layout becomes a block of dimension 0.
        The type has the complete shape: sliced dimensions are multiplied by the ranks. The type,
        the value and the input are stored; the name of the value is that of the tensor, made unique
        (`name_value`).

        Raises `InputError`, in this order: `placement` for an invalid placement or one that slices
        a dimension that the shape lacks; `element-type` for an unsupported element type; `size` for
        an empty tensor.
        """
        name = entry.tensor.name
        chosen = self._choices.placements
        placement = chosen.get(name) or chosen.get(entry.target) or entry.placement
        if not placement:
            has_default = entry.role not in (InputRole.INPUT, InputRole.CONSTANT)
            placement = self._choices.parameters if has_default else "L"
            placement = "R" if entry.role is InputRole.CONSTANT else placement
        axes = self.mesh.names
        layout = parse_placement(placement, len(self.mesh.sizes))
        if layout is None:
            message = f"input {name} has the placement {placement!r:.40}"
            cure = "name R, L or S(d)"
            if axes:
                cure = f"name R, L, or one of R, L, S(d) for each axis: ({', '.join(axes)})"
            self._fail(message, cure, "placement")
        layouts = [
            sliced(0) if axis in block_axes and one == LOCAL else one
            for axis, one in enumerate(layout.by_axis)
        ]
        value = self.name_value(name)
        if any(one.dimension >= len(entry.tensor.shape) for one in layouts if one.is_sliced):
            shape = list(entry.tensor.shape)
            message = f"input {name} of shape {shape} cannot be {placement}"
            self._fail(message, "name R, L or S(d) of a dimension", "placement")
        self.types[value] = self._type_tensor(entry.tensor, on_mesh(*layouts))
        self._values[name] = value
        self._inputs[value] = entry

    def _add_node(self, node: GraphNode) -> None:
        """Add a node of the graph to the program, by the first of these rules that fits.

        1. A wait (`wait_tensor`): no operation; the result has the value of the operand.
        2. A collective: `_add_collective`.
        3. A check, such as an assertion: ignored.
        4. No used tensor as result: `InputError` (`operator`).
        5. A first result whose shape contradicts the operands (`find_contradiction`): `InputError`
           (`shape`).
        6. A copy (`_ALIASES`) or view (`_VIEWS`) with one result, of the shape and element type of
           the first operand: no operation; the result has the value of this operand.
        7. Operations of the language: `_add_kind`.
        8. Opaque operations: `_add_opaque`.

        Codes of further `InputError`s: of collectives `send`, `layout`, `shape`, `splits`, `root`
        and `reduction`; of opaque operations `unknown-operator`, `element-type` and `size`.
        """
        base = ".".join(node.operator.split(".")[:2])
        if base.endswith(".wait_tensor"):
            self._values[node.tensors[0].name] = self._values[node.reads[0]]
        elif is_collective(node.operator):
            self._add_collective(node, base.split(".")[1].removesuffix("_"))
        elif node.operator.startswith(_CHECKS):
            return
        elif not node.tensors:
            self.graph.refuse(node, "returns no tensor", "operator", "capture without it")
        elif (reason := find_contradiction(self.graph, node)) is not None:
            result = next(iter(node.tensors))
            message = f"has the result {result.element}{list(result.shape)}, but its operands have"
            self.graph.refuse(node, f"{message} {reason}", "shape", "capture it again")
        else:
            operands = [self.graph.tensors[name] for name in node.reads[:1]]
            types = {(tensor.shape, tensor.element) for tensor in (*operands, *node.tensors)}
            is_unary = len(operands) == len(node.tensors) == 1
            if is_unary and len(types) == 1 and base in _VIEWS | _ALIASES:
                self._values[node.tensors[0].name] = self._values[node.reads[0]]
            elif not self._add_kind(node, base):
                self._add_opaque(node)

    def _add_kind(self, node: GraphNode, base: str) -> bool:
        """Add a node of the graph as operations of the language; return whether this succeeded.

        Returns False at once if the operator `base` has no expansion. An `_foreach_` operator uses
        the expansion of its name without `_foreach_`. Up to three attempts are made, each with
        other operands; the first success ends them:

        1. The operands unchanged.
        2. Local operands (each rank has its own value) become blocks of a larger tensor, if
           another operand of the same shape is sliced (`_match_blocks`).
        3. All operands that are sliced, partial or on a root become local.

        Attempts 2 and 3 are made only if an operand is sliced, partial or on a root, and the
        operator is in the table of layouts. On success the values of the results are recorded. A
        failed attempt leaves no operation.
        """
        # A list operator (`_foreach_add`) applies the operator of its name to every entry.
        expansion = EXPANSIONS.get(base.replace("aten._foreach_", "aten."))
        if expansion is None:
            return False
        operands = {name: self._values[name] for name in node.reads}
        if self._expand(node, expansion, operands):
            return True
        local = {name: value for name, value in operands.items() if self.find_divided(value)}
        if not local or not describe_node(self.graph, node).is_known:
            return False
        before = len(self._operations)
        if self._expand(node, expansion, self._match_blocks(node, operands)):
            return True
        self._restore(before)
        operands |= {
            name: self._make_local(value, self.find_divided(value)) for name, value in local.items()
        }
        if self._expand(node, expansion, operands):
            return True
        self._restore(before)
        return False

    def _match_blocks(self, node: GraphNode, operands: Mapping[str, str]) -> dict[str, str]:
        """Return the values of a node's operands, some of them converted to blocks.

        `operands`: the value of each operand by its name in the graph; it is not changed.
        An operand takes part if its shape on one rank equals the shape of a result of the
        node. For each axis of the mesh, in order:

        - If at least one of these operands is sliced on the axis, and all that are sliced
          are sliced along the same dimension, every one that is local on the axis becomes
          a block of this dimension. The conversion adds a view to the program, which
          takes no time.
        - Otherwise the axis changes no operand.
        """
        shapes = {tensor.shape for tensor in node.tensors}
        matched = dict(operands)
        equal = [name for name in operands if self.graph.tensors[name].shape in shapes]
        for axis in range(len(self.mesh.sizes)):
            layouts = {name: self.types[matched[name]].layout.by_axis[axis] for name in equal}
            dimensions = {layout.dimension for layout in layouts.values() if layout.is_sliced}
            for name, layout in layouts.items():
                if layout == LOCAL and len(dimensions) == 1:
                    matched[name] = self._make_block(matched[name], [axis], min(dimensions))
        return matched

    def _expand(self, node: GraphNode, expansion: Expansion, operands: Mapping[str, str]) -> bool:
        """Add the operations of one expansion of a graph node; return whether the results fit.

        `expansion`: function that adds the operations of the language for an operator. `operands`:
        name of the value of each operand. A result fits if its element type is that of the tensor
        in the graph, and its shape on one rank is the shape of that tensor.

        If all results that are tensors fit, the values are recorded under the names of the results.
        If one does not fit, or an operation is ill-typed, all operations are removed again. For an
        operator of lists (`_foreach_`), the expansion is called once per result.
        """
        before = len(self._operations)
        names: Sequence[str | None]
        try:
            if "._foreach_" in node.operator:
                builders = [
                    _NodeBuilder(self, node, operands, entry) for entry in range(len(node.results))
                ]
                names = [str(expansion(builder)) for builder in builders]
            else:
                found = expansion(_NodeBuilder(self, node, operands))
                names = (found,) if isinstance(found, str) else found
        except TypingMistakeError:
            names = ()
        values = {
            tensor.name: name
            for name, tensor in zip(names, node.results, strict=False)
            if name is not None and tensor is not None and self._fits(name, tensor)
        }
        if len(values) < len(node.tensors):
            self._restore(before)
            return False
        self._values |= values
        return True

    def _fits(self, name: str, tensor: Tensor) -> bool:
        """Check whether a rank's part of a value has the element type and shape of a tensor.

        `name`: of a value of the program; `tensor`: result in the graph, as one rank has it. False
        if blocks have different lengths.
        """
        kind = self.types[name]
        return str(kind.element) == tensor.element and self.find_local_shape(kind) == tensor.shape

    def _add_opaque(self, node: GraphNode) -> None:
        """Add an operator without a rule of the program language as opaque operations.

        One operation is added per used result, none without one. The first reads the operands;
        every further one reads the first. An operand is divided if it is sliced, partial or on a
        root on some axis of the mesh.

        - If no operand is divided, all results are local (rule PER_RANK).
        - If the operator is not random and `_find_row_axes` permits row slices, operands keep
          their layout. One of the first `row_results` results with at least `row_dimensions`
          dimensions is sliced like the operands (rule ROWS). Any other result is local (PARTS).
        - Otherwise divided operands become local, and all results are local (rule PER_RANK).

        The first operation of a random operator has the rule RANDOM. The first operation has the
        operator's work and traffic, times the number of ranks among which its result is sliced.
        Every further operation has 0. The names of the results are recorded in `_values`.

        Raises `InputError`: `unknown-operator` if an operator outside the table reads a divided
        operand without the option `unknown=local`; `element-type` or `size` for a result with an
        unsupported element type or without elements.
        """
        facts = describe_node(self.graph, node)
        reads = list(dict.fromkeys(node.reads))
        values = {name: self._values[name] for name in reads}
        blocks = [name for name in reads if self.find_divided(values[name])]
        if blocks and not facts.is_known and not self._choices.takes_unknown_as_local:
            message = f"has no entry in the table of operators and reads {blocks[0]}, a block"
            cure = "-O unknown=local takes the block as the rank's value"
            self.graph.refuse(node, message, "unknown-operator", cure)
        row_axes = self._find_row_axes(values, facts) if blocks and not facts.is_random else {}
        if not row_axes:
            for name in blocks:
                values[name] = self._make_local(values[name], self.find_divided(values[name]))
        operands = [values[name] for name in reads]
        first: str | None = None
        for position, tensor in enumerate(node.results):
            if tensor is None:
                continue
            has_rows = bool(row_axes) and position < facts.row_results
            has_rows &= len(tensor.shape) >= facts.row_dimensions
            dimensions = row_axes if has_rows else {}
            layouts = [
                sliced(dimensions[axis]) if axis in dimensions else LOCAL
                for axis in range(len(self.mesh.sizes))
            ]
            kind = self._type_tensor(tensor, on_mesh(*layouts))
            name = self.name_value(tensor.name)
            rule = LayoutRule.PARTS if row_axes else LayoutRule.PER_RANK
            attributes: dict[str, object] = {"element": kind.element, "shape": kind.shape}
            attributes["rule"] = LayoutRule.ROWS if has_rows else rule
            if has_rows and facts.row_dimensions > 1:
                attributes["count"] = facts.row_dimensions
            if first is None:
                scale = self.mesh.count(tuple(dimensions))
                attributes |= {"work": facts.work * scale, "traffic": facts.traffic * scale}
                attributes["call"] = _format_call(node, reads, position)
                if facts.is_random:
                    attributes["rule"] = LayoutRule.RANDOM
                first = self.emit(name, Kind.OPAQUE, operands, **attributes)
            else:
                call = json.dumps({"operator": "result", "output": position}, separators=(",", ":"))
                attributes |= {"work": 0, "traffic": 0, "call": call}
                self.emit(name, Kind.OPAQUE, [first], **attributes)
            self._values[tensor.name] = name

    def _find_row_axes(self, values: Mapping[str, str], facts: Layouts) -> dict[int, int]:
        """Return the sliced dimension by mesh axis; {} if the operator refuses the slices.

        `values`: program values by the names of the operands. `facts`: properties of the operator.
        An axis on which all operands are local or replicated is not in the result.
        On every other axis, consider the operands that are neither local nor replicated. Three
        conditions must hold; if one fails on any axis, the whole result is {}:

        - all of them are sliced, along the same dimension
        - this dimension is one of the first `facts.row_dimensions`
        - all of them are in `facts.sliceable`
        """
        by_axis = {name: self.types[value].layout.by_axis for name, value in values.items()}
        dimensions = {}
        for axis in range(len(self.mesh.sizes)):
            divided = {
                name: layouts[axis]
                for name, layouts in by_axis.items()
                if layouts[axis] not in (LOCAL, REPLICATED)
            }
            if not divided:
                continue
            found = {one.dimension if one.is_sliced else -1 for one in divided.values()}
            dimension = found.pop()
            is_row = not found and 0 <= dimension < facts.row_dimensions
            if not is_row or not divided.keys() <= facts.sliceable:
                return {}
            dimensions[axis] = dimension
        return dimensions

    def _add_collective(self, node: GraphNode, kind: str) -> None:
        """Add one collective per used result of a node, and record the value of each result.

        `kind`: name of the operator without a trailing `_`. Suffixes `_out` and then `_coalesced`
        are removed; the rest must be `all_reduce`, `reduce_scatter_tensor`,
        `all_gather_into_tensor`, `all_to_all_single` or `broadcast`. The i-th result reads the i-th
        operand.

        Raises `InputError` with the node. Its code is:

        - `send`: another kind, such as a message between two ranks
        - `shape`: fewer operands than results, or a result that differs from the graph in element
          type or in its shape on a rank
        - `layout`: an ill-typed collective
        - `reduction`, `root`, `splits`: a reduction not in `_REDUCTIONS`, a root outside the group,
          unsuitable split sizes (`_exchange`)

        Values and operations that were added before an error remain.
        """
        functions: dict[str, Callable[[GraphNode, str, Tensor], str]] = {
            "all_reduce": self._reduce_all,
            "reduce_scatter_tensor": self._reduce_scatter,
            "all_gather_into_tensor": self._gather,
            "all_to_all_single": self._exchange,
            "broadcast": self._broadcast,
        }
        function = functions.get(kind.removesuffix("_out").removesuffix("_coalesced"))
        if function is None:
            cure = "capture a program with collectives only"
            self.graph.refuse(node, "is a message, which programs of one group lack", "send", cure)
        count, operands = len(node.tensors), node.reads[: len(node.tensors)]
        if len(operands) < count:
            message = f"reads {len(operands)} tensors, but has {count} results"
            self.graph.refuse(node, message, "shape", "capture it again")
        for operand, result in zip(operands, node.tensors, strict=True):
            try:
                name = function(node, self._values[operand], result)
            except TypingMistakeError as error:
                self.graph.refuse(node, f"is ill-typed: {error}", "layout")
            if not self._fits(name, result):
                found = f"{self.types[name].element}{list(self.find_local_shape(self.types[name]))}"
                message = f"has the result {result.element}{list(result.shape)}, not {found}"
                self.graph.refuse(node, message, "shape", "capture it again")
            self._values[result.name] = name

    def _reduce_all(self, node: GraphNode, operand: str, result: Tensor) -> str:
        """Add an AllReduce, and a division if it averages; return the name of the last value.

        The axes are those of the process group of the node. The last value has the name of
        `result`, made unique; before a division, the sum has an intermediate name. The first case
        applies:

        1. The reduction is a sum or an average, and `_find_summed_block` returns a value: the
           operand is the Sum, on each rank, of its block of this sliced value. A Sum of the
           complete value is added, and no AllReduce.
        2. Otherwise an AllReduce of the operand is added. Before, the operand is converted to a
           local value (each rank has separate data) on each axis where it is not partial with this
           reduction.

        An average (`reduce_op` "avg"; the default is "sum") is then divided by the number of ranks
        of the group. Raises `InputError` (`reduction`) for an unknown reduction, and
        `TypingMistakeError` if an operation is ill-typed, e.g. an average of integers.
        """
        reduction = self._find_reduction(node)
        axes = find_group_axes(self.mesh, node)
        name = self.name_value(result.name)
        is_average = node.arguments.get("reduce_op") == "avg"
        target = self.name_inner(name) if is_average else name
        block = self._find_summed_block(operand, axes) if reduction is Reduction.SUM else None
        if block is not None:
            total = self.emit(target, Kind.SUM, [block])
        else:
            local = self._make_reducible(operand, axes, reduction)
            over = self.mesh.name_axes(axes)
            total = self.emit(target, Kind.ALL_REDUCE, [local], reduction=reduction, axes=over)
        return self._average(node, total, name)

    def _find_summed_block(self, operand: str, axes: Sequence[int]) -> str | None:
        """Return the sliced value whose complete sum equals the all-reduce of `operand`, or None.

        `axes`: the axes of the all-reduce, as positions in the mesh. None unless all of these hold:

        - `operand` is the result of a Sum, and the Sum reads a view of the rule TO_LOCAL.
        - On each of `axes`, this view changes the layout, and the value that it reads is sliced.

        The result is the name of the value that the view reads. If the view also changes the layout
        on other axes, the result is a new view that makes this value local on those axes only.
        """
        inner = self._operations.get(operand)
        if inner is None or inner.kind is not Kind.SUM:
            return None
        view = self._operations.get(inner.reads[0])
        if view is None or view.rule is not LayoutRule.TO_LOCAL:
            return None
        source = view.reads[0]
        layouts = self.types[source].layout.by_axis
        changed = [
            axis
            for axis, layout in enumerate(self.types[view.name].layout.by_axis)
            if layout != layouts[axis]
        ]
        if not all(axis in changed and layouts[axis].is_sliced for axis in axes):
            return None
        return self._make_local(source, [axis for axis in changed if axis not in axes])

    def _make_reducible(
        self, value: str, axes: Sequence[int], reduction: Reduction, *, is_whole: bool = False
    ) -> str:
        """Return a value with the content of `value` that can be reduced along the given axes.

        The result is its name. On each of `axes` it is partial with this reduction if `value`
        is, otherwise local (each rank has its own value). With `is_whole`, it also becomes
        local on all other axes on which it is sliced, partial or on a root. A view is added if
        a layout must change; otherwise `value` is returned.
        """
        layouts = self.types[value].layout.by_axis
        change = [
            axis
            for axis, layout in enumerate(layouts)
            if (axis in axes and layout.reduction is not reduction)
            or (is_whole and axis in self.find_divided(value) and axis not in axes)
        ]
        return self._make_local(value, change)

    def _reduce_scatter(self, node: GraphNode, operand: str, result: Tensor) -> str:
        """Add a ReduceScatter along dimension 0 over the group of `node`; return its name.

        Let G be the mesh axes of the process group. First the operand is converted to a local
        value, i.e. each rank has separate data, on these axes:

        - an axis in G, unless the operand is a partial result of the same reduction on it
        - an axis outside G on which the operand is sliced, partial or on a root, but only if the
          operand is sliced along dimension 0 on some axis outside G

        For an average (`avg`) a division of the sum by the number of ranks of the group is added.
        The name is that of the last operation: `result.name`, with a suffix if the name is used.
        Raises `InputError` (`reduction`) for an unknown reduction, and `TypingMistakeError` if an
        operation is ill-typed.
        """
        reduction = self._find_reduction(node)
        axes = find_group_axes(self.mesh, node)
        name = self.name_value(result.name)
        is_average = node.arguments.get("reduce_op") == "avg"
        target = self.name_inner(name) if is_average else name
        others = [axis for axis in range(len(self.mesh.sizes)) if axis not in axes]
        layouts = self.types[operand].layout.by_axis
        is_whole = any(layouts[axis] == sliced(0) for axis in others)
        local = self._make_reducible(operand, axes, reduction, is_whole=is_whole)
        over = self.mesh.name_axes(axes)
        total = self.emit(
            target, Kind.REDUCE_SCATTER, [local], reduction=reduction, dimension=0, axes=over
        )
        return self._average(node, total, name)

    def _gather(self, node: GraphNode, operand: str, result: Tensor) -> str:
        """Add an AllGather along dimension 0; return the name of the result.

        The operand is taken as a block of dimension 0 on the axes of the process group, by a view
        if it has another layout. If dimension 0 is also sliced along another axis after the first
        axis of the group, the operand is first converted to a local value on all axes that divide
        it. Raises `TypingMistakeError` if an operation is ill-typed.
        """
        axes = find_group_axes(self.mesh, node)
        layouts = self.types[operand].layout.by_axis
        others = [axis for axis in range(len(self.mesh.sizes)) if axis not in axes]
        if any(layouts[axis] == sliced(0) and axis > axes[0] for axis in others):
            operand = self._make_local(operand, self.find_divided(operand))
        block = self._make_block(operand, axes)
        over = self.mesh.name_axes(axes)
        return self.emit(self.name_value(result.name), Kind.ALL_GATHER, [block], axes=over)

    def _exchange(self, node: GraphNode, operand: str, result: Tensor) -> str:
        """Add an AllToAll on dimension 0 of a tensor, and return the name of the result.

        Dimension 0 on each rank of the process group consists of one equal part per rank. Part j of
        rank i becomes part i of rank j. The operand is first made local on the axes of the group,
        and on all axes on which it is sliced, partial or on a root. A view before the AllToAll adds
        a dimension of ranks, and a view after it removes this dimension. The name of the result is
        that of `result`, made unique.

        If the node has a list `output_split_sizes` or `input_split_sizes` whose entries are not all
        equal, and the tensor is no scalar, the result is that of `_exchange_rows` instead (an
        AllToAllV). Lists of equal split sizes are ignored.

        Raises `InputError` (`splits`) for a scalar, for a dimension 0 that is no multiple of the
        number of ranks, and as `_exchange_rows`. Raises `TypingMistakeError` if an operation is
        ill-typed.
        """
        lists = [node.arguments.get(name) for name in ("output_split_sizes", "input_split_sizes")]
        splits = [one if isinstance(one, tuple) else () for one in lists]
        tensor = self.graph.tensors[node.reads[0]]
        axes = find_group_axes(self.mesh, node)
        ranks = self.mesh.count(axes)
        if any(len(set(one)) > 1 for one in splits) and tensor.shape:
            return self._exchange_rows(node, operand, result, splits[0], splits[1])
        if not tensor.shape or tensor.shape[0] % ranks:
            cure = "capture with equal parts, padded if necessary"
            self.graph.refuse(node, "has unequal parts", "splits", cure)
        length, *inner = tensor.shape
        shape = (ranks, length, *inner)
        local = self._make_local(operand, {*axes, *self.find_divided(operand)})
        rows = self._view(self.name_inner(result.name), local, LayoutRule.TO_BLOCKS, shape, axes)
        over = self.mesh.name_axes(axes)
        columns = self.emit(
            self.name_inner(result.name), Kind.ALL_TO_ALL, [rows], dimension=1, axes=over
        )
        return self._view(
            self.name_value(result.name), columns, LayoutRule.TO_LOCAL, result.shape, axes
        )

    def _exchange_rows(
        self,
        node: GraphNode,
        operand: str,
        result: Tensor,
        received: tuple[ArgumentValue, ...],
        sent: tuple[ArgumentValue, ...],
    ) -> str:
        """Add an AllToAllV for constant split sizes that differ; return the name of its result.

        `received`, `sent`: rows that this rank gets from, and sends to, each rank; empty: equal
        parts. If only `sent` has different sizes, rank j gets sent[j] rows from each rank.
        Otherwise every rank receives the sizes of `received`. The operand is made local on the axes
        of the group and on all axes that divide it. Raises `InputError` (`splits`) in the first of
        these cases:

        1. A side does not have one size of at least 0 per rank with the sum of its rows.
        2. Neither side has equal sizes.
        3. The size of the side with equal sizes is not the largest size of the other side.
        """
        axes = find_group_axes(self.mesh, node)
        ranks = self.mesh.count(axes)
        rows = result.shape[0], self.graph.tensors[node.reads[0]].shape[0]
        outputs = complete_splits(received, rows[0], ranks)
        inputs = complete_splits(sent, rows[1], ranks)
        if outputs is None or inputs is None:
            message = "has split sizes that are no parts of its rows, one per rank"
            self.graph.refuse(node, message, "splits", "capture it again")
        if len(set(outputs)) > 1 and len(set(inputs)) > 1:
            message = "sends and receives unequal parts; the split sizes of other ranks are unknown"
            cure = "send or receive equal parts, padded if necessary"
            self.graph.refuse(node, message, "splits", cure)
        is_sent = len(set(inputs)) > 1
        sizes, own = (inputs, outputs[0]) if is_sent else (outputs, inputs[0])
        if own != max(sizes):
            message = f"has {own} rows for each rank, another rank has {max(sizes)}"
            cure = "capture on the rank with the most rows"
            self.graph.refuse(node, message, "splits", cure)
        counts = sizes * ranks if is_sent else tuple(size for size in sizes for _ in range(ranks))
        local = self._make_local(operand, {*axes, *self.find_divided(operand)})
        name = self.name_value(result.name)
        over = self.mesh.name_axes(axes)
        return self.emit(name, Kind.ALL_TO_ALL_V, [local], counts=counts, axes=over)

    def _refuse_unfilled_rows(self, outputs: Collection[str]) -> None:
        """Refuse operations and outputs with rows that are missing on some ranks.

        An uneven value has different rows on the ranks. An AllToAllV has an uneven result if its
        ranks receive different numbers of rows. Any other operation with an uneven operand has an
        uneven result with the rows of its first uneven operand.

        Raises `InputError` (`splits`) at the first operation, in program order, with one of these
        defects:

        - It is an AllToAllV with an uneven operand, and the blocks of rows that it sends are not
          those of the operand.
        - It is another operation with an uneven operand, and row r of its result is not known to
          depend on row r of the operand only (`_works_by_rows`).
        - It is another operation with uneven operands of different rows.
        - Its result is uneven and in `outputs`.
        """
        blocks: dict[str, RowBlocks] = {}
        for operation in self._operations.values():
            name, kind = operation.name, operation.kind
            reads = [read for read in operation.reads if read in blocks]
            if kind is Kind.ALL_TO_ALL_V:
                before, after = list_row_blocks(operation)
                has_rows = all(blocks[read] == before for read in reads)
                lengths = {sum(count for _, count in rows) for rows in after}
                if len(lengths) > 1:
                    blocks[name] = after
            else:
                has_rows = not reads or self._works_by_rows(operation, reads)
                has_rows = has_rows and len({blocks[read] for read in reads}) <= 1
                if reads:
                    blocks[name] = blocks[reads[0]]
            if not has_rows or (name in outputs and name in blocks):
                message = f"{name} reads or returns rows that other ranks do not have"
                cure = "return tensors with equal rows on all ranks, after another exchange"
                location = Location(self.graph.name)
                raise InputError(message, location=location, cure=cure, code="splits")

    def _works_by_rows(self, operation: Operation, reads: Sequence[str]) -> bool:
        """Return whether row r of the result is known to depend on row r of each of `reads` only.

        A row is a position of dimension 0. `reads` is a list of those operands of the operation
        that are examined. True in these cases only:

        - A MatMul, if `reads` is exactly its first operand, and its second operand is another one.
        - A RowReduce along a dimension above 0.
        - A pointwise operation, if each of `reads` has as many dimensions as the result, and the
          same size of dimension 0.
        """
        shape = self.types[operation.name].shape
        if operation.kind is Kind.MATMUL:
            return reads == [operation.reads[0]] and operation.reads.count(reads[0]) == 1
        if operation.kind is Kind.ROW_REDUCE:
            return bool(operation.dimension)
        if operation.kind not in POINTWISE:
            return False
        # An operand with fewer dimensions, or one row, would be aligned with other dimensions.
        return all(self.types[read].shape[:1] == shape[:1] for read in reads) and all(
            len(self.types[read].shape) == len(shape) for read in reads
        )

    def _broadcast(self, node: GraphNode, operand: str, result: Tensor) -> str:
        source = node.arguments.get("src")
        root = source if type(source) is int else 0
        axes = find_group_axes(self.mesh, node)
        count = self.mesh.count(axes)
        ranks = self.graph.groups.get(str(node.arguments.get("group_name")), ())
        root = ranks.index(root) if root in ranks else root
        if not 0 <= root < count:
            self.graph.refuse(node, f"has root {root} of {count} ranks", "root")
        local = self._make_local(operand, axes)
        over = self.mesh.name_axes(axes)
        name = self.name_value(result.name)
        return self.emit(name, Kind.BROADCAST, [local], root=root, axes=over)

    def _find_reduction(self, node: GraphNode) -> Reduction:
        name = str(node.arguments.get("reduce_op", "sum"))
        if name not in _REDUCTIONS:
            cure = f"reduce with one of {', '.join(_REDUCTIONS)}"
            self.graph.refuse(node, f"has the reduction {name!r:.40}", "reduction", cure)
        return _REDUCTIONS[name]

    def _average(self, node: GraphNode, total: str, name: str) -> str:
        """Divide a sum by the number of added ranks if the collective `node` reduces with avg.

        `total`: name of the sum. The result is the name of the new quotient, which is `name`;
        for all other reductions it is `total`, and no operation is added. The ranks are the
        ones of the process group of the node. Raise `TypingMistakeError` for an average of
        integers.
        """
        if node.arguments.get("reduce_op") != "avg":
            return total
        count = self.mesh.count(find_group_axes(self.mesh, node))
        return self.emit(name, Kind.DIVIDE, [total, float(count)])

    def _add_output(self, output: GraphOutput) -> str:
        """Return the name of the program value of an output; add an Update for a new state.

        1. On axes of the mesh on which the value is partial (to be summed over the ranks), it
           becomes local: each rank returns its own summand.
        2. An output of another role than `MUTATION`, or without a target, is complete. Otherwise
           it is the new value of the first input whose target or name is the output's `target`.
        3. If there is no such input, or it is local on any axis or already has an Update, the
           value is returned.
        4. On each axis on which the input is sliced and the value is not, the value is cut into
           blocks of the same dimension. If its type still differs, it is returned.
        5. Otherwise an Update of the input, named `INPUT_updated` (made unique), is returned.
        """
        value = self._values[output.value]
        partial = [
            axis
            for axis, layout in enumerate(self.types[value].layout.by_axis)
            if layout.placement is Placement.PARTIAL
        ]
        # A rank returns its own value, not the sum.
        value = self._make_local(value, partial)
        if output.role is not OutputRole.MUTATION or not output.target:
            return value
        state = next(
            (
                name
                for name, entry in self._inputs.items()
                if output.target in (entry.target, entry.tensor.name)
            ),
            None,
        )
        if state is None or state in self._updates:
            return value
        expected = self.types[state].layout.by_axis
        if LOCAL in expected:
            return value
        layouts = self.types[value].layout.by_axis
        for axis, (layout, found) in enumerate(zip(expected, layouts, strict=True)):
            if layout.is_sliced and not found.is_sliced:
                value = self._make_block(value, [axis], layout.dimension)
        if self.types[value] != self.types[state]:
            return value
        name = self.name_value(f"{state}_updated")
        self._updates[state] = self.emit(name, Kind.UPDATE, [state, value])
        return name

    def _make_local(self, value: str, axes: Collection[int]) -> str:
        """Return the name of a value with the content of `value` that is local on the given axes.

        Local: each rank has a value of its own, without relation to the values of other ranks.
        `axes`: positions in the mesh. If `value` has another layout on some of them, a view
        without cost is added. Its shape is divided only by the axes that this view changes;
        other axes keep their layout. Without a change, also for no axes, the result is `value`.
        """
        layouts = self.types[value].layout.by_axis
        change = [axis for axis in sorted(axes) if layouts[axis] != LOCAL]
        if not change:
            return value
        shape = self.find_local_shape(self.types[value], change)
        return self._view(self.name_inner(value), value, LayoutRule.TO_LOCAL, shape, change)

    def _make_block(self, value: str, axes: Sequence[int], dimension: int = 0) -> str:
        """Return the name of a value with the content of `value` that is sliced on the given axes.

        `axes`: positions in the mesh. Axes on which `value` is already sliced along `dimension`
        stay as they are; if this holds for all, `value` itself is returned. On each other axis, the
        tensor of a rank becomes its block of a larger tensor. The length of `dimension` is
        multiplied by the ranks of these axes, and must be a number.

        A view without cost is added for this. Before it, a second view makes the value local on
        those of the changed axes where it is neither local nor replicated.
        """
        layouts = self.types[value].layout.by_axis
        change = [axis for axis in axes if layouts[axis] != sliced(dimension)]
        if not change:
            return value
        divided = [axis for axis in change if axis in self.find_divided(value)]
        local = self._make_local(value, divided)
        shape = list(self.types[local].shape)
        length = shape[dimension]
        assert isinstance(length, int)
        shape[dimension] = length * self.mesh.count(change)
        name = self.name_inner(value)
        return self._view(name, local, LayoutRule.TO_BLOCKS, shape, change, dimension or None)

    def _view(
        self,
        name: str,
        value: str,
        rule: LayoutRule,
        shape: Sequence[int | str],
        axes: Sequence[int],
        dimension: int | None = None,
    ) -> str:
        """Add a view between layouts on these axes, without work and traffic; return its name.

        `rule`: TO_LOCAL or TO_BLOCKS; `shape`: of the complete result; `dimension`: of the blocks,
        None for 0.
        """
        return self.emit(
            name,
            Kind.OPAQUE,
            [value],
            element=self.types[value].element,
            call=json.dumps({"operator": "view"}),
            shape=tuple(shape),
            rule=rule,
            work=0,
            traffic=0,
            axes=self.mesh.name_axes(axes),
            dimension=dimension,
        )

    def _type_tensor(self, tensor: Tensor, layout: Layout) -> TensorType:
        """Return the type of the complete tensor of which `tensor` is the part of one rank.

        A dimension that is sliced along an axis of the mesh is multiplied by the ranks of this
        axis; one that is sliced along several by all of them. Raises `InputError` for an
        unsupported element type (`element-type`), and then for a tensor with a dimension of 0
        (`size`).
        """
        if tensor.element not in {str(element) for element in ElementType}:
            message = f"{tensor.name} has element type {tensor.element}, which programs lack"
            supported = ", ".join(ElementType)
            self._fail(message, f"capture with one of {supported}", "element-type")
        if 0 in tensor.shape:
            self._fail(f"{tensor.name} is empty", "capture without empty tensors", "size")
        shape = list(tensor.shape)
        for axis, one in enumerate(layout.by_axis):
            if one.is_sliced:
                shape[one.dimension] *= self.mesh.sizes[axis]
        return TensorType(ElementType(tensor.element), tuple(shape), layout)

    def find_local_shape(
        self, kind: TensorType, axes: Collection[int] | None = None
    ) -> tuple[int, ...]:
        """Return the shape of a rank's part of a tensor; -1 where blocks have different lengths.

        `axes`: positions of the mesh axes along which blocks are taken; None for all. A
        dimension that only other axes slice keeps its complete size. A size that is a symbol
        also gives -1.
        """
        shape = [size if isinstance(size, int) else -1 for size in kind.shape]
        for axis, layout in enumerate(kind.layout.by_axis):
            if layout.is_sliced and (axes is None or axis in axes):
                length, remainder = divmod(shape[layout.dimension], self.mesh.sizes[axis])
                shape[layout.dimension] = -1 if remainder else length
        return tuple(shape)

    def find_divided(self, value: str) -> list[int]:
        """Return the mesh axes on which a value is neither local nor replicated.

        They are positions in ascending order. On these axes the value is sliced, partial (not
        yet reduced over the ranks), or only on a root rank.
        """
        layouts = self.types[value].layout.by_axis
        return [axis for axis, one in enumerate(layouts) if one not in (LOCAL, REPLICATED)]

    def _restore(self, count: int) -> None:
        """Remove all operations after the first `count`, and the types of their values."""
        for name in list(self._operations)[count:]:
            del self._operations[name]
            del self.types[name]

    def _fail(self, message: str, cure: str, code: str) -> NoReturn:
        location = Location(self.graph.file or None)
        raise InputError(message, location=location, cure=cure, code=code)


@dataclass(frozen=True, slots=True)
class _NodeBuilder:
    """Operations of one node; see `operator_kinds.Builder`."""

    typer: _GraphTyper
    node: GraphNode
    operands: Mapping[str, str]
    entry: int | None = None

    def argument(self, *names: str) -> ArgumentValue:
        """Return the first of the named arguments that the node has; None if it has none.

        An argument with the value None counts as present. For an entry of a list operator, an
        argument that is a list gives its element at this position, None if the list is too
        short.
        """
        arguments = self.node.arguments
        value = next((arguments[name] for name in names if name in arguments), None)
        if self.entry is not None and isinstance(value, tuple):
            return value[self.entry] if self.entry < len(value) else None
        return value

    def operand(self, *names: str) -> Operand:
        """Return an argument as an operand: the value or the number.

        Raises `TypingMistakeError` for any other argument.
        """
        return self._find_operand(names[0], self.argument(*names))

    def list_operands(self, name: str) -> list[Operand]:
        """Return the elements of a list argument as operands: names of program values, or numbers.

        Raise `TypingMistakeError` if the argument is missing or no list, or if an element is
        neither a value nor a number. An empty list gives [].
        """
        value = self.argument(name)
        if not isinstance(value, tuple):
            raise TypingMistakeError("operand", f"{name} is no list", "")
        return [self._find_operand(name, one) for one in value]

    def _find_operand(self, name: str, value: ArgumentValue) -> Operand:
        """Return an argument as an operand: the name of a program value, an int or a float.

        `name`: of the argument, for the error. Raise `TypingMistakeError` for a bool, a text,
        None and any other argument, and `KeyError` for a graph value that is not in `operands`.
        """
        if isinstance(value, Reference):
            return self.operands[value.name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypingMistakeError("operand", f"{name} is no tensor or number", "")
        return value

    def is_sliced(self, operand: Operand, dimension: int | None = None) -> bool:
        """Return whether any axis of the mesh slices an operand; False for a number.

        With `dimension` (from 0), only slices along this dimension count.
        """
        if not isinstance(operand, str):
            return False
        layouts = self.typer.types[operand].layout.by_axis
        return any(one.is_sliced and dimension in (None, one.dimension) for one in layouts)

    def shape(self, operand: Operand) -> Shape:
        """Return the complete shape of an operand; empty for a number."""
        return self.typer.types[operand].shape if isinstance(operand, str) else ()

    def local_shape(self, *names: str) -> tuple[int, ...]:
        """Return the shape of a tensor argument on one rank, as in the graph.

        It is the first of the arguments `names` that the node has. Raise `TypingMistakeError`
        if it is no tensor, or the node has none of them.
        """
        value = self.argument(*names)
        if not isinstance(value, Reference):
            raise TypingMistakeError("operand", f"{names[0]} is no tensor", "")
        return self.typer.graph.tensors[value.name].shape

    def results(self) -> tuple[Tensor | None, ...]:
        """Return the results of the node, as in the graph; None for one that is not used.

        For an entry of a list operator (`_foreach_`), it is the one result of this entry.
        """
        if self.entry is None:
            return self.node.results
        return self.node.results[self.entry : self.entry + 1]

    def _result(self) -> Tensor:
        """Return the first result that is used."""
        return next(tensor for tensor in self.results() if tensor is not None)

    def find_complete_shape(self, operand: Operand) -> Shape | None:
        """Return the complete shape of the node's result if it keeps the slices of an operand.

        The shape of the first used result in the graph (that of one rank) is completed. Each
        dimension that an axis of the mesh slices in the operand is found in the result by
        `match_dimensions`. There its size is multiplied by the ranks of this axis. Of a run of
        dimensions that match together, only the first one has a counterpart: the first one of the
        run in the result.

        Example: an operand with the part [6, 4] on each of 2 ranks, sliced along 0, and a result
        [2, 3, 4] give (4, 3, 4). Without sliced dimensions, the result keeps its shape. Returns
        None for a number, and if a sliced dimension has no counterpart.
        """
        if not isinstance(operand, str):
            return None
        kind = self.typer.types[operand]
        pairs = match_dimensions(self.typer.find_local_shape(kind), self._result().shape)
        position_of = dict(pairs or ())
        shape = list(self._result().shape)
        for layout, ranks in zip(kind.layout.by_axis, self.typer.mesh.sizes, strict=True):
            if layout.is_sliced:
                if layout.dimension not in position_of:
                    return None
                shape[position_of[layout.dimension]] *= ranks
        return tuple(shape)

    def add(self, kind: Kind, *operands: Operand, **attributes: object) -> str:
        """Add an operation for an intermediate value, and return its name.

        The name is `_RESULT_N` with the smallest unused N from 1; RESULT is the name of the
        first used result of the node. Raise `TypingMistakeError` if the operation is ill-typed.
        """
        name = self.typer.name_inner(self._result().name)
        return self.typer.emit(name, kind, operands, **attributes)

    def finish(self, kind: Kind, *operands: Operand, output: int = 0, **attributes: object) -> str:
        """Add the operation that computes a result of the node, and return the name of its value.

        `output` is the number of the result, from 0; the result must be used (else
        `AssertionError`). The name is that of the result in the graph, made unique. Raises
        `TypingMistakeError` if the operation is ill-typed.
        """
        tensor = self.results()[output]
        assert tensor is not None
        name = self.typer.name_value(tensor.name)
        return self.typer.emit(name, kind, operands, **attributes)


def complete_splits(
    given: Sequence[ArgumentValue], rows: int, ranks: int
) -> tuple[int, ...] | None:
    """Return the split sizes of `rows` rows, one per rank; equal ones if `given` is empty.

    The result is None if `given` does not consist of one int of 0 or more per rank with the
    sum `rows`, and if `given` is empty and `rows` is no multiple of `ranks` (1 or more).
    """
    sizes = tuple(size for size in given or (rows // ranks,) * ranks if type(size) is int)
    is_complete = len(sizes) == ranks and (not given or len(given) == ranks)
    return sizes if is_complete and min(sizes) >= 0 and sum(sizes) == rows else None


def _merge_statements(operations: Sequence[Operation], outputs: set[str]) -> tuple[Operation, ...]:
    """Rename pointwise operations that are read exactly once, to join their reader's statement.

    A name that begins with `_` marks an intermediate value. The new name is the old one after `_`;
    a name with `_` at its start is kept. While a new name is in use, `_` is appended.
    Transformations then move `0.9 * m + 0.1 * g` as one unit, although `0.9 * m` does not depend on
    g.

    An operation is not renamed in these cases:

    - It is not pointwise (`POINTWISE`), or it is in `outputs`.
    - It is read never, or more than once. Reading it twice in one operation counts twice.
    - Its depth is above 8 (`_MAX_NESTING`). The depth is 1 more than the largest depth of its
      operands that were to be renamed; all other operands have depth 0.

    Returns the operations in the same order, with renamed operands; they must be in program order.
    """
    counts = Counter(name for operation in operations for name in operation.reads)
    used = {operation.name for operation in operations}
    names: dict[str, str] = {}
    depths: dict[str, int] = {}
    result = []
    for operation in operations:
        depth = 1 + max((depths.get(name, 0) for name in operation.reads), default=0)
        is_inner = operation.kind in POINTWISE and counts[operation.name] == 1
        name = operation.name
        if is_inner and name not in outputs and depth <= _MAX_NESTING:
            depths[name] = depth
            names[name] = name if name.startswith("_") else f"_{name}"
            while names[name] != name and names[name] in used:
                names[name] += "_"
            used.add(names[name])
        operands = tuple(
            names.get(operand, operand) if isinstance(operand, str) else operand
            for operand in operation.operands
        )
        result.append(replace(operation, name=names.get(name, name), operands=operands))
    return tuple(result)


def _format_call(node: GraphNode, operands: Sequence[str], output: int) -> str:
    """Format the operator and the arguments of a node as compact JSON.

    The keys, in this order, are `operator`, `arguments` (by name), `keywords` (their sorted names),
    `results` (number of results of the node), and `output`: the number, from 0, of the result that
    the operation represents. Arguments are converted as follows, also inside tuples:

    - a value of the graph: `{"operand": N}`, N is its last position in `operands`
    - a tuple: a list; a float: `{"float": TEXT}` with the text of `repr`
    - an element type: `{"element": NAME}`
    - None, booleans, integers and texts: unchanged

    Raises `KeyError` for a value of the graph that is not in `operands`.
    """
    numbers = {name: number for number, name in enumerate(operands)}

    def convert(value: ArgumentValue) -> object:
        if isinstance(value, Reference):
            return {"operand": numbers[value.name]}
        if isinstance(value, tuple):
            return [convert(entry) for entry in value]
        if isinstance(value, bool | int | str) or value is None:
            return value
        if isinstance(value, float):
            return {"float": repr(value)}
        return {"element": value.name}

    arguments = {name: convert(value) for name, value in node.arguments.items()}
    fields = {
        "operator": node.operator,
        "arguments": arguments,
        "keywords": sorted(node.keywords),
        "results": len(node.results),
        "output": output,
    }
    return json.dumps(fields, separators=(",", ":"))
