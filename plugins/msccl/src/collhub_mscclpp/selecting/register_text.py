"""The program that registers the plans of a folder: `register_program.py` with their table."""

from __future__ import annotations

import ast
import inspect
from dataclasses import astuple, dataclass

from collhub_mscclpp.selecting import register_program
from hub_core.model import InputError

REGISTER = "register.py"
"""Name of the program that registers the plans."""


@dataclass(frozen=True, slots=True)
class RegisteredPlan:
    """A plan file and its calls: bytes of the full buffer, both ends included, and their divisor.

    `collective`: as the runtime names it.
    """

    collective: str
    in_place: bool
    min_bytes: int
    max_bytes: int | None
    divisor: int
    file: str


@dataclass(frozen=True, slots=True)
class Registration:
    """Plans for calls of `num_ranks` ranks, `per_node` of them on a node; the first fit serves."""

    num_ranks: int
    per_node: int
    plans: tuple[RegisteredPlan, ...]

    def choose(self, collective: str, in_place: bool, size: int) -> str | None:
        """The answer of the program to a call of `size` bytes, in the unit of the runtime."""
        rows = [astuple(plan) for plan in self.plans]
        return register_program.choose(rows, self.num_ranks, collective, in_place, size)


def register_text(registration: Registration) -> str:
    """The program for these plans."""
    listed = "".join(f"    {astuple(plan)!r},\n" for plan in registration.plans)
    text = inspect.getsource(register_program)
    for old, new in (
        ("\nRANKS = 0\n", f"\nRANKS = {registration.num_ranks}\n"),
        ("\nRANKS_PER_NODE = 0\n", f"\nRANKS_PER_NODE = {registration.per_node}\n"),
        ("str]] = []\n", f"str]] = [\n{listed}]\n"),
    ):
        text = text.replace(old, new, 1)
    return text


def parse_register_text(content: bytes) -> Registration:
    """The plans of a program, which is not executed. Raises `InputError` if it was changed."""
    try:
        text = content.decode()
        values = {
            name.id: ast.literal_eval(statement.value)
            for statement in ast.parse(text).body
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
            for name in _targets(statement)
            if name.id in ("RANKS", "RANKS_PER_NODE", "PLANS")
        }
        plans = tuple(RegisteredPlan(*row) for row in values["PLANS"])
        registration = Registration(values["RANKS"], values["RANKS_PER_NODE"], plans)
        is_known = _is_typed(registration) and register_text(registration) == text
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        is_known = False
    if not is_known:
        message = f"{REGISTER}: not as 'collhub tune' writes it: its answers are not known"
        raise InputError(message, cure="tune again into this folder", code="changed-program")
    return registration


def _is_typed(registration: Registration) -> bool:
    """Whether all numbers and names are such; a changed program may have anything."""
    numbers = [registration.num_ranks, registration.per_node]
    numbers += [number for one in registration.plans for number in (one.min_bytes, one.divisor)]
    numbers += [one.max_bytes for one in registration.plans if one.max_bytes is not None]
    return all(type(number) is int for number in numbers) and all(
        type(one.collective) is str and type(one.file) is str and one.divisor > 0
        for one in registration.plans
    )


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.Name]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [one for one in targets if isinstance(one, ast.Name)]
