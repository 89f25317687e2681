"""Evaluate a module into rows: the nodes of one device, with dependencies.

All devices execute one program, so a row differs between ranks only by its group or peer. Calls
and loops are evaluated with a stack of frames, without recursion.

Dependencies: in a scheduled module, instructions that block execute one after the other. A row
waits for the previous one and for collectives whose `-done` precedes it. Between `-start` and
`-done` a collective overlaps the computations. In other modules, or by option, a row waits for its
operands. A loop runs its iterations one after the other in both.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from collhub_hlo_modules.collectives import (
    KINDS,
    HloCollective,
    collective_of,
    has_pairs,
    has_root_operand,
    read_call,
)
from collhub_hlo_modules.module import (
    Computation,
    Module,
    called_names,
    choose_branch,
    count_work,
)
from collhub_hlo_modules.text import HloInstruction, invalid, to_integer
from collhub_hlo_modules.work import FREE, has_unknown_work

from collhub_hlo.plugin import HloOptions
from hub_core.model import InputError, NodeKind

NONE = -1
_MAX_PARENTS = 8
_VISITS_PER_NODE = 4
_LARGEST = (1 << 62) - 1
_DONE = ("async-done", "async-update", "send-done", "recv-done", "copy-done")

Rows = tuple[int, ...]
# Rows that a value waits for; for a tuple, those of each element.
Value = Rows | list[Rows]


@dataclass(slots=True)
class WalkedProgram:
    """Columns of the rows, and edges between them. `call`: index of `calls`, -1 for others.

    `kind`: NodeKind; a SEND or RECV becomes a marker on ranks without this message. `notes`:
    assumptions and losses.
    """

    kind: array[int] = field(default_factory=lambda: array("q"))
    name: array[int] = field(default_factory=lambda: array("q"))
    operations: array[int] = field(default_factory=lambda: array("q"))
    bytes: array[int] = field(default_factory=lambda: array("q"))
    call: array[int] = field(default_factory=lambda: array("q"))
    before: array[int] = field(default_factory=lambda: array("q"))
    after: array[int] = field(default_factory=lambda: array("q"))
    names: dict[str, int] = field(default_factory=dict)
    calls: list[HloCollective] = field(default_factory=list)
    losses: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Frame:
    """A computation under evaluation. `caller`: the instruction whose value it computes.

    `entered`: rows that a row without operands waits for. `tail`: rows that the next blocking row
    waits for, in a schedule. `remaining`: further iterations.
    """

    computation: Computation
    instructions: list[HloInstruction]
    arguments: list[Value]
    caller: HloInstruction | None
    entered: Rows
    tail: Rows
    is_async: bool
    remaining: int = 0
    position: int = 0
    values: dict[str, Value] = field(default_factory=dict)


def evaluate(module: Module, options: HloOptions, file: str) -> WalkedProgram:
    """Evaluate the entry of a module as a program: the rows of one device, and its calls.

    A row is a computation, collective, message or marker. It lists the rows that it waits
    for. Rows are in the order of evaluation, and the same on all devices. Rows of
    collectives and messages refer to calls: one per instruction, even if it is executed
    repeatedly. `file`: name for errors.

    Raise `InputError` in these cases, and `AssertionError` for a module without an entry:

    - `group`: invalid groups
    - `trip-count`: a loop of unknown trip count
    - `too-large`: more than `options.max_nodes` rows on all devices together, or more
      visited instructions than `_VISITS_PER_NODE` times this number
    """
    assert module.entry
    if module.entry.visits > _VISITS_PER_NODE * options.max_nodes:
        # An unknown number of iterations is reported before the size.
        for line, trips in module.trip_counts.items():
            if trips is None:
                raise _unknown_trips(file, line)
    evaluation = _Evaluation(module, options, file)
    evaluation.run()
    return evaluation.program


def _unknown_trips(file: str, line: int) -> InputError:
    message = "the number of iterations of this loop is unknown"
    return invalid(message, file, line, "give it with -O trip_count=N", "trip-count")


class _Evaluation:
    """Stack of frames, and the rows so far."""

    def __init__(self, module: Module, options: HloOptions, file: str) -> None:
        assert module.entry
        self.program = WalkedProgram()
        self._module, self._options, self._file = module, options, file
        self._is_sequence = module.is_scheduled and options.order == "schedule"
        self._max_rows = options.max_nodes // module.devices.count
        self._visits = 0
        self._calls: dict[tuple[str, str], int] = {}
        self._stack = [self._frame(module.entry, [], None, (), (), is_async=False)]
        # The last row that may be extended by a following computation.
        self._open_row = NONE

    def run(self) -> None:
        """Evaluate the entry and all computations that it calls.

        Raises `InputError` if more instructions are visited than the limit of nodes allows.
        """
        while self._stack:
            frame = self._stack[-1]
            if frame.position == len(frame.instructions):
                self._leave(frame)
                continue
            instruction = frame.instructions[frame.position]
            frame.position += 1
            self._visits += 1
            if self._visits > _VISITS_PER_NODE * self._options.max_nodes:
                raise self._too_many(instruction.line)
            self._step(frame, instruction)

    def _step(self, frame: _Frame, instruction: HloInstruction) -> None:
        """Evaluate an instruction: its value is the rows that its users wait for.

        - `parameter`: the argument of this number, () without one. `tuple`: a list with the joined
          rows of each operand. `get-tuple-element`: the entry `index` of such a list; without a
          list or this entry, the joined rows of the operands. `opt-barrier` of one operand: its
          value. Other opcodes of `FREE`: the joined rows of the operands.
        - Collectives and messages: `_communicate`. Loops, calls, conditionals and `async-start`:
          `_enter`. Other instructions: `_compute`.
        - `-done` and `async-update`: the joined rows of the operands. After a `-done`, the next
          blocking row also waits for these, and no computation is merged with an earlier row.

        Raises the `InputError` of these functions.
        """
        opcode = instruction.opcode
        if opcode == "parameter":
            number = to_integer(instruction.literal)
            has_value = 0 <= number < len(frame.arguments)
            frame.values[instruction.name] = frame.arguments[number] if has_value else ()
        elif opcode == "tuple":
            frame.values[instruction.name] = [
                self._join(frame, (name,)) for name in instruction.operands
            ]
        elif opcode == "get-tuple-element":
            value = frame.values[instruction.operands[0]] if instruction.operands else ()
            index = instruction.attributes.get("index", "")
            if isinstance(value, list) and index.isdecimal() and int(index[:9]) < len(value):
                frame.values[instruction.name] = value[int(index[:9])]
            else:
                frame.values[instruction.name] = self._join(frame, instruction.operands)
        elif opcode == "opt-barrier" and len(instruction.operands) == 1:
            frame.values[instruction.name] = frame.values[instruction.operands[0]]
        elif collective := collective_of(opcode):
            self._communicate(frame, instruction, collective)
        elif opcode in ("while", "call", "conditional", "async-start"):
            self._enter(frame, instruction)
        elif opcode.endswith("-done") or opcode in _DONE:
            rows = self._join(frame, instruction.operands)
            frame.values[instruction.name] = rows
            if not opcode.endswith("-update"):
                frame.tail = self._union((*frame.tail, *rows))
                self._open_row = NONE
        elif opcode in FREE:
            frame.values[instruction.name] = self._join(frame, instruction.operands)
        else:
            self._compute(frame, instruction)

    def _compute(self, frame: _Frame, instruction: HloInstruction) -> None:
        """Add the work of an instruction to the program, as a new row or in the open row.

        Work is operations and accessed bytes, each at most `_LARGEST` per row. Users of the
        instruction wait for its row. An instruction is blocking if the module is executed in the
        order of its schedule and the opcode does not end with `-start`. The open row (`_open_row`)
        is the last blocking computation that may still take work; NONE without one. The first rule
        applies:

        1. The option `merge_compute` is set, the instruction is blocking and there is an open row:
           its work is added to that row, without new dependencies.
        2. Otherwise a row is added, which waits for the rows of `_before`. If the instruction is
           blocking, later rows of the frame wait for it. It becomes the open row if it is blocking
           and the frame is not asynchronous; otherwise there is no open row.

        Fusions with collectives and custom calls of unknown work are reported as losses. Raises
        `InputError` for too many rows.
        """
        names = called_names(instruction) if instruction.opcode == "fusion" else []
        body = self._module.computations[names[0]] if names else None
        if body is not None and body.communications:
            self._lose("fusions that contain collectives, whose communication is not read")
        if has_unknown_work(instruction):
            self._lose("custom calls of unknown work, which count by their bytes")
        operations, accessed = count_work(instruction, frame.computation.instructions, body)
        operations, accessed = min(operations, _LARGEST), min(accessed, _LARGEST)
        is_blocking = self._is_sequence and not instruction.opcode.endswith("-start")
        if self._options.merge_compute and is_blocking and self._open_row >= 0:
            row, program = self._open_row, self.program
            program.operations[row] = min(_LARGEST, program.operations[row] + operations)
            program.bytes[row] = min(_LARGEST, program.bytes[row] + accessed)
            frame.values[instruction.name] = (row,)
            return
        before = self._before(frame, instruction)
        row = self._add_row(NodeKind.COMPUTE, instruction.name, operations, accessed, before, NONE)
        if is_blocking:
            frame.tail = (row,)
        frame.values[instruction.name] = (row,)
        self._open_row = row if is_blocking and not frame.is_async else NONE

    def _communicate(self, frame: _Frame, instruction: HloInstruction, collective: str) -> None:
        """Append the rows of a collective or message; store them as the instruction's value.

        A send has one SEND row, a receive one RECV row, a permutation both (SEND first), and a
        collective one COLLECTIVE row. Each row has the bytes of the operands.

        - The module has a schedule: the rows wait for the last blocking rows instead of the
          operands. They become the blocking rows, except for an asynchronous instruction. That is a
          send, a receive, or an opcode with `-start`, without `is_sync` = true in its
          configuration.
        - Otherwise: the rows wait for those of the operands (`_before`); nothing becomes blocking.

        The first execution adds a call to the program, and counts losses: ragged all-to-alls,
        broadcasts from a computed root, and sends and receives without pairs. Each execution adds
        rows and 1 to `calls` of the call. No later computation is merged with an earlier row.
        Raises `InputError` for invalid attributes and for too many rows.
        """
        key = frame.computation.name, instruction.name
        number = self._calls.get(key)
        if number is None:
            instructions = frame.computation.instructions
            operands = [instructions[operand].shape for operand in instruction.operands]
            reduction = self._module.find_reducer(instruction)
            if collective == "ragged-all-to-all":
                self._lose("ragged all-to-alls, whose bytes are an upper bound")
            if has_root_operand(instruction):
                self._lose(
                    "broadcasts from a root that the program computes: the first device of the"
                    " group is assumed"
                )
            if collective in ("send", "recv") and not has_pairs(instruction):
                self._lose("sends and receives without source_target_pairs, which are left out")
            devices = self._module.devices
            read = read_call(instruction, collective, operands, reduction, devices, self._file)
            number = self._calls[key] = len(self.program.calls)
            self.program.calls.append(read)
        call = self.program.calls[number]
        call.calls += 1
        config = instruction.attributes.get("backend_config", "").replace("\\", "")
        is_start = instruction.opcode.endswith("-start") or collective in ("send", "recv")
        is_blocking = not is_start or '"is_sync":true' in config.replace(" ", "")
        if collective in KINDS:
            kinds = [NodeKind.COLLECTIVE]
        else:
            kinds = {"send": [NodeKind.SEND], "recv": [NodeKind.RECV]}.get(
                collective, [NodeKind.SEND, NodeKind.RECV]
            )
        before = self._before(frame, instruction)
        rows = tuple(
            self._add_row(kind, instruction.name, 0, call.operand_bytes, before, number)
            for kind in kinds
        )
        if is_blocking and self._is_sequence:
            frame.tail = rows
        self._open_row = NONE
        frame.values[instruction.name] = rows

    def _enter(self, frame: _Frame, instruction: HloInstruction) -> None:
        """Begin to evaluate the computation that an instruction calls, by pushing a frame for it.

        The value of the instruction is first set to the joined rows of its operands. Of a
        conditional, only the branch of `choose_branch` (most communication) is called; this is
        recorded as a loss. The first case applies:

        1. No computation is called, or the first one called does no work (`visits` is 0): no frame.
        2. A fusion also calls the computation, so its instructions are not known: it is added as
           one row of computation, without a frame.
        3. A loop of 0 iterations: no frame. `InputError` if the number of iterations is unknown.
        4. Otherwise a frame is pushed; for a loop, `remaining` is the number of further iterations.
           Those above the option `iterations` are left out, and recorded as a loss.

        `entered` of the frame, for which its rows without operands wait, is empty if the module has
        a schedule. Otherwise it is the rows of the operands and the `entered` of the caller.
        Argument i of the frame is the value of operand i for a call or an asynchronous instruction,
        and `entered` for any other instruction. An asynchronous instruction also sets `_open_row`
        to NONE, so that later computations get new rows.
        """
        called = [self._module.computations[name] for name in called_names(instruction)]
        frame.values[instruction.name] = before = self._join(frame, instruction.operands)
        if instruction.opcode == "conditional" and called:
            called = [choose_branch(called)]
            self._lose("conditionals, of which the branch with the most communication is read")
        if not called or not called[0].visits:
            return
        body, trips = called[0], 1
        if body.accessed is not None:
            # Also called by a fusion, which dropped its instructions.
            self._compute(frame, instruction)
            return
        if instruction.opcode == "while":
            known_trips = self._module.trip_counts[instruction.line]
            if known_trips is None:
                raise _unknown_trips(self._file, instruction.line)
            limit = self._options.iterations
            if known_trips > limit:
                self._lose(
                    f"loops of more than {limit} iterations, of which the others are left out"
                )
            trips = min(known_trips, limit)
            if not trips:
                return
        is_async = instruction.opcode == "async-start"
        arguments: list[Value] = [frame.values[name] for name in instruction.operands]
        entered = self._union((*frame.entered, *before)) if not self._is_sequence else ()
        if instruction.opcode != "call" and not is_async:
            arguments = [entered] * len(arguments)
        new = self._frame(body, arguments, instruction, entered, frame.tail, is_async=is_async)
        new.remaining = trips - 1
        if is_async:
            self._open_row = NONE
        self._stack.append(new)

    def _leave(self, frame: _Frame) -> None:
        """Finish an iteration of `frame`, an evaluated computation: repeat it, or return its value.

        If `remaining` is above 0, it decreases by 1 and the frame restarts without values. Unless
        the module has a schedule, `entered` (rows that a row without operands waits for) and every
        argument become all rows of the iteration. Nothing else happens.

        Otherwise the frame is removed from the stack. Without a calling frame or instruction that
        is all. The value of the calling instruction in the calling frame becomes:

        - asynchronous: with a schedule `tail` (rows that the next blocking row waits for),
          otherwise the rows of the root; `tail` of the calling frame stays.
        - `call`: the value of the root, with separate tuple elements. Others: the rows of the root.
          The calling frame gets `tail`.

        Without a root there are no rows. More than `_MAX_PARENTS` rows, except for `call`, become
        one new MARKER row that waits for them; `InputError` if the module then has too many rows.
        """
        root = frame.computation.root
        result: Value = frame.values[root.name] if root else ()
        if frame.remaining:
            frame.remaining -= 1
            if not self._is_sequence:
                every = [self._flat(value) for value in frame.values.values()]
                frame.entered = self._union(tuple(sorted({row for rows in every for row in rows})))
                frame.arguments = [frame.entered] * len(frame.arguments)
            frame.values, frame.position = {}, 0
            return
        self._stack.pop()
        if not self._stack or frame.caller is None:
            return
        caller = self._stack[-1]
        if frame.is_async:
            caller.values[frame.caller.name] = self._union(
                frame.tail if self._is_sequence else self._flat(result)
            )
            return
        caller.tail = frame.tail
        is_call = frame.caller.opcode == "call"
        caller.values[frame.caller.name] = result if is_call else self._union(self._flat(result))

    def _frame(
        self,
        computation: Computation,
        arguments: list[Value],
        caller: HloInstruction | None,
        entered: Rows,
        tail: Rows,
        *,
        is_async: bool,
    ) -> _Frame:
        every = list(computation.instructions.values())
        return _Frame(computation, every, arguments, caller, entered, tail, is_async)

    def _before(self, frame: _Frame, instruction: HloInstruction) -> Rows:
        """Return the rows that an instruction waits for; `frame` is the computation with it.

        A row is a computation, collective, message or marker of the resulting program. The first
        rule that applies decides:

        1. The module has a schedule: the rows that the next row of the schedule waits for
           (`frame.tail`), which are usually one row, the last one that blocks its successors.
        2. The operands of the instruction have rows that produce them: these rows, ascending. More
           than `_MAX_PARENTS` (8) are replaced by one new MARKER row that waits for them;
           `InputError` (`too-large`) if the program then has too many rows.
        3. Otherwise the rows for which the computation itself waits (`frame.entered`).
        """
        if self._is_sequence:
            return frame.tail
        return self._join(frame, instruction.operands) or frame.entered

    def _add_row(
        self, kind: NodeKind, name: str, operations: int, size: int, before: Rows, call: int
    ) -> int:
        program = self.program
        row = len(program.kind)
        if row >= self._max_rows:
            raise self._too_many(None)
        program.kind.append(int(kind))
        program.name.append(program.names.setdefault(name, len(program.names)) if name else NONE)
        program.operations.append(operations)
        program.bytes.append(size)
        program.call.append(call)
        program.before.extend(before)
        program.after.extend([row] * len(before))
        return row

    def _join(self, frame: _Frame, names: tuple[str, ...]) -> Rows:
        """Return the rows for which a user of all named values waits, ascending and distinct.

        They are the rows that produce the values; () without names. More than `_MAX_PARENTS`
        (8) rows are replaced by one new MARKER row, which has no work and waits for them; a
        single value in a program that runs in the order of its schedule is exempt. Raise
        `InputError` for too many rows.
        """
        if self._is_sequence and len(names) == 1:
            return self._flat(frame.values[names[0]])
        rows = {row for name in names for row in self._flat(frame.values[name])}
        return self._union(tuple(sorted(rows)))

    def _flat(self, value: Value) -> Rows:
        if isinstance(value, list):
            return tuple(sorted({row for rows in value for row in rows}))
        return value

    def _union(self, rows: Rows) -> Rows:
        """Return distinct rows in their order, or a single new row that waits for all of them.

        More than `_MAX_PARENTS` rows are replaced by a MARKER row, which has no work. This limits
        the number of dependencies of each row. Raises `InputError` for too many rows.
        """
        rows = tuple(dict.fromkeys(rows))
        if len(rows) <= _MAX_PARENTS:
            return rows
        return (self._add_row(NodeKind.MARKER, "", 0, NONE, rows, NONE),)

    def _lose(self, text: str) -> None:
        self.program.losses[text] = self.program.losses.get(text, 0) + 1

    def _too_many(self, line: int | None) -> InputError:
        count = self._module.devices.count
        message = f"the module has more than {self._options.max_nodes} nodes on {count} devices"
        cure = "give -O iterations=N to shorten loops, -O merge_compute=true, or -O max_nodes=N"
        return invalid(message, self._file, line or 1, cure, "too-large")
