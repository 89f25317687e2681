"""JSON objects of findings, losses, cut searches and checks in the reports of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.cli.output import print_diagnostic, print_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub_core.model import Diagnostic, JsonValue, Loss
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


def check_object(report: CheckReport) -> dict[str, JsonValue]:
    """Return the JSON object of a check report; its facts are members next to `ok`."""
    return {
        "ok": report.ok,
        **dict(report.facts),
        "diagnostics": [diagnostic_object(finding) for finding in report.diagnostics],
    }
