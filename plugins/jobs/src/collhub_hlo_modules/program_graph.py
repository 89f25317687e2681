"""Convert a compiled HLO module to a captured graph: the program of one device.

Calls, fusions and loops of known length are replaced by the instructions that they execute, and
instructions with a counterpart become operators of PyTorch. All others are named `hlo.OPCODE`:
nothing is assumed about them. Sources: openxla `operation_semantics.md` and `hlo_parser.cc`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from collhub_captured_graphs import derive_axes
from collhub_captured_graphs.graph import (
    ArgumentValue,
    CapturedGraph,
    ElementName,
    GraphInput,
    GraphNode,
    GraphOutput,
    InputRole,
    OutputRole,
    Reference,
    Tensor,
)

from collhub_hlo_modules.collectives import collective_of, read_call
from collhub_hlo_modules.groups import find_placement
from collhub_hlo_modules.module import MIRRORED, Computation, Module, called_names
from collhub_hlo_modules.text import (
    ELEMENT_BITS,
    HloInstruction,
    Shape,
    invalid,
    parse_integers,
    to_integer,
)

MAX_NODES = 30_000
_MAX_EVALUATIONS = 1_000_000
_MAX_DEPTH = 64
_ELEMENTS = {
    "pred": "bool", "s8": "int8", "s16": "int16", "s32": "int32", "s64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "f16": "float16", "bf16": "bfloat16",
    "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip
_DTYPES = {element: dtype for dtype, element in _ELEMENTS.items()}
_UNARY = {
    "abs": "abs", "cosine": "cos", "sine": "sin", "exponential": "exp", "log": "log",
    "negate": "neg", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh", "logistic": "sigmoid",
    "sign": "sign", "floor": "floor", "ceil": "ceil", "not": "bitwise_not", "erf": "erf",
    "log-plus-one": "log1p",
}  # fmt: skip
_BINARY = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "power": "pow",
    "maximum": "maximum", "minimum": "minimum", "remainder": "fmod", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
# Overloads of aten.where by the operands that are tensors.
_WHERE = {
    (True, True): "self", (True, False): "ScalarOther", (False, True): "ScalarSelf",
    (False, False): "Scalar",
}  # fmt: skip
_COMPARISONS = {"LT": "lt", "GT": "gt", "EQ": "eq", "LE": "le", "GE": "ge", "NE": "ne"}
_REDUCERS = {"add": "sum", "maximum": "amax", "minimum": "amin"}
_NEUTRAL = {"add": 0.0, "maximum": -math.inf, "minimum": math.inf}
_REDUCTIONS = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "product"}
_ALIASES = frozenset(("copy", "optimization-barrier", "domain", "copy-start", "reduce-precision"))
_FOLDED: Mapping[str, Callable[[float, float], float]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": max,
    "minimum": min,
}
_STRUCTURAL = frozenset((
    "reshape", "bitcast", "transpose", "slice", "reduce", "dot", "dynamic-slice",
    "dynamic-update-slice",
))  # fmt: skip
_SLICE = re.compile(r"\[\s*(\d{1,18})\s*:\s*(\d{1,18})\s*(?::\s*(\d{1,18})\s*)?\]")


# Numbers of operands: exact ones, and minimum ones.
_OPERAND_COUNTS = {
    **dict.fromkeys(_BINARY, 2), "compare": 2, "select": 3, "clamp": 3, "dot": 2,
}  # fmt: skip
_MIN_OPERAND_COUNTS = {
    **dict.fromkeys(_UNARY, 1), **dict.fromkeys(_STRUCTURAL, 1), "convert": 1, "broadcast": 1,
    "dynamic-update-slice": 2, "get-tuple-element": 1, "while": 1,
}  # fmt: skip


class _MisfitError(Exception):
    """An instruction does not fit its operands, its shape or its attributes."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """A tensor of the graph that is broadcast: dimension i of it is dimension `places[i]`."""

    source: str
    places: tuple[int, ...]


Value = str | int | float | bool | _Spread | tuple["Value", ...] | None
"""A tensor of the graph, a scalar constant, a broadcast tensor, the parts of a tuple, a token."""


def build_graph(module: Module, file: str) -> CapturedGraph:
    """Return the program of one device of a module whose computations have their instructions.

    Parameters with a sharding are replicated or blocks; one whose memory an output reuses is a
    state. Raises `InputError` with the line for messages, for conditionals and loops of unknown
    length with collectives, and for more than 30 000 nodes.
    """
    return _GraphBuilder(module, file).build()


class _GraphBuilder:
    """Graph under construction."""

    def __init__(self, module: Module, file: str) -> None:
        self._module = module
        self._file = file
        self._inputs: list[GraphInput] = []
        self._nodes: list[GraphNode] = []
        self._tensors: dict[str, Tensor] = {}
        self._groups: dict[str, tuple[int, ...]] = {}
        self._irregular: dict[str, HloInstruction] = {}
        self._names: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._depth = 0
        self._evaluations = 0

    def build(self) -> CapturedGraph:
        """Convert the entry computation to a captured graph; call only once per builder.

        - Inputs: the parameters by number, one input per tensor of a tuple, with placements by
          their sharding. A parameter whose memory an output reuses is a STATE, otherwise an INPUT.
        - Outputs: the tensors of the root in order; numbers and tokens are omitted. An output that
          reuses the memory of a parameter of one tensor is a MUTATION of it, any other an OUTPUT.
        - `groups`: collectives divide the devices into groups. Each distinct division is recorded
          with its first group. With several, the graph has the mesh that they form, otherwise none.

        The name is that of the module, or `module`. Raises `InputError` if several divisions form
        no mesh, for instructions, operands or element types that a graph cannot have, and above the
        limits of nodes, evaluated instructions and nested calls.
        """
        entry = self._module.entry
        assert entry is not None
        parameters = [one for one in entry.instructions.values() if one.opcode == "parameter"]
        parameters.sort(key=lambda one: to_integer(one.literal))
        states = set(self._module.aliases.values())
        arguments = []
        for one in parameters:
            is_state = to_integer(one.literal) in states
            role = InputRole.STATE if is_state else InputRole.INPUT
            # Replaced by a placement when all groups are known.
            sharding = one.attributes.get("sharding", "")
            arguments.append(self._add_inputs(one, role, sharding))
        result = self._evaluate(entry, arguments)
        outputs = []
        root = entry.root
        assert root is not None
        leaves = zip(_flatten(result), root.shape.leaves, strict=False)
        for number, (part, leaf) in enumerate(leaves):
            if isinstance(part, _Spread):
                part = self._to_tensor(part, Shape((leaf,)), root)
            if not isinstance(part, str):
                continue
            state = self._module.aliases.get(number, -1)
            target = arguments[state] if 0 <= state < len(arguments) else None
            if isinstance(target, str):
                outputs.append(GraphOutput(part, OutputRole.MUTATION, target))
            else:
                outputs.append(GraphOutput(part, OutputRole.OUTPUT, ""))
        if len(self._groups) > 1:
            for name, instruction in self._irregular.items():
                cure = "read the module as a workload: --from hlo"
                self._refuse(instruction, f"has groups {name:.60} of no mesh", cure)
        mesh = self._place_inputs()
        return CapturedGraph(
            self._module.name or "module",
            tuple(self._inputs),
            tuple(self._nodes),
            tuple(outputs),
            self._groups,
            "XLA",
            self._file,
            tuple(mesh),
            tuple(mesh.values()),
        )

    def _place_inputs(self) -> dict[str, int]:
        """Replace the HLO sharding of each input by a placement, such as `S(0)`; return the mesh.

        The mesh is the number of ranks by axis name, the slowest axis first. It depends on how the
        collectives divide the devices into groups:

        - All in one way: the mesh is empty. Placements are for the devices of the first group.
        - In several ways: the mesh is that of `derive_axes` for the first group of each way.
          Placements are for as many consecutive devices as the mesh has ranks, beginning at a
          multiple of this number. They include the lowest device of the first recorded group.
        - No collectives: the mesh is empty. Placements are for all devices.

        With an empty mesh, a placement has one axis, over all these devices. A replicated input has
        `R`. A missing sharding, or one that no placement describes, gives "" (`find_placement`).
        Changes `self._inputs`. Raises `InputError` (`groups`) for groups that form no mesh.
        """
        mesh: dict[str, int] = {}
        count = self._module.devices.count
        devices: Sequence[int] = next(iter(self._groups.values()), range(count))
        if len(self._groups) > 1:
            mesh = derive_axes(dict.fromkeys(self._groups.values(), ""), self._file)
            size = math.prod(mesh.values())
            first = min(devices) // size * size
            devices = range(first, first + size)
        sizes = tuple(mesh.values()) or (len(devices),)
        for number, one in enumerate(self._inputs):
            placement = find_placement(one.placement, devices, sizes, count)
            self._inputs[number] = replace(one, placement=placement)
        return mesh

    def _add_inputs(self, instruction: HloInstruction, role: InputRole, placement: str) -> Value:
        tensors = self._create_tensors(instruction)
        self._inputs += [GraphInput(tensor, role, "", placement) for tensor in tensors]
        names = tuple(tensor.name for tensor in tensors)
        # A token has no tensor.
        return names if instruction.shape.is_tuple else next(iter(names), None)

    def _create_tensors(self, instruction: HloInstruction) -> list[Tensor]:
        """Return new tensors for the arrays of an instruction."""
        return [
            self._create_tensor(instruction, dtype, shape)
            for dtype, shape in instruction.shape.leaves
            if dtype != "token"
        ]

    def _create_tensor(
        self, instruction: HloInstruction, dtype: str, shape: tuple[int, ...]
    ) -> Tensor:
        """Create a tensor with a unique name derived from the name of an instruction.

        In the name of the instruction, every character except letters, digits and `_` becomes `_`;
        `v` is put before a name that does not begin with a letter. If a tensor has this name, `_1`,
        `_2`, ... is appended: the first number above those already used for it that gives a new
        name. Example: two tensors of `add.3` are `add_3` and `add_3_1`. `dtype` is the HLO name of
        the element type, such as `f32`; the tensor gets its PyTorch name, such as `float32`. The
        tensor is added to the tensors of the graph. Raises `InputError` for an element type that
        PyTorch lacks.
        """
        element = self._find_element(instruction, dtype)
        base = re.sub(r"\W", "_", instruction.name)
        base = base if base[:1].isalpha() else f"v{base}"
        number = self._numbers.get(base, -1) + 1
        name = base if number == 0 else f"{base}_{number}"
        while name in self._tensors:
            number += 1
            name = f"{base}_{number}"
        self._numbers[base] = number
        tensor = Tensor(name, element, shape)
        self._tensors[name] = tensor
        return tensor

    def _find_element(self, instruction: HloInstruction, dtype: str) -> str:
        """Return the PyTorch name of an element type of HLO, such as `float32` for `f32`.

        Raises `InputError` at the line of the instruction if PyTorch has none.
        """
        if dtype not in _ELEMENTS:
            self._refuse(instruction, f"has the element type {dtype}", "use another element type")
        return _ELEMENTS[dtype]

    def _append(
        self,
        operator: str,
        arguments: Mapping[str, ArgumentValue],
        instruction: HloInstruction,
        shape: tuple[int, ...] | None = None,
    ) -> str:
        """Add a node with one result, and return the name of the result, a new tensor.

        The result has the element type of the instruction, and its shape unless `shape` is given.
        An instruction whose shape is a tuple gives the type and shape of its first array. Raises
        `InputError` for an element type that PyTorch lacks, and for more than `MAX_NODES` nodes.
        """
        dtype, dimensions = instruction.shape.leaves[0]
        tensor = self._create_tensor(instruction, dtype, dimensions if shape is None else shape)
        self._add_node(operator, arguments, [tensor], instruction)
        return tensor.name

    def _add_node(
        self,
        operator: str,
        arguments: Mapping[str, ArgumentValue],
        results: Sequence[Tensor],
        instruction: HloInstruction,
    ) -> None:
        if len(self._nodes) >= MAX_NODES:
            self._refuse(instruction, f"exceeds {MAX_NODES} nodes", "use fewer iterations")
        name = results[0].name if results else f"node{len(self._nodes)}"
        self._nodes.append(GraphNode(name, operator, dict(arguments), tuple(results)))

    def _refuse(self, instruction: HloInstruction, message: str, cure: str) -> NoReturn:
        text = f"{instruction.opcode} {instruction.name!r} {message}"
        raise invalid(text, self._file, instruction.line, cure, "program")

    # Instructions

    def _evaluate(self, computation: Computation, arguments: Sequence[Value]) -> Value:
        """Add the nodes of a computation to the graph, and return the value of its root.

        Instructions are converted in their order (`_convert`); called computations are
        evaluated in place. `arguments`: values of the parameters by number; surplus ones are
        ignored. Raises `InputError` (`program`), with the line of the instruction, for

        - more than 64 nested computations, the entry computation included
        - more than 10^6 instructions in all evaluations of this builder (each iteration of a
          loop counts)
        - a parameter without an argument
        - an instruction that lacks an operand or attribute, or names dimensions that do not
          exist; the types of operands are not checked
        - instructions that a graph cannot contain, and more than 30 000 nodes (`MAX_NODES`)
        """
        self._depth += 1
        values: dict[str, Value] = {}
        for instruction in computation.instructions.values():
            if self._depth > _MAX_DEPTH:
                self._refuse(instruction, f"is nested {self._depth} calls deep", "inline the calls")
            self._evaluations += 1
            if self._evaluations > _MAX_EVALUATIONS:
                message = f"exceeds {_MAX_EVALUATIONS} instructions"
                self._refuse(instruction, message, "use loops with fewer iterations")
            operands = [values[name] for name in instruction.operands]
            if instruction.opcode == "parameter":
                number = to_integer(instruction.literal)
                if not 0 <= number < len(arguments):
                    self._refuse(instruction, "has no argument", "dump the module again")
                values[instruction.name] = arguments[number]
                continue
            shapes = [computation.instructions[name].shape for name in instruction.operands]
            try:
                values[instruction.name] = self._convert(instruction, operands, shapes)
            except _MisfitError:
                message = "does not fit its operands, its shape or its attributes"
                self._refuse(instruction, message, "dump the module again")
        self._depth -= 1
        root = computation.root
        assert root is not None
        return values[root.name]

    def _convert(
        self, instruction: HloInstruction, operands: Sequence[Value], shapes: Sequence[Shape]
    ) -> Value:
        """Add the nodes of an instruction to the graph, and return its value by the first rule.

        1. Collectives, also their `-start`: nodes of the collective.
        2. Another `-done`, and opcodes such as `copy`: the first operand, None without operands.
           `tuple`: all operands. `get-tuple-element`: an entry of its operand. No node is added.
        3. `call`, `fusion`, `async-start`, `while`, `conditional`: the called computations.
        4. `constant`: a number for a scalar (booleans are 1 and 0). For arrays, tuples, complex
           scalars and texts that are no number: a new input of role CONSTANT, equal on all ranks; a
           tuple has one per array. `after-all`, `token`: None.
        5. A result of one array: pointwise, else structural aten operators, if they express it.
        6. All other ones: a node `hlo.OPCODE`.

        Raises `InputError` for an instruction that a graph cannot contain and for too many nodes.
        Raises `_MisfitError` for an instruction that does not fit its operands, its shape or its
        attributes, such as a missing operand.
        """
        opcode = instruction.opcode
        if collective_of(opcode) is not None:
            return self._add_collective(instruction, operands, shapes)
        if opcode.endswith("-done") or opcode in _ALIASES:
            return operands[0] if operands else None
        if opcode == "tuple":
            return tuple(operands)
        _require(len(operands) >= _MIN_OPERAND_COUNTS.get(opcode, 0))
        if opcode == "get-tuple-element":
            value, indices = operands[0], _read_integers(instruction, "index", "0")
            _require(len(indices) == 1)
            if not isinstance(value, tuple) or not 0 <= indices[0] < len(value):
                self._refuse(instruction, f"has no part {indices[0]}", "dump the module again")
            return value[indices[0]]
        if opcode in ("call", "fusion", "async-start", "while", "conditional"):
            return self._call(instruction, operands)
        if opcode == "constant":
            leaves = instruction.shape.leaves
            number = None
            if len(leaves) == 1 and not leaves[0][1]:
                number = _parse_number(instruction.literal, leaves[0][0])
            if number is not None:
                return number
            # Arrays, tuples and complex scalars are equal on all ranks.
            return self._add_inputs(instruction, InputRole.CONSTANT, "R")
        if opcode in ("after-all", "token"):
            return None
        if instruction.shape.is_tuple or len(instruction.shape.leaves) != 1:
            return self._add_unknown(instruction, operands)
        _require(len(operands) == _OPERAND_COUNTS.get(opcode, len(operands)))
        simple = self._add_pointwise(instruction, operands, shapes)
        if simple is not None:
            return simple
        other = self._add_structural(instruction, operands, shapes)
        return self._add_unknown(instruction, operands) if other is None else other

    def _call(self, instruction: HloInstruction, operands: Sequence[Value]) -> Value:
        """Evaluate the computation of a call, fusion, `async-start` or loop, and return its value.

        The nodes of the computation are added to the graph.

        - Call, fusion and `async-start`: the first called computation with the operands.
        - Loop (`while`) with a known number of iterations: unrolled. The body of iteration 1 gets
          the first operand, each further one the value of the previous iteration. The last value
          is returned; with 0 iterations, the first operand.
        - Conditional, and any other loop: one node `hlo.OPCODE` without assumptions about it.
          Raises `InputError` if a branch of the conditional, or the body of the loop, has
          collectives.

        Also raises the errors of `_evaluate`. The instruction must name a computation; this is
        not checked.
        """
        bodies = [self._module.computations[name] for name in called_names(instruction)]
        if instruction.opcode == "conditional":
            if any(body.communications for body in bodies):
                self._refuse(
                    instruction, "has collectives", "compile the program for one of its branches"
                )
            return self._add_unknown(instruction, operands)
        if instruction.opcode != "while":
            return self._evaluate(bodies[0], operands)
        trips = self._module.trip_counts.get(instruction.line)
        if trips is None:
            if bodies[0].communications:
                cure = "give the number of iterations with -O trip_count="
                self._refuse(instruction, "has collectives and an unknown length", cure)
            return self._add_unknown(instruction, operands)
        state = operands[0]
        for _ in range(trips):
            state = self._evaluate(bodies[0], [state])
        return state

    def _add_unknown(self, instruction: HloInstruction, operands: Sequence[Value]) -> Value:
        """Add a node `hlo.OPCODE`, without any assumption about its effect; return its results.

        All parts of the operands, tuples flattened, become the argument `operands`: a token is
        None, and a broadcast is the tensor before the expansion. The results are the arrays of
        the instruction, without tokens. If the instruction has the shape of a tuple, also a
        nested one or one of a single array, the value is a flat tuple of the names of the
        results; otherwise it is the only name. Without results no node is added, and the value
        is None. Raises `InputError` for an element type that PyTorch lacks, and for more than
        `MAX_NODES` nodes.
        """
        values: list[ArgumentValue] = []
        for part in _flatten(tuple(operands)):
            source = part.source if isinstance(part, _Spread) else part
            assert not isinstance(source, tuple)
            values.append(Reference(source) if isinstance(source, str) else source)
        tensors = self._create_tensors(instruction)
        if not tensors:
            return None
        arguments: dict[str, ArgumentValue] = {"operands": tuple(values)}
        self._add_node(f"hlo.{instruction.opcode}", arguments, tensors, instruction)
        names = tuple(tensor.name for tensor in tensors)
        return names if instruction.shape.is_tuple else names[0]

    def _to_tensor(self, value: Value, shape: Shape, instruction: HloInstruction) -> str:
        """Return the name of a tensor with this value; broadcasts and numbers become nodes.

        Only the first array of `shape` is used. `instruction`: reader of the value, for names and
        errors.

        - Tensor (its name): returned as it is; `shape` is ignored.
        - Broadcast (`_Spread`): an expand to `shape`, after a reshape that adds dimensions of size
          1 if necessary.
        - Number: a `full` of `shape`, with the element type of `shape`.

        Raises `InputError` for a tuple or a missing value (None), for a number whose element type
        PyTorch lacks, and for more than `MAX_NODES` nodes. Raises `_MisfitError` if `shape` has no
        array, or fewer dimensions than a broadcast.
        """
        if isinstance(value, str):
            return value
        if value is None or isinstance(value, tuple):
            self._refuse(instruction, "reads a tuple", "dump the module again")
        _require(len(shape.leaves) > 0)
        dtype, sizes = shape.leaves[0]
        template = replace(instruction, shape=Shape(((dtype, sizes),)))
        if isinstance(value, _Spread):
            source = self._tensors[value.source]
            _require(max(value.places, default=-1) < len(sizes))
            ones = [1] * len(sizes)
            for place, size in zip(value.places, source.shape, strict=True):
                ones[place] = size
            name = value.source
            if tuple(ones) != source.shape:
                name = self._reshape(name, tuple(ones), template)
            arguments: dict[str, ArgumentValue] = {"self": Reference(name), "size": tuple(sizes)}
            return self._append("aten.expand.default", arguments, template)
        arguments = {
            "size": tuple(sizes),
            "fill_value": value,
            "dtype": ElementName(self._find_element(instruction, dtype)),
        }
        return self._append("aten.full.default", arguments, template)

    def _reshape(self, name: str, shape: tuple[int, ...], instruction: HloInstruction) -> str:
        if self._tensors[name].shape == shape:
            return name
        arguments: dict[str, ArgumentValue] = {"self": Reference(name), "shape": shape}
        return self._append("aten.reshape.default", arguments, instruction, shape)

    def _permute(self, name: str, order: Sequence[int], instruction: HloInstruction) -> str:
        if list(order) == list(range(len(order))):
            return name
        shape = self._tensors[name].shape
        _require(sorted(order) == list(range(len(shape))))
        arguments: dict[str, ArgumentValue] = {"self": Reference(name), "dims": tuple(order)}
        result = tuple(shape[place] for place in order)
        return self._append("aten.permute.default", arguments, instruction, result)

    # Operators by element

    def _add_pointwise(
        self, instruction: HloInstruction, operands: Sequence[Value], shapes: Sequence[Shape]
    ) -> Value:
        """Add an operator that computes each element separately, and return its value.

        The operators are those of `_UNARY` and `_BINARY`, convert, compare, select and clamp. The
        value is the name of a new tensor, except in these cases without a tensor:

        - Add, subtract, multiply, maximum or minimum of two numbers: a number. If both are
          integers, it wraps around as in the element type of the result.
        - Conversion of a number: a number; conversion of a broadcast: a broadcast.

        To compare a number with a tensor, the operands are exchanged and the direction is mirrored
        (`<` becomes `>`). None for another instruction, a limit of a clamp that is no number, an
        unknown direction of a comparison, and the conversion of a tuple or of a number to a
        complex type. Raises the `InputError` of `_to_tensor`.
        """
        opcode = instruction.opcode
        if opcode == "convert":
            return self._cast(instruction, operands[0], shapes[0])
        if opcode in _UNARY:
            operand = self._to_tensor(operands[0], shapes[0], instruction)
            operator = f"aten.{_UNARY[opcode]}.default"
            return self._append(operator, {"self": Reference(operand)}, instruction)
        if opcode == "compare":
            direction = instruction.attributes.get("direction", "")
            if direction not in _COMPARISONS:
                return None
            if isinstance(operands[0], int | float) and not isinstance(operands[1], int | float):
                operands, shapes = operands[::-1], shapes[::-1]
                direction = MIRRORED.get(direction, direction)
            return self._add_binary(_COMPARISONS[direction], instruction, operands, shapes)
        if opcode in _BINARY:
            return self._add_arithmetic(opcode, instruction, operands, shapes)
        if opcode == "select":
            names = self._to_operands(operands, shapes, instruction)
            if not isinstance(names[0], Reference):
                names[0] = Reference(self._to_tensor(operands[0], shapes[0], instruction))
            are_tensors = isinstance(names[1], Reference), isinstance(names[2], Reference)
            arguments = dict(zip(("condition", "self", "other"), names, strict=True))
            operator = f"aten.where.{_WHERE[are_tensors]}"
            return self._append(operator, arguments, instruction)
        if opcode == "clamp":
            lower, x, upper = operands
            if not isinstance(lower, int | float) or not isinstance(upper, int | float):
                return None
            name = self._to_tensor(x, shapes[1], instruction)
            arguments = {"self": Reference(name), "min": lower, "max": upper}
            return self._append("aten.clamp.default", arguments, instruction)
        return None

    def _cast(self, instruction: HloInstruction, operand: Value, shape: Shape) -> Value:
        dtype = instruction.shape.leaves[0][0]
        if isinstance(operand, int | float):
            return _convert_number(operand, dtype)
        if operand is None or isinstance(operand, tuple):
            return None
        source = operand.source if isinstance(operand, _Spread) else operand
        sizes = self._tensors[source].shape
        element = self._find_element(instruction, dtype)
        arguments: dict[str, ArgumentValue] = {
            "self": Reference(source),
            "dtype": ElementName(element),
        }
        name = self._append("aten._to_copy.default", arguments, instruction, sizes)
        return _Spread(name, operand.places) if isinstance(operand, _Spread) else name

    def _add_arithmetic(
        self,
        opcode: str,
        instruction: HloInstruction,
        operands: Sequence[Value],
        shapes: Sequence[Shape],
    ) -> str | float:
        """Add an arithmetic operator of two operands; return the name or number of its result.

        `opcode` is a key of `_BINARY`. An operand may be a number, but the first operand of an
        aten operator may not. The first case that applies:

        1. Two numbers, with add, subtract, multiply, maximum or minimum, as for the counter of a
           loop: the number that results, without a node. That of two integers wraps around in the
           range of the element type; for `pred` it is 0 or 1.
        2. Quotient of integers: `div`, rounded toward zero. A number as first operand becomes a
           tensor.
        3. Number first, with add, multiply, maximum or minimum: the operands are swapped.
        4. Number second, with maximum or minimum: `clamp_min` or `clamp_max`.
        5. `number - x`: `rsub`. `number / x`: the reciprocal of x, times the number unless it is 1.
        6. Otherwise the operator itself. A number as first operand becomes a tensor.

        Raises the `InputError` of `_to_tensor`.
        """
        operator = _BINARY[opcode]
        first, second = operands
        fold = _FOLDED.get(opcode)
        if fold and isinstance(first, int | float) and isinstance(second, int | float):
            number = fold(first, second)
            dtype = instruction.shape.leaves[0][0]
            return _wrap(number, dtype) if isinstance(number, int) else number
        if opcode == "divide" and _is_integer(instruction.shape.leaves[0][0]):
            left, right = self._to_operands(operands, shapes, instruction)
            if not isinstance(left, Reference):
                left = Reference(self._to_tensor(first, shapes[0], instruction))
            overload = "Tensor_mode" if isinstance(right, Reference) else "Scalar_mode"
            quotient: dict[str, ArgumentValue] = {
                "self": left, "other": right, "rounding_mode": "trunc",
            }  # fmt: skip
            return self._append(f"aten.div.{overload}", quotient, instruction)
        is_number = isinstance(first, int | float)
        if is_number and opcode in ("add", "multiply", "maximum", "minimum"):
            first, second, shapes, is_number = second, first, shapes[::-1], False
        if isinstance(second, int | float) and opcode in ("maximum", "minimum"):
            name = self._to_tensor(first, shapes[0], instruction)
            limit = ("clamp_min", "min") if opcode == "maximum" else ("clamp_max", "max")
            arguments: dict[str, ArgumentValue] = {"self": Reference(name), limit[1]: second}
            return self._append(f"aten.{limit[0]}.default", arguments, instruction)
        if isinstance(first, int | float) and opcode == "subtract":
            name = self._to_tensor(second, shapes[1], instruction)
            arguments = {"self": Reference(name), "other": first}
            return self._append("aten.rsub.Scalar", arguments, instruction)
        if isinstance(first, int | float) and opcode == "divide":
            name = self._to_tensor(second, shapes[1], instruction)
            inverse = self._append(
                "aten.reciprocal.default", {"self": Reference(name)}, instruction
            )
            if first == 1:
                return inverse
            arguments = {"self": Reference(inverse), "other": first}
            return self._append("aten.mul.Scalar", arguments, instruction)
        return self._add_binary(operator, instruction, (first, second), shapes)

    def _add_binary(
        self,
        operator: str,
        instruction: HloInstruction,
        operands: Sequence[Value],
        shapes: Sequence[Shape],
    ) -> str:
        first, second = self._to_operands(operands, shapes, instruction)
        if not isinstance(first, Reference):
            first = Reference(self._to_tensor(operands[0], shapes[0], instruction))
        other = "exponent" if operator == "pow" else "other"
        overload = "Tensor" if isinstance(second, Reference) else "Scalar"
        if operator == "pow":
            overload = "Tensor_Tensor" if isinstance(second, Reference) else "Tensor_Scalar"
        overload = "default" if operator in ("maximum", "minimum") else overload
        arguments: dict[str, ArgumentValue] = {"self": first, other: second}
        return self._append(f"aten.{operator}.{overload}", arguments, instruction)

    def _to_operands(
        self, operands: Sequence[Value], shapes: Sequence[Shape], instruction: HloInstruction
    ) -> list[ArgumentValue]:
        """Return the operands of an elementwise operator in order: references or numbers.

        `shapes`: of the operands. If some operand is a tensor with the shape of the result, aten
        broadcasts the other ones, so that two rules apply first:

        1. A number remains a number.
        2. A broadcast of a tensor whose dimensions are the last ones of the result, in order,
           becomes a reference to this tensor.

        Every other operand becomes a reference to a tensor of its shape, for which nodes are added
        if necessary (`_to_tensor`, which may raise `InputError`).
        """
        sizes = instruction.shape.leaves[0][1]
        is_complete = any(
            isinstance(operand, str) and self._tensors[operand].shape == sizes
            for operand in operands
        )
        result: list[ArgumentValue] = []
        for operand, shape in zip(operands, shapes, strict=True):
            if isinstance(operand, _Spread) and is_complete:
                rank = len(sizes)
                if operand.places == tuple(range(rank - len(operand.places), rank)):
                    result.append(Reference(operand.source))
                    continue
            if isinstance(operand, int | float) and is_complete:
                result.append(operand)
            else:
                result.append(Reference(self._to_tensor(operand, shape, instruction)))
        return result

    # Other operators

    def _reinterpret(
        self, name: str, order: tuple[int, ...] | None, instruction: HloInstruction
    ) -> str | None:
        """Add a bitcast as up to three nodes, and return the name of the result.

        The nodes are a permutation to the operand's order in memory, a reshape, and a
        permutation from the result's order in memory. A node without effect is omitted. Without
        any node the result is `name`, the operand. `order`: dimensions of the operand in the
        order of memory (`Shape.order`). An empty order means row-major, the default.

        Returns None, without nodes, if the order of operand or result is None (a layout with
        tiles or an unknown one). Raises `_MisfitError` if an order is no permutation of its
        dimensions. The numbers of elements are not compared.
        """
        sizes, result = instruction.shape.leaves[0][1], instruction.shape.order
        if order is None or result is None:
            return None
        result = result or tuple(range(len(sizes)))
        _require(sorted(result) == list(range(len(sizes))))
        name = self._permute(name, order or range(len(self._tensors[name].shape)), instruction)
        name = self._reshape(name, tuple(sizes[place] for place in result), instruction)
        return self._permute(
            name, [result.index(place) for place in range(len(sizes))], instruction
        )

    def _add_structural(
        self, instruction: HloInstruction, operands: Sequence[Value], shapes: Sequence[Shape]
    ) -> Value:
        """Add the nodes of an instruction that moves, reduces or multiplies; return its value.

        `operands`, `shapes`: values and shapes of its operands. The first rule that applies:

        - None for another instruction, or one that aten operators cannot express.
        - A number that is broadcast, reshaped, bitcast or transposed: the number, without a
          node.
        - A broadcast that expands a tensor, or an iota of several dimensions: a `_Spread`,
          which is expanded when it is read.
        - Otherwise the name of a tensor, that of the operand if the instruction has no effect.

        Raises `InputError`, for example for an operand that is a tuple or has no value.
        """
        opcode, attributes = instruction.opcode, instruction.attributes
        sizes = instruction.shape.leaves[0][1]
        if opcode == "broadcast":
            return self._broadcast(operands[0], shapes[0], instruction)
        if opcode == "concatenate":
            parts = tuple(
                Reference(self._to_tensor(operand, shape, instruction))
                for operand, shape in zip(operands, shapes, strict=True)
            )
            dimensions = _read_integers(instruction, "dimensions", "0")
            _require(len(dimensions) == 1)
            arguments: dict[str, ArgumentValue] = {"tensors": parts, "dim": dimensions[0]}
            return self._append("aten.cat.default", arguments, instruction)
        if opcode == "iota":
            return self._count(instruction)
        if opcode not in _STRUCTURAL:
            return None
        if isinstance(operands[0], int | float) and opcode in ("reshape", "bitcast", "transpose"):
            return operands[0]
        name = self._to_tensor(operands[0], shapes[0], instruction)
        if opcode == "reshape":
            return self._reshape(name, sizes, instruction)
        if opcode == "bitcast":
            return self._reinterpret(name, shapes[0].order, instruction)
        if opcode == "transpose":
            order = _read_integers(instruction, "dimensions")
            return self._permute(name, order, instruction) if len(order) == len(sizes) else None
        if opcode == "slice":
            return self._slice(name, attributes.get("slice", ""), instruction)
        if opcode == "dynamic-slice":
            return self._slice_dynamically(name, operands[1:], instruction)
        if opcode == "reduce":
            return self._reduce(name, operands, instruction)
        other = self._to_tensor(operands[1], shapes[1], instruction)
        if opcode == "dynamic-update-slice":
            return self._replace_slice(name, other, operands[2:], instruction)
        return self._multiply(name, other, instruction)

    def _broadcast(self, operand: Value, shape: Shape, instruction: HloInstruction) -> Value:
        """Return the value of a broadcast; the expansion is added when the value is used.

        - A number is returned unchanged.
        - A tensor that has as many dimensions as the result, in the same order, is returned by
          its name.
        - Any other tensor gives a `_Spread`: its name, and for each of its dimensions the
          position in the result, from the attribute `dimensions`.
        - None if `dimensions` does not have one position per dimension of the operand, or a
          position that the result lacks. Sizes are not compared.

        `shape`: shape of the operand. An operand that is a broadcast itself becomes a tensor
        first, which adds nodes. Raises the `InputError` of `_to_tensor`.
        """
        if isinstance(operand, int | float):
            return operand
        name = self._to_tensor(operand, shape, instruction)
        places = _read_integers(instruction, "dimensions")
        sizes = instruction.shape.leaves[0][1]
        if len(places) != len(self._tensors[name].shape) or not all(
            0 <= place < len(sizes) for place in places
        ):
            return None
        return _Spread(name, places) if places != tuple(range(len(sizes))) else name

    def _count(self, instruction: HloInstruction) -> Value:
        """Add an arange node for an iota (0, 1, ... along one dimension); return its value.

        The node has one dimension. For an iota of one dimension the value is its name, otherwise a
        `_Spread`: the node, broadcast along all other dimensions. Returns None, without a node, for
        a scalar or if the dimension (default 0) does not exist. Raises `_MisfitError` if the
        attribute `iota_dimension` is present and not exactly one integer. Raises `InputError` for
        an element type that PyTorch lacks.
        """
        dtype, sizes = instruction.shape.leaves[0]
        places = _read_integers(instruction, "iota_dimension", "0")
        _require(len(places) == 1)
        if not sizes or not 0 <= places[0] < len(sizes):
            return None
        length = sizes[places[0]]
        arguments: dict[str, ArgumentValue] = {
            "end": length,
            "dtype": ElementName(self._find_element(instruction, dtype)),
        }
        name = self._append("aten.arange.default", arguments, instruction, (length,))
        return name if len(sizes) == 1 else _Spread(name, places)

    def _slice(self, name: str, text: str, instruction: HloInstruction) -> str | None:
        """Add one slice node per dimension that is cut; return the name of the last result.

        `name`: the tensor; it is returned if every dimension is complete. `text`: the bounds of
        each dimension as `[start:end]` or `[start:end:step]`; other text is skipped. Returns
        None, without nodes, if the number of bounds is not the number of dimensions. The bounds
        are not compared with the sizes of the tensor. Raises `InputError` for a step of 0, and for
        more than `MAX_NODES` nodes.
        """
        bounds = [(int(one[0]), int(one[1]), int(one[2] or 1)) for one in _SLICE.findall(text)]
        shape = self._tensors[name].shape
        if len(bounds) != len(shape):
            return None
        if any(step == 0 for _, _, step in bounds):
            self._refuse(instruction, "has a slice with step 0", "dump the module again")
        for dimension, (start, end, step) in enumerate(bounds):
            name = self._cut(name, dimension, start, end, step, instruction)
        return name

    def _slice_dynamically(
        self, name: str, starts: Sequence[Value], instruction: HloInstruction
    ) -> str | None:
        """Add slice nodes for a dynamic slice whose starts are known; return the result's name.

        `starts`: first index by dimension. The sizes of the slice are those of the result of
        `instruction`. A start beyond the limits is moved so that the slice is inside, as HLO
        requires. A dimension that remains complete gets no node; without nodes the result is
        `name`. Returns None, without nodes, if a start is no known integer, or if there is not
        one start per dimension. Raises `_MisfitError` if the result has another number of
        dimensions than the tensor.
        """
        sizes, shape = instruction.shape.leaves[0][1], self._tensors[name].shape
        if len(starts) != len(shape) or not all(isinstance(one, int) for one in starts):
            return None
        _require(len(sizes) == len(shape))
        for dimension, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            assert isinstance(start, int)
            # A start beyond the end is moved back, so that the slice is inside.
            first = max(0, min(start, shape[dimension] - size))
            name = self._cut(name, dimension, first, first + size, 1, instruction)
        return name

    def _replace_slice(
        self, name: str, part: str, starts: Sequence[Value], instruction: HloInstruction
    ) -> str | None:
        """Add a node that overwrites a block of tensor `name` with `part`; return the result.

        `starts`: first index of the block in each dimension. The first rule that applies is used:
        1. `part` and the tensor have different numbers of dimensions: raises `_MisfitError`.
        2. `starts` does not have one entry per dimension: None.
        3. `part` differs in size from the tensor in several dimensions: None.
        4. `part` has the shape of the tensor: the name of `part`.
        5. The start in the only different dimension is no known integer: None.
        6. Otherwise a node is added, and the result is its name. Its start is moved so that the
           block is inside the tensor.

        Only rule 6 adds a node. The starts in the other dimensions are not read.
        """
        shape, sizes = self._tensors[name].shape, self._tensors[part].shape
        _require(len(sizes) == len(shape))
        smaller = [place for place, size in enumerate(sizes) if size != shape[place]]
        if len(starts) != len(shape) or len(smaller) > 1:
            return None
        if not smaller:
            return part
        start = starts[smaller[0]]
        if not isinstance(start, int):
            return None
        first = max(0, min(start, shape[smaller[0]] - sizes[smaller[0]]))
        arguments: dict[str, ArgumentValue] = {
            "self": Reference(name),
            "src": Reference(part),
            "dim": smaller[0],
            "start": first,
            "end": first + sizes[smaller[0]],
        }
        return self._append("aten.slice_scatter.default", arguments, instruction)

    def _cut(
        self,
        name: str,
        dimension: int,
        start: int,
        end: int,
        step: int,
        instruction: HloInstruction,
    ) -> str:
        shape = list(self._tensors[name].shape)
        if (start, end, step) == (0, shape[dimension], 1):
            return name
        shape[dimension] = -(-(end - start) // step)
        arguments: dict[str, ArgumentValue] = {
            "self": Reference(name), "dim": dimension, "start": start, "end": end, "step": step,
        }  # fmt: skip
        return self._append("aten.slice.Tensor", arguments, instruction, tuple(shape))

    def _reduce(
        self, name: str, operands: Sequence[Value], instruction: HloInstruction
    ) -> str | None:
        """Add a sum, maximum or minimum over the dimensions in `dimensions`; return its name.

        `name`: the tensor; `operands`: the tensor and its initial value. If all dimensions are
        reduced, the operator has no argument `dim`. Returns None, without a node, in these
        cases:

        - Several tensors are reduced.
        - The reducer is none of add, maximum and minimum.
        - The initial value is not the number 0 for add, -infinity for maximum and infinity for
          minimum. So a maximum of integers, which begins with the lowest integer, gives None.
        """
        reducer = self._module.find_reducer(instruction)
        if len(operands) != 2 or reducer not in _REDUCERS or operands[1] != _NEUTRAL[reducer]:
            return None
        dimensions = _read_integers(instruction, "dimensions")
        arguments: dict[str, ArgumentValue] = {"self": Reference(name)}
        operator = f"aten.{_REDUCERS[reducer]}"
        if len(dimensions) == len(self._tensors[name].shape):
            return self._append(f"{operator}.default", arguments, instruction)
        arguments["dim"] = dimensions
        overload = "default" if reducer in ("maximum", "minimum") else "dim_IntList"
        return self._append(f"{operator}.{overload}", arguments, instruction)

    def _multiply(self, left: str, right: str, instruction: HloInstruction) -> str:
        """Add a dot product, and return the name of its result.

        The attributes of `instruction` name the batch and contracted dimensions of both operands
        (none if missing); all others are free. The left operand is permuted to (batch, free,
        contracted), the right one to (batch, contracted, free). The result has (batch, free left,
        free right).

        - If there is no batch dimension, one contracted and one free dimension on the right, and
          at least one free dimension on the left: aten.mm with one free dimension on the left,
          aten.matmul with several.
        - Otherwise the operands are reshaped, to 2 dimensions for aten.mm without batch, to 3 for
          aten.bmm with batch. The result is reshaped to the shape of the instruction.

        Raises `_MisfitError` for a dimension that an operand lacks, and for an attribute that is
        no list of integers. Shapes are not compared.
        """
        sides = ("lhs", "rhs")
        contracted = [_read_integers(instruction, f"{side}_contracting_dims") for side in sides]
        batch = [_read_integers(instruction, f"{side}_batch_dims") for side in sides]
        shapes = [self._tensors[left].shape, self._tensors[right].shape]
        for shape, *named in zip(shapes, contracted, batch, strict=True):
            _require(all(0 <= place < len(shape) for places in named for place in places))
        free = [
            [place for place in range(len(shape)) if place not in (*batch[side], *contracted[side])]
            for side, shape in enumerate(shapes)
        ]
        rows, columns = (math.prod(shapes[side][one] for one in free[side]) for side in (0, 1))
        inner = math.prod(shapes[0][one] for one in contracted[0])
        batches = math.prod(shapes[0][one] for one in batch[0])
        left = self._permute(left, [*batch[0], *free[0], *contracted[0]], instruction)
        right = self._permute(right, [*batch[1], *contracted[1], *free[1]], instruction)
        result = instruction.shape.leaves[0][1]
        if not batch[0] and len(free[0]) >= 1 and len(free[1]) == len(contracted[0]) == 1:
            operator = "aten.mm.default" if len(free[0]) == 1 else "aten.matmul.default"
            second = "mat2" if len(free[0]) == 1 else "other"
            arguments: dict[str, ArgumentValue] = {
                "self": Reference(left),
                second: Reference(right),
            }
            return self._append(operator, arguments, instruction)
        prefix = (batches,) if batch[0] else ()
        left = self._reshape(left, (*prefix, rows, inner), instruction)
        right = self._reshape(right, (*prefix, inner, columns), instruction)
        arguments = {"self": Reference(left), "mat2": Reference(right)}
        operator = "aten.bmm.default" if batch[0] else "aten.mm.default"
        product = self._append(operator, arguments, instruction, (*prefix, rows, columns))
        return self._reshape(product, result, instruction)

    # Collectives

    def _add_collective(
        self, instruction: HloInstruction, operands: Sequence[Value], shapes: Sequence[Shape]
    ) -> Value:
        """Add the collective of an instruction; return the name of its result.

        Each operand gets its own collective; several operands give a tuple of names. Only an
        all-to-all of several operands is one collective, with a tuple as its value. Numbers and
        broadcasts become tensors first. The dimension is the first of the attribute `dimensions`,
        or 0 without the attribute. The groups are recorded. Raises `InputError` for the first of
        these defects:

        - a send, receive, permutation or ragged all-to-all
        - invalid groups or channels (`group`), or a result that does not fit (`size`)
        - an operand that is a tuple
        - an all-reduce or reduce-scatter that is no add, maximum, minimum or multiply
        - a dimension that does not exist

        Raises `_MisfitError` without groups, for an empty group, and for a `dimensions` that is no
        list of integers.
        """
        opcode = collective_of(instruction.opcode)
        assert opcode is not None
        if opcode in ("send", "recv", "collective-permute", "ragged-all-to-all"):
            cure = "read the module as a workload: --from hlo"
            self._refuse(instruction, "is a message between devices, not a collective", cure)
        reducer = self._module.find_reducer(instruction)
        call = read_call(instruction, opcode, shapes, reducer, self._module.devices, self._file)
        _require(all(call.groups) and len(call.groups) > 0)
        group = self._name_group(call.groups, instruction)
        names = [
            self._to_tensor(operand, shape, instruction)
            for operand, shape in zip(operands, shapes, strict=True)
        ]
        if opcode in ("all-reduce", "reduce-scatter") and reducer not in _REDUCTIONS:
            cure = "reduce with add, maximum, minimum or multiply"
            self._refuse(instruction, f"reduces with {reducer or 'no operator'}", cure)
        if opcode == "all-to-all" and len(names) > 1:
            return self._exchange_parts(names, group, instruction)
        size = len(self._groups[group])
        dimension = next(iter(_read_integers(instruction, "dimensions", "0")), 0)
        results = [
            self._communicate(opcode, name, dimension, group, size, reducer, instruction)
            for name in names
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _communicate(
        self,
        opcode: str,
        name: str,
        dimension: int,
        group: str,
        size: int,
        reducer: str,
        instruction: HloInstruction,
    ) -> str:
        """Add a collective with one operand to the graph, and return the name of its result.

        `name`: the operand. `group`, `size`: process group and its number of ranks. `reducer`:
        HLO's name of the reduction, used for `all-reduce` and `reduce-scatter` only.

        - `all-reduce`, and `collective-broadcast` from the first rank of the group, ignore
          `dimension`.
        - `all-gather`, `reduce-scatter`, and any other `opcode` (an all-to-all) work along
          `dimension`. If it is not 0, it is exchanged with dimension 0 before and after the
          collective. `InputError` is raised if the operand has no such dimension.

        The length along `dimension` is multiplied by `size` (all-gather), divided by it and rounded
        down (reduce-scatter), else unchanged. The element type is kept.
        """
        tensor = self._tensors[name]
        shape_of_operand = Shape(((_DTYPES[tensor.element], tensor.shape),))
        typed = replace(instruction, shape=shape_of_operand)
        arguments: dict[str, ArgumentValue] = {}
        if opcode == "all-reduce":
            arguments = {
                "input": Reference(name), "reduce_op": _REDUCTIONS[reducer], "group_name": group,
            }  # fmt: skip
            return self._append("_c10d_functional.all_reduce.default", arguments, typed)
        if opcode == "collective-broadcast":
            source = self._groups[group][0]
            arguments = {"input": Reference(name), "src": source, "group_name": group}
            return self._append("_c10d_functional.broadcast.default", arguments, typed)
        if not 0 <= dimension < len(tensor.shape):
            self._refuse(instruction, f"has no dimension {dimension}", "correct dimensions={}")
        order = list(range(len(tensor.shape)))
        order[0], order[dimension] = order[dimension], order[0]
        front = self._permute(name, order, typed)
        length, *rest = self._tensors[front].shape
        if opcode == "all-gather":
            operator, shape = "all_gather_into_tensor", (length * size, *rest)
            arguments = {"input": Reference(front), "group_size": size, "group_name": group}
        elif opcode == "reduce-scatter":
            operator, shape = "reduce_scatter_tensor", (length // size, *rest)
            arguments = {
                "input": Reference(front), "reduce_op": _REDUCTIONS[reducer], "group_size": size,
                "group_name": group,
            }  # fmt: skip
        else:
            operator, shape = "all_to_all_single", (length, *rest)
            arguments = {
                "input": Reference(front), "output_split_sizes": None, "input_split_sizes": None,
                "group_name": group,
            }  # fmt: skip
        result = self._append(f"_c10d_functional.{operator}.default", arguments, typed, shape)
        return self._permute(result, order, typed)

    def _exchange_parts(
        self, names: Sequence[str], group: str, instruction: HloInstruction
    ) -> Value:
        """Add an all-to-all with one operand per rank; return a tuple of the names of the results.

        The operands are concatenated along dimension 0 for one collective in `group`. Its result is
        cut along dimension 0 into as many parts as operands, with their shape. Entry i of the
        result is the part from rank i of the group.

        All operands must have the shape of the first one, which is not checked. Scalars have the
        shape (1,) during the exchange.
        """
        tensor = self._tensors[names[0]]
        shape = tensor.shape or (1,)
        typed = replace(instruction, shape=Shape(((_DTYPES[tensor.element], shape),)))
        parts = [self._reshape(name, shape, typed) for name in names]
        complete = (shape[0] * len(names), *shape[1:])
        arguments: dict[str, ArgumentValue] = {
            "tensors": tuple(Reference(part) for part in parts), "dim": 0,
        }  # fmt: skip
        joined = self._append("aten.cat.default", arguments, typed, complete)
        result = self._communicate("all-to-all", joined, 0, group, len(names), "", typed)
        cuts = []
        for number in range(len(names)):
            first = number * shape[0]
            cut = self._cut(result, 0, first, first + shape[0], 1, typed)
            cuts.append(self._reshape(cut, tensor.shape, typed))
        return tuple(cuts)

    def _name_group(self, groups: Sequence[tuple[int, ...]], instruction: HloInstruction) -> str:
        """Return the name of a partition of the devices into groups, and record the partition.

        The name is `all` for a single group, otherwise the text of the groups in their order,
        such as `0,1|2,3`. Of a text above 200 characters the first 190 are followed by `...`
        and a unique number. Partitions with the same groups in the same order have equal names,
        and so have all partitions of a single group.

        Recorded under the name is the first group of the first such partition. If the groups
        are not shifted copies of each other, such as `0,1|2,4`, the partition is also recorded
        as irregular, with the instruction that used it first. There is at least one group.
        """
        first = groups[0]
        offsets = {tuple(rank - one[0] for rank in one) for one in groups if one}
        text = "all" if len(groups) == 1 else "|".join(",".join(map(str, one)) for one in groups)
        # Long names are cut; a number distinguishes partitions that begin alike.
        name = text if len(text) <= 200 else f"{text[:190]}...{len(self._names)}"
        name = self._names.setdefault(text, name)
        self._groups.setdefault(name, first)
        if len(offsets) > 1:
            self._irregular.setdefault(name, instruction)
        return name


def _require(is_fitting: bool) -> None:
    """Raise `_MisfitError` if a condition of an instruction is not met."""
    if not is_fitting:
        raise _MisfitError


def _read_integers(instruction: HloInstruction, name: str, default: str = "") -> tuple[int, ...]:
    """Return the integers in an attribute; raises `_MisfitError` for other text.

    `default`: text of the attribute if it is missing.
    """
    try:
        return parse_integers(instruction.attributes.get(name, default))
    except ValueError:
        raise _MisfitError from None


def _flatten(value: Value) -> tuple[Value, ...]:
    """Return the parts of a tuple, with nested tuples flattened; (value,) for another value."""
    if isinstance(value, tuple):
        return tuple(part for entry in value for part in _flatten(entry))
    return (value,)


def _convert_number(number: float, dtype: str) -> int | float | None:
    """Convert a number to the HLO element type `dtype`, as the HLO instruction `convert` does.

    - `pred`: 0 for zero, 1 for any other number, also for NaN.
    - Float types: the number as `float`, not rounded to the precision of `dtype`.
    - Integer types, from an `int`: the value of the type that is equal modulo 2^bits.
    - Integer types, from a `float`: rounded toward zero. A value outside of the range becomes the
      nearest limit, also an infinite one. NaN becomes 0.
    - All other types, such as complex ones: None.
    """
    if dtype == "pred":
        return int(number != 0)
    if not _is_integer(dtype):
        return float(number) if dtype[0] in "fb" else None
    if isinstance(number, int):
        return _wrap(number, dtype)
    if math.isnan(number):
        return 0
    bits, is_signed = ELEMENT_BITS[dtype], dtype[0] == "s"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    return int(min(max(number, low), high))


def _is_integer(dtype: str) -> bool:
    return dtype[0] in "su"


def _wrap(number: int, dtype: str) -> int:
    """Return the value of the HLO integer type `dtype` that is equal modulo 2^bits.

    For the type `pred`, 0 becomes 0 and any other number 1. Numbers of other types are returned
    unchanged.
    """
    if dtype == "pred":
        return int(number != 0)
    if not _is_integer(dtype):
        return number
    size = 1 << ELEMENT_BITS[dtype]
    low = -(size >> 1) if dtype[0] == "s" else 0
    return (number - low) % size + low


def _parse_number(literal: str, dtype: str) -> int | float | None:
    """Return the value of a scalar constant as an int or a float.

    `literal`: its text, with optional spaces around it. `dtype`: its HLO element type:

    - `pred`: 1 for `true`, 0 for `false`.
    - Integer types (`s8`, `u32` and so on): an int. The range of the type is not checked.
    - Float types (`f32`, `bf16` and so on): a float, also for `inf` and `nan`.

    Returns None for other types, such as complex numbers, and for a text that is no value of the
    type, such as `1.5` for `s32`.
    """
    text = literal.strip()
    if dtype == "pred":
        return {"true": 1, "false": 0}.get(text)
    try:
        if dtype[0] in "su":
            return int(text)
        return float(text) if dtype[0] in "fb" else None
    except ValueError:
        return None
