"""Computations of a module, read one statement at a time, with their loops and total work.

HLO text defines a computation before its first use, so totals of called computations are known
when a computation ends, and bodies of fusions are dropped once their totals are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from collhub_hlo_modules.collectives import collective_of, count_devices
from collhub_hlo_modules.groups import Devices
from collhub_hlo_modules.text import (
    HloInstruction,
    InstructionParser,
    Statement,
    StatementReader,
    invalid,
    parse_attributes,
    parse_computation_name,
    to_integer,
)
from collhub_hlo_modules.work import (
    FREE,
    count_accessed_bytes,
    count_bytes,
    count_operations,
    is_product,
)

MAX_RANKS = 1 << 16
_MAX_TOTAL = 1 << 62
_TRIP_COUNT = re.compile(r'"?known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d{1,18})\b')
_ALIAS = re.compile(r"\{\s*(\d{0,9})\s*\}\s*:\s*\(\s*(\d{1,9})\s*,\s*\{\s*\}")
_DEVICES = re.compile(r"\b(?:replica_count|num_partitions)=")
_NAME = re.compile(r"%?([\w.\-$:/@]+)")
_DUMP_AGAIN = "dump the module again as text"
# Shared by all computations whose instructions are dropped.
_NO_INSTRUCTIONS: dict[str, HloInstruction] = {}


@dataclass(slots=True)
class Computation:
    """Instructions in order, by name, and totals over the computations that they call.

    `operations`: including fusions and calls, without loops. `products`, `product_operations`:
    matrix products, loops included. `visits`: instructions to evaluate, 0 without work.
    `accessed`: of a fused computation, see `count_accessed_bytes`; its instructions are dropped.
    """

    name: str
    line: int
    instructions: dict[str, HloInstruction] = field(default_factory=dict)
    operations: int = 0
    products: int = 0
    product_operations: int = 0
    communications: int = 0
    visits: int = 0
    accessed: tuple[dict[int, int], int | None] | None = None

    @property
    def root(self) -> HloInstruction | None:
        """The last instruction marked as root; without one, the last instruction; None if empty."""
        every = list(self.instructions.values())
        return next(
            (instruction for instruction in reversed(every) if instruction.is_root),
            every[-1] if every else None,
        )


@dataclass(slots=True)
class Module:
    """A module: its header, its computations, and facts of its text.

    `trip_counts`: iterations by the line of the loop, None if unknown. `is_sharded`: instructions
    have shardings, which precede partitioning or remain on parameters. `global_instructions`:
    computations with the shapes of all devices together. `losses`: content that the parser does not
    read, with its count; `notes`: assumptions of the parser. `aliases`: by number of an output of
    the entry, the parameter whose memory it reuses.
    """

    name: str
    devices: Devices
    is_scheduled: bool
    computations: dict[str, Computation] = field(default_factory=dict)
    entry: Computation | None = None
    trip_counts: dict[int, int | None] = field(default_factory=dict)
    is_sharded: bool = False
    global_instructions: int = 0
    losses: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)

    def note_assumed_devices(self) -> None:
        """Add the note that the number of devices, which the text does not state, is assumed."""
        self.notes.append(
            f"the module states no number of devices: {self.devices.count} are assumed, the fewest"
            " that its groups allow"
        )

    def find_reducer(self, instruction: HloInstruction) -> str:
        """Return the opcode with which an instruction reduces, such as `add`; "" if there is none.

        It is the opcode of the root of the computation that the attribute `to_apply` names; "" also
        if the attribute, the computation or its root is missing.
        """
        name = instruction.attributes.get("to_apply", "").lstrip("%")
        computation = self.computations.get(name)
        root = computation.root if computation is not None else None
        return root.opcode if root is not None else ""


def read_module(
    statements: StatementReader,
    trip_count: int | None,
    *,
    is_complete: bool = False,
    assumes_devices: bool = False,
) -> Module:
    """Read the statements of an HLO module into a `Module`, with computations in order of text.

    - `devices`: of the header, 1 replica and 1 partition if it states neither. With
      `assumes_devices`, such a module has the fewest that its collectives allow
      (`count_devices`), with a note above one device; at most `MAX_RANKS` (65 536) in all.
    - `trip_counts`: iterations of each `while` by line: the recorded count, otherwise that
      derived from its counter, otherwise `trip_count` (None: unknown).
    - `aliases`: output number to the parameter whose memory it reuses, from the header:
      `{0}: (2, {}, may-alias)` gives {0: 2}; `{}` is output 0. Nested ones are ignored.
    - Without `is_complete`, the bytes that a fusion accesses replace the instructions of its
      computation, unless it contains a collective.

    Raises `InputError`: `hlo` for damaged text, repetitions or unknown work; `dangling` for
    names used before their definition; `format` for text before the header; `rank-range` for
    more than 2^16 devices; `too-large`; `cut` for missing text or ENTRY.
    """
    builder = ModuleBuilder(statements.file, trip_count, is_complete=is_complete)
    parser = InstructionParser(statements.file, is_complete=is_complete)
    for statement in statements:
        if statement.kind == "module":
            begun = builder.begin(*_parse_header(statement, statements.file), statement.line)
            assumes_devices &= not _DEVICES.search(statement.text)
            # The parameter whose memory each output reuses, for example {0}: (2, {}, may-alias).
            aliases = statement.text.partition("input_output_alias=")[2]
            aliases = aliases.partition("entry_computation_layout")[0]
            begun.aliases = {
                int(output or 0): int(parameter) for output, parameter in _ALIAS.findall(aliases)
            }
        elif builder.module is None:
            message = "the file does not begin with HloModule"
            raise invalid(message, statements.file, statement.line, _DUMP_AGAIN, "format")
        elif statement.kind == "computation":
            builder.open(*parse_computation_name(statement), statement.line)
        elif statement.kind == "instruction":
            builder.add(parser.parse(statement))
        else:
            builder.close()
    module = builder.module
    if module is None or module.entry is None:
        message = "the module has no ENTRY computation" if module else "the file has no HloModule"
        raise invalid(message, statements.file, 1, "copy or dump the file again", "cut")
    if assumes_devices:
        counts = count_devices(
            instruction
            for computation in module.computations.values()
            for instruction in computation.instructions.values()
            if collective_of(instruction.opcode) is not None
        )
        devices = Devices(*counts)
        if 1 < devices.count <= MAX_RANKS:
            module.devices = devices
            module.note_assumed_devices()
    return module


def _parse_header(statement: Statement, file: str) -> tuple[str, Devices, bool]:
    """Return the name and the devices of a module, and whether it has `is_scheduled=true`.

    Example: `HloModule m, replica_count=2, is_scheduled=true` gives ("m", Devices(2, 1), True).

    - Name: the text after `HloModule` and blanks, up to a blank or comma; `""` if there is
      none.
    - Devices: `replica_count` replicas and `num_partitions` partitions, 1 each if missing.
      Their range is not checked here.
    - Any value of `is_scheduled` other than exactly `true` gives False.

    If an attribute is repeated, its last value counts. Raises `InputError` (`hlo`) at the line
    of the statement if a count is no integer of at most 18 digits. No other text is an error.
    """
    text = statement.text
    name = re.match(r"HloModule\s+([^\s,]+)", text)
    try:
        attributes = parse_attributes(text, name.end() if name else len("HloModule"))
        counts = [
            to_integer(attributes.get(key, "1")) for key in ("replica_count", "num_partitions")
        ]
    except ValueError as error:
        message = f"the header cannot be read: {error}"
        raise invalid(message, file, statement.line, _DUMP_AGAIN) from None
    is_scheduled = attributes.get("is_scheduled") == "true"
    return name[1] if name else "", Devices(*counts), is_scheduled


def called_names(instruction: HloInstruction) -> list[str]:
    """Return the names of the computations that an instruction executes, without reducers.

    - `while`: the body only.
    - `conditional`: `branch_computations`, then the true and the false computation.
    - `call`: `to_apply`, else `calls`.
    - All others, such as fusions: `calls`.

    Empty without these attributes.
    """
    attributes, opcode = instruction.attributes, instruction.opcode
    if opcode == "while":
        return _names(attributes.get("body", ""))
    if opcode == "conditional":
        keys = ("branch_computations", "true_computation", "false_computation")
        return [name for key in keys for name in _names(attributes.get(key, ""))]
    if opcode == "call":
        return _names(attributes.get("to_apply", attributes.get("calls", "")))
    return _names(attributes.get("calls", ""))


class ModuleBuilder:
    """Module under construction; the current computation is the last one that was opened.

    A computation is added before those that execute it: `open`, `add` per instruction, `close`.
    `trip_count`: iterations of loops whose count is unknown. `is_complete`: fused computations
    keep their instructions.
    """

    def __init__(self, file: str, trip_count: int | None, *, is_complete: bool = False) -> None:
        self._is_complete = is_complete
        self.file = file
        self.module: Module | None = None
        self._trip_count = trip_count
        self._current: Computation | None = None
        self._is_entry = False

    def begin(self, name: str, devices: Devices, is_scheduled: bool, line: int) -> Module:
        """Begin the module without computations, store it in the builder, and return it.

        The first rule that applies raises `InputError` at `line`:

        - A module was begun before (code `hlo`).
        - Replicas or partitions are below 1, or replicas x partitions exceeds 2^16
          (`rank-range`).
        """
        if self.module is not None:
            cure = "split the file: one module per file"
            raise invalid("the file has a second HloModule", self.file, line, cure)
        if min(devices.replicas, devices.partitions) < 1 or devices.count > MAX_RANKS:
            message = (
                f"{devices.replicas} replicas x {devices.partitions} partitions; 1 to {MAX_RANKS}"
                " are read"
            )
            cure = "correct replica_count or num_partitions"
            raise invalid(message, self.file, line, cure, "rank-range")
        self.module = Module(name, devices, is_scheduled)
        return self.module

    def open(self, name: str, is_entry: bool, line: int) -> None:
        """Begin a computation; `add` appends instructions to it, and `close` adds it to the module.

        `line`: its line in the file. With `is_entry` it becomes the entry of the module at
        `close`. A computation that is open and not closed is dropped.

        Raises `InputError` (`hlo`) with the line: first for a name that the module already has,
        then for an entry if the module has one. Raises `AssertionError` if no module was begun.
        """
        assert self.module
        if name in self.module.computations:
            message = f"computation {name!r} is defined twice"
            raise invalid(message, self.file, line, _DUMP_AGAIN)
        if is_entry and self.module.entry is not None:
            raise invalid("a second ENTRY computation", self.file, line, _DUMP_AGAIN)
        self._current, self._is_entry = Computation(name, line), is_entry

    def add(self, instruction: HloInstruction) -> None:
        """Append an instruction to the current computation, and add its work to the totals.

        The work of the computations that it calls is included, up to 2^62 per total:

        - `while`: products count once per iteration (0 times if their number is unknown).
          Collectives count once, other operations of the body not at all.
        - `conditional`: only the branch of `choose_branch` counts.

        The iterations are stored in `trip_counts`. An attribute `sharding` marks the module as
        sharded. A custom call of a computation with collectives is stored as a call of it. After a
        fusion, the instructions of called bodies without collectives are dropped, unless the module
        is complete; only their bytes are kept.

        Raises `InputError` at the line: `hlo` for a repeated name, an operator that cannot be
        counted, or a parameter without a number; `dangling` for an operand, body or condition that
        is missing, and a loop, call, fusion or `async-start` that names no computation.
        """
        assert self.module
        assert self._current
        computation = self._current
        if instruction.name in computation.instructions:
            message = f"instruction {instruction.name!r} is defined twice in {computation.name!r}"
            raise invalid(message, self.file, instruction.line, _DUMP_AGAIN)
        for name in instruction.operands:
            if name not in computation.instructions:
                message = f"operand {name!r} is not defined before this instruction"
                raise invalid(message, self.file, instruction.line, _DUMP_AGAIN, "dangling")
        if instruction.opcode == "custom-call":
            for name in _names(instruction.attributes.get("called_computations", "")):
                body = self.module.computations.get(name)
                if body is not None and body.communications:
                    instruction = replace(instruction, opcode="call", attributes={"to_apply": name})
                    break
        names = called_names(instruction)
        for name in (*names, *_names(instruction.attributes.get("condition", ""))):
            if name not in self.module.computations:
                message = f"computation {name!r} is not defined before its use"
                raise invalid(message, self.file, instruction.line, _DUMP_AGAIN, "dangling")
        if instruction.opcode in ("while", "call", "fusion", "async-start") and not names:
            message = f"{instruction.opcode} {instruction.name!r} names no computation"
            raise invalid(message, self.file, instruction.line, _DUMP_AGAIN, "dangling")
        called = [self.module.computations[name] for name in names]
        self.module.is_sharded |= "sharding" in instruction.attributes
        try:
            if instruction.opcode == "parameter":
                to_integer(instruction.literal)
            operations = count_operations(instruction, computation.instructions)
        except ValueError as error:
            message = f"the work of {instruction.name!r} cannot be computed: {error}"
            raise invalid(message, self.file, instruction.line, _DUMP_AGAIN) from None
        computation.instructions[instruction.name] = instruction
        self._add_totals(instruction, operations, called)
        if instruction.opcode == "fusion" and not self._is_complete:
            for body in called:
                # The bytes that a fused computation accesses replace its instructions.
                if body.accessed is None and not body.communications:
                    body.accessed = count_accessed_bytes(body.instructions)
                    body.instructions = _NO_INSTRUCTIONS
                    body.visits = 1

    def close(self) -> None:
        """Add the current computation to the end of the module's computations, under its name.

        If it was opened as the entry, it becomes `entry` of the module. Raises `InputError` (`hlo`)
        with the line at which it was opened if it has no instructions. Raises `AssertionError` if
        no computation was opened.
        """
        assert self.module
        assert self._current
        if not self._current.instructions:
            message = f"computation {self._current.name!r} is empty"
            raise invalid(message, self.file, self._current.line, _DUMP_AGAIN)
        self.module.computations[self._current.name] = self._current
        if self._is_entry:
            self.module.entry = self._current

    def _add_totals(
        self, instruction: HloInstruction, operations: int, called: list[Computation]
    ) -> None:
        assert self.module
        assert self._current
        total, is_loop = self._current, instruction.opcode == "while"
        repeats = 1
        if is_loop:
            trips = self._find_trip_count(instruction, called[0])
            self.module.trip_counts[instruction.line] = trips
            repeats = trips or 0
        if instruction.opcode == "conditional":
            called = [choose_branch(called)] if called else []
        is_fusion = instruction.opcode == "fusion"
        total.visits = min(_MAX_TOTAL, total.visits + int(instruction.opcode not in FREE))
        if is_product(instruction):
            total.products += 1
            total.product_operations += operations
        total.operations += operations
        total.communications += collective_of(instruction.opcode) is not None
        for computation in called:
            total.products = min(_MAX_TOTAL, total.products + repeats * computation.products)
            more = repeats * computation.product_operations
            total.product_operations = min(_MAX_TOTAL, total.product_operations + more)
            total.communications = min(
                _MAX_TOTAL, total.communications + computation.communications
            )
            if not is_loop:
                total.operations = min(_MAX_TOTAL, total.operations + computation.operations)
            if not is_fusion:
                visits = max(1, repeats) * (
                    computation.visits and computation.visits + len(computation.instructions)
                )
                total.visits = min(_MAX_TOTAL, total.visits + visits)

    def _find_trip_count(self, loop: HloInstruction, body: Computation) -> int | None:
        """Return the iterations of a `while` loop of the current computation; None if unknown.

        The first number that exists is returned, also if it is 0:

        1. `known_trip_count` in the attribute `backend_config` of the loop
        2. the count that `_count_iterations` derives from the counter, if the condition is known
        3. `trip_count` of the builder, which may be None
        """
        assert self.module
        assert self._current
        text = loop.attributes.get("backend_config", "").replace("\\", "")
        if match := _TRIP_COUNT.search(text):
            return int(match[1])
        condition = self.module.computations.get(
            next(iter(_names(loop.attributes.get("condition", ""))), "")
        )
        counted = _count_iterations(loop, self._current, condition, body) if condition else None
        return self._trip_count if counted is None else counted


def choose_branch(branches: Sequence[Computation]) -> Computation:
    """Return the branch that is assumed to be taken.

    It is the one with the most collectives; of several, the one with the most operations.
    """
    return max(branches, key=lambda one: (one.communications, one.operations))


def count_work(
    instruction: HloInstruction, instructions: dict[str, HloInstruction], body: Computation | None
) -> tuple[int, int]:
    """Estimate the work of an instruction: (arithmetic operations, bytes read and written).

    `instructions`: those of the same computation by name. `body`: the fused computation of a
    fusion, otherwise None. The first rule that applies decides:

    1. Without a body, or if `body.accessed` is None (the body has a collective), the work is
       that of `count_operations` and `count_bytes`. These raise `ValueError` for a contracted
       dimension of a product that does not exist.
    2. Otherwise the operations are those of the body. Each operand is read with at most the
       bytes that the body reads of this parameter. The result is written, or only the update
       if the body's root updates a slice in place and the update is smaller.

    Raises `KeyError` for an operand that is not in `instructions`.
    """
    if body is None or body.accessed is None:
        return count_operations(instruction, instructions), count_bytes(instruction, instructions)
    read, written = body.accessed
    sizes = [instructions[name].shape.bytes for name in instruction.operands]
    touched = sum(min(size, read.get(index, size)) for index, size in enumerate(sizes))
    result = instruction.shape.bytes
    return body.operations, touched + (result if written is None else min(result, written))


def _names(text: str) -> list[str]:
    return _NAME.findall(text)


MIRRORED = {"GT": "LT", "GE": "LE", "LT": "GT", "LE": "GE"}


def _count_iterations(
    loop: HloInstruction, caller: Computation, condition: Computation, body: Computation
) -> int | None:
    """Return the iterations of a loop `for (i = first; i < end; i += step)`; None for other loops.

    Example: first 0, end 10 and step 3 give 4 with LT (`<`). The result is at least 0.

    - `first`: the first operand of the loop in `caller` is a `tuple`; its element i is a
      constant.
    - Comparison: the root of `condition` is a `compare` of element i of the state with `end`,
      on either side. Seen from the element, it is LT or LE if the step is positive, and GT or
      GE if the step is negative. LE and GE include `end`.
    - `step`: the root of `body` is a `tuple` whose element i is the old one plus or minus the
      step.
    - `end` and `step` are constants, or elements of the state that begin as constants and that
      the body returns unchanged.

    Constants are scalar integers of at most 18 digits. Elements of tuples may be copies. A step
    of 0, EQ, NE and any other form give None.
    """
    test = condition.root
    if test is None or test.opcode != "compare" or len(test.operands) != 2 or not loop.operands:
        return None
    state = caller.instructions[loop.operands[0]]
    left, right = (condition.instructions[name] for name in test.operands)
    direction = test.attributes.get("direction", "")
    sides = ((left, right, direction), (right, left, MIRRORED.get(direction, "")))
    for counter, limit, order in sides:
        index = _state_index(counter)
        end = _invariant(limit, body, caller, state)
        if index is None or end is None:
            continue
        first = _element(caller, state, index)
        start = _constant(first) if first else None
        step = _step_of(body, index, caller, state)
        if start is None or not step:
            continue
        if order in ("LT", "LE") and step > 0:
            return max(0, -(-(end - start + (order == "LE")) // step))
        if order in ("GT", "GE") and step < 0:
            return max(0, -(-(start - end + (order == "GE")) // -step))
    return None


def _step_of(
    body: Computation, index: str, caller: Computation, state: HloInstruction
) -> int | None:
    """Return the number that each iteration of a loop adds to element `index` of its state.

    The root of `body` must be a tuple. Its element `index` (copies are skipped) must be an `add` or
    a `subtract` of two operands:

    - `add` of the old element and a value, in either order: the result is the value.
    - `subtract` of a value from the old element: the result is the negative value.

    The old element is a `get-tuple-element` of this index. The value is an integer constant, or an
    element of the state that begins as one and that the body returns unchanged. Any other form
    gives None. `caller`: computation with the loop; `state`: its instruction that creates the state
    before the loop.
    """
    result = _element(body, body.root, index)
    if result is None or result.opcode not in ("add", "subtract") or len(result.operands) != 2:
        return None
    terms = [body.instructions[name] for name in result.operands]
    if result.opcode == "add" and _state_index(terms[0]) != index:
        terms.reverse()
    step = _invariant(terms[1], body, caller, state)
    if _state_index(terms[0]) != index or step is None:
        return None
    return step if result.opcode == "add" else -step


def _invariant(
    term: HloInstruction, body: Computation, caller: Computation, state: HloInstruction
) -> int | None:
    """Return the integer that a term of a loop has in every iteration; None if unknown.

    `term`: an instruction of the condition or of `body`. It is a scalar integer constant;
    or it reads an element of the loop state that is such a constant in `state` (the tuple
    in `caller` before the loop) and that the root of `body` returns unchanged. Copies are
    skipped. None for other terms.
    """
    index = _state_index(term)
    if index is None:
        return _constant(term)
    returned, first = _element(body, body.root, index), _element(caller, state, index)
    is_unchanged = returned is not None and _state_index(returned) == index
    return _constant(first) if is_unchanged and first is not None else None


def _state_index(instruction: HloInstruction) -> str | None:
    """Return the index, as text, of the loop state's element that an instruction reads.

    Such an instruction is a `get-tuple-element`; of which tuple is not checked. None for other
    instructions.
    """
    index = instruction.attributes.get("index", "")
    is_element = instruction.opcode == "get-tuple-element" and index.isdecimal()
    return index if is_element else None


def _element(
    computation: Computation, state: HloInstruction | None, index: str
) -> HloInstruction | None:
    """Return the instruction that computes element `index` of a tuple; copies are skipped.

    `computation`: the computation with all these instructions. `state`: the instruction that
    creates the tuple; `index`: the number as decimal text. None if `state` is None or no
    `tuple`, or if the tuple is too short.
    """
    if state is None or state.opcode != "tuple" or int(index[:9]) >= len(state.operands):
        return None
    element = computation.instructions[state.operands[int(index[:9])]]
    while element.opcode == "copy" and element.operands:
        element = computation.instructions[element.operands[0]]
    return element


def _constant(instruction: HloInstruction) -> int | None:
    """Return the value of a constant whose text is an integer, of at most 18 digits; else None.

    The element type is not examined, so that the float constant `1` is 1. None for arrays,
    booleans, and instructions other than `constant`.
    """
    text = instruction.literal
    is_integer = instruction.opcode == "constant" and re.fullmatch(r"-?\d{1,18}", text)
    return int(text) if is_integer else None
