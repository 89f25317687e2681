"""Verify one input or several; each gets a verdict, regardless of errors in the other ones."""

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
    """Verdict on one input."""

    @property
    def ok(self) -> bool:
        """Whether the input passes."""

    def document(self) -> dict[str, JsonValue]:
        """Return the report as JSON, without the name of the schema."""

    def show(self, *, is_alone: bool) -> None:
        """Print the verdict on one line; `is_alone`: it is the only input, so print all details."""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """An input that could not be read or verified."""

    source: str
    diagnostics: Sequence[Diagnostic]
    ok: bool = False

    def document(self) -> dict[str, JsonValue]:
        """Return the findings as JSON."""
        findings = [diagnostic_object(finding) for finding in self.diagnostics]
        return {"source": self.source, "ok": False, "diagnostics": [*findings]}

    def show(self, *, is_alone: bool) -> None:
        """Print that there is no verdict, and the findings."""
        print_line(f"{self.source}: not judged")
        for finding in self.diagnostics:
            print_diagnostic(finding)


def judge(
    sources: Sequence[str], judged: Callable[[str], Judgement], schema: str, *, as_json: bool
) -> int:
    """Verify all inputs, print the verdicts, and return the exit code: 1 if any input fails.

    `judged`: verifies one source. With `as_json`, the report of a single input is the document
    itself; several reports are listed under `results`. An error of a single input is raised; with
    several inputs it becomes the verdict on that input. Raises `UsageError` if standard input is
    given twice.
    """
    if sources.count(_STDIN) > 1:
        raise UsageError("standard input can be read once alone", cure="give - once")
    is_alone = len(sources) == 1
    passed = 0
    documents: list[JsonValue] = []
    # One at a time, because many algorithms together do not fit into memory.
    for source in sources:
        judgement = judged(source) if is_alone else _judge_or_report(source, judged)
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
    """Return the only report with the schema, or several under `results`."""
    match documents:
        case [dict() as alone]:
            return {"schema": schema, **alone}
        case _:
            return {"schema": schema, "ok": ok, "results": documents}


def _judge_or_report(source: str, judged: Callable[[str], Judgement]) -> Judgement:
    try:
        return judged(source)
    except HubError as error:
        return Unjudged(source, error.diagnostics)
