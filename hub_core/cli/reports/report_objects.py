"""Findings, losses, cut searches and checks in the reports of commands: JSON objects and lines."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hub_core.cli import output
from hub_core.cli.output import print_diagnostic, print_fields
from hub_core.model import Diagnostic, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub_core.model import Algorithm, JsonValue, Loss
    from hub_core.pipeline.outputs import Written
    from hub_core.plugin_api import CheckReport, SearchCut


def diagnostic_object(diagnostic: Diagnostic) -> dict[str, JsonValue]:
    """Return the JSON object of a finding; unknown parts of the location are null."""
    location = diagnostic.location
    return {
        "code": diagnostic.code,
        "severity": str(diagnostic.severity),
        "message": diagnostic.message,
        "cure": diagnostic.cure,
        "file": location.file,
        "line": location.line,
        "byte": location.byte,
        "rank": location.rank,
        "step": location.step,
    }


def cut_objects(cuts: Sequence[SearchCut]) -> list[JsonValue]:
    """Return the JSON objects of the parts of a search that a limit cut."""
    return [
        {"name": cut.name, "work": cut.work, "reason": cut.reason, "not_tried": cut.not_tried}
        for cut in cuts
    ]


def cut_fields(cuts: Sequence[SearchCut]) -> dict[str, str]:
    """Return the text field on parts of a search that a limit cut; empty without such parts."""
    if not cuts:
        return {}
    return {"cut": f"so the answer is partial: {'; '.join(map(str, cuts))}"}


def loss_object(loss: Loss) -> dict[str, JsonValue]:
    """Return the JSON object of a loss."""
    return {"feature": loss.feature, "where": loss.where, "consequence": loss.consequence}


def print_check(name: str, report: CheckReport) -> None:
    """Print the verdict, the computed details, the examined lines and the findings."""
    lines = {
        line.subject: f"{'ok' if line.is_ok else 'BAD'}: {line.details}".rstrip(": ")
        for line in report.lines
    }
    print_fields({name: report.verdict, **report.details, **lines})
    for finding in report.diagnostics:
        print_diagnostic(finding)


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
