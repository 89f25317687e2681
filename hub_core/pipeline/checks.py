"""Run checks, and find the versions of the runtimes that they concern."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

from hub_core.model import Workload
from hub_core.model.diagnostics import Diagnostic, HubError, Location, Severity, UsageError, closest
from hub_core.pipeline.calls import bound_options, call
from hub_core.pipeline.detection import recognize_formats
from hub_core.pipeline.inputs import PathText, Report
from hub_core.pipeline.sources import open_input
from hub_core.plugin_api.formats import FormatReader, log_diagnostic
from hub_core.plugin_api.subjects import (
    Check,
    CheckLine,
    CheckReport,
    CheckRequest,
    RuntimeVersions,
    Subject,
)
from hub_core.registry.bind_options import OptionText
from hub_core.registry.compatibility import options_of
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Plugin, Provided, Registry

NEWEST = ("newest", "latest")
"""Words for the newest known versions of a runtime."""
_NUMBER = re.compile(r"v?([0-9]{1,4}(?:\.[0-9]{1,6}){0,3})")
_PARTS = 4
_BEYOND = 1 << 30
_MAX_NAMED_FORMATS = 3


def choose_versions(check: Check, version: str) -> RuntimeVersions:
    """Return the row of the check's version table that contains `version`.

    `newest` and `latest` mean the last row. Any other version has one to four numbers separated by
    points, optionally after `v`. The row is found by ranges, all ends included:

    - `2.1` means the versions from 2.1.0.0 to the highest one that begins with 2.1.
    - A row means the versions from its first one to the highest one that begins with its last one:
      with last version 2.4, 2.4.7 is included. A row without a last version has no upper end.
    - A row contains `version` if both ranges have a common version.

    Raises `UsageError` (`unknown-version`) if there is no table, for a text that is not a version,
    and if no row or several rows contain it.
    """
    name = f"runtime {check.name}"
    if not check.versions:
        raise UsageError(
            f"{name} has no table of versions",
            cure=f"leave out @{version}",
            code="unknown-version",
        )
    if version in NEWEST:
        return check.versions[-1]
    number = _NUMBER.fullmatch(version)
    if number is None:
        hint = closest(version, NEWEST)
        message = f"{name}: {version!r:.40} is not a version; {list_versions(check)}"
        raise UsageError(
            message, cure=hint or f"write for example {_get_example(check)}", code="unknown-version"
        )
    first, last = _parse_span(number[1])
    rows = [
        row
        for row in check.versions
        if _parse_span(row.first)[0] <= last
        and (row.last is None or first <= _parse_span(row.last)[1])
    ]
    if len(rows) == 1:
        return rows[0]
    reason = f"version {version} is ambiguous" if rows else f"version {version} is not known"
    message = f"{name}: {reason}; {list_versions(check)}"
    raise UsageError(
        message, cure=f"write for example {_get_example(check)}", code="unknown-version"
    )


def report_unused_file(check: Check, versions: RuntimeVersions, file: str) -> CheckReport:
    """Create the report that the runtime versions `versions` do not use files of this kind.

    `versions`: a row of the version table of `check`. The report is not ok. Its only finding is
    the error `not-used-by-version` at `file`, and its fact `is_accepted` is False.
    """
    finding = _create_finding("not-used-by-version", check, versions, file)
    return CheckReport(
        ok=False,
        verdict=f"{check.name} of {format_span(check, versions)} does not use it",
        diagnostics=(finding,),
        facts={"is_accepted": False},
    )


def warn_of_newest(check: Check, report: CheckReport, file: str) -> CheckReport:
    """Return the report, with a warning if the newest version ignores such files.

    The warning (`not-used-by-newest`) about `file` is added after the other findings, in a
    copy. The newest version is the last row of the check's version table. The report itself
    is returned if it is not ok, if the check has no version table, or if the newest version
    uses such files.
    """
    newest = check.versions[-1] if check.versions else None
    if newest is None or newest.uses_files or not report.ok:
        return report
    finding = _create_finding("not-used-by-newest", check, newest, file)
    warning = replace(finding, severity=Severity.WARNING)
    return replace(report, diagnostics=(*report.diagnostics, warning))


def list_versions(check: Check) -> str:
    """List all versions of a runtime in one line, with whether they use such files.

    The rows of the version table are in their order, separated by commas, each followed by `use
    such files` or `do not use such files`. "" without a table.
    """
    rows = [
        f"{format_span(check, row)} {'use' if row.uses_files else 'do not use'} such files"
        for row in check.versions
    ]
    return ", ".join(rows)


def format_span(check: Check, versions: RuntimeVersions) -> str:
    """Return the text of a range of versions, such as `ROCm 5.5 to 7.12` or `NCCL 2.12`.

    The product, such as `ROCm`, is the one whose versions the check counts; it is omitted
    if the check names none. A range without a last version is `FIRST and later`. A range
    with equal first and last version is this version.
    """
    product = f"{check.versioned_by} " if check.versioned_by else ""
    if versions.last is None:
        return f"{product}{versions.first} and later"
    if versions.last == versions.first:
        return f"{product}{versions.first}"
    return f"{product}{versions.first} to {versions.last}"


def _parse_span(version: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first and the last version that begin with the numbers of `version`.

    Each is a tuple of `_PARTS` numbers: `2.1` gives (2, 1, 0, ...) and (2, 1, `_BEYOND`, ...).
    """
    parts = tuple(map(int, version.split(".")))
    rest = _PARTS - len(parts)
    return parts + (0,) * rest, parts + (_BEYOND,) * rest


def _create_finding(code: str, check: Check, versions: RuntimeVersions, file: str) -> Diagnostic:
    """Create the error (`code`) about a file that these versions do not use.

    The message has the reason, its source and its date from the table of versions; the location is
    the entire file. The remedy is the newest versions that use such files or, if there are none,
    another runtime.
    """
    lead = f"{check.name} of {format_span(check, versions)} does not use such files"
    message = f"{lead}: {versions.reason} ({versions.source}, {versions.date})"
    used = [row for row in check.versions if row.uses_files]
    cure = "write the algorithm for another runtime: 'collhub formats' lists them"
    if used:
        newest = f"{format_span(check, used[-1])} (--runtime {_get_example(check)})"
        cure = f"use {newest} or another runtime"
    return Diagnostic(code, message, location=Location(file), cure=cure)


def _get_example(check: Check) -> str:
    """Return an example `RUNTIME@VERSION` for a check, which must have a version table.

    It is the newest version that uses such files, or the newest of all if none does. In a row
    without a last version, the first version is taken.
    """
    used = [row for row in check.versions if row.uses_files] or check.versions
    return f"{check.name}@{used[-1].last or used[-1].first}"


def checks_of(subject: Subject, registry: Registry) -> list[Provided[Check]]:
    """Return all checks of a subject, ordered by name."""
    return [check for check in registry.all(Check) if check.offer.subject is subject]


def find_check(name: str, subject: Subject, registry: Registry) -> Provided[Check]:
    """Return the check with this name and subject.

    If no check of any subject has the name:

    - `PluginError` if some plugin is not loaded, and the name contains that plugin's name or is
      close to no check of the subject.
    - Otherwise `UsageError`. Its cure is the closest check of the subject, or all of them if none
      is close.

    Raises `PluginError` (`name-clash`) if several checks have the name, whatever their subjects.
    Raises `UsageError` (`wrong-subject`) if the check has another subject. Messages say "runtime"
    instead of "check" for the subject RUNTIME.
    """
    known = [check.name for check in checks_of(subject, registry)]
    noun = "runtime" if subject is Subject.RUNTIME else "check"
    everything = f"the {noun}s are {', '.join(known) or 'none'}"
    if name not in (check.name for check in registry.all(Check)):
        # Only names of checks with this subject are suggested.
        raise registry.unknown_name(f"there is no {noun} {name!r}", name, known, everything)
    check = registry.find(Check, name)
    if check.offer.subject is not subject:
        message = f"{name!r} checks a subject {check.offer.subject}, not {subject}"
        raise UsageError(message, cure=everything, code="wrong-subject")
    return check


def run_check(
    provided: Provided[Check], request: CheckRequest, options: OptionText | None = None
) -> CheckReport:
    """Run one check. Raises `HubError` for options that do not fit and for a broken plugin."""
    return call(provided, CheckReport, request, bound_options(provided, options))


def check_runtime(
    path: PathText,
    *,
    runtime: str,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> CheckReport:
    """Check whether a runtime uses a file, and for which calls and sizes, or why not.

    `runtime`: NAME or NAME@VERSION. `options`: those of its check. Findings on opening the
    file go to `report`. The first rule that applies decides:

    1. If the check declares formats and the file is recognized (`recognize_formats`), but in none
       of them, it is not checked. The report has `is_applicable` False and the finding
       `not-applicable` with the declared formats and, up to `_MAX_NAMED_FORMATS`, the recognized
       ones, sorted by name.
    2. If VERSION ignores such files, the check does not run. The report is not ok and has the
       error `not-used-by-version`.
    3. Otherwise the check runs. Without VERSION, an ok report gets the warning
       `not-used-by-newest` if the newest version ignores such files.

    Raises `HubError` for an unknown runtime, version or option, and for an unreadable file.
    """
    registry = registry or run_registry()
    check, versions = find_runtime(runtime, registry)
    formats = [provided.offer.format for provided in registry.all(FormatReader)]
    opened = open_input(path, formats, report)
    reads, recognized = check.offer.reads, recognize_formats(opened, registry)
    names = [format.name for format in recognized]
    if reads and names and not {*names} & {*reads}:
        # A format without an installed reader has no description.
        known = {provided.offer.format.name: provided for provided in registry.all(FormatReader)}
        expected = " or ".join(
            f"{name} ({known[name].offer.format.description})" if name in known else name
            for name in reads
        )
        # A suffix such as .json, which many formats share, does not identify the file.
        actual = " or ".join(names) if len(names) <= _MAX_NAMED_FORMATS else "of another format"
        message = f"{check.offer.name} reads {expected}; the file is {actual}"
        cure = f"convert it: collhub convert FILE --to {reads[0]}"
        location = Location(opened.source.name)
        return CheckReport(
            ok=False,
            verdict=f"not applicable: {message}",
            diagnostics=(Diagnostic("not-applicable", message, location=location, cure=cure),),
            facts={"is_accepted": False},
            is_applicable=False,
        )
    if versions is not None and not versions.uses_files:
        return report_unused_file(check.offer, versions, opened.source.name)
    result = run_check(check, CheckRequest(source=opened.source), options)
    return result if versions else warn_of_newest(check.offer, result, opened.source.name)


def find_runtime(text: str, registry: Registry) -> tuple[Provided[Check], RuntimeVersions | None]:
    """Find the check of NAME or NAME@VERSION, and the row of its version table.

    The text is split at the first `@`; without `@`, the row is None. Raises `HubError` for
    an unknown name and for the name of a check of another subject (`find_check`), and
    `UsageError` with the known versions if no row or several rows contain the version,
    which may be empty (`choose_versions`).
    """
    name, mark, version = text.partition("@")
    check = find_check(name, Subject.RUNTIME, registry)
    return check, choose_versions(check.offer, version) if mark else None


def check_installation(
    registry: Registry, *, warm: bool = False
) -> Iterator[tuple[Plugin, CheckLine]]:
    """Run all checks of the installation; yield the plugin and the line of each result.

    The order is that of the names of the checks, then of their lines; a check runs when its first
    line is requested. A check that raises a `HubError` yields one line with its name that is not
    ok. `warm`: value of the option `warm` for checks that declare it; it may take long.
    """
    request = CheckRequest(environment=dict(os.environ))
    for provided in checks_of(Subject.INSTALLATION, registry):
        declared = [option.name for option in options_of(provided.offer)]
        options = {"warm": "true"} if warm and "warm" in declared else None
        try:
            lines = run_check(provided, request, options).lines
        except HubError as error:
            lines = (CheckLine(provided.name, False, str(error)),)
        yield from ((provided.plugin, line) for line in lines)


def check_workload(
    workload: Workload, name: str, registry: Registry, *, is_thorough: bool = False
) -> dict[str, CheckReport]:
    """Run all installed checks of workloads; return their reports in the order of their names.

    `name`: the input in messages, which is the file of findings that name none. `is_thorough`: the
    checks may simulate the workload. A report that is not ok raises no exception. Raises `HubError`
    if a check cannot be run.
    """
    request = CheckRequest(name=name, workload=workload, is_thorough=is_thorough)
    reports = {}
    for check in checks_of(Subject.WORKLOAD, registry):
        report = run_check(check, request)
        findings = []
        for finding in report.diagnostics:
            location = replace(finding.location, file=finding.location.file or name)
            findings.append(replace(finding, location=location))
        reports[check.name] = replace(report, diagnostics=tuple(findings))
    return reports


def find_workload_defects(workload: Workload, name: str, registry: Registry) -> list[Diagnostic]:
    """Return the findings of all installed checks of workloads, check by check.

    Findings of every severity are included; the list is empty if all checks pass. `name`: the
    workload in messages. Raises the `HubError` of a check.
    """
    reports = check_workload(workload, name, registry).values()
    return [finding for report in reports for finding in report.diagnostics]
