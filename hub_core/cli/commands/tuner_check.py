"""Check files from which the tuner of a runtime selects its algorithms, for `collhub verify`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.cli.output import print_diagnostic, print_line
from hub_core.cli.session import Session
from hub_core.model import Diagnostic, HubError, InputError, Location, Severity, UsageError

if TYPE_CHECKING:
    from hub_core.reports import Record

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
        """Return the verdict as an item of `VerdictsReport`."""
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
        """Print the verdict and the findings."""
        outcome = "no errors" if self.ok else "wrong"
        what = f"{self.tuner_format}, {self.served} ranges of sizes served"
        print_line(f"{self.source}: {what}: {outcome}")
        for finding in self.diagnostics:
            print_diagnostic(finding)


def find_tuner_format(session: Session, source: str, name: str | None) -> str | None:
    """Return the format of a file that no reader of algorithms or workloads reads.

    `name`: format that the user gives, returned if it is one of tuner files; otherwise the format
    follows from suffix and content. None if the file has no such format. Raises `UsageError` if
    several fit.
    """
    # Imported here: the help of the command needs no plugin API.
    from hub_core.plugin_api import SelectionWriter

    known = [provided.name for provided in session.registry().all(SelectionWriter)]
    if name is not None:
        return name if name in known else None
    if not os.path.isfile(source):
        return None
    formats = session.selection_folders().formats_of(source, _read(source))
    if len(formats) > 1:
        message = f"may be of the formats {', '.join(formats)}, which interpret it differently"
        cure = f"name one: --from {formats[0]}"
        raise UsageError(message, location=Location(source), cure=cure, code="ambiguous-format")
    return formats[0] if formats else None


def check_tuner_file(session: Session, source: str, tuner_format: str) -> TunerVerdict:
    """Read a tuner file as its runtime does, and return the findings, by line.

    Raises `UsageError` if the file cannot be read in this format at all.
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
    """Return the content of a file of at most 16 MiB. Raises `InputError`."""
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
