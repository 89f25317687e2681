"""`collhub verify --runtime`: report whether runtimes use a file, and for which calls.

Also checks of the files from which the tuner of a runtime selects its algorithms.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from hub_core.cli.assignments import Assignments
from hub_core.cli.command_context import Session
from hub_core.cli.output import print_diagnostic, print_line, print_table, progress
from hub_core.model import Diagnostic, HubError, InputError, Location, Severity, UsageError

if TYPE_CHECKING:
    from hub_core.plugin_api import CheckReport
    from hub_core.reports import Record


@dataclass(frozen=True, slots=True)
class RuntimeVerdict:
    """Verdict of a runtime's rules on one file.

    `source`: the file as given by the user. `runtime`: the check, with `@VERSION` if the user gave
    one. `report`: findings, and the calls for which the runtime uses the file.
    """

    source: str
    runtime: str
    report: CheckReport

    @property
    def ok(self) -> bool:
        """Whether the runtime uses the file for at least one kind of call."""
        return self.report.ok

    @property
    def diagnostics(self) -> Sequence[Diagnostic]:
        """Reasons why the runtime does not use the file, and warnings."""
        return self.report.diagnostics

    def record(self) -> Record:
        """Return the verdict and its report as an item of `RuntimeVerdictsReport`.

        `self.runtime` is split at the first `@` into name and version, None if empty or missing.
        `is_accepted` (the runtime loads the file) is that fact of the report; without it, `ok`.
        """
        from hub_core.cli.reports.algorithm_records import RuntimeInput, UsedCall
        from hub_core.reports import list_findings

        report = self.report
        name, _, version = self.runtime.partition("@")
        return RuntimeInput(
            source=self.source,
            runtime=name,
            version=version or None,
            ok=report.ok,
            is_accepted=bool(report.facts.get("is_accepted", report.ok)),
            is_applicable=report.is_applicable,
            calls=[UsedCall(**asdict(call)) for call in report.calls],
            diagnostics=list_findings(report.diagnostics),
        )

    def show(self, *, is_alone: bool) -> None:
        """Print the outcome on standard output, and the findings on standard error.

        The outcome is one line, `SOURCE: TEXT`. With `is_alone` (only one file is checked), TEXT is
        more detailed, and a table of the calls for which the runtime uses the file follows, if any.
        A finding with a line is printed without its file if the previous finding has the same file.
        """
        print_line(f"{self.source}: {_describe_outcome(self.runtime, self.report, is_alone)}")
        if is_alone and self.report.calls:
            rows = [
                (
                    call.collective,
                    str(call.num_ranks),
                    "in place" if call.in_place else "out of place",
                    str(call.min_bytes),
                    "no limit" if call.max_bytes is None else str(call.max_bytes),
                    ", ".join(call.conditions),
                )
                for call in self.report.calls
            ]
            header = ("collective", "ranks", "mode", "from bytes", "to bytes", "if")
            print_table(header, rows, ("ranks", "from bytes", "to bytes"))
        previous_file = None
        for finding in self.report.diagnostics:
            # The first finding names the file; later findings in the same file only the line.
            location = finding.location
            is_named = location.file == previous_file and location.line is not None
            shown = replace(finding, location=replace(location, file=None)) if is_named else finding
            print_diagnostic(shown)
            previous_file = location.file


@dataclass(frozen=True, slots=True)
class VersionVerdict:
    """Verdict of one range of versions of a runtime; `rule`: of the first error, empty if used.

    `versions`: text of the range with its product, such as `ROCm 5.5 to 7.12`; empty for a runtime
    without a table of versions. `is_applicable`: whether the runtime reads files of this format.
    """

    runtime: str
    versions: str
    ok: bool
    is_accepted: bool
    findings: Sequence[Diagnostic]
    is_applicable: bool = True

    @property
    def rule(self) -> str:
        """Code of the first error; "" if the runtime uses the file or there is no error."""
        errors = [finding for finding in self.findings if finding.severity is Severity.ERROR]
        return errors[0].code if errors and not self.ok else ""

    @property
    def outcome(self) -> str:
        """The verdict in a few words.

        - `loads`: the runtime uses the file.
        - `not applicable`: the runtime does not read files of this format.
        - `never used: CODE`: the runtime loads the file, but uses it for no call.
        - `refused: CODE`: the runtime does not load the file. `: CODE`, with the code of the first
          error, is omitted if there is no error.
        """
        if self.ok:
            return "loads"
        if not self.is_applicable:
            return "not applicable"
        return f"{'never used' if self.is_accepted else 'refused'}: {self.rule}".rstrip(": ")


@dataclass(frozen=True, slots=True)
class AllRuntimesVerdict:
    """Verdicts of all known runtimes and versions on one file."""

    source: str
    verdicts: Sequence[VersionVerdict]

    @property
    def ok(self) -> bool:
        """Whether any version of any runtime uses the file."""
        return any(verdict.ok for verdict in self.verdicts)

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The first error of each runtime, in the order of verdicts; empty if any uses the file.

        If any verdict is applicable (its runtime reads the format), only such verdicts are
        searched, by version. A runtime without errors has no entry.
        """
        if self.ok:
            return []
        first: dict[str, Diagnostic] = {}
        applicable = [verdict for verdict in self.verdicts if verdict.is_applicable]
        for verdict in applicable or self.verdicts:
            for finding in verdict.findings:
                if finding.severity is Severity.ERROR:
                    first.setdefault(verdict.runtime, finding)
        return list(first.values())

    def record(self) -> Record:
        """Return the report item: source, `ok`, the verdicts in their order, and `diagnostics`."""
        from hub_core.cli.reports.algorithm_records import AllRuntimesInput, VersionItem
        from hub_core.reports import list_findings

        return AllRuntimesInput(
            source=self.source,
            ok=self.ok,
            runtimes=[
                VersionItem(
                    runtime=verdict.runtime,
                    versions=verdict.versions,
                    ok=verdict.ok,
                    is_accepted=verdict.is_accepted,
                    is_applicable=verdict.is_applicable,
                    rule=verdict.rule or None,
                )
                for verdict in self.verdicts
            ],
            diagnostics=list_findings(self.diagnostics),
        )

    def show(self, *, is_alone: bool) -> None:
        """Print how many runtimes use the file in some version, and all outcomes as a table.

        Rows are runtimes, columns ranges of versions. Below are distinct reasons why checks do not
        apply, unless diagnostics give them, then the diagnostics. `is_alone` has no effect.
        """
        used = len({verdict.runtime for verdict in self.verdicts if verdict.ok})
        names = list(dict.fromkeys(verdict.runtime for verdict in self.verdicts))
        print_line(f"{self.source}: {used} of {len(names)} runtimes use it")
        columns = list(dict.fromkeys(verdict.versions for verdict in self.verdicts))
        cells = {(verdict.runtime, verdict.versions): verdict.outcome for verdict in self.verdicts}
        rows = [(name, *(cells.get((name, column), "") for column in columns)) for name in names]
        print_table(("runtime", *(column or "all versions" for column in columns)), rows)
        findings = self.diagnostics
        for reason in dict.fromkeys(
            verdict.findings[0].message
            for verdict in self.verdicts
            if not verdict.is_applicable and verdict.findings[0] not in findings
        ):
            print_line(f"not applicable: {reason}")
        for finding in findings:
            print_diagnostic(finding)


def check_all_runtimes(session: Session, source: str) -> AllRuntimesVerdict:
    """Check a file by the rules of every known runtime; return verdicts, sorted by runtime name.

    A runtime with a table of versions gives one verdict per row, in order, for the first version of
    the row; any other runtime gives one. Options have their defaults. A runtime that does not read
    the format gives a verdict that is not applicable. An `InputError` of a check, such as for a
    malformed file, gives a refusal with its findings. It is raised if its first finding is
    `unreadable-input` (the file cannot be opened). Every other `HubError` is raised.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline.checks import check_runtime, checks_of, format_span
    from hub_core.plugin_api import CheckReport, Subject

    verdicts = []
    for provided in checks_of(Subject.RUNTIME, session.registry()):
        check = provided.offer
        for row in check.versions or (None,):
            name = check.name if row is None else f"{check.name}@{row.first}"
            with progress(f"checking {check.name}"):
                try:
                    report = check_runtime(source, runtime=name, registry=session.registry())
                except InputError as error:
                    if error.diagnostics[0].code == "unreadable-input":
                        raise
                    findings = tuple(error.diagnostics)
                    report = CheckReport(False, diagnostics=findings)
            verdicts.append(
                VersionVerdict(
                    check.name,
                    "" if row is None else format_span(check, row),
                    report.ok,
                    bool(report.facts.get("is_accepted", report.ok)),
                    report.diagnostics,
                    report.is_applicable,
                )
            )
    return AllRuntimesVerdict(source, verdicts)


def check_file(session: Session, source: str, runtime: str, options: Assignments) -> RuntimeVerdict:
    """Check whether a runtime uses a file, by the check with the name of the runtime.

    `runtime`: name, or `NAME@VERSION`; `options`: options of the check. Progress is shown on stderr
    and findings on the way are printed. A file that the runtime does not use is a verdict, not an
    error. Raises `HubError` for an unknown runtime, version or option and for an unreadable file.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline.checks import check_runtime

    with progress("checking"):
        report = check_runtime(
            source,
            runtime=runtime,
            options=options,
            registry=session.registry(),
            report=session.report_finding,
        )
    return RuntimeVerdict(source, runtime, report)


def _describe_outcome(runtime: str, report: CheckReport, is_alone: bool) -> str:
    """Return one line: whether the runtime uses the file.

    If the check succeeded for one of several files (not `is_alone`), "RUNTIME uses it". Otherwise
    the verdict text of the check, if it has one. Otherwise: it uses the file for the listed calls
    (success), loads it but uses it for no call (the fact `is_accepted`), or refuses it.
    """
    if report.ok and not is_alone:
        return f"{runtime} uses it"
    if report.verdict:
        return report.verdict
    if report.ok:
        return f"{runtime} uses it for these calls"
    if report.facts.get("is_accepted", report.ok):
        return f"{runtime} loads it, but uses it for no call"
    return f"{runtime} refuses it"


# Runtimes read such files at start; larger ones are no rules.
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class TunerVerdict:
    """Findings in one tuner file, by line, and the number of the calls that it serves."""

    source: str
    tuner_format: str
    served: int
    diagnostics: Sequence[Diagnostic]

    @property
    def ok(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.severity is not Severity.ERROR for finding in self.diagnostics)

    def record(self) -> Record:
        """Return the verdict as an item of `VerdictsReport`: source, ok, format, findings."""
        # Imported here: the help of the command needs no reports.
        from hub_core.cli.reports.algorithm_records import VerifiedInput
        from hub_core.reports import list_findings

        return VerifiedInput(
            source=self.source,
            ok=self.ok,
            tuner_format=self.tuner_format,
            diagnostics=list_findings(self.diagnostics),
        )

    def show(self, *, is_alone: bool) -> None:
        """Print the verdict on one line on stdout, then every finding in order on stderr.

        The line has the file, its tuner format, the number of size ranges that its rules serve, and
        `no errors` or `wrong`. `is_alone` has no effect.
        """
        outcome = "no errors" if self.ok else "wrong"
        what = f"{self.tuner_format}, {self.served} ranges of sizes served"
        print_line(f"{self.source}: {what}: {outcome}")
        for finding in self.diagnostics:
            print_diagnostic(finding)


def find_tuner_format(session: Session, source: str, name: str | None) -> str | None:
    """Return the name of the tuner format of a file, or None if it is not a tuner file.

    `name`: the format that the user gives; it is returned if it is a tuner format, else the result
    is None. Without a name, the suffix and the content determine the format; None for a path that
    is no regular file. Raises `UsageError` (`ambiguous-format`) if several formats fit, and
    `InputError` if the file cannot be read or has more than 16 MiB.
    """
    # Imported here: the help of the command needs no plugin API.
    from hub_core.plugin_api import SelectionWriter

    known = [provided.name for provided in session.registry().all(SelectionWriter)]
    if name is not None:
        return name if name in known else None
    if not os.path.isfile(source):
        return None
    folders = session.selection_folders()
    formats = folders.formats_of(source, _read(source), may_be_input=True)
    if len(formats) > 1:
        message = f"may be of the formats {', '.join(formats)}, which interpret it differently"
        cure = f"name one: --from {formats[0]}"
        raise UsageError(message, location=Location(source), cure=cure, code="ambiguous-format")
    return formats[0] if formats else None


def check_tuner_file(session: Session, source: str, tuner_format: str) -> TunerVerdict:
    """Read a tuner file as its runtime does; return the verdict with the findings sorted by line.

    Findings without a line come first; findings in one line keep their order. An `InputError` of
    the reader becomes findings, and then no call counts as served. Raises `InputError` if the file
    cannot be opened or has more than 16 MiB, and any other `HubError` of the reader.
    """
    # Imported here: the help of the command needs no plugin API.
    from hub_core.plugin_api import Source, SourcePart

    content = _read(source)
    findings: list[Diagnostic] = []
    part = SourcePart(source, lambda: content, None, len(content))
    served = 0
    try:
        read = Source(source, (part,), findings.append)
        served = len(session.selection_folders().served_calls(read, tuner_format))
    except HubError as error:
        if not isinstance(error, InputError):
            raise
        findings += error.diagnostics
    findings.sort(key=lambda finding: finding.location.line or 0)
    return TunerVerdict(source, tuner_format, served, tuple(findings))


def _read(source: str) -> bytes:
    """Return the content of a file; `InputError` if unreadable or above 16 MiB (`too-large`)."""
    try:
        with open(source, "rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message, code = f"cannot be read: {reason}", "unreadable-input"
        raise InputError(message, location=Location(source), code=code) from None
    if len(content) > _MAX_BYTES:
        message = f"has more than {_MAX_BYTES >> 20} MiB"
        raise InputError(message, location=Location(source), code="too-large")
    return content
