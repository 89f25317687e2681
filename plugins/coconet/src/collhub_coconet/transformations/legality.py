"""Records of transformations: conditions that hold, and refusals that name the broken one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collhub_coconet.program.program import Program
from hub_core.model import Diagnostic, InputError, Location

Parameter = str | int | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class LegalityRecord:
    """A transformation with its parameters, and the conditions that hold, in words.

    `notes`: what is no condition but decides the gain, such as the resources of a chain.
    """

    transformation: str
    parameters: Mapping[str, Parameter]
    conditions: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The new program, and why it means the same."""

    program: Program
    record: LegalityRecord


class RefusedMoveError(InputError):
    """A transformation whose precondition does not hold.

    `condition`: its name, such as `closed`; `operation`: the one that violates it.
    """

    def __init__(self, diagnostic: Diagnostic, condition: str = "", operation: str = "") -> None:
        super().__init__(diagnostic)
        # Tests and callers ask for these, people read the diagnostic.
        self.condition = condition
        self.operation = operation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.diagnostics[0], self.condition, self.operation)


class Conditions:
    """Conditions of one transformation of one program, as they are checked."""

    def __init__(
        self, transformation: str, program: Program, parameters: Mapping[str, Parameter]
    ) -> None:
        self._transformation = transformation
        self._parameters = parameters
        self._program = program
        self._met: list[str] = []

    def require(
        self, is_met: bool, condition: str, operation: str, message: str, cure: str
    ) -> None:
        """Note that a condition holds for an operation, or raise `RefusedMoveError`."""
        if not is_met:
            raise self.refusal(condition, operation, message, cure)
        self._met.append(f"{condition}: {operation}")

    def refusal(self, condition: str, operation: str, message: str, cure: str) -> RefusedMoveError:
        """The refusal for a condition that an operation violates."""
        names = [one.name for one in self._program.operations]
        line = names.index(operation) + 1 if operation in self._program.by_name else None
        text = f"{self._transformation} refused: {operation}: {message} ({condition})"
        place = Location(self._program.name, line)
        diagnostic = Diagnostic(f"refused-{condition}", text, location=place, cure=cure)
        return RefusedMoveError(diagnostic, condition, operation)

    def record(self, notes: tuple[str, ...] = ()) -> LegalityRecord:
        """The record of everything that holds."""
        met = tuple(dict.fromkeys(self._met))
        return LegalityRecord(self._transformation, self._parameters, met, notes)
