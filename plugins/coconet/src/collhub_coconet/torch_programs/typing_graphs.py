"""Type a captured graph: the program of one rank becomes a program of global tensors and layouts.

The graph describes the local tensors of one rank. A value that all ranks have is replicated, a
block along dimension 0 is sliced, and everything else is local, which is always correct: a local
value is the rank's value. So an operator without a kind in the language becomes an opaque
operation on local values, and views of no cost convert blocks to local values and back.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from collhub_captured_graphs import (
    CapturedGraph,
    GraphInput,
    GraphNode,
    GraphOutput,
    Tensor,
    describe_node,
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
    Operand,
    Operation,
    Reduction,
    Rule,
    TensorType,
    sliced,
)
from collhub_coconet.program.program import Program
from collhub_coconet.torch_programs.operator_kinds import EXPANSIONS, Expansion
from hub_core.model import InputError, JsonValue, Location

DEFAULT_RANKS = 4

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


@dataclass(frozen=True, slots=True)
class TypingChoices:
    """Decisions that a graph does not contain.

    `num_ranks`: None for the number in the graph. `parameters`: placement of parameters, buffers
    and states without one. `placements`: by name or target of an input, before all others.
    `takes_unknown_as_local`: whether an operator outside of the table reads the block of a sliced
    operand as a local value; otherwise it is refused.
    """

    num_ranks: int | None = None
    parameters: str = "L"
    placements: Mapping[str, str] = field(default_factory=dict)
    takes_unknown_as_local: bool = False


def type_graph(graph: CapturedGraph, choices: TypingChoices) -> BoundProgram:
    """Convert a captured graph to a program, bound to its number of ranks.

    Raises `InputError` for placements that do not fit, collectives over several groups, unequal
    splits of an all-to-all, element types that the language does not have, and operators outside
    of the table that read a sliced value.
    """
    return _GraphTyper(graph, choices).type_program()


def parse_placement(text: str) -> Layout | None:
    """Return the layout of a placement: `R`, `L` or `S(d)`; None for any other text."""
    if text in ("R", "L"):
        return REPLICATED if text == "R" else LOCAL
    match = _SHARD.fullmatch(text)
    return sliced(int(match[1])) if match else None


class _GraphTyper:
    """Program under construction. `values`: names of program values by names of graph values."""

    def __init__(self, graph: CapturedGraph, choices: TypingChoices) -> None:
        self.graph = graph
        self.num_ranks = _find_num_ranks(graph, choices.num_ranks)
        self.types: dict[str, TensorType] = {}
        self._choices = choices
        self._operations: dict[str, Operation] = {}
        self._values: dict[str, str] = {}
        self._inputs: dict[str, GraphInput] = {}
        self._updates: dict[str, str] = {}

    def type_program(self) -> BoundProgram:
        """Type all inputs, nodes and outputs in order."""
        blocks = _find_blocks(self.graph)
        for entry in self.graph.inputs:
            self._add_input(entry, entry.tensor.name in blocks)
        for node in self.graph.nodes:
            self._add_node(node)
        outputs = [self._add_output(output) for output in self.graph.outputs]
        arguments = []
        for name, entry in self._inputs.items():
            is_state = name in self._updates
            # The next step reads complete parameters, but each rank only its part of the states.
            is_whole = is_state and entry.role in (InputRole.PARAMETER, InputRole.BUFFER)
            arguments.append(Argument(name, self.types[name], is_state, is_whole))
        operations = _merge_statements(tuple(self._operations.values()), set(outputs))
        program = Program(
            self.graph.name, {}, tuple(arguments), operations, tuple(dict.fromkeys(outputs))
        )
        record: dict[str, JsonValue] = {"transformation": CAPTURE, "num_ranks": self.num_ranks}
        return BoundProgram(program, Binding(self.num_ranks, {}), (record,))

    def emit(self, name: str, kind: Kind, operands: Sequence[Operand], **attributes: object) -> str:
        """Add an operation and return its name; raises `TypingMistakeError` if it is ill-typed."""
        operation = Operation(name, kind, tuple(operands), **attributes)  # type: ignore[arg-type]
        types = [self.types[entry] if isinstance(entry, str) else None for entry in operands]
        self.types[name] = type_operation(operation, types)
        self._operations[name] = operation
        return name

    def name_inner(self, node: str) -> str:
        """Return an unused name for an intermediate value of a node."""
        number = 1
        while f"_{node}_{number}" in self.types:
            number += 1
        return f"_{node}_{number}"

    def name_value(self, name: str) -> str:
        """Return the name of a value that text shows; names with `_` are intermediate values."""
        candidate = f"v{name}" if name.startswith("_") else name
        while candidate in self.types:
            candidate += "_"
        return candidate

    def _add_input(self, entry: GraphInput, is_block: bool) -> None:
        """Declare an input with the placement of the options, of the document, or by its uses."""
        name = entry.tensor.name
        chosen = self._choices.placements
        placement = chosen.get(name) or chosen.get(entry.target) or entry.placement
        if not placement:
            has_default = entry.role not in (InputRole.INPUT, InputRole.CONSTANT)
            placement = self._choices.parameters if has_default else "L"
            placement = "R" if entry.role is InputRole.CONSTANT else placement
        layout = parse_placement(placement)
        if layout is None:
            message = f"input {name} has the placement {placement!r:.40}"
            self._fail(message, "name R, L or S(d)", "placement")
        if layout == LOCAL and is_block:
            layout = sliced(0)
        value = self.name_value(name)
        if layout.is_sliced and layout.dimension >= len(entry.tensor.shape):
            shape = list(entry.tensor.shape)
            message = f"input {name} of shape {shape} cannot be {placement}"
            self._fail(message, "name R, L or S(d) of a dimension", "placement")
        self.types[value] = self._type_tensor(entry.tensor, layout)
        self._values[name] = value
        self._inputs[value] = entry

    def _add_node(self, node: GraphNode) -> None:
        """Add the operations of a node: a collective, a kind of the language, or opaque ones."""
        base = ".".join(node.operator.split(".")[:2])
        if base.endswith(".wait_tensor"):
            self._values[node.tensors[0].name] = self._values[node.reads[0]]
        elif is_collective(node.operator):
            self._add_collective(node, base.split(".")[1].removesuffix("_"))
        elif node.operator.startswith(_CHECKS):
            return
        elif not node.tensors:
            self.graph.refuse(node, "returns no tensor", "operator", "capture without it")
        elif not self._alias(node, base) and not self._add_kind(node, base):
            self._add_opaque(node)

    def _alias(self, node: GraphNode, base: str) -> bool:
        """Let a node without an effect on values have the name of its operand."""
        if not node.reads or len(node.tensors) != 1:
            return False
        operand, result = self.graph.tensors[node.reads[0]], node.tensors[0]
        is_equal = operand.shape == result.shape and operand.element == result.element
        is_view = base in ("aten.view", "aten._unsafe_view", "aten.reshape", "aten._to_copy")
        if is_equal and (base in _ALIASES or is_view):
            self._values[result.name] = self._values[operand.name]
            return True
        return False

    def _add_kind(self, node: GraphNode, base: str) -> bool:
        """Add a node as operations of the language, if it has a kind and the layouts fit.

        Blocks that do not fit become local values in a second attempt.
        """
        expansion = EXPANSIONS.get(base)
        if expansion is None or len(node.tensors) != 1 or node.tensors[0] != node.results[0]:
            return False
        operands = {name: self._values[name] for name in node.reads}
        if self._expand(node, expansion, operands):
            return True
        local = {name: value for name, value in operands.items() if self._is_sliced(value)}
        if not local or not describe_node(self.graph, node).is_known:
            return False
        before = self._save()
        operands |= {name: self._make_local(value) for name, value in local.items()}
        if self._expand(node, expansion, operands):
            return True
        self._restore(before)
        return False

    def _expand(self, node: GraphNode, expansion: Expansion, operands: Mapping[str, str]) -> bool:
        """Add the operations of one expansion; undone if it is ill-typed or differs from the graph.

        The result must have the element type of the graph, and its block the shape.
        """
        before = self._save()
        result = node.tensors[0]
        try:
            name = expansion(_NodeBuilder(self, node, operands))
        except TypingMistakeError:
            name = None
        if name is None or not self._fits(name, result):
            self._restore(before)
            return False
        self._values[result.name] = name
        return True

    def _fits(self, name: str, tensor: Tensor) -> bool:
        """Whether a value has the element type of a tensor, and a rank's part of it the shape."""
        kind = self.types[name]
        return str(kind.element) == tensor.element and self._find_local_shape(kind) == tensor.shape

    def _add_opaque(self, node: GraphNode) -> None:
        """Add a node as an opaque operation with the layout rule of its operator."""
        facts = describe_node(self.graph, node)
        reads = list(dict.fromkeys(node.reads))
        blocks = [name for name in reads if self._is_sliced(self._values[name])]
        if blocks and not facts.is_known and not self._choices.takes_unknown_as_local:
            message = f"has no entry in the table of operators and reads {blocks[0]}, a block"
            cure = "-O unknown=local takes the block as the rank's value"
            self.graph.refuse(node, message, "unknown-operator", cure)
        values = {name: self._values[name] for name in reads}
        has_rule = all(
            name in facts.sliceable and self.types[values[name]].layout.dimension == 0
            for name in blocks
        )
        others = [self.types[values[name]].layout for name in reads if name not in blocks]
        is_by_row = bool(blocks) and has_rule and all(one == REPLICATED for one in others)
        is_by_row = is_by_row and all(len(tensor.shape) > 0 for tensor in node.tensors)
        if blocks and not is_by_row:
            values |= {name: self._make_local(values[name]) for name in blocks}
        operands = [values[name] for name in reads]
        rule = Rule.RANDOM if facts.is_random else Rule.PER_RANK
        rule = Rule.ROWS if is_by_row else rule
        first: str | None = None
        for position, tensor in enumerate(node.results):
            if tensor is None:
                continue
            layout = sliced(0) if is_by_row else LOCAL
            kind = self._type_tensor(tensor, layout)
            name = self.name_value(tensor.name)
            attributes: dict[str, object] = {"element": kind.element, "shape": kind.shape}
            if first is None:
                scale = self.num_ranks if is_by_row else 1
                attributes |= {"work": facts.work * scale, "traffic": facts.traffic * scale}
                attributes |= {"rule": rule, "call": _format_call(node, reads, position)}
                first = self.emit(name, Kind.OPAQUE, operands, **attributes)
            else:
                attributes |= {"work": 0, "traffic": 0, "call": _format_result(position)}
                attributes["rule"] = Rule.ROWS if is_by_row else Rule.PER_RANK
                self.emit(name, Kind.OPAQUE, [first], **attributes)
            self._values[tensor.name] = name

    def _add_collective(self, node: GraphNode, kind: str) -> None:
        """Add a collective; a coalesced one becomes one collective per tensor."""
        functions: dict[str, Callable[[GraphNode, str, Tensor], str]] = {
            "all_reduce": self._reduce_all,
            "reduce_scatter_tensor": self._reduce_scatter,
            "all_gather_into_tensor": self._gather,
            "all_to_all_single": self._exchange,
            "broadcast": self._broadcast,
        }
        function = functions.get(kind.removesuffix("_out").removesuffix("_coalesced"))
        if function is None:
            cure = "capture a program with collectives of one group"
            self.graph.refuse(node, "is a message, which programs of one group lack", "send", cure)
        count = len(node.tensors)
        for operand, result in zip(node.reads[:count], node.tensors, strict=True):
            self._values[result.name] = function(node, self._values[operand], result)

    def _reduce_all(self, node: GraphNode, operand: str, result: Tensor) -> str:
        """Add an AllReduce; that of a block's sum is the sum of the sliced tensor."""
        reduction = self._find_reduction(node)
        name = self.name_value(result.name)
        inner = self._operations.get(operand)
        if inner is not None and inner.kind is Kind.SUM and reduction is Reduction.SUM:
            source = self._operations.get(inner.reads[0])
            is_view = source is not None and source.rule is Rule.TO_LOCAL
            if source is not None and is_view and self._is_sliced(source.reads[0]):
                total = self.emit(name, Kind.SUM, [source.reads[0]])
                return self._average(node, total)
        target = name if node.arguments.get("reduce_op") != "avg" else self.name_inner(name)
        total = self.emit(target, Kind.ALL_REDUCE, [self._make_local(operand)], reduction=reduction)
        return self._average(node, total, name)

    def _reduce_scatter(self, node: GraphNode, operand: str, result: Tensor) -> str:
        name = self.name_value(result.name)
        is_average = node.arguments.get("reduce_op") == "avg"
        total = self.emit(
            self.name_inner(name) if is_average else name,
            Kind.REDUCE_SCATTER,
            [self._make_local(operand)],
            reduction=self._find_reduction(node),
            dimension=0,
        )
        return self._average(node, total, name)

    def _gather(self, node: GraphNode, operand: str, result: Tensor) -> str:
        block = self._make_block(operand)
        return self.emit(self.name_value(result.name), Kind.ALL_GATHER, [block])

    def _exchange(self, node: GraphNode, operand: str, result: Tensor) -> str:
        """Add an AllToAll: parts of dimension 0, one per rank, change from source to destination.

        The block of rank i is row i of a tensor [rank, parts of the block]; after the exchange
        rank j has column j.
        """
        lists = [node.arguments.get(name) for name in ("output_split_sizes", "input_split_sizes")]
        splits = [set(one) for one in lists if isinstance(one, tuple) and one]
        tensor = self.graph.tensors[node.reads[0]]
        if (
            any(len(one) > 1 for one in splits)
            or not tensor.shape
            or tensor.shape[0] % self.num_ranks
        ):
            cure = "capture with equal parts, padded if necessary"
            self.graph.refuse(node, "has unequal parts", "splits", cure)
        length, *inner = tensor.shape
        shape = (self.num_ranks, length, *inner)
        local = self._make_local(operand)
        rows = self._view(self.name_inner(result.name), local, Rule.TO_BLOCKS, shape)
        columns = self.emit(self.name_inner(result.name), Kind.ALL_TO_ALL, [rows], dimension=1)
        return self._view(self.name_value(result.name), columns, Rule.TO_LOCAL, result.shape)

    def _broadcast(self, node: GraphNode, operand: str, result: Tensor) -> str:
        source = node.arguments.get("src")
        root = source if type(source) is int else 0
        ranks = next(iter(self.graph.groups.values()), ())
        root = ranks.index(root) if root in ranks else root
        if not 0 <= root < self.num_ranks:
            self.graph.refuse(node, f"has root {root} of {self.num_ranks} ranks", "root")
        local = self._make_local(operand)
        return self.emit(self.name_value(result.name), Kind.BROADCAST, [local], root=root)

    def _find_reduction(self, node: GraphNode) -> Reduction:
        name = str(node.arguments.get("reduce_op", "sum"))
        if name not in _REDUCTIONS:
            cure = f"reduce with one of {', '.join(_REDUCTIONS)}"
            self.graph.refuse(node, f"has the reduction {name!r:.40}", "reduction", cure)
        return _REDUCTIONS[name]

    def _average(self, node: GraphNode, total: str, name: str = "") -> str:
        """Divide a sum by the number of ranks if the collective averages."""
        if node.arguments.get("reduce_op") != "avg":
            return total
        return self.emit(
            name or self.name_inner(total), Kind.DIVIDE, [total, float(self.num_ranks)]
        )

    def _add_output(self, output: GraphOutput) -> str:
        """Return the program value of an output; add an `Update` for a new value of a state.

        A state is an input whose new value the graph computes. An output with the role `MUTATION`
        names it in `target`, by the target or the name of the input. If the state is sliced along
        dimension 0 and the value is not sliced, the value is first converted to blocks. Then an
        operation `Update` of the state is added, and its name is returned.

        No `Update` is added, and the value itself is returned, for outputs with other roles,
        without a target, or whose target is no input; for states that are local to each rank or
        have an `Update` already; and if the value, after the conversion, does not have the type of
        the state (then the converted value is returned).
        """
        value = self._values[output.value]
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
        if state is None or state in self._updates or self.types[state].layout == LOCAL:
            return value
        if self.types[state].layout == sliced(0) and not self._is_sliced(value):
            value = self._make_block(value)
        if self.types[value] != self.types[state]:
            return value
        name = self.name_value(f"{state}_updated")
        self._updates[state] = self.emit(name, Kind.UPDATE, [state, value])
        return name

    def _make_local(self, value: str) -> str:
        """Return a value as a local one; blocks and replicated values get a view."""
        kind = self.types[value]
        if kind.layout == LOCAL:
            return value
        name = self.name_inner(value)
        return self._view(name, value, Rule.TO_LOCAL, self._find_local_shape(kind))

    def _make_block(self, value: str) -> str:
        """Return a value as blocks along dimension 0; other layouts get a view."""
        kind = self.types[value]
        if kind.layout == sliced(0):
            return value
        local = self._make_local(value) if kind.layout.is_sliced else value
        kind = self.types[local]
        shape = (self._multiply(kind.shape[0]), *kind.shape[1:])
        return self._view(self.name_inner(value), local, Rule.TO_BLOCKS, shape)

    def _view(self, name: str, value: str, rule: Rule, shape: Sequence[int | str]) -> str:
        """Add a view of no cost between layouts."""
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
        )

    def _type_tensor(self, tensor: Tensor, layout: Layout) -> TensorType:
        """Return the type of the complete tensor of which a rank has this part."""
        if tensor.element not in {str(element) for element in ElementType}:
            message = f"{tensor.name} has element type {tensor.element}, which programs lack"
            supported = ", ".join(ElementType)
            self._fail(message, f"capture with one of {supported}", "element-type")
        if 0 in tensor.shape:
            self._fail(f"{tensor.name} is empty", "capture without empty tensors", "size")
        shape = list(tensor.shape)
        if layout.is_sliced:
            shape[layout.dimension] *= self.num_ranks
        return TensorType(ElementType(tensor.element), tuple(shape), layout)

    def _find_local_shape(self, kind: TensorType) -> tuple[int, ...]:
        """Return the shape of a rank's part of a tensor; -1 for blocks of different lengths."""
        shape = [size if isinstance(size, int) else -1 for size in kind.shape]
        if kind.layout.is_sliced:
            length, remainder = divmod(shape[kind.layout.dimension], self.num_ranks)
            shape[kind.layout.dimension] = -1 if remainder else length
        return tuple(shape)

    def _multiply(self, size: int | str) -> int:
        assert isinstance(size, int)
        return size * self.num_ranks

    def _is_sliced(self, value: str) -> bool:
        return self.types[value].layout.is_sliced

    def _save(self) -> int:
        return len(self._operations)

    def _restore(self, count: int) -> None:
        """Remove all operations after the first `count`."""
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

    def argument(self, *names: str) -> ArgumentValue:
        """Return the first of the named arguments that is present."""
        arguments = self.node.arguments
        return next((arguments[name] for name in names if name in arguments), None)

    def operand(self, *names: str) -> Operand:
        """Return an argument as an operand: the value or the number.

        Raises `TypingMistakeError` for any other argument.
        """
        value = self.argument(*names)
        if isinstance(value, Reference):
            return self.operands[value.name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypingMistakeError("operand", f"{names[0]} is no tensor or number", "")
        return value

    def is_sliced(self, operand: Operand) -> bool:
        """Whether an operand is a sliced value."""
        return isinstance(operand, str) and self.typer.types[operand].layout.is_sliced

    def rank(self, operand: Operand) -> int:
        """Return the number of dimensions of an operand; 0 for a number."""
        return len(self.typer.types[operand].shape) if isinstance(operand, str) else 0

    def result(self) -> Tensor:
        """Return the only result of the node."""
        return self.node.tensors[0]

    def size(self, *names: str) -> int:
        """Return the number of elements of a tensor argument on one rank."""
        value = self.argument(*names)
        assert isinstance(value, Reference)
        return self.typer.graph.tensors[value.name].num_elements

    def add(self, kind: Kind, *operands: Operand, **attributes: object) -> str:
        """Add an operation with an intermediate value; returns its name."""
        name = self.typer.name_inner(self.result().name)
        return self.typer.emit(name, kind, operands, **attributes)

    def finish(self, kind: Kind, *operands: Operand, **attributes: object) -> str:
        """Add the operation with the result of the node; returns its name."""
        name = self.typer.name_value(self.result().name)
        return self.typer.emit(name, kind, operands, **attributes)


def _find_num_ranks(graph: CapturedGraph, requested: int | None) -> int:
    """Return the ranks of the only process group of a graph.

    They are in the document, or in the arguments of an all-gather or reduce-scatter; otherwise the
    requested number, by default 4. Raises `InputError` for several groups, and for a requested
    number that the graph contradicts.
    """
    sizes = {}
    ranks_of: set[tuple[int, ...] | str] = set()
    for node in graph.nodes:
        name = node.arguments.get("group_name")
        if not is_collective(node.operator) or not isinstance(name, str):
            continue
        ranks_of.add(graph.groups.get(name, name))
        size = node.arguments.get("group_size")
        if type(size) is int:
            sizes[name] = size
        if name in graph.groups:
            sizes[name] = len(graph.groups[name])
    location = Location(graph.file or None)
    if len(ranks_of) > 1:
        message = f"collectives use {len(ranks_of)} process groups, a program has one"
        cure = "capture with one mesh dimension"
        raise InputError(message, location=location, cure=cure, code="groups")
    number = next(iter(sizes.values()), None)
    if number is not None and requested not in (None, number):
        message = f"the graph was captured on {number} ranks, not {requested}"
        raise InputError(message, location=location, cure="leave num_ranks out", code="ranks")
    return number or requested or DEFAULT_RANKS


def _find_blocks(graph: CapturedGraph) -> set[str]:
    """Find values that are blocks of a sliced tensor because of a collective.

    Operators that keep dimension 0 and the shape relate their operands and results. A set of
    related values is sliced if it has the result of a reduce-scatter or the operand of an
    all-gather.
    """
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        root = name
        while parent.get(root, root) != root:
            root = parent[root]
        while parent.get(name, name) != root:
            parent[name], name = root, parent[name]
        return root

    seeds: list[str] = []
    for node in graph.nodes:
        if node.operator.endswith("wait_tensor.default"):
            parent[find(node.reads[0])] = find(node.tensors[0].name)
        elif is_collective(node.operator):
            name = node.operator.split(".")[1]
            seeds += [one.name for one in node.tensors if name.startswith("reduce_scatter")]
            seeds += [one for one in node.reads if name.startswith("all_gather")]
        elif len(node.tensors) == 1:
            facts = describe_node(graph, node)
            result = node.tensors[0]
            for name in facts.sliceable:
                if graph.tensors[name].shape == result.shape:
                    parent[find(name)] = find(result.name)
    roots = {find(name) for name in seeds}
    return {name for name in graph.tensors if graph.tensors[name].shape and find(name) in roots}


def _merge_statements(operations: Sequence[Operation], outputs: set[str]) -> tuple[Operation, ...]:
    """Rename pointwise operations with a single reader to intermediate values of its statement.

    Transformations move a statement as a whole, such as `0.9 * m + 0.1 * g`, although `0.9 * m`
    does not depend on g. At most `_MAX_NESTING` operations are nested.
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
    """Format operator and arguments as JSON; values are numbers of operands, from 0."""
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


def _format_result(output: int) -> str:
    """Format the selection of a further result of an operator."""
    return json.dumps({"operator": "result", "output": output}, separators=(",", ":"))
