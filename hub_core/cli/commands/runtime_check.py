"""`collhub verify --runtime`.

Whether a runtime will use a file, for which calls and sizes, and if not, why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from hub_core.cli.assignments import Assignments
from hub_core.cli.output import (
    print_diagnostic,
    print_line,
    print_table,
    progress,
)
from hub_core.cli.reports.report_objects import diagnostic_object
from hub_core.cli.session import Session

if TYPE_CHECKING:
    from hub_core.model import JsonValue
    from hub_core.plugin_api import CheckReport, LoadableCall


LOAD_SCHEMA = "collhub/report-load-1"


@dataclass(frozen=True, slots=True)
class RuntimeVerdict:
    """What the rules of a runtime say of one file.

    `source`: the file as named; `runtime`: the check, with `@VERSION` if the user gave one;
    `report`: its findings, and the calls served.
    """

    source: str
    runtime: str
    report: CheckReport

    @property
    def ok(self) -> bool:
        """Whether at least one kind of call uses the file."""
        return self.report.ok

    def document(self) -> dict[str, JsonValue]:
        """As `collhub/report-load-1` states it."""
        report = self.report
        name, _, version = self.runtime.partition("@")
        return {
            "source": self.source,
            "runtime": name,
            "version": version or None,
            "ok": report.ok,
            "is_accepted": report.facts.get("is_accepted", report.ok),
            "calls": [asdict(call) for call in report.calls],
            "diagnostics": [diagnostic_object(found) for found in report.diagnostics],
        }

    def show(self, *, is_alone: bool) -> None:
        """Print the outcome, the calls where the file is alone, and the findings."""
        print_line(f"{self.source}: {_outcome(self.runtime, self.report, is_alone)}")
        if is_alone and self.report.calls:
            _print_calls(self.report.calls)
        named = None
        for found in self.report.diagnostics:
            # The first finding names the file, those after it the line alone.
            place = found.location
            is_named = place.file == named and place.line is not None
            shown = replace(found, location=replace(place, file=None)) if is_named else found
            print_diagnostic(shown)
            named = place.file


def runtime_verdict(
    session: Session, source: str, runtime: str, options: Assignments
) -> RuntimeVerdict:
    """Ask the check of a runtime. Raises `HubError`."""
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
    return RuntimeVerdict(source, runtime, report)


def _outcome(runtime: str, report: CheckReport, is_alone: bool) -> str:
    """The verdict in words: the check's own, or whether the runtime uses the file."""
    if report.ok and not is_alone:
        return f"{runtime} uses it"
    if report.verdict:
        return report.verdict
    if report.ok:
        return f"{runtime} uses it for these calls"
    if report.facts.get("is_accepted", report.ok):
        return f"{runtime} loads it, but uses it for no call"
    return f"{runtime} refuses it"


def _print_calls(calls: Sequence[LoadableCall]) -> None:
    rows = [
        (
            call.collective,
            str(call.num_ranks),
            "in place" if call.in_place else "out of place",
            str(call.min_bytes),
            "no limit" if call.max_bytes is None else str(call.max_bytes),
            ", ".join(call.conditions),
        )
        for call in calls
    ]
    header = ("collective", "ranks", "mode", "from bytes", "to bytes", "if")
    print_table(header, rows, ("ranks", "from bytes", "to bytes"))
