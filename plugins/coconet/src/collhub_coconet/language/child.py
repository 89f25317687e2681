"""Tensor programs in the process of one file: the programs that it makes become documents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from collhub_source_programs import Report, chosen_places, error_report, run_job

from collhub_coconet.documents.json_document import program_to_json
from collhub_coconet.program.program import Program

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
            return _no_choice(list(makers), chosen)
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
    for name, value in namespace.items():
        if inspect.isfunction(value) and value.__module__ == "__main__" and _makes_program(value):
            found[name] = value
    return found


def _makes_program(function: Callable[..., object]) -> bool:
    """Whether a function says that it returns a program, and can be called without arguments."""
    signature = inspect.signature(function)
    returns = signature.return_annotation
    is_program = returns is Program or str(returns).rpartition(".")[2] == "Program"
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        one
        for one in signature.parameters.values()
        if one.default is inspect.Parameter.empty and one.kind not in kinds
    ]
    return is_program and not needed and not function.__name__.startswith("_")


def _no_choice(names: list[str], chosen: str | None) -> Report:
    """What to tell where not one program is meant."""
    if not names:
        message = "defines no program: neither a global Program nor a function that returns one"
        return error_report(message, -1, "no-program")
    numbered = [f"{number} {name!r}" for number, name in enumerate(names[:_MOST_LISTED], 1)]
    which = "" if chosen is None else f", none of which is {chosen!r}"
    plural = "s" if len(names) > 1 else ""
    message = f"defines {len(names)} program{plural}{which}: {', '.join(numbered)}"
    return error_report(message, -1, "several-programs")
