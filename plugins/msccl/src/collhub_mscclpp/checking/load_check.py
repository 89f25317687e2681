"""The check `mscclpp`: whether the executor loads a plan and runs it correctly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_mscclpp.checking.check_plan import LAUNCHES, check_plan
from collhub_mscclpp.checking.limits import MOST_SLICES
from collhub_mscclpp.checking.report import OK, UNKNOWN, PlanReport
from collhub_mscclpp.plans.json_values import MOST_BYTES
from collhub_mscclpp.plans.read_plan import parse_plan
from collhub_mscclpp.plans.records import Plan
from hub_core.model import InputError, UsageError
from hub_core.plugin_api import CheckReport, CheckRequest, LoadableCall, NoOptions

_WORDS = {
    OK: "it runs rightly",
    "race": "operations race",
    "deadlock": "it never ends",
    "wrong": "it gives wrong contents",
    UNKNOWN: "it could not be followed",
}


def check_mscclpp(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check a plan by the executor's rules, over several launches.

    A file that is no plan gives a report with `ok=False`. Raises `UsageError` without a file.
    """
    del options
    if request.source is None:
        raise UsageError("a file is needed: the check is of the subject 'runtime'")
    try:
        plan = parse_plan(request.source.content(), request.source.name)
    except InputError as error:
        return CheckReport(
            ok=False,
            verdict="mscclpp refuses it: it is no execution plan",
            diagnostics=error.diagnostics,
            facts={"is_accepted": False},
        )
    report = check_plan(plan)
    return CheckReport(
        ok=report.ok,
        verdict=_verdict(report),
        diagnostics=report.diagnostics,
        calls=tuple(_calls(plan)) if report.ok else (),
        facts={
            "is_accepted": report.is_loadable,
            "is_fragment": report.is_fragment,
            "verdict": report.verdict,
            "verdict_relaunch": report.verdict_relaunch,
            "launches": LAUNCHES,
        },
    )


def _verdict(report: PlanReport) -> str:
    """Describe the verdict in one line."""
    loads = "mscclpp loads it" if report.is_loadable else "mscclpp refuses it"
    words = _WORDS[report.verdict]
    again = _WORDS[report.verdict_relaunch]
    if report.is_fragment:
        return f"{loads}; a fragment, which promises nothing: alone, {words}"
    if report.verdict_relaunch != report.verdict:
        return f"{loads}; {words} once, and launch after launch {again}"
    if report.verdict == OK:
        return f"{loads}; {words}, in {LAUNCHES} launches one after the other"
    return f"{loads}; {words}"


def _calls(plan: Plan) -> Iterator[LoadableCall]:
    """Yield the calls that the plan can serve; none if its window of sizes is empty.

    The executor itself uses a plan for any call to which the user assigns it.
    """
    header = plan.header
    largest = None if header.max_bytes == MOST_BYTES else header.max_bytes
    largest = _within_pipelines(plan, largest)
    if largest is not None and largest < header.min_bytes:
        return
    counts = sorted({gpu.input_chunks for gpu in plan.gpus})
    divisor = header.alignment * max(counts)
    conditions = (f"input bytes divisible by {divisor}", "operator sum")
    if header.collective == "allgather":
        # For an all-gather the executor compares the size of the output, else of the input.
        conditions = ("bytes of the output", conditions[0])
    yield LoadableCall(
        header.collective,
        plan.num_ranks,
        header.in_place,
        header.min_bytes,
        largest,
        conditions,
    )


def _within_pipelines(plan: Plan, largest: int | None) -> int | None:
    """Limit the largest message to the number of slices that the executor can count."""
    table = plan.operations
    rows = np.flatnonzero(table.slice_bytes > 0)
    if not len(rows):
        return largest
    chunk = int((MOST_SLICES * table.slice_bytes[rows] // table.slice_chunks[rows]).min())
    is_output = plan.header.collective == "allgather"
    counts = [gpu.output_chunks if is_output else gpu.input_chunks for gpu in plan.gpus]
    possible = chunk * min(counts)
    return possible if largest is None else min(largest, possible)
