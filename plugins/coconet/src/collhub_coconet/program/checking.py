"""Type the values of a program, and report all violations of the typing rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from collhub_coconet.program.operands import Operands, TypingMistakeError, check_sliceable
from collhub_coconet.program.operations import (
    ATTRIBUTES,
    CONTRACTIONS,
    TRAITS,
    Argument,
    Kind,
    Operation,
    Placement,
    Shape,
    TensorType,
)
from collhub_coconet.program.shape_rules import type_contraction
from collhub_coconet.program.typing_rules import TYPING_RULES
from hub_core.model import Diagnostic, InputError, Location

RULES = {**TYPING_RULES, **dict.fromkeys(CONTRACTIONS, type_contraction)}


def type_operation(
    operation: Operation, types: list[TensorType | None], mesh: Sequence[str] = ()
) -> TensorType:
    """Return the type of the value of an operation: element type, shape, layout and group.

    `types`: types of its operands in order, None for numbers; `mesh`: names of the axes, empty for
    one axis without a name. Raises `TypingMistakeError` for the first of:

    - `operands`: a wrong number of operands, if the kind has a fixed number
    - `attribute`: in the order of `ATTRIBUTES`, an attribute that the kind does not have, or a
      missing one that is not optional
    - a violated typing rule of the kind
    """
    traits = TRAITS[operation.kind]
    if traits.operands >= 0 and len(types) != traits.operands:
        message = f"{len(types)} operands are given, {traits.operands} expected"
        raise TypingMistakeError("operands", message, f"{operation.kind} takes {traits.operands}")
    for attribute in ATTRIBUTES:
        is_given = getattr(operation, attribute) is not None
        if is_given != (attribute in traits.attributes):
            if is_given and attribute in traits.optional:
                continue
            message = f"{attribute} is {'no attribute here' if is_given else 'not stated'}"
            cure = f"leave {attribute} out" if is_given else f"state {attribute}"
            raise TypingMistakeError("attribute", message, cure)
    return RULES[operation.kind](Operands(operation, types, mesh))


_NO_STATE = (Placement.LOCAL, Placement.PARTIAL)

Bounds = tuple[int, int]
"""Smallest and largest size of a symbol."""


class Checker:
    """Type the values of one program, operation by operation.

    `types`: types by name of a value. `findings`: violations so far. Operations that read an
    ill-typed value are not checked.
    """

    def __init__(self, program: str, sizes: Mapping[str, Bounds], mesh: Sequence[str] = ()) -> None:
        self.types: dict[str, TensorType] = {}
        self.findings: list[Diagnostic] = []
        self._program = program
        self._sizes = sizes
        self._mesh = tuple(mesh)
        self._states: set[str] = set()
        self._updated: set[str] = set()
        self._ill_typed: set[str] = set()
        for symbol, (low, high) in sizes.items():
            if not 1 <= low <= high:
                message = f"size {symbol} is {low}..{high}, a size is at least 1"
                self._add("size", message, "state its smallest and largest value", 0)
        if len(set(mesh)) < len(mesh):
            self._add("mesh", "two axes of the mesh have one name", "name every axis once", 0)

    def add_argument(self, argument: Argument) -> None:
        """Check an argument, and record its type and whether it is a state.

        Both are recorded even if the argument is invalid, so that operations that read it are
        checked. The first violation (see `_check_argument`) is added to `self.findings`; no
        error is raised. A repeated name is a violation, and replaces the earlier type.
        """
        text = f"argument {argument.name}"
        try:
            self._check_argument(argument)
        except TypingMistakeError as mistake:
            self._add(mistake.code, f"{text}: {mistake.message}", mistake.cure, 0)
        # Entered even if it is invalid, so that the operations that read it are checked.
        self.types[argument.name] = argument.type
        if argument.is_state:
            self._states.add(argument.name)

    def declare_argument(self, argument: Argument) -> None:
        """Check an argument, and record its type and whether it is a state.

        Checks are those of `_check_argument`; a repeated name is a violation. For a violation, the
        earlier type and state of that name are restored, and `InputError` is raised. The error is
        that of `raise_findings`, so that earlier violations in `self.findings` raise it too.
        """
        earlier, was_state = self.types.get(argument.name), argument.name in self._states
        self.add_argument(argument)
        try:
            self.raise_findings()
        except InputError:
            del self.types[argument.name]
            if earlier is not None:
                self.types[argument.name] = earlier
            if not was_state:
                self._states.discard(argument.name)
            raise

    def add_operation(self, operation: Operation, line: int) -> None:
        """Check an operation, and record the type of its value; `line` is counted from 1.

        - An operation that reads an ill-typed value is not checked and counts as ill-typed too.
        - For any other operation, the names (`_check_names`), then the types (`type_operation`) are
          checked. The first violation is added to `self.findings`, with code, line and the
          operation. The operation then counts as ill-typed, and no type is recorded.
        - A correct operation has its type in `self.types`. A correct Update marks its state as
          updated.

        If the name of an operation is already in use, the earlier type under this name remains, but
        operations that read the name later are not checked. Nothing is raised.
        """
        # A violation is reported once, and not again for every operation that depends on it.
        if not self._ill_typed.isdisjoint(operation.reads):
            self._ill_typed.add(operation.name)
            return
        try:
            self._check_names(operation)
            operands = [
                self.types[operand] if isinstance(operand, str) else None
                for operand in operation.operands
            ]
            result_type = type_operation(operation, operands, self._mesh)
        except TypingMistakeError as mistake:
            message = f"{format_operation(operation)}: {mistake.message}"
            self._add(mistake.code, message, mistake.cure, line)
            self._ill_typed.add(operation.name)
            return
        self.types[operation.name] = result_type
        if operation.kind is Kind.UPDATE:
            self._updated.add(operation.reads[0])

    def rename(self, old: str, new: str) -> None:
        """Give the type of value `old` to the name `new`.

        No operation may have read the value yet. Raises `KeyError` for an unknown name.
        """
        self.types[new] = self.types.pop(old)

    def check_outputs(self, names: Iterable[str]) -> None:
        """Check that every output is a value of the program: an argument or an operation.

        Every name that is not is added to `findings`; ill-typed values have been reported already.
        Nothing is raised.
        """
        for name in names:
            # An ill-typed value has already been reported.
            if name not in self.types and name not in self._ill_typed:
                message = f"output {name} is not defined"
                self._add("undefined", message, "name a value of the program", 0)

    def raise_findings(self) -> None:
        """Raise one `InputError` with all findings; return without error if there are none.

        The findings, and the record of ill-typed values, are emptied in both cases, so that the
        checker can be used further.
        """
        # A builder continues to use its checker after an error.
        findings, self.findings = self.findings, []
        self._ill_typed.clear()
        if findings:
            raise InputError(findings)

    def _check_argument(self, argument: Argument) -> None:
        """Raise `TypingMistakeError` for the first mistake in the declaration of an argument.

        The mistakes, in this order:

        - `name`: a name that an earlier value has
        - `symbol`, `size`: the first dimension that is an undefined symbol or below 1
        - `layout`: another number of layouts than axes (one layout without a mesh)
        - `dimension`: a slice along a dimension that does not exist or has size 1
        - `layout`: two different reductions on its axes
        - `group`: a negative group
        - `layout`: a state that is local or partial on an axis

        The argument is not recorded here.
        """
        kind = argument.type
        if argument.name in self.types:
            raise TypingMistakeError("name", "the name is taken", "give every value its own name")
        self._check_sizes(kind.shape)
        by_axis = kind.layout.by_axis
        if len(by_axis) != max(1, len(self._mesh)):
            message = f"layout {kind.layout} is one of {len(by_axis)} axes"
            cure = f"state one layout for each axis: {', '.join(self._mesh) or 'there is one'}"
            raise TypingMistakeError("layout", message, cure)
        for layout in by_axis:
            if layout.is_sliced:
                check_sliceable(kind, layout.dimension, argument.name)
        if len({layout.reduction for layout in by_axis} - {None}) > 1:
            message = f"layout {kind.layout} has two reductions, whose order is open"
            raise TypingMistakeError("layout", message, "use one reduction on all axes")
        if kind.group < 0:
            raise TypingMistakeError("group", f"group {kind.group}", "groups count from 0")
        if argument.is_state and any(layout.placement in _NO_STATE for layout in by_axis):
            cure = "declare it replicated or sliced"
            raise TypingMistakeError("layout", "a state is local", cure)

    def _check_sizes(self, shape: Shape) -> None:
        """Raise `TypingMistakeError` at the first undefined symbol or number below 1 in a shape."""
        for size in shape:
            if isinstance(size, str) and size not in self._sizes:
                message = f"symbol {size} is not defined"
                raise TypingMistakeError("symbol", message, f"state the bounds of {size}")
            if isinstance(size, int) and size < 1:
                message = f"a size is {size}, it is at least 1"
                raise TypingMistakeError("size", message, "state a positive number")

    def _check_names(self, operation: Operation) -> None:
        """Raise `TypingMistakeError` for used names and wrong operands of an operation.

        The first of these mistakes is reported:

        - `name`: the name belongs to an argument or to an earlier operation, also an ill-typed one.
        - `undefined`: an operand is neither an argument nor an earlier well-typed operation.
        - `symbol`, `size`: a given `shape` has an undefined symbol or a number below 1; not checked
          for the kind OPAQUE.
        - `state`: the first operand of an Update is not a state, or an earlier Update has updated
          it.
        """
        if operation.name in self.types or operation.name in self._ill_typed:
            raise TypingMistakeError("name", "the name is taken", "give every value its own name")
        # Single assignment: operands precede their readers.
        for name in operation.reads:
            if name not in self.types:
                message = f"{name} is not defined before it is used"
                raise TypingMistakeError("undefined", message, "define it in an earlier line")
        if operation.shape is not None and operation.kind is not Kind.OPAQUE:
            self._check_sizes(operation.shape)
        if operation.kind is Kind.UPDATE:
            # Refuse an Update of a value that is not a state, and a second Update of a state.
            operand = operation.operands[0]
            if operand not in self._states:
                message = f"{operand} is no state"
                raise TypingMistakeError("state", message, "declare it as a state of the program")
            if operand in self._updated:
                message = f"state {operand} is updated twice"
                raise TypingMistakeError("state", message, "update it once, with the last value")

    def _add(self, code: str, message: str, cure: str, line: int) -> None:
        """Append a finding to `self.findings`; no error is raised.

        `line`: number of the operation, from 1, in the location of the finding; 0 means the
        entire program. `cure`: advice for the user.
        """
        location = Location(self._program, line or None)
        self.findings.append(Diagnostic(code, message, location=location, cure=cure))


def type_program(
    program: str,
    sizes: Mapping[str, Bounds],
    arguments: Sequence[Argument],
    operations: Sequence[Operation],
    outputs: Sequence[str],
    mesh: Sequence[str] = (),
) -> dict[str, TensorType]:
    """Return the types of all arguments, then of all operations, of a program, by name.

    `program`: its name, for messages; `sizes`: (minimum, maximum) of every symbol; `mesh`:
    names of the axes. Operations are checked in order and numbered from 1 in messages.
    Raise one `InputError` with all findings, in this order: every symbol whose bounds are
    not 1 <= minimum <= maximum; equal names of two axes; the first mistake of each
    argument; the first mistake of each operation that reads no ill-typed operation; every
    undefined output.
    """
    checker = Checker(program, sizes, mesh)
    for argument in arguments:
        checker.add_argument(argument)
    for line, operation in enumerate(operations, 1):
        checker.add_operation(operation, line)
    checker.check_outputs(outputs)
    checker.raise_findings()
    return checker.types


def format_operation(operation: Operation) -> str:
    """Format an operation for messages, such as `s = ReduceScatter(g, sum, 0)`.

    In parentheses are the operands (names or numbers), then the values of all attributes
    that are not None, in the order of `ATTRIBUTES`. Names of attributes are omitted.
    """
    attributes = (getattr(operation, attribute) for attribute in ATTRIBUTES)
    inputs = [f"{value}" for value in (*operation.operands, *attributes) if value is not None]
    return f"{operation.name} = {operation.kind}({', '.join(inputs)})"
