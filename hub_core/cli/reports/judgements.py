"""Judge one input or several: every one gets its verdict, whatever is wrong with the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hub_core.cli.output import print_diagnostic, print_json, print_line
from hub_core.cli.reports.report_objects import diagnostic_object
from hub_core.model import Diagnostic, ExitCode, HubError, UsageError

if TYPE_CHECKING:
    from hub_core.model import JsonValue

_STDIN = "-"


class Judgement(Protocol):
    """What became of one input."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""

    def document(self) -> dict[str, JsonValue]:
        """Its report as JSON, without the name of the schema."""

    def show(self, *, is_alone: bool) -> None:
        """Print its verdict on one line; what belongs to it follows where the input is alone."""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """An input that could not be read, or not be judged."""

    source: str
    diagnostics: Sequence[Diagnostic]
    ok: bool = False

    def document(self) -> dict[str, JsonValue]:
        """Its findings alone."""
        found = [diagnostic_object(one) for one in self.diagnostics]
        return {"source": self.source, "ok": False, "diagnostics": [*found]}

    def show(self, *, is_alone: bool) -> None:
        """Print that there is no verdict, and why."""
        print_line(f"{self.source}: not judged")
        for found in self.diagnostics:
            print_diagnostic(found)


def judge(
    sources: Sequence[str], judged: Callable[[str], Judgement], schema: str, *, as_json: bool
) -> int:
    """Judge, print, and return the exit code: 1 where anything is wrong with any input.

    As JSON, the report of a single input as itself, of several under `results`. An error with a
    single input is raised, with one of several it is the verdict on it.
    """
    if sources.count(_STDIN) > 1:
        raise UsageError("standard input can be read once alone", cure="give - once")
    is_alone = len(sources) == 1
    passed = 0
    documents: list[JsonValue] = []
    # One at a time: many algorithms do not fit in memory together.
    for source in sources:
        judgement = judged(source) if is_alone else _judged_or_not(source, judged)
        passed += judgement.ok
        if as_json:
            documents.append(judgement.document())
        else:
            judgement.show(is_alone=is_alone)
    ok = passed == len(sources)
    if as_json:
        print_json(_report(schema, ok, documents))
    elif not is_alone:
        print_line(f"{passed} of {len(sources)} inputs pass")
    return ExitCode.DONE if ok else ExitCode.INVALID


def _report(schema: str, ok: bool, documents: list[JsonValue]) -> dict[str, JsonValue]:
    """One report as itself, several under `results`."""
    match documents:
        case [dict() as alone]:
            return {"schema": schema, **alone}
        case _:
            return {"schema": schema, "ok": ok, "results": documents}


def _judged_or_not(source: str, judged: Callable[[str], Judgement]) -> Judgement:
    try:
        return judged(source)
    except HubError as error:
        return Unjudged(source, error.diagnostics)
