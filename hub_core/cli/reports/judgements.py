"""Verify one input or several; each gets a verdict, regardless of errors in the other ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hub_core.cli.output import print_diagnostic, print_json, print_line, print_table
from hub_core.cli.reports.report_objects import print_check
from hub_core.model import Diagnostic, ExitCode, HubError, UsageError

if TYPE_CHECKING:
    from msgspec import Struct

    from hub_core.cli.reports.algorithm_records import VerifiedInput
    from hub_core.cli.reports.check_results import CheckedSource
    from hub_core.cli.reports.report_files import ReportFiles
    from hub_core.model import Algorithm, JsonValue
    from hub_core.plugin_api import CheckReport
    from hub_core.reports import Record
    from hub_core.verification import VerifyReport

_STDIN = "-"
# By whether the contents were verified: a custom collective may have no contract, and a timing-only
# trace has no contents.
_CORRECT = {True: "correct as claimed", False: "nothing wrong found, contents not judged"}


class Judgement(Protocol):
    """Verdict on one input."""

    @property
    def source(self) -> str:
        """Name of the input as given."""

    @property
    def ok(self) -> bool:
        """Whether the input passes."""

    @property
    def diagnostics(self) -> Sequence[Diagnostic]:
        """All findings, first causes first."""

    def record(self) -> Record:
        """Return the verdict as an item of the report."""

    def show(self, *, is_alone: bool) -> None:
        """Print the verdict on one line; `is_alone`: it is the only input, so print all details."""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """An input that could not be read or verified."""

    source: str
    diagnostics: Sequence[Diagnostic]
    ok: bool = False

    def record(self) -> Record:
        """Return the error as an item of the report: not ok, with its findings and nothing else.

        The item is the same for both kinds of report, of verification and of runtimes.
        """
        from hub_core.cli.reports.algorithm_records import VerifiedInput
        from hub_core.reports import list_findings

        findings = list_findings(self.diagnostics)
        return VerifiedInput(source=self.source, ok=False, diagnostics=findings)

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

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """Findings of the verification, then those of the checks."""
        checks = [finding for report in self.checked.values() for finding in report.diagnostics]
        return [*self.report.diagnostics, *checks]

    def record(self) -> Record:
        """Return the verdict as an item of `VerdictsReport`."""
        return _create_record(self.source, self.report, self.checked)

    def show(self, *, is_alone: bool) -> None:
        """Print the verdict, the findings, and the reports of the further checks.

        With `is_alone` (the input is the only one), the table of modes follows the verdict.
        """
        _print_outcome(self.source, self.algorithm, self.report)
        if is_alone:
            _print_modes(self.report)
        for finding in self.report.diagnostics:
            print_diagnostic(finding)
        for name, check_report in self.checked.items():
            print_check(name, check_report)


def judge(
    sources: Sequence[str],
    judged: Callable[[str], Judgement],
    report: type[Struct],
    *,
    as_json: bool,
    files: ReportFiles | None = None,
) -> int:
    """Verify all inputs, print the verdicts, and return the exit code: 1 if any input fails.

    `judged`: verifies one source. With `as_json`, the verdict on a single input is the `report`
    itself; several verdicts are listed under `results`. An error of a single input is raised; with
    several inputs it becomes the verdict on that input. With `files`, every error is a finding in
    these files, and the exit code is 1 if an error is not accepted by their baseline. Raises
    `UsageError` if standard input is given twice.
    """
    if sources.count(_STDIN) > 1:
        raise UsageError("standard input can be read only once", cure="give - once")
    is_alone = len(sources) == 1
    # Imported here: the help of the command needs no reports.
    from hub_core.reports import to_json

    passed = 0
    items: list[JsonValue] = []
    checked: list[CheckedSource] = []
    # One at a time, because many algorithms together do not fit into memory.
    for source in sources:
        is_raised = is_alone and files is None
        judgement = judged(source) if is_raised else _judge_or_report(source, judged)
        passed += judgement.ok
        if files is not None:
            checked.append(files.note(judgement.source, judgement.ok, judgement.diagnostics))
        if as_json:
            items.append(to_json(judgement.record()))
        else:
            judgement.show(is_alone=is_alone)
    ok = passed == len(sources)
    if as_json:
        from hub_core.reports import get_schema_name

        head: dict[str, JsonValue] = {"schema": get_schema_name(report)}
        match items:
            case [dict() as only]:
                print_json({**head, **only})
            case _:
                print_json({**head, "ok": ok, "results": items})
    elif not is_alone:
        print_line(f"{passed} of {len(sources)} inputs pass")
    if files is not None:
        ok = files.write(checked, is_quiet=as_json)
    return ExitCode.DONE if ok else ExitCode.INVALID


def _judge_or_report(source: str, judged: Callable[[str], Judgement]) -> Judgement:
    try:
        return judged(source)
    except HubError as error:
        return Unjudged(source, error.diagnostics)


def _create_record(
    source: str, report: VerifyReport, checked: Mapping[str, CheckReport]
) -> VerifiedInput:
    # Imported here, and below: the help of the command needs no numpy.
    from hub_core.cli.reports.algorithm_records import ModeVerdicts, VerifiedInput
    from hub_core.cli.reports.inspection_records import ModeFlags
    from hub_core.reports import UNSET, describe_check, list_findings

    checks = {name: describe_check(report_of_check) for name, report_of_check in checked.items()}
    certificate = checks.pop("certificate", UNSET)
    verdicts = {name: mode.verdict for name, mode in report.modes.items()}
    return VerifiedInput(
        source=source,
        ok=report.ok,
        modes=ModeFlags(**{name: verdict == "ok" for name, verdict in verdicts.items()}),
        claims=ModeFlags(**{name: mode.is_claimed for name, mode in report.modes.items()}),
        verdicts=ModeVerdicts(**verdicts),
        method=report.method,
        error_probability=report.error_probability,
        diagnostics=list_findings(report.diagnostics),
        certificate=certificate,
        checks=checks or UNSET,
    )


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
