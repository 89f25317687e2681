"""Type the values of a program, and report all violations of the typing rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from collhub_coconet.program.operations import (
    ATTRIBUTES,
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    TRAITS,
    Argument,
    Kind,
    Operand,
    Operation,
)
from collhub_coconet.program.tensors import LOCAL, ElementType, TensorType, sliced
from collhub_coconet.typing.communication import COMMUNICATION
from collhub_coconet.typing.computations import POINTWISE_RULES, contraction
from collhub_coconet.typing.operands import Operands, TypingMistakeError, check_sliceable, scalar_of
from hub_core.model import Diagnostic, InputError, Location

Rule = Callable[[Operands], TensorType]


def to_scalar(operands: Operands) -> TensorType:
    """R -> R; L -> L; S_d -> R with an all-reduce of one scalar. A 2-norm is of floats."""
    element = operands.tensor(0).element
    if operands.operation.kind is Kind.NORM:
        operands.check_float(0)
    if element is ElementType.BOOL:
        message = f"{operands.name(0)} is bool"
        raise TypingMistakeError("element-type", message, "insert a Cast")
    return scalar_of(operands.tensor(0))


def transpose(operands: Operands) -> TensorType:
    """The last two dimensions change places, and a layout along one goes with it."""
    found = operands.tensor(0)
    rank = len(found.shape)
    if rank < 2:
        message = f"{operands.name(0)} has {rank} dimensions"
        raise TypingMistakeError("shape", message, "Transpose takes a matrix, or a batch of them")
    *batch, rows, columns = found.shape
    moved = {rank - 1: rank - 2, rank - 2: rank - 1}
    layout = found.layout
    if layout.is_sliced:
        layout = sliced(moved.get(layout.dimension, layout.dimension))
    return TensorType(found.element, (*batch, columns, rows), layout, found.group)


def update(operands: Operands) -> TensorType:
    """State and value have one type; a sliced value reaches a replicated state by AllGather."""
    state, value = operands.tensor(0), operands.tensor(1)
    if value == state:
        return state
    cure = "state and value have one shape and element type"
    if value.layout != state.layout:
        is_gathered = value.layout.is_sliced and not state.layout.is_sliced
        cure = "AllGather the value" if is_gathered else "bring the value to the state's layout"
    message = f"the state is {state}, the value is {value}"
    code = "layout" if value.layout != state.layout else "shape"
    raise TypingMistakeError(code, message, cure)


RULES: dict[Kind, Rule] = {
    **COMMUNICATION,
    **POINTWISE_RULES,
    **dict.fromkeys(CONTRACTIONS, contraction),
    **dict.fromkeys(REDUCTIONS_TO_SCALARS, to_scalar),
    Kind.TRANSPOSE: transpose,
    Kind.UPDATE: update,
}


def type_of(operation: Operation, types: list[TensorType | None]) -> TensorType:
    """The type of a value from those of its operands, None for numbers.

    Raises `TypingMistakeError` with the condition that does not hold.
    """
    traits = TRAITS[operation.kind]
    if len(types) != traits.operands:
        message = f"{len(types)} operands are given, {traits.operands} expected"
        raise TypingMistakeError("operands", message, f"{operation.kind} takes {traits.operands}")
    for attribute in ATTRIBUTES:
        is_stated = getattr(operation, attribute) is not None
        if is_stated != (attribute in traits.attributes):
            message = f"{attribute} is {'no attribute here' if is_stated else 'not stated'}"
            cure = f"leave {attribute} out" if is_stated else f"state {attribute}"
            raise TypingMistakeError("attribute", message, cure)
    return RULES[operation.kind](Operands(operation, types))


Bounds = tuple[int, int]
"""Smallest and largest size that a symbol may stand for."""


class Checker:
    """Types of the values of one program, one operation after the other.

    `found` holds what is wrong. What reads an ill-typed value is not judged.
    """

    def __init__(self, program: str, sizes: Mapping[str, Bounds]) -> None:
        self.types: dict[str, TensorType] = {}
        self.found: list[Diagnostic] = []
        self._program = program
        self._sizes = sizes
        self._states: set[str] = set()
        self._updated: set[str] = set()
        self._ill_typed: set[str] = set()
        for symbol, (low, high) in sizes.items():
            if not 1 <= low <= high:
                message = f"size {symbol} is {low}..{high}, a size is at least 1"
                self._add("size", message, "state its smallest and largest value", 0)

    def argument(self, argument: Argument) -> None:
        """Check and enter one argument."""
        text = f"argument {argument.name}"
        try:
            self._check_argument(argument)
        except TypingMistakeError as mistake:
            self._add(mistake.code, f"{text}: {mistake.message}", mistake.cure, 0)
        # Entered even where it is wrong, so that its readers are judged.
        self.types[argument.name] = argument.type
        if argument.is_state:
            self._states.add(argument.name)

    def operation(self, operation: Operation, line: int) -> None:
        """Check one operation and enter the type of its value; `line` is counted from 1."""
        # One mistake is told once, not by all that reads its value.
        if not self._ill_typed.isdisjoint(operation.reads):
            self._ill_typed.add(operation.name)
            return
        try:
            self._check_names(operation)
            operands = [self._type(operand) for operand in operation.operands]
            found = type_of(operation, operands)
        except TypingMistakeError as mistake:
            message = f"{statement(operation)}: {mistake.message}"
            self._add(mistake.code, message, mistake.cure, line)
            self._ill_typed.add(operation.name)
            return
        self.types[operation.name] = found
        if operation.kind is Kind.UPDATE:
            self._updated.add(operation.reads[0])

    def rename(self, old: str, new: str) -> None:
        """Give a value another name.

        Nothing may have read it yet.
        """
        self.types[new] = self.types.pop(old)

    def outputs(self, names: Iterable[str]) -> None:
        """Check that every output is a value of the program."""
        for name in names:
            # An ill-typed value has been reported.
            if name not in self.types and name not in self._ill_typed:
                message = f"output {name} is not defined"
                self._add("undefined", message, "name a value of the program", 0)

    def fail(self) -> None:
        """Raise `InputError` with everything that is wrong, if anything is."""
        # The checker of a builder goes on afterwards.
        found, self.found = self.found, []
        self._ill_typed.clear()
        if found:
            raise InputError(found)

    def _check_argument(self, argument: Argument) -> None:
        """Refuse symbols, sizes, layouts and groups that are none."""
        kind = argument.type
        if argument.name in self.types:
            raise TypingMistakeError("name", "the name is taken", "give every value its own name")
        for size in kind.shape:
            if isinstance(size, str) and size not in self._sizes:
                message = f"symbol {size} is not defined"
                raise TypingMistakeError("symbol", message, f"state the bounds of {size}")
            if isinstance(size, int) and size < 1:
                message = f"a size is {size}, it is at least 1"
                raise TypingMistakeError("size", message, "state a positive number")
        if kind.layout.is_sliced:
            check_sliceable(kind, kind.layout.dimension, argument.name)
        if kind.group < 0:
            raise TypingMistakeError("group", f"group {kind.group}", "groups count from 0")
        if argument.is_state and kind.layout == LOCAL:
            cure = "declare it replicated or sliced"
            raise TypingMistakeError("layout", "a state is local", cure)

    def _check_names(self, operation: Operation) -> None:
        """Refuse a name that is taken, or read before it is defined."""
        if operation.name in self.types or operation.name in self._ill_typed:
            raise TypingMistakeError("name", "the name is taken", "give every value its own name")
        # Single assignment: what is read stands above.
        for name in operation.reads:
            if name not in self.types:
                message = f"{name} is not defined before it is used"
                raise TypingMistakeError("undefined", message, "define it in an earlier line")
        if operation.kind is Kind.UPDATE:
            self._check_state(operation.operands[0])

    def _check_state(self, operand: Operand) -> None:
        """Refuse an Update of no state, or a second one."""
        if operand not in self._states:
            message = f"{operand} is no state"
            raise TypingMistakeError("state", message, "declare it as a state of the program")
        if operand in self._updated:
            message = f"state {operand} is updated twice"
            raise TypingMistakeError("state", message, "update it once, with the last value")

    def _type(self, operand: Operand) -> TensorType | None:
        """The type of an operand; None for a number."""
        # Numbers fit any type.
        return self.types[operand] if isinstance(operand, str) else None

    def _add(self, code: str, message: str, cure: str, line: int) -> None:
        """Note what is wrong."""
        place = Location(self._program, line or None)
        self.found.append(Diagnostic(code, message, location=place, cure=cure))


def typed(
    program: str,
    sizes: Mapping[str, Bounds],
    arguments: Sequence[Argument],
    operations: Sequence[Operation],
    outputs: Sequence[str],
) -> dict[str, TensorType]:
    """Types of all values by name. Raises `InputError` with everything that is wrong."""
    # All mistakes are collected before any is raised.
    checker = Checker(program, sizes)
    for argument in arguments:
        checker.argument(argument)
    for line, operation in enumerate(operations, 1):
        checker.operation(operation, line)
    checker.outputs(outputs)
    checker.fail()
    return checker.types


def statement(operation: Operation) -> str:
    """One operation as messages show it, such as `s = ReduceScatter(sum, g, 0)`."""
    stated = (getattr(operation, attribute) for attribute in ATTRIBUTES)
    written = [f"{value}" for value in (*operation.operands, *stated) if value is not None]
    return f"{operation.name} = {operation.kind}({', '.join(written)})"
