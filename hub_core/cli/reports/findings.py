"""Print losses, and give findings the path of the file as the user named it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hub_core.cli import output
from hub_core.model import Diagnostic, Location, Severity

if TYPE_CHECKING:
    from hub_core.model import Algorithm
    from hub_core.pipeline.outputs import Written


def say_losses(written: Written, out: str, work: str) -> None:
    """Print the losses of an output as warnings, and the notes of its writer."""
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
    """Return the findings with the user's path if the algorithm was read from that file."""
    name = algorithm.provenance.source_name
    if not name or os.path.basename(source) != name:
        return list(findings)
    return [
        _replace_path(finding, source) if finding.location.file == name else finding
        for finding in findings
    ]


def _replace_path(finding: Diagnostic, file: str) -> Diagnostic:
    """Return the finding with the path that the user gave."""
    # Readers only know the name of the file.
    return replace(finding, location=replace(finding.location, file=file))
