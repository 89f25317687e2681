"""Findings, losses, cut searches and checks in the reports of commands: lines of text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hub_core.cli import output
from hub_core.cli.output import print_diagnostic, print_fields
from hub_core.model import Diagnostic, Location, Severity, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub_core.model import Algorithm
    from hub_core.pipeline.outputs import Written
    from hub_core.plugin_api import CheckReport, JobChange, SearchCut


def cut_fields(cuts: Sequence[SearchCut]) -> dict[str, str]:
    """Return the text field `cut` on parts of a search that a limit cut.

    It says that the answer is partial, and lists the parts in their order. Empty without such
    parts.
    """
    if not cuts:
        return {}
    return {"cut": f"so the answer is partial: {'; '.join(map(str, cuts))}"}


def change_lines(changes: Sequence[JobChange]) -> list[str]:
    """Format one line per change of a job, in their order, then each assumption once.

    A line has the time of the changed job and of the unchanged one, their difference as `saves`
    (also for 0) or `costs`, as a time and in percent of the unchanged time (0.0 if that is 0), and,
    if both its limits are known, the band of the saving that the held-out error of the model gives.
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

    The verdict stands under the `name`, each line under its subject as `ok` or `BAD` and details.
    Of details or lines with the same name, only the last is printed, at the place of the first.
    Findings are printed on stderr.
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

    `out`: the file in the messages; `work`: what loses, such as `conversion`. Nothing is raised:
    under `--strict`, losses have been refused before.
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
    """Return the findings with the user's path if the algorithm was read from that file.

    This is so if the base name of `source` is the source name in the algorithm's provenance. Then
    findings whose file is that name get `source` as file; all others, and all if it is not so, are
    returned unchanged. The order is kept.
    """
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
