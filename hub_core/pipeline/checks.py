"""Run checks: one subject in, one report a check out."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hub_core.model.diagnostics import HubError, UsageError
from hub_core.pipeline.calls import bound_options, call
from hub_core.pipeline.inputs import PathText, Report
from hub_core.pipeline.runtime_versions import (
    chosen_versions,
    refused_by_version,
    with_newest,
)
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
