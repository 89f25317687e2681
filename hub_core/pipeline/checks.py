"""Run checks, and find the versions of the runtimes that they concern."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

from hub_core.model.diagnostics import Diagnostic, HubError, Location, Severity, UsageError, closest
from hub_core.pipeline.calls import bound_options, call
from hub_core.pipeline.inputs import PathText, Report
from hub_core.pipeline.sources import open_input
from hub_core.plugin_api.formats import FormatReader
from hub_core.plugin_api.sources import log_diagnostic
from hub_core.plugin_api.subjects import (
    Check,
    CheckLine,
    CheckReport,
    CheckRequest,
    RuntimeVersions,
    Subject,
)
from hub_core.registry.bind_options import OptionText
from hub_core.registry.descriptions import options_of
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Plugin, Provided, Registry

NEWEST = ("newest", "latest")
"""Words for the newest versions of a runtime that are known."""
_NUMBER = re.compile(r"v?([0-9]{1,4}(?:\.[0-9]{1,6}){0,3})")
_PARTS = 4
_BEYOND = 1 << 30


def chosen_versions(check: Check, version: str) -> RuntimeVersions:
    """The versions among which `version` is. Raises `UsageError` with the known ones."""
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
        message = f"{name}: {version!r:.40} is not a version; {known_versions(check)}"
        raise UsageError(
            message, cure=hint or f"write for example {_example(check)}", code="unknown-version"
        )
    first, last = _span(number[1])
    found = [
        row
        for row in check.versions
        if _span(row.first)[0] <= last and (row.last is None or first <= _span(row.last)[1])
    ]
    if len(found) == 1:
        return found[0]
    reason = f"version {version} is ambiguous" if found else f"version {version} is not known"
    message = f"{name}: {reason}; {known_versions(check)}"
    raise UsageError(message, cure=f"write for example {_example(check)}", code="unknown-version")


def refused_by_version(check: Check, versions: RuntimeVersions, file: str) -> CheckReport:
    """The report on a file for versions that do not use files of its kind."""
    finding = _finding("not-used-by-version", check, versions, file)
    return CheckReport(
        ok=False,
        verdict=f"{check.name} of {span_text(check, versions)} does not use it",
        diagnostics=(finding,),
        facts={"is_accepted": False},
    )


def with_newest(check: Check, report: CheckReport, file: str) -> CheckReport:
    """The report with a warning if the file is used, but no longer by the newest versions."""
    newest = check.versions[-1] if check.versions else None
    if newest is None or newest.uses_files or not report.ok:
        return report
    finding = _finding("not-used-by-newest", check, newest, file)
    warning = replace(finding, severity=Severity.WARNING)
    return replace(report, diagnostics=(*report.diagnostics, warning))


def known_versions(check: Check) -> str:
    """All versions of a runtime in one clause."""
    rows = [
        f"{span_text(check, row)} {'use' if row.uses_files else 'do not use'} such files"
        for row in check.versions
    ]
    return ", ".join(rows)


def span_text(check: Check, versions: RuntimeVersions) -> str:
    """`ROCm 5.5 to 7.12`, `ROCm 7.13 and later`, `NCCL 2.12`."""
    product = f"{check.versioned_by} " if check.versioned_by else ""
    if versions.last is None:
        return f"{product}{versions.first} and later"
    if versions.last == versions.first:
        return f"{product}{versions.first}"
    return f"{product}{versions.first} to {versions.last}"


def _span(version: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first and the last version with these leading numbers."""
    parts = tuple(map(int, version.split(".")))
    rest = _PARTS - len(parts)
    return parts + (0,) * rest, parts + (_BEYOND,) * rest


def _finding(code: str, check: Check, versions: RuntimeVersions, file: str) -> Diagnostic:
    """The error that versions do not use a file."""
    what = f"{check.name} of {span_text(check, versions)} does not use such files"
    message = f"{what}: {versions.reason} ({versions.source}, {versions.date})"
    return Diagnostic(code, message, location=Location(file), cure=_cure(check))


def _example(check: Check) -> str:
    """The newest version that uses files, with the name of the runtime."""
    used = [row for row in check.versions if row.uses_files] or check.versions
    return f"{check.name}@{used[-1].last or used[-1].first}"


def _cure(check: Check) -> str:
    """Where the file can be used."""
    used = [row for row in check.versions if row.uses_files]
    if not used:
        return "write the algorithm for another runtime: 'collhub formats' lists them"
    return f"use {span_text(check, used[-1])} (--runtime {_example(check)}) or another runtime"


def checks_of(subject: Subject, registry: Registry) -> list[Provided[Check]]:
    """All checks of a subject, by name."""
    return [found for found in registry.all(Check) if found.offer.subject is subject]


def find_check(name: str, subject: Subject, registry: Registry) -> Provided[Check]:
    """The check of this name and subject. Raises `HubError` with the closest match."""
    known = [found.name for found in checks_of(subject, registry)]
    everything = f"checks of that subject: {', '.join(known) or 'none'}"
    if name not in (found.name for found in registry.all(Check)):
        # Only the names that would do here are offered.
        raise registry.unknown_name(f"there is no check {name!r}", name, known, everything)
    found = registry.find(Check, name)
    if found.offer.subject is not subject:
        message = f"{name!r} checks a subject {found.offer.subject}, not {subject}"
        raise UsageError(message, cure=everything, code="wrong-subject")
    return found


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
    """Ask whether a runtime will use a file as it stands, for which calls and sizes, or why not.

    `runtime`: its name, or NAME@VERSION. Without a version the rules of the versions that use such
    files hold, and a warning says if the newest version does not. Raises `HubError`.
    """
    registry = registry or run_registry()
    found, versions = find_runtime(runtime, registry)
    formats = [provided.offer.format for provided in registry.all(FormatReader)]
    opened = open_input(path, formats, report)
    if versions is not None and not versions.uses_files:
        return refused_by_version(found.offer, versions, opened.source.name)
    judged = run_check(found, CheckRequest(source=opened.source), options)
    return judged if versions else with_newest(found.offer, judged, opened.source.name)


def find_runtime(text: str, registry: Registry) -> tuple[Provided[Check], RuntimeVersions | None]:
    """The check of NAME or NAME@VERSION, and the versions that this means, if any.

    Raises `HubError` with the closest name, or with the known versions.
    """
    name, at, version = text.partition("@")
    found = find_check(name, Subject.RUNTIME, registry)
    return found, chosen_versions(found.offer, version) if at else None


def check_installation(
    registry: Registry, *, warm: bool = False
) -> Iterator[tuple[Plugin, CheckLine]]:
    """Run every check of the installation; one that fails becomes a line that is not ok.

    `warm`: the value of the option `warm` for those that declare it.
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
