"""Print the report of a check as text, or return it as a JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.cli.output import print_diagnostic, print_fields
from hub_core.cli.report_objects import diagnostic_object

if TYPE_CHECKING:
    from hub_core.model import JsonValue
    from hub_core.plugin_api import CheckReport


def print_check(name: str, report: CheckReport) -> None:
    """Print the verdict, the computed details, the examined lines and the findings."""
    lines = {
        line.subject: f"{'ok' if line.is_ok else 'BAD'}: {line.details}".rstrip(": ")
        for line in report.lines
    }
    print_fields({name: report.verdict, **report.details, **lines})
    for found in report.diagnostics:
        print_diagnostic(found)


def check_object(report: CheckReport) -> dict[str, JsonValue]:
    """Return the JSON object of a check report; its facts are members next to `ok`."""
    return {
        "ok": report.ok,
        **dict(report.facts),
        "diagnostics": [diagnostic_object(found) for found in report.diagnostics],
    }
