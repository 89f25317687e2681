"""Read StableHLO text as the same module as HLO text, so that one analysis serves both.

Operations are lowered to HLO instructions, as XLA's translation (`mlir_hlo_to_hlo.cc`) does:
functions and regions become computations, a loop gets one tuple as its state, values of enclosing
regions are passed as further operands, and a value with several parts becomes a tuple. Facts of
openxla/stablehlo `docs/spec.md` and `ReplicaGroupUtils.cpp`, and of programs of JAX 0.10.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collhub_hlo_modules.collectives import count_devices
from collhub_hlo_modules.groups import Devices
from collhub_hlo_modules.module import Module, ModuleBuilder
from collhub_hlo_modules.text import HloInstruction, Shape, invalid
from collhub_hlo_modules.work import FREE

from collhub_hlo.mlir_text import (
    MlirOperation,
    MlirReader,
    MlirStatement,
    TypeParser,
    find_close,
    operation_name,
    parse_arguments,
    parse_operation,
    split,
)
from collhub_hlo.stablehlo_attributes import (
    COLLECTIVES,
    custom_call_target,
    read_mesh,
    rewrite_attributes,
)

_WRITE_AGAIN = "write the module again as text"
_PARTITIONS = re.compile(r"mhlo\.num_partitions\s*=\s*(\d{1,9})\b")
_REPLICAS = re.compile(r"mhlo\.num_replicas\s*=\s*(\d{1,9})\b")
_SYMBOL = re.compile(r'@("[^"]*"|[\w$.\-]+)')
_CALLED_COMPUTATION = re.compile(r"\bcalled_computation\s*=\s*" + _SYMBOL.pattern)
_SYMBOL_NAME = re.compile(r'sym_name\s*=\s*"([^"]*)"')
_MESH = re.compile(r"\bmesh\b.*?(<\s*\[.*)", re.DOTALL)
_SCALAR = re.compile(r"dense<\s*(-?\d{1,18})\s*>")
_DIALECTS = ("stablehlo.", "mhlo.", "chlo.")
# Names that differ from those of HLO by more than their hyphens.
_OPCODES = {
    "broadcast-in-dim": "broadcast", "case": "conditional", "create-token": "after-all",
    "dot-general": "dot", "dynamic-broadcast-in-dim": "broadcast", "dynamic-conv": "convolution",
    "dynamic-gather": "gather", "dynamic-iota": "iota", "dynamic-pad": "pad",
    "dynamic-reshape": "reshape", "if": "conditional", "optimization-barrier": "opt-barrier",
    "real-dynamic-slice": "slice",
}  # fmt: skip
_RETURNS = frozenset(("return", "func.return", "stablehlo.return", "mhlo.return", "sdy.return"))
_CALLS = frozenset(("call", "func.call", "stablehlo.composite"))
# Custom calls and operations of Shardy without work, which describe the placement of values.
_PLACEMENTS = frozenset((
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint",
    "annotate_device_placement", "xla.sdy.FuncResultSharding", "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
))  # fmt: skip
_TO_LOCAL = ("SPMDFullToShardShape", "xla.sdy.GlobalToLocalShape")
_SHARDY_COLLECTIVES = frozenset((
    "sdy.all_gather", "sdy.all_reduce", "sdy.all_slice", "sdy.all_to_all",
    "sdy.collective_permute", "sdy.reduce_scatter", "sdy.reshard", "sdy.sharded_to_unreduced",
    "sdy.replicated_to_unreduced",
))  # fmt: skip
_ITERATED = re.compile(r"(%[\w$.\-]+)\s*=\s*%")
# Names of instructions and computations that the text does not contain.
_REDUCER = "reduce."
_CAPTURED = "captured."
_STATE = "loop.state"
_RESULT = "region.result"
_NO_ATTRIBUTES: Mapping[str, str] = {}
# Operations that execute computations.
_BODIES = ("while", "conditional", "call", "async-start")
_MAX_DEPTH = 1000


@dataclass(slots=True)
class _Region:
    """A function or a region, and the computation that it becomes.

    `values`: instruction by SSA value; `packed`: tuple, shapes and first index of the parts of a
    value. `arguments`: shapes by name; `captured`: shapes of SSA values of enclosing regions.
    `returned`: instructions of the result; `called`: computations that it executes.
    """

    name: str
    line: int
    is_function: bool = False
    is_body: bool = False
    is_returned: bool = False
    instructions: dict[str, HloInstruction] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    packed: dict[str, tuple[str, tuple[Shape, ...], int]] = field(default_factory=dict)
    arguments: dict[str, Shape] = field(default_factory=dict)
    captured: dict[str, Shape] = field(default_factory=dict)
    returned: list[str] = field(default_factory=list)
    called: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """An operation whose regions are being read. `arguments`: those that precede its regions."""

    name: str
    text: str
    line: int
    arguments: Sequence[tuple[str, str]] = ()
    regions: list[_Region] = field(default_factory=list)


def read_stablehlo(statements: MlirReader, trip_count: int | None) -> Module:
    """Read the statements of a StableHLO module, whose entry is `main` or the only function.

    `trip_count`: assumed iterations of loops whose count is unknown, None for no
    assumption. If both `mhlo.num_partitions` and `mhlo.num_replicas` are missing, the
    number of devices is the smallest one that the groups of collectives allow, with a note.

    Raise `InputError` with the line for damaged text, undefined names, dimensions of
    unknown size, recursive functions, and a file without a function or with several of
    which none is `main`.
    """
    reader = _Lowering(statements.file, trip_count)
    line = 1
    for statement in statements:
        line = statement.line
        try:
            reader.take(statement)
        except ValueError as error:
            message = f"this operation cannot be read: {error}"
            raise invalid(message, statements.file, line, _WRITE_AGAIN) from None
    return reader.finish(line)


class _Lowering:
    """Module under construction: functions, meshes, and open operations and regions."""

    def __init__(self, file: str, trip_count: int | None) -> None:
        self._file = file
        self._trip_count = trip_count
        self._types = TypeParser()
        self._computations: dict[str, _Region] = {}
        self._functions: list[str] = []
        self._meshes: dict[str, str] = {}
        self._open: list[_Open] = []
        self._regions: list[_Region] = []
        self._header = ""
        self._header_line = 0
        self._region_count = 0
        self._is_sharded = False
        # Computations whose shapes are those of one device, although the module has shardings.
        self._local: set[str] = set()
        # Operations that combine values in collectives.
        self._reducers: set[str] = set()
        self._losses: dict[str, int] = {}

    def take(self, statement: MlirStatement) -> None:
        """Add a statement to the module, according to its kind.

        - `alias`: the type is stored under its name.
        - `open`: an operation with regions, and its first region, begin.
        - `next`: a region ends, and the next one of the same operation begins.
        - `end`: the last region of an operation ends, and with it the operation.
        - `block`: a labelled block begins.
        - `operation`: an operation without regions is added to the innermost open region. Outside
          of regions only the mesh of an `sdy.mesh` is stored by its symbol; the last one counts.

        A statement of any kind with `sharding =` or `@Sharding` in its text marks the module as
        sharded. Raises `ValueError` with the reason for an unreadable statement, or `InputError`
        with a line.
        """
        text, line = statement.text, statement.line
        self._is_sharded |= "sharding =" in text or "@Sharding" in text
        if statement.kind == "alias":
            name, _, value = text.partition("=")
            self._types.aliases[name.strip()] = value.strip()
        elif statement.kind == "open":
            self._begin(text.removesuffix("{").rstrip().removesuffix("(").rstrip(), line)
        elif statement.kind == "next":
            self._close_region()
            self._open_region(line)
        elif statement.kind == "end":
            self._end(text.removeprefix("}").removeprefix(")"))
        elif statement.kind == "block":
            self._begin_block(text)
        elif self._regions:
            self._add(parse_operation(text, line), [])
        elif text.startswith(("sdy.mesh", '"sdy.mesh"')):
            symbol, mesh = _SYMBOL_NAME.search(text) or _SYMBOL.search(text), _MESH.search(text)
            if symbol and mesh:
                self._meshes[symbol[1].strip('"')] = read_mesh(mesh[1][: find_close(mesh[1], 0)])

    def finish(self, line: int) -> Module:
        """Build the module from the function `main`, or from the only function; call this once.

        The computations are in this order: the reducers of collectives (`reduce.OPCODE`) by opcode,
        then those that the function executes, callees before callers, last the function itself, as
        entry. Each occurs once, and all of them are removed from this reader.

        - The name is that of the header, or "".
        - Replicas and partitions are those of the header, and 1 if only one of them is missing. If
          both are missing, they are `count_devices` of the executed collectives. Above one device,
          a note of the module says so.
        - `losses` are those of this reader. `global_instructions` is `_count_global` of the
          function if the module is sharded, otherwise 0.

        Raises `InputError` for no function (`cut`, at `line`, the last line of the file), several
        without `main` (`hlo`), a callee without body (`dangling`), recursion (`recursion`), invalid
        numbers of devices (`rank-range`), and for the errors of `ModuleBuilder.add`.
        """
        if not self._functions:
            message = "the file has no function"
            raise invalid(message, self._file, line, "copy or write the file again", "cut")
        entry = "main" if "main" in self._functions else self._functions[0]
        if entry != "main" and len(self._functions) > 1:
            message = f"no function is called main, and there are {len(self._functions)} functions"
            cure = "rename the function that is executed to @main"
            raise invalid(message, self._file, self._header_line or 1, cure)
        order = self._order_computations(entry)
        counts = [pattern.search(self._header) for pattern in (_REPLICAS, _PARTITIONS)]
        builder = ModuleBuilder(self._file, self._trip_count)
        if any(counts):
            replicas, partitions = (int(count[1]) if count else 1 for count in counts)
        else:
            replicas, partitions = count_devices(
                instruction
                for name in order
                for instruction in self._computations[name].instructions.values()
                if instruction.opcode in COLLECTIVES
            )
        name = _SYMBOL_NAME.search(self._header) or _SYMBOL.search(self._header)
        devices = Devices(replicas, partitions)
        module_name = name[1].strip('"') if name else ""
        module = builder.begin(module_name, devices, False, self._header_line or 1)
        if not any(counts) and devices.count > 1:
            module.note_assumed_devices()
        module.losses = self._losses
        if self._is_sharded:
            module.global_instructions = self._count_global(entry)
        for opcode in sorted(self._reducers):
            builder.open(_REDUCER + opcode, False, 1)
            builder.add(HloInstruction(opcode, opcode, Shape(()), (), _NO_ATTRIBUTES, "", 1, True))
            builder.close()
        for name_of_computation in order:
            region = self._computations.pop(name_of_computation)
            builder.open(region.name, region.name == entry, region.line)
            for instruction in region.instructions.values():
                builder.add(instruction)
            builder.close()
        return module

    def _begin(self, text: str, line: int) -> None:
        """Open an operation with regions: the module, a function, or an operation in a function.

        `text`: the operation without the opening bracket of its region. By its name:

        - `module`, `builtin.module`: the text becomes the header.
        - `func.func`: the region of a new function begins, with the name after `sym_name` or `@`.
          The pretty form `@name(%a: type)` also gives its arguments; in the generic form they
          follow in a label.
        - Any other operation in a function: its first region begins, with the arguments of
          `_arguments`.

        Raises `InputError` for a second module. Raises `ValueError` for text that is no operation,
        a function without a name or within another one, an operation outside of functions, more
        than 1000 nested regions, and arguments that cannot be read or occur twice.
        """
        name = operation_name(text)
        if name in ("module", "builtin.module"):
            if self._header_line:
                cure = "split the file: one module per file"
                raise invalid("the file has a second module", self._file, line, cure)
            self._header, self._header_line = text, line
            self._open.append(_Open("module", text, line))
        elif name == "func.func":
            symbol = _SYMBOL_NAME.search(text) or _SYMBOL.search(text)
            if self._regions or not symbol:
                raise ValueError("a function needs a name, and is not within another one")
            opening = text.find("(", symbol.end()) if symbol[0].startswith("@") else -1
            region = _Region(_computation_name(symbol[1].strip('"')), line, is_function=True)
            self._open.append(_Open(name, text, line))
            self._regions.append(region)
            if opening >= 0:
                self._add_arguments(parse_arguments(text, opening))
        elif not self._regions:
            raise ValueError(f"{name} is in no function")
        else:
            self._open.append(_Open(name, text, line, self._arguments(name, text, line)))
            self._open_region(line)

    def _arguments(self, name: str, text: str, line: int) -> list[tuple[str, str]]:
        """Return (name, type) of region arguments that precede the region in the pretty form.

        `text`: the operation up to its region. Names begin with `%`. The first case that applies,
        [] if none does:

        1. `text` has the name in quotes (generic form): [], because regions then have labels.
        2. `stablehlo.while`: the values before `=`, as `%a` in `%a = %0`, with the first types of
           the operation; further types are ignored.
        3. `text` has ` reducer(`: the arguments in all parentheses after the last one that begin
           with `(%`.
        4. `sdy.manual_computation`: those in the last parentheses that begin with `(%`, unless they
           are also the first such ones.

        `line`: for case 2. Raises `ValueError` for fewer types than values, for an argument without
        a type, and for a bracket that is not closed.
        """
        if f'"{name}"' in text:
            return []
        if name == "stablehlo.while":
            operation = parse_operation(text.removesuffix("cond").rstrip(), line)
            names = _ITERATED.findall(operation.head)
            types = split(operation.types)
            return list(zip(names, types[: len(names)], strict=True))
        position = text.rfind(" reducer(")
        if position >= 0:
            groups = (match.start() for match in re.finditer(r"\(%", text[position:]))
            return [
                argument for start in groups for argument in parse_arguments(text, position + start)
            ]
        position = text.rfind("(%")
        is_manual = name == "sdy.manual_computation" and text.find("(%") < position
        return parse_arguments(text, position) if is_manual else []

    def _open_region(self, line: int) -> None:
        """Begin the next region of the innermost open operation, at the given line.

        Its arguments are the ones that precede the regions in the pretty form
        (`_Open.arguments`); all regions of an operation get the same. Raise `ValueError`
        outside of an operation, directly in a module or function, for more than `_MAX_DEPTH`
        (1000) nested regions, and for arguments of an unknown type or with equal names.
        """
        if not self._open or self._open[-1].name in ("module", "func.func"):
            raise ValueError("a region without an operation")
        if len(self._regions) >= _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} nested regions")
        self._region_count += 1
        self._regions.append(_Region(f"region.{self._region_count}", line))
        self._add_arguments(self._open[-1].arguments)

    def _begin_block(self, text: str) -> None:
        """Read the label of a block; its arguments, if any, become those of the innermost region.

        Labels outside of regions are ignored. Raise `ValueError` if the region already has
        arguments or instructions, since branches between blocks are not supported, and for
        arguments that cannot be parsed.
        """
        if not self._regions:
            return
        region = self._regions[-1]
        if region.instructions or region.arguments:
            raise ValueError("branches between blocks are not read")
        opening = text.find("(")
        if opening >= 0:
            self._add_arguments(parse_arguments(text, opening))

    def _add_arguments(self, arguments: Iterable[tuple[str, str]]) -> None:
        region = self._regions[-1]
        for name, types in arguments:
            if name in region.values:
                raise ValueError(f"argument {name} occurs twice")
            region.arguments[name[1:]] = self._types.parse(types)
            region.values[name] = name[1:]

    def _close_region(self) -> None:
        if not self._open or self._open[-1].name in ("module", "func.func"):
            raise ValueError("a region without an operation")
        self._open[-1].regions.append(self._regions.pop())

    def _end(self, text: str) -> None:
        """Close the innermost open operation with regions; `text` follows its last region.

        - Module: the text is appended to the header.
        - Function: it becomes a computation, and its name is added to the possible entries. Its
          result is the returned value, or a tuple unless there is exactly one.
        - Any other operation: its last region is closed. The operation is parsed from its text
          before the first region followed by `text`, and added with its regions to the enclosing
          region. A final `cond` of the text before is removed first, and in the short (pretty) form
          the part from the last ` reducer(` on.

        Raises `ValueError` for a function name that is used already, and for an operation that
        cannot be parsed or added, such as one after the end of its region.
        """
        opened = self._open[-1]
        if opened.name == "module":
            self._header += text
            self._open.pop()
            return
        if opened.name == "func.func":
            self._open.pop()
            region = self._regions.pop()
            self._functions.append(region.name)
            self._finish_region(region, {}, is_tuple=len(region.returned) != 1)
            return
        self._close_region()
        self._open.pop()
        head = opened.text.removesuffix("cond").rstrip()
        if not opened.text.startswith(('"', "%")) or f'"{opened.name}"' not in opened.text:
            position = head.rfind(" reducer(")
            head = head[:position] if position >= 0 else head
        self._add(parse_operation(head + text, opened.line), opened.regions)

    # Operations

    def _add(self, operation: MlirOperation, regions: list[_Region]) -> None:
        """Append the instructions of an operation to the innermost region, and name its results.

        - A return, such as `func.return`, appends none: its operands become the results of the
          region.
        - Any other operation becomes one instruction. `_opcode` gives its opcode, and counts
          operations that are not supported as losses.
        - A `constant` with a single number keeps its text as literal; the literal is "" otherwise.
        - The regions of a loop, conditional, call or async-start become computations. Before a
          loop, a `tuple` instruction is added. Other regions become reducers.
        - The result is a tuple for a loop, and for no or several results.
        - If an operation only declares the placement of a value, its only attribute is
          `custom_call_target`. Attributes of other operations are those of `rewrite_attributes`.

        A value of an enclosing region becomes an argument of the region (a capture). Raises
        `ValueError` for an operation after a return, an undefined operand, a value defined twice,
        control flow that is not supported, a collective in a reducer, and unreadable types.
        """
        region, name = self._regions[-1], operation.name
        if region.is_returned:
            raise ValueError(f"{name} follows the end of its block")
        if name in _RETURNS:
            region.returned = [self._use(operand) for operand in operation.operands]
            region.is_returned = True
            return
        opcode, target = self._opcode(operation)
        attributes = rewrite_attributes(operation, opcode, self._meshes) if not target else {}
        operands = [self._use(operand) for operand in operation.operands]
        shapes = self._types.results(operation.types, operation.result_count)
        if target:
            attributes = {"custom_call_target": target}
        if opcode in _BODIES:
            operands, shapes = self._add_bodies(
                operation, opcode, regions, operands, shapes, attributes
            )
        elif regions:
            self._add_reducer(operation, opcode, regions, attributes)
        literal = ""
        if opcode == "constant" and (value := _SCALAR.search(operation.head)):
            literal = value[1]
        is_tuple = len(shapes) != 1 or opcode == "while"
        instruction = self._append(
            opcode, operation, operands, shapes, attributes, literal, is_tuple
        )
        index = 0
        for result, count in operation.results:
            if result in region.values or result in region.packed:
                raise ValueError(f"value {result} is defined twice")
            if is_tuple:
                region.packed[result] = instruction.name, shapes[index : index + count], index
            else:
                region.values[result] = instruction.name
            index += count

    def _opcode(self, operation: MlirOperation) -> tuple[str, str]:
        """Return the HLO opcode of an operation, and the name of its target, or "" without one.

        The first rule that applies decides:
        1. `_CALLS` and `sdy.manual_computation`: `call`.
        2. Other operations of `sdy`: `bitcast`, with the operation's name as target. They only
           declare where a value is. Collectives of Shardy are also a loss, and mark the module as
           sharded.
        3. A custom call of `_PLACEMENTS`: `bitcast`, with the called name as target.
        4. A custom call of `ragged_all_to_all`: `ragged-all-to-all`.
        5. Otherwise the last part of the name, with `-` for `_`, or its HLO name (`_OPCODES`).

        For 3 to 5: an operation of another dialect than `_DIALECTS` is counted as a loss. Raises
        `ValueError` for a name without a dialect, and for the dialects `cf` and `scf`.
        """
        name = operation.name
        if name in _CALLS:
            return "call", ""
        if name == "sdy.manual_computation":
            return "call", ""
        if name.startswith("sdy."):
            if name in _SHARDY_COLLECTIVES:
                self._lose("collectives of Shardy, which are not read; partition the program first")
                self._is_sharded = True
            return "bitcast", name
        dialect, _, short = name.rpartition(".")
        if not dialect:
            raise ValueError(f"{name!r} is no operation")
        opcode = short.replace("_", "-")
        opcode = _OPCODES.get(opcode, opcode)
        if f"{dialect}." not in _DIALECTS:
            if dialect in ("cf", "scf"):
                raise ValueError(f"the control flow {name} is not read")
            self._lose("operations of other dialects, which count one operation per element")
        if opcode == "custom-call":
            target = custom_call_target(operation)
            if target in _PLACEMENTS:
                return "bitcast", target
            if target == "ragged_all_to_all":
                return "ragged-all-to-all", ""
        return opcode, ""

    def _add_bodies(
        self,
        operation: MlirOperation,
        opcode: str,
        regions: list[_Region],
        operands: list[str],
        shapes: tuple[Shape, ...],
        attributes: dict[str, str],
    ) -> tuple[list[str], tuple[Shape, ...]]:
        """Store the regions of an operation as computations; return (its operands, its shapes).

        Captured values are those of outer regions that the regions use. Except for a call they are
        added to the operands, in the order of first use. The names of the computations are added to
        `attributes` under these keys, and to `called` of the innermost region:

        - No region: it must be a `call`, or an async-start with `called_computation`. `to_apply`
          or `calls` is the called function; operands and shapes are unchanged.
        - Loop, with two regions: `condition` and `body`. Its operand is a new tuple of the iterated
          and captured values. The shapes of the captured values are added to its shapes.
        - Conditional: `branch_computations`. Its operands are the first one and the captured
          values.
        - Any other operation must have one region: `calls` for async-start, else `to_apply`.

        The region of `sdy.manual_computation`, and a called function whose operand was made local
        (`_TO_LOCAL`), are marked as local. Raises `ValueError` for wrong numbers of regions or
        values, a call without a function, and missing or used names.
        """
        current = self._regions[-1]
        if not regions:
            pattern = {"call": _SYMBOL, "async-start": _CALLED_COMPUTATION}.get(opcode)
            if pattern is None:
                raise ValueError(f"{operation.name} has no region")
            callee = pattern.search(operation.head)
            if not callee:
                raise ValueError(f"{operation.name} names no function")
            name = _computation_name(callee[1].strip('"'))
            attributes["calls" if opcode == "async-start" else "to_apply"] = name
            current.called.append(name)
            sources = (current.instructions.get(operand) for operand in operands)
            targets = [one.attributes.get("custom_call_target") for one in sources if one]
            if any(target in _TO_LOCAL for target in targets):
                self._local.add(name)
            return operands, shapes
        captured: dict[str, Shape] = {}
        for region in regions:
            captured |= region.captured
        extra = [self._use(name) for name in captured]
        names = [region.name for region in regions]
        current.called += names
        if opcode == "while":
            if len(regions) != 2 or len(operands) != len(shapes):
                raise ValueError("a loop has two regions, and as many results as operands")
            shapes = (*shapes, *captured.values())
            state = self._append("tuple", operation, operands + extra, shapes, {}, "", True)
            regions[1].is_body = True
            for region in regions:
                self._finish_loop_region(region, captured, shapes)
            attributes |= {"condition": names[0], "body": names[1]}
            return [state.name], shapes
        if opcode == "conditional":
            operands = operands[:1]
            attributes["branch_computations"] = "{" + ",".join(names) + "}"
        elif len(regions) != 1:
            raise ValueError(f"{operation.name} has {len(regions)} regions, not 1")
        else:
            attributes["calls" if opcode == "async-start" else "to_apply"] = names[0]
        if operation.name == "sdy.manual_computation":
            self._local.add(names[0])
        for region in regions:
            first = len(operands) if opcode == "conditional" else len(region.arguments)
            is_tuple = len(region.returned) != 1
            self._finish_region(region, captured, is_tuple=is_tuple, first_captured=first)
        return operands + extra, shapes

    def _add_reducer(
        self,
        operation: MlirOperation,
        opcode: str,
        regions: list[_Region],
        attributes: dict[str, str],
    ) -> None:
        """Set the reduction of a collective: `to_apply` in `attributes` becomes `reduce.NAME`.

        NAME is the opcode of the instruction whose value the first region returns first. It is
        also added to `self._reducers`. Two cases leave `attributes` and the set unchanged:

        - `opcode`, that of the operation, is no collective.
        - The first region returns no value, or its first returned value is not from an
          instruction of this region.

        `regions` has at least one region. Raise `ValueError` if any region contains a
        collective, even for an operation that is no collective.
        """
        inner = [one for region in regions for one in region.instructions.values()]
        if any(one.opcode in COLLECTIVES for one in inner):
            raise ValueError(f"a region of {operation.name} contains a collective")
        root = regions[0].instructions.get(regions[0].returned[0] if regions[0].returned else "")
        if opcode in COLLECTIVES and root is not None:
            attributes["to_apply"] = _REDUCER + root.opcode
            self._reducers.add(root.opcode)

    def _append(
        self,
        opcode: str,
        operation: MlirOperation,
        operands: Sequence[str],
        shapes: tuple[Shape, ...],
        attributes: Mapping[str, str],
        literal: str,
        is_tuple: bool,
    ) -> HloInstruction:
        """Append an instruction to the innermost region, and return it.

        Its name is the opcode, a dot, and the first result without `%`: `add.3` for `%3`. Without
        results, `line` and the line of the operation replace the result: `send.line12`. A `tuple`
        instruction of a while operation (the state of the loop) has `state` in place of the opcode.

        With `is_tuple` its shape is a tuple of the arrays of all `shapes`, which may be empty.
        Otherwise it is the first of `shapes`, of which there must be one. Operands, attributes and
        literal are taken as given. Raises `ValueError` if the region already has an instruction of
        this name.
        """
        region = self._regions[-1]
        first = operation.results[0][0][1:] if operation.results else f"line{operation.line}"
        short = "state" if opcode == "tuple" and operation.name.endswith("while") else opcode
        leaves = tuple(leaf for shape in shapes for leaf in shape.leaves)
        shape = Shape(leaves, True) if is_tuple else shapes[0]
        instruction = HloInstruction(
            f"{short}.{first}", sys.intern(opcode), shape, tuple(operands),
            attributes or _NO_ATTRIBUTES, literal, operation.line, False,
        )  # fmt: skip
        if instruction.name in region.instructions:
            raise ValueError(f"value %{first} is defined twice")
        region.instructions[instruction.name] = instruction
        return instruction

    def _use(self, value: str) -> str:
        """Return the name that the innermost region uses for a value such as `%3`.

        `%3#1` is part 1 of a result with several values. The regions are searched from the
        innermost outwards, up to the enclosing function:

        - The innermost region has the value, or captured it before: the name that it has there.
        - An outer region has the value: each region inside that region captures the value. It
          records the shape in `captured` and the name in `values`. The name is `captured.` followed
          by the value without `%`.

        The first use of a part adds a `get-tuple-element` instruction to the region of the result
        (`_find`). Raises `ValueError` for an undefined value and for a part that does not exist.
        """
        level = len(self._regions) - 1
        while (name := self._find(value, self._regions[level])) is None:
            if self._regions[level].is_function:
                raise ValueError(f"value {value} is not defined before this operation")
            level -= 1
        for region in self._regions[level + 1 :]:
            outer = self._regions[level]
            if name in outer.instructions:
                shape = outer.instructions[name].shape
            elif name in outer.arguments:
                shape = outer.arguments[name]
            else:
                shape = outer.captured["%" + name.removeprefix(_CAPTURED)]
            region.captured[value] = shape
            name = _CAPTURED + value[1:]
            region.values[value] = name
            level += 1
        return name

    def _find(self, value: str, region: _Region) -> str | None:
        """Return the name by which a region knows a value; None if it does not know it.

        It is the name of an instruction or argument of the region, or of a value of an enclosing
        region that was captured before. A part of a result with several values (`%x#1`; no index
        means part 0) gets a `get-tuple-element` instruction when it is first used, which is added
        to the region. Raises `ValueError` for a part that the result does not have.
        """
        if (name := region.values.get(value)) is not None:
            return name
        base, _, index = value.partition("#")
        packed = region.packed.get(base)
        if packed is None:
            return None
        name, shapes, first = packed
        part = int(index[:9] or 0)
        if part >= len(shapes):
            raise ValueError(f"value {base} has {len(shapes)} parts, not a part {part}")
        line = region.instructions[name].line
        element = HloInstruction(
            f"{name}.{first + part}", "get-tuple-element", shapes[part], (name,),
            {"index": str(first + part)}, "", line, False,
        )  # fmt: skip
        region.instructions[element.name] = element
        region.values[value] = element.name
        return element.name

    # Computations

    def _finish_region(
        self,
        region: _Region,
        captured: Mapping[str, Shape],
        *,
        is_tuple: bool,
        first_captured: int = 0,
    ) -> None:
        """Store a region as a computation: its arguments and captured values become parameters.

        Arguments are numbered from 0 in their order. `captured`: shapes of the values that all
        regions of the operation capture together. These are numbered from `first_captured` on in
        their order. The region has parameters only for those that it uses itself, so that numbers
        may be missing.

        The result is a tuple of all returned values with `is_tuple`, otherwise the first returned
        value. Raises `ValueError` for a name that is already used, and, without `is_tuple`, for a
        region that returns no value.
        """
        parameters: dict[str, HloInstruction] = {}
        for number, (name, shape) in enumerate(region.arguments.items()):
            parameters[name] = _parameter(name, shape, number, region.line)
        for number, (value, shape) in enumerate(captured.items(), first_captured):
            if value in region.captured:
                name = _CAPTURED + value[1:]
                parameters[name] = _parameter(name, shape, number, region.line)
        self._store(region, parameters, region.returned, is_tuple=is_tuple)

    def _finish_loop_region(
        self, region: _Region, captured: Mapping[str, Shape], shapes: tuple[Shape, ...]
    ) -> None:
        """Store a region of a loop as a computation, whose parameter is the state of the loop.

        The state is a tuple of the iterated values, which are the arguments of the region, followed
        by the `captured` values. `shapes` has the shapes of the state in this order.
        `region.is_body` must be set before:

        - True: the body returns a tuple of its returned values, and the captured ones unchanged.
        - False: the condition returns its first value, not as a tuple; other values are ignored.

        Raises `ValueError` if arguments and captured values are not as many as `shapes`, and if a
        body does not return as many values as it has arguments. Raises also the errors of `_store`.
        """
        names = [*region.arguments, *(_CAPTURED + value[1:] for value in captured)]
        if len(names) != len(shapes):
            message = f"a region of a loop has {len(region.arguments)} arguments"
            raise ValueError(f"{message}, its state {len(shapes) - len(captured)} values")
        state = Shape(tuple(leaf for shape in shapes for leaf in shape.leaves), True)
        parameters = {_STATE: _parameter(_STATE, state, 0, region.line)}
        for index, (name, shape) in enumerate(zip(names, shapes, strict=True)):
            parameters[name] = HloInstruction(
                name, "get-tuple-element", shape, (_STATE,), {"index": str(index)}, "",
                region.line, False,
            )  # fmt: skip
        if not region.is_body:
            self._store(region, parameters, region.returned[:1], is_tuple=False)
            return
        if len(region.returned) != len(region.arguments):
            raise ValueError("the body of a loop returns another number of values than it gets")
        returned = [*region.returned, *names[len(region.arguments) :]]
        self._store(region, parameters, returned, is_tuple=True)

    def _store(
        self,
        region: _Region,
        parameters: dict[str, HloInstruction],
        returned: Sequence[str],
        *,
        is_tuple: bool,
    ) -> None:
        """Store a region and its instructions as the computation `region.name`, and mark its root.

        `parameters`: instructions to put before those of the region; `returned`: names of the
        returned values. The root depends on `is_tuple`:

        - True: a new last instruction `tuple`, with all `returned` (or none) as operands. Its shape
          has the leaves of their shapes, in order.
        - False: the instruction of the first returned value, which keeps its position. `ValueError`
          without returned values.

        `region.instructions` is replaced by the complete map; `values` and `packed` of the region
        are emptied. Raises `ValueError` if the name of the computation is already used, and
        `KeyError` for an unknown name in `returned`.
        """
        if region.name in self._computations:
            raise ValueError(f"function @{region.name} is defined twice")
        instructions = parameters | region.instructions
        if is_tuple:
            leaves = tuple(leaf for name in returned for leaf in instructions[name].shape.leaves)
            instructions[_RESULT] = HloInstruction(
                _RESULT, "tuple", Shape(leaves, True), tuple(returned), _NO_ATTRIBUTES, "",
                region.line, True,
            )  # fmt: skip
        elif returned:
            instructions[returned[0]] = replace(instructions[returned[0]], is_root=True)
        else:
            raise ValueError("a region returns no value")
        region.instructions = instructions
        region.values, region.packed = {}, {}
        self._computations[region.name] = region

    def _order_computations(self, entry: str) -> list[str]:
        """Return the names of the computations that the entry executes, callees first.

        A computation follows all its callees, and the entry is last. Callees that are independent
        of each other are in the reverse order of their calls. Each computation occurs once;
        computations that the entry does not reach are left out.

        Raises `InputError` for the first of these defects:
        - A called function has no body (`dangling`, at the line of the calling function or
          region).
        - A function calls itself, directly or not (`recursion`, at the line of such a function).
        """
        order: list[str] = []
        is_done: dict[str, bool] = {}
        pending = [entry]
        while pending:
            name = pending[-1]
            if name not in is_done:
                is_done[name] = False
                region = self._computations[name]
                for callee in region.called:
                    if callee not in self._computations:
                        message = f"function @{callee} is called, but has no body in this module"
                        cure = "write the complete module"
                        raise invalid(message, self._file, region.line, cure, "dangling")
                    if is_done.get(callee) is False:
                        message = f"function @{callee} calls itself"
                        cure = "express the repetition as a loop (stablehlo.while)"
                        line = self._computations[callee].line
                        raise invalid(message, self._file, line, cure, "recursion")
                pending += [callee for callee in region.called if callee not in is_done]
                continue
            pending.pop()
            if not is_done[name]:
                is_done[name] = True
                order.append(name)
        return order

    def _count_global(self, entry: str) -> int:
        """Count the instructions whose shapes are those of all devices together.

        All computations that `entry` executes are counted, each once, including `entry` itself.
        These instructions do not count:

        - those inside `sdy.manual_computation` or its older forms, whose shapes are those of one
          device
        - those without cost (`FREE`)
        - those that execute computations: loops, conditionals and calls
        """
        total, seen, pending = 0, {entry}, [entry]
        while pending:
            region = self._computations[pending.pop()]
            total += sum(
                instruction.opcode not in FREE and instruction.opcode not in _BODIES
                for instruction in region.instructions.values()
            )
            callees = [name for name in region.called if name not in seen | self._local]
            seen.update(callees)
            pending += callees
        return total

    def _lose(self, text: str) -> None:
        self._losses[text] = self._losses.get(text, 0) + 1


def _computation_name(symbol: str) -> str:
    return re.sub(r"[^\w.\-$:/@]", "_", symbol)


def _parameter(name: str, shape: Shape, number: int, line: int) -> HloInstruction:
    return HloInstruction(name, "parameter", shape, (), _NO_ATTRIBUTES, str(number), line, False)
