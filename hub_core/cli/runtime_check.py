"""`collhub verify --runtime`.

Whether a runtime will use a file, for which calls and sizes, and if not, why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hub_core.cli.output import print_diagnostic, print_json, print_table, progress
from hub_core.cli.session import Session
from hub_core.model import ExitCode
from hub_core.model.diagnostics import diagnostic_object
from hub_core.plugin_api import Assignments

if TYPE_CHECKING:
    from hub_core.model import JsonValue
    from hub_core.plugin_api import CheckReport, LoadableCall


def report_runtime(
    session: Session, source: str, runtime: str, options: Assignments, as_json: bool
) -> int:
    """Check, print, and return the exit code: 0 where at least one kind of call uses the file."""
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline.checks import check_runtime

    with progress("checking"):
        report = check_runtime(
            source,
            runtime=runtime,
            options=options,
            registry=session.registry(),
            report=print_diagnostic,
        )
    if as_json:
        print_json(_object(source, runtime, report))
    else:
        _print(source, runtime, report)
    return ExitCode.DONE if report.ok else ExitCode.INVALID


def _object(source: str, runtime: str, report: CheckReport) -> dict[str, JsonValue]:
    return {
        "schema": "collhub/report-load-1",
        "source": source,
        "runtime": runtime,
        "ok": report.ok,
        "is_accepted": report.facts.get("is_accepted", report.ok),
        "calls": [_call_object(call) for call in report.calls],
        "diagnostics": [diagnostic_object(found) for found in report.diagnostics],
    }


def _call_object(call: LoadableCall) -> dict[str, JsonValue]:
    return {
        "collective": call.collective,
        "num_ranks": call.num_ranks,
        "in_place": call.in_place,
        "min_bytes": call.min_bytes,
        "max_bytes": call.max_bytes,
        "conditions": list(call.conditions),
    }


def _print(source: str, runtime: str, report: CheckReport) -> None:
    if report.ok:
        outcome = f"{runtime} uses it for these calls"
    else:
        outcome = (
            f"{runtime} takes it, but uses it for no call"
            if report.facts.get("is_accepted", report.ok)
            else f"{runtime} refuses it"
        )
    print(f"{source}: {outcome}")
    if report.calls:
        rows = [
            (
                call.collective,
                str(call.num_ranks),
                "in place" if call.in_place else "out of place",
                str(call.min_bytes),
                "no limit" if call.max_bytes is None else str(call.max_bytes),
                ", ".join(call.conditions),
            )
            for call in report.calls
        ]
        print_table(
            ("collective", "ranks", "mode", "from bytes", "to bytes", "if"),
            rows,
            ("ranks", "from bytes", "to bytes"),
        )
    named = None
    for found in report.diagnostics:
        # The first finding names the file, those after it the line alone.
        place = found.location
        is_named = place.file == named and place.line is not None
        print_diagnostic(replace(found, location=replace(place, file=None)) if is_named else found)
        named = place.file
