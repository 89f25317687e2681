"""Check a whole program and type all of its values; all that is wrong is named at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from collhub_coconet.program.operations import ATTRIBUTES, Argument, Kind, Operand, Operation
from collhub_coconet.program.tensors import LOCAL, TensorType
from collhub_coconet.typing.mistakes import TypingMistakeError, check_sliceable
from collhub_coconet.typing.rules import type_of
from hub_core.model import Diagnostic, InputError, Location

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
