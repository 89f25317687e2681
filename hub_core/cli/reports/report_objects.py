"""Findings, losses, cut searches, checks and verdicts of `verify` in reports: lines of text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from hub_core.cli import output
from hub_core.cli.output import print_diagnostic, print_fields, print_json, print_line, print_table
from hub_core.model import (
    Diagnostic,
    ExitCode,
    HubError,
    Location,
    Severity,
    UsageError,
    format_time,
)

if TYPE_CHECKING:
    from msgspec import Struct

    from hub_core.cli.reports.check_results import CheckedSource
    from hub_core.cli.reports.report_files import ReportFiles
    from hub_core.model import Algorithm, JsonValue
    from hub_core.pipeline.outputs import Written
    from hub_core.plugin_api import CheckReport, JobChange, SearchCut
    from hub_core.reports import Record
    from hub_core.verification import VerifyReport


def cut_fields(cuts: Sequence[SearchCut]) -> dict[str, str]:
    """Return the text field `cut` of a report if a limit ended parts of a search early.

    The text declares the answer partial and lists `cuts` in their order. Without cuts, the
    result is empty.
    """
    if not cuts:
        return {}
    return {"cut": f"so the answer is partial: {'; '.join(map(str, cuts))}"}


def change_lines(changes: Sequence[JobChange]) -> list[str]:
    """Describe what each change of a job saves: one line per change, then one per assumption.

    An example of a line: `DESCRIPTION: the job takes 90.00 us instead of 100.00 us: saves 10.00 us,
    10.0 %`. The first time is that of the changed job. A change without effect `saves` 0; for a
    slower job, `costs` replaces `saves`. The percentage is that of the unchanged time, 0.0 if this
    time is 0. If both limits of the saving are known, ` (LOW to HIGH by the held-out error)`
    follows the saving.

    The lines of the changes are in their order. Then each distinct assumption has a line `assumed:
    TEXT`, in the order of first occurrence. Without changes the result is empty.
    """
    lines = []
    for change in changes:
        unchanged_ns = change.job_ns + change.saved_ns
        verb = "saves" if change.saved_ns >= 0 else "costs"
        band = ""
        if change.min_saved_ns is not None and change.max_saved_ns is not None:
            limits = (format_time(change.min_saved_ns), format_time(change.max_saved_ns))
            band = f" ({limits[0]} to {limits[1]} by the held-out error)"
        percent = 100 * abs(change.saved_ns) / unchanged_ns if unchanged_ns else 0.0
        lines.append(
            f"{change.description}: the job takes {format_time(change.job_ns)} instead of "
            f"{format_time(unchanged_ns)}: {verb} {format_time(abs(change.saved_ns))}{band}, "
            f"{percent:.1f} %"
        )
    assumptions = dict.fromkeys(text for change in changes for text in change.assumptions)
    return [*lines, *(f"assumed: {text}" for text in assumptions)]


def print_check(name: str, report: CheckReport) -> None:
    """Print the report of a check: verdict, computed details, examined lines and findings.

    The verdict is printed next to `name`, and each examined line next to its subject as `ok` or
    `BAD` with its details. If verdict, details or lines share a name, only the last one is printed,
    at the position of the first. Findings are printed on stderr.
    """
    lines = {
        line.subject: f"{'ok' if line.is_ok else 'BAD'}: {line.details}".rstrip(": ")
        for line in report.lines
    }
    print_fields({name: report.verdict, **report.details, **lines})
    for finding in report.diagnostics:
        print_diagnostic(finding)


def say_losses(written: Written, out: str, work: str) -> None:
    """Print the losses of an output as warnings (code `lossy`), then the notes of its writer.

    `out`: the file that the messages name. `work`: the operation with the losses, such as
    `conversion`. No error is raised; with `--strict` the caller has refused losses before.
    """
    for loss in written.losses:
        message = f"the {work} loses: {loss}"
        # A warning; --strict turns losses into errors.
        warning = Diagnostic("lossy", message, Severity.WARNING, Location(out))
        output.print_diagnostic(warning)
    for note in written.notes:
        output.print_note(f"{out} {note}")


def with_path(
    findings: Iterable[Diagnostic], algorithm: Algorithm, source: str
) -> list[Diagnostic]:
    """Return the findings with the path that the user gave in place of the base name of the file.

    Findings are changed only if the algorithm was read from `source`, which is so if the base name
    of `source` is the source name in its provenance. Then findings on that name get `source` as
    their file. All others are returned unchanged, in the same order.
    """
    name = algorithm.provenance.source_name
    if not name or os.path.basename(source) != name:
        return list(findings)
    # Readers only know the name of the file.
    return [
        replace(finding, location=replace(finding.location, file=source))
        if finding.location.file == name
        else finding
        for finding in findings
    ]


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
        """Return a report item (`VerifiedInput`) with the input, `ok` False and the findings."""
        from hub_core.cli.reports.algorithm_records import VerifiedInput
        from hub_core.reports import list_findings

        findings = list_findings(self.diagnostics)
        return VerifiedInput(source=self.source, ok=False, diagnostics=findings)

    def show(self, *, is_alone: bool) -> None:
        """Print the line `SOURCE: not judged` on stdout and the findings on stderr.

        `is_alone` has no effect.
        """
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
        """All findings: those of the verification, then those of each additional check in order."""
        checks = [finding for report in self.checked.values() for finding in report.diagnostics]
        return [*self.report.diagnostics, *checks]

    def record(self) -> Record:
        """Return the verdict as an item of `VerdictsReport`.

        `modes`, `claims` and `verdicts` have an entry per verified mode: whether it is correct,
        whether the algorithm claims it, and the verdict. `ok` is that of the verification;
        `diagnostics` are its findings. The result of a check `certificate` is the member of this
        name, those of the other checks are `checks`, by name; both are absent without such a check.
        """
        # Imported here, as elsewhere: the help of the command needs no numpy.
        from hub_core.cli.reports.algorithm_records import ModeVerdicts, VerifiedInput
        from hub_core.cli.reports.inspection_records import ModeFlags
        from hub_core.reports import UNSET, describe_check, list_findings

        report = self.report
        checks = {name: describe_check(result) for name, result in self.checked.items()}
        certificate = checks.pop("certificate", UNSET)
        verdicts = {name: mode.verdict for name, mode in report.modes.items()}
        return VerifiedInput(
            source=self.source,
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

    def show(self, *, is_alone: bool) -> None:
        """Print the verdict, the findings, and the reports of the additional checks.

        1. One line: source, collective, numbers of ranks and steps, and the result of the
           verification. The result is "not correct as claimed" with errors. Without errors it is
           "nothing wrong found, contents not judged" if the method was "none", otherwise "correct
           as claimed". Additional checks do not change this line.
        2. Only with `is_alone` (there is only one input): a table of the modes with claim and
           verdict, and a line with the method by which contents were compared.
        3. The findings of the verification, on stderr.
        4. For each check in order, its report as printed by `print_check`.
        """
        collective = self.algorithm.collective
        outcome = (
            "not correct as claimed"
            if not self.report.ok
            else _CORRECT[self.report.method != "none"]
        )
        size = f"{collective.num_ranks} ranks, {len(self.algorithm.steps)} steps"
        print_line(f"{self.source}: {collective.kind}, {size}: {outcome}")
        if is_alone:
            rows = [
                (
                    name.replace("_", " "),
                    "claimed" if mode.is_claimed else "not claimed",
                    mode.verdict,
                )
                for name, mode in self.report.modes.items()
            ]
            print_table(("mode", "claim", "verdict"), rows)
            probability = ""
            if self.report.error_probability:
                bound = f"{self.report.error_probability:.1g}"
                probability = f" (a wrong output passes with probability at most {bound})"
            print_line(f"contents compared by: {self.report.method}{probability}")
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
    """Verify all inputs in their order, print the verdicts, and return the exit code.

    `judged` verifies one source. A `HubError` of `judged` becomes a failed verdict on that input,
    and the next input follows. With one input and no `files` it is raised instead. Other errors are
    always raised.

    Output without `as_json`: each verdict is printed right after its verification; at the end,
    unless there is exactly one input, the line `N of M inputs pass`. With `as_json` one report is
    printed at the end. For one input it is the schema and the verdict; otherwise the schema, `ok`
    and the verdicts under `results`.

    With `files`, all findings are then written to these files. The exit code is INVALID if an error
    is not accepted by the baseline, else DONE; `ok` of the report ignores the baseline. Without
    `files` the exit code is DONE if all inputs pass (also without inputs), else INVALID. Raises
    `UsageError` if `sources` contains standard input (`-`) more than once.
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
        judgement: Judgement
        try:
            judgement = judged(source)
        except HubError as error:
            if is_alone and files is None:
                raise
            judgement = Unjudged(source, error.diagnostics)
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
