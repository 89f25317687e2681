"""Verify one input or several; each gets a verdict, regardless of errors in the other ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hub_core.cli.output import print_diagnostic, print_json, print_line, print_table
from hub_core.cli.reports.report_objects import check_object, diagnostic_object, print_check
from hub_core.model import Diagnostic, ExitCode, HubError, UsageError

if TYPE_CHECKING:
    from hub_core.model import Algorithm, JsonValue
    from hub_core.plugin_api import CheckReport
    from hub_core.verification import VerifyReport

_STDIN = "-"
# By whether the contents were verified: a custom collective may have no contract, and a timing-only
# trace has no contents.
_CORRECT = {True: "correct as claimed", False: "nothing wrong found, contents not judged"}


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


@dataclass(frozen=True, slots=True)
class AlgorithmVerdict:
    """Report on one algorithm, with the reports of the requested checks by name."""

    source: str
    algorithm: Algorithm
    report: VerifyReport
    checked: Mapping[str, CheckReport]

    @property
    def ok(self) -> bool:
        """Whether the algorithm is correct as claimed and passes every check."""
        return self.report.ok and all(check.ok for check in self.checked.values())

    def document(self) -> dict[str, JsonValue]:
        """Return the report as JSON, without the schema `collhub/report-verify-1`."""
        return _to_json(self.source, self.report, self.checked)

    def show(self, *, is_alone: bool) -> None:
        """Print the verdict, the table of modes if it is the only input, and the findings."""
        _print_outcome(self.source, self.algorithm, self.report)
        if is_alone:
            _print_modes(self.report)
        for finding in self.report.diagnostics:
            print_diagnostic(finding)
        for name, check_report in self.checked.items():
            print_check(name, check_report)


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


def _to_json(
    source: str, report: VerifyReport, checked: Mapping[str, CheckReport]
) -> dict[str, JsonValue]:
    parts: dict[str, JsonValue] = {}
    checks = {name: check_object(report_of_check) for name, report_of_check in checked.items()}
    if "certificate" in checks:
        parts["certificate"] = checks.pop("certificate")
    if checks:
        parts["checks"] = dict(checks)
    return {
        "source": source,
        "ok": report.ok,
        "modes": {name: mode.verdict == "ok" for name, mode in report.modes.items()},
        "claims": {name: mode.is_claimed for name, mode in report.modes.items()},
        "verdicts": {name: mode.verdict for name, mode in report.modes.items()},
        "method": report.method,
        "error_probability": report.error_probability,
        "diagnostics": [diagnostic_object(finding) for finding in report.diagnostics],
        **parts,
    }


def _print_outcome(source: str, algorithm: Algorithm, report: VerifyReport) -> None:
    collective = algorithm.collective
    outcome = "not correct as claimed" if not report.ok else _CORRECT[report.method != "none"]
    size = f"{collective.num_ranks} ranks, {len(algorithm.steps)} steps"
    print_line(f"{source}: {collective.kind}, {size}: {outcome}")


def _print_modes(report: VerifyReport) -> None:
    rows = [
        (name.replace("_", " "), "claimed" if mode.is_claimed else "not claimed", mode.verdict)
        for name, mode in report.modes.items()
    ]
    print_table(("mode", "claim", "verdict"), rows)
    probability = ""
    if report.error_probability:
        bound = f"{report.error_probability:.1g}"
        probability = f" (a wrong output passes with probability at most {bound})"
    print_line(f"contents compared by: {report.method}{probability}")
