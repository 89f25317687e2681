"""Tensor programs in the process of one file: the programs that it makes become documents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from collhub_coconet.documents.json_document import program_to_json
from collhub_coconet.program.program import Program
from hub_core.sandbox import Report, chosen_places, error_report, run_job

_MOST_LISTED = 40
Maker = Callable[[], Program]


class _TensorLanguage:
    """What `run_job` asks of the language.

    A program of a file is a `Program` with a global name, or what a function of the file returns
    that says `-> Program` and needs no argument.
    """

    folder = str(Path(__file__).parent.parent)

    def prepare(self, file: str) -> None:
        """Nothing: the package is imported under its own name."""

    def has_result(self) -> bool:
        """Whether there is a program; that is told by the global names at the end."""
        return False

    def report(self, namespace: Mapping[str, object], chosen: str | None, end: Report) -> Report:
        """The document of the chosen program, or what there is to choose from."""
        makers = _makers(namespace)
        places = chosen_places(list(makers), chosen)
        if len(places) != 1:
            return _no_choice(namespace, list(makers), chosen)
        name = list(makers)[places[0]]
        program = makers[name]()
        if not isinstance(program, Program):
            message = f"{name}() returns {type(program).__name__}, not a Program"
            return error_report(message, -1, "no-program")
        return {"document": program_to_json(program)}

    def message(self, error: BaseException) -> str:
        """Errors speak for themselves."""
        return ""


def main() -> None:
    """Run the job on standard input."""
    run_job(_TensorLanguage())


def _makers(namespace: Mapping[str, object]) -> dict[str, Maker]:
    """What makes each program, by name, in the order of the file; values before functions."""
    found: dict[str, Maker] = {}
    for name, value in namespace.items():
        if isinstance(value, Program):
            found[name] = lambda value=value: value  # type: ignore[misc]
    # What a file has made itself, it means; functions are for those that import it.
    if found:
        return found
    for name, value in _own_functions(namespace).items():
        if _flaw(value) is None:
            found[name] = cast(Maker, value)
    return found


def _own_functions(namespace: Mapping[str, object]) -> dict[str, Callable[..., object]]:
    """The public functions that the file itself defines, by name."""
    return {
        name: value
        for name, value in namespace.items()
        if inspect.isfunction(value) and value.__module__ == "__main__" and name[0] != "_"
    }


def _flaw(function: Callable[..., object]) -> str | None:
    """Why a function does not count as a builder of a program, with the cure; None if it does."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "has no readable signature"
    returns = signature.return_annotation
    if returns is not Program and str(returns).rpartition(".")[2].strip("'\"") != "Program":
        return "is not annotated with '-> Program': add the annotation"
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        name
        for name, one in signature.parameters.items()
        if one.default is inspect.Parameter.empty and one.kind not in kinds
    ]
    if needed:
        return f"needs the arguments {', '.join(needed)}: give them default values"
    return None


def _no_choice(namespace: Mapping[str, object], names: list[str], chosen: str | None) -> Report:
    """The error for a file in which not exactly one program is meant."""
    if not names:
        return _no_program(_own_functions(namespace))
    numbered = [f"{number} {name!r}" for number, name in enumerate(names[:_MOST_LISTED], 1)]
    which = "" if chosen is None else f", none of which is {chosen!r}"
    plural = "s" if len(names) > 1 else ""
    message = f"defines {len(names)} program{plural}{which}: {', '.join(numbered)}"
    return error_report(message, -1, "several-programs")


def _no_program(functions: Mapping[str, Callable[..., object]]) -> Report:
    """The error for a file without a program; it names the functions that may be meant."""
    message = "defines no program: neither a global Program nor a function that returns one"
    flaws = [f"function {name!r} {_flaw(value)}" for name, value in functions.items()]
    if not flaws:
        return error_report(message, -1, "no-program")
    line = next(iter(functions.values())).__code__.co_firstlineno
    return error_report(f"{message}; {'; '.join(flaws[:_MOST_LISTED])}", line, "no-program")
