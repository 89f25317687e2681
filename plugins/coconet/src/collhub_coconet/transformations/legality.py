"""Records of transformations: conditions that hold, or a refusal that names the violated one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collhub_coconet.program.program import Program
from hub_core.model import Diagnostic, InputError, Location

Parameter = str | int | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class LegalityRecord:
    """A legal transformation with its parameters and the conditions that were checked.

    `conditions`: texts of the form `condition: operation`. `notes`: facts that are not conditions
    but determine the gain, such as the resources of the members of a chain.
    """

    transformation: str
    parameters: Mapping[str, Parameter]
    conditions: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Transformed program, with the record of why it is equivalent to the original."""

    program: Program
    record: LegalityRecord


class RefusedMoveError(InputError):
    """Error of a transformation whose precondition does not hold.

    `condition`: name of the precondition, such as `closed`; `operation`: name of the operation that
    violates it.
    """

    def __init__(self, diagnostic: Diagnostic, condition: str = "", operation: str = "") -> None:
        super().__init__(diagnostic)
        self.condition = condition
        self.operation = operation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.diagnostics[0], self.condition, self.operation)


class Conditions:
    """Checks the conditions of one transformation of one program, and records those that hold."""

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
        """Record that `condition` holds for `operation`; raise `RefusedMoveError` unless `is_met`.

        `message` and `cure` are for the error: the violation, and how to avoid it.
        """
        if not is_met:
            raise self.build_refusal(condition, operation, message, cure)
        self._met.append(f"{condition}: {operation}")

    def build_refusal(
        self, condition: str, operation: str, message: str, cure: str
    ) -> RefusedMoveError:
        """Build the error for a condition that an operation violates.

        Its location is the line of the operation in the program, if the program has it.
        """
        names = [entry.name for entry in self._program.operations]
        line = names.index(operation) + 1 if operation in self._program.by_name else None
        text = f"{self._transformation} refused: {operation}: {message} ({condition})"
        place = Location(self._program.name, line)
        diagnostic = Diagnostic(f"refused-{condition}", text, location=place, cure=cure)
        return RefusedMoveError(diagnostic, condition, operation)

    def to_record(self, notes: tuple[str, ...] = ()) -> LegalityRecord:
        """Build the record of the conditions so far, without duplicates and in order."""
        met = tuple(dict.fromkeys(self._met))
        return LegalityRecord(self._transformation, self._parameters, met, notes)
