"""Check single tuner files of any producer: the calls that a runtime serves with them, and faults.

The readers are those of the selection formats, which also read files of `collhub tune` back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collhub_tuning.coverage import format_server, format_sizes
from collhub_tuning.tuning_records import CheckedFileItem, TuneFilesReport
from collhub_tuning.tuning_report import list_served_calls
from hub_core.model import Diagnostic, HubError, Location, Severity, UsageError
from hub_core.plugin_api import MeasurementReader, SelectionWriter, Source, SourcePart
from hub_core.reports import list_findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hub_core import CommandContext
    from hub_core.plugin_api import ServedCalls

MAX_BYTES = 4 << 20
FILES_HEADER = ("file", "format", "collective", "sizes", "served by")


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """Calls that a runtime serves with a file, and findings sorted by line.

    `served`: calls of the first communicator that the file states, else of any communicator.
    `runtimes`: products and versions that read files of the format.
    """

    file: str
    format: str
    served: tuple[ServedCalls, ...]
    runtimes: tuple[str, ...]
    findings: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """True if no finding is an error or a warning; notes are allowed."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)


def check_files(
    context: CommandContext, files: Sequence[str], format: str | None
) -> list[CheckedFile]:
    """Check files in the order given.

    `format`: name of a selection format; by default that of the suffix and content of each file.
    Raises `UsageError` for the first file that cannot be read: missing, above `MAX_BYTES`, of no or
    several known formats, or one of measurements.
    """
    return [_check_file(context, file, format) for file in files]


def create_file_rows(checked: Sequence[CheckedFile]) -> list[list[str]]:
    """Return one row per range of sizes with the same server, by file; a file that serves nothing
    has one row with `none`.
    """
    rows = []
    for one in checked:
        rows += [
            [
                *(one.file, one.format, str(calls.kind)),
                *(format_sizes(calls.min_bytes, calls.max_bytes), format_server(calls)),
            ]
            for calls in one.served
        ] or [[one.file, one.format, "none", "", ""]]
    return rows


def create_files_report(checked: Sequence[CheckedFile]) -> TuneFilesReport:
    """Return the JSON report of the check of tuner files."""
    return TuneFilesReport(
        ok=all(one.ok for one in checked),
        files=[
            CheckedFileItem(
                file=one.file,
                format=one.format,
                ok=one.ok,
                runtimes=one.runtimes,
                served=list_served_calls(one.served),
                findings=list_findings(one.findings),
            )
            for one in checked
        ],
    )


def _check_file(context: CommandContext, file: str, format: str | None) -> CheckedFile:
    content = _read(file)
    folders = context.selection_folders()
    name = format or _choose_format(context, file, content)
    findings: list[Diagnostic] = []
    source = Source(file, (SourcePart(file, lambda: content, None, len(content)),), findings.append)
    try:
        served = tuple(folders.served_calls(source, name))
    except HubError as error:
        if isinstance(error, UsageError):
            raise
        served, findings = (), [*findings, *error.diagnostics]
    findings.sort(key=lambda finding: finding.location.line or 0)
    return CheckedFile(file, name, served, tuple(folders.runtimes_of(name)), tuple(findings))


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _unreadable(file, f"cannot be read: {reason}", "name a tuner file") from None
    if len(content) > MAX_BYTES:
        raise _unreadable(file, f"has more than {MAX_BYTES >> 20} MiB", "name a tuner file")
    return content


def _choose_format(context: CommandContext, file: str, content: bytes) -> str:
    """Return the only format of a file of tuner rules, by its content and name.

    Raises `UsageError` (code `unreadable`) if it is the output of a measurement, if several formats
    fit, or if none does; the cure names what to give instead.
    """
    known = ", ".join(_format_names(context))
    for provided in context.registry().all(MeasurementReader):
        if re.search(provided.offer.format.signature, content, re.MULTILINE):
            message = f"is no tuner file but {provided.offer.format.description}"
            raise _unreadable(file, message, "give it to tune --measured")
    names = context.selection_folders().formats_of(file, content)
    if len(names) == 1:
        return names[0]
    if names:
        message = f"may be of the formats {', '.join(names)}, which interpret it differently"
        raise _unreadable(file, message, f"name one: --to {names[0]}")
    raise _unreadable(file, f"is of no known format ({known})", "name its format with --to")


def _format_names(context: CommandContext) -> Iterator[str]:
    """Yield the formats that are recognised in single files."""
    for provided in context.registry().all(SelectionWriter):
        if provided.offer.format.signature:
            yield provided.name


def _unreadable(file: str, message: str, cure: str) -> UsageError:
    return UsageError(message, location=Location(file), cure=cure, code="unreadable")
