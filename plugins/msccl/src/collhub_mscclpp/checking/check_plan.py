"""Check a plan by the executor's rules: loading, and the results of repeated launches.

`check_mscclpp` is the check `mscclpp` of the plugin: it reads the plan and reports the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.checking.execution import Execution, LaunchResult
from collhub_mscclpp.checking.habits import (
    check_block_barriers,
    check_habits,
    check_overlaps,
    check_pipelines,
    check_relaxed_signals,
    check_scratch,
)
from collhub_mscclpp.checking.lowering import (
    Counters,
    Proxies,
    counters_of,
    lagging_proxies,
    program_of,
    ranges_of,
)
from collhub_mscclpp.checking.memory import (
    Contents,
    PlanMemory,
    contents_of,
    has_contract,
    plan_memory,
)
from collhub_mscclpp.checking.program import Program
from collhub_mscclpp.checking.report import (
    DEADLOCK,
    OK,
    RACE,
    UNKNOWN,
    WRONG,
    PlanFindings,
    PlanReport,
    Story,
)
from collhub_mscclpp.checking.rules import (
    MOST_SLICES,
    check_barriers,
    check_counters,
    check_halves,
    check_header,
    check_limits,
    check_offsets,
    check_operations,
)
from collhub_mscclpp.plan_records import Plan
from collhub_mscclpp.reading.json_values import MOST_BYTES
from collhub_mscclpp.reading.read_plan import parse_plan
from hub_core.columns import Int64Array
from hub_core.model import InputError, UsageError
from hub_core.plugin_api import CheckReport, CheckRequest, LoadableCall, NoOptions

# Halves of the scratch alternate, so the third launch reuses the half of the first.
LAUNCHES = 3
# Limit of the time of a launch to some seconds; plans in practice access thousands.
_MOST_TOUCHED = 1 << 22
# Clocks have one number for every pair of actors.
_MOST_ACTORS = 8192
# Codes of rule violations that make contents wrong; the simulation ignores these rules.
_WRONG_CODES = ("chunk-counts", "buffer-offset")


def check_plan(
    plan: Plan,
    launches: int = LAUNCHES,
) -> PlanReport:
    """Check a plan: static rules, then `launches` (at least 1) consecutive simulated launches.

    Races are detected between operations of the same and of different launches. The contents after
    every launch are compared with the result of the collective. A plan that breaks rules needed to
    simulate it, or that is too large, gets the verdict n/a. Otherwise the verdict is that of the
    first launch, and the verdict of relaunches is the most severe of all (deadlock, race, wrong,
    ok); with unequal halves of scratch only one launch is simulated and it is a deadlock. Raises no
    exception. Cost: linear in operations and in transferred chunks.
    """
    findings = PlanFindings(plan)
    check_header(plan, findings)
    check_limits(plan, findings)
    if not check_operations(plan, findings):
        return _report(findings, UNKNOWN, UNKNOWN, np.zeros(0, np.int64))
    try:
        prepared = prepare_plan(plan, findings)
    except InputError as error:
        findings.on_plan("plan-size", error.diagnostics[0].message, error.diagnostics[0].cure)
        return _report(findings, UNKNOWN, UNKNOWN, np.zeros(0, np.int64))
    # With unequal halves packets of the second launch are stored at wrong addresses.
    has_halves = check_halves(plan, findings)
    execution, results = launch_plan(prepared, launches if has_halves else 1)
    verdicts = [_judge_launch(result, findings) for result in results]
    if not has_halves:
        verdicts.append(DEADLOCK)
    story = Story(plan, execution, findings)
    for number, result in enumerate(results):
        story.tell(result, number)
    return _report(
        findings,
        verdicts[0],
        max(verdicts, key=[OK, WRONG, RACE, DEADLOCK].index),
        results[0].order,
    )


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPlan:
    """A plan in the form that the simulation runs."""

    plan: Plan
    memory: PlanMemory
    program: Program
    counters: Counters
    proxies: Proxies
    contents: Contents


def prepare_plan(
    plan: Plan,
    findings: PlanFindings,
) -> PreparedPlan:
    """Lay out the plan in memory, and record violations of the rules that need ranges and counters.

    Does not simulate. Raises `InputError` with the code "plan-size" if the plan is too large to
    simulate: above 2^22 cells that operations access, counted once per range, or 8 192 actors
    (thread blocks, ranks and port channels whose puts may be late), or if its buffers are too
    large. The findings recorded before remain.
    """
    memory = plan_memory(plan)
    counters, ranges = counters_of(plan), ranges_of(plan, memory)
    touched = int(ranges.cells.sum())
    if touched > _MOST_TOUCHED:
        message = f"operations touch {touched} parts of chunks, more than can be followed"
        cure = f"check a plan of fewer chunks, with at most {_MOST_TOUCHED}"
        raise InputError(message, cure=cure, code="plan-size")
    check_counters(plan, counters, findings)
    check_offsets(plan, memory, findings)
    check_barriers(plan, findings)
    check_pipelines(plan, findings)
    check_scratch(plan, memory, ranges, findings)
    check_overlaps(plan, ranges, findings)
    check_habits(plan, findings)
    check_relaxed_signals(plan, findings)
    check_block_barriers(plan, ranges, findings)
    proxies = lagging_proxies(plan)
    actors = len(plan.blocks) + plan.num_ranks + proxies.count
    if actors > _MOST_ACTORS:
        message = f"{actors} thread blocks, ranks and lagging port channels; at most {_MOST_ACTORS}"
        raise InputError(message, cure="check a plan for fewer ranks", code="plan-size")
    program = program_of(plan, counters, proxies, ranges)
    return PreparedPlan(plan, memory, program, counters, proxies, contents_of(memory))


def launch_plan(prepared: PreparedPlan, launches: int) -> tuple[Execution, list[LaunchResult]]:
    """Run consecutive launches, up to the first that does not end; return the execution and the
    results.

    If thread blocks increment a counter without an order, a count does not identify its signal. All
    launches are then repeated with these counters marked, until no further ones are detected; each
    repetition marks at least one more.
    """
    late: frozenset[int] = frozenset()
    while True:
        execution = Execution(
            prepared.plan,
            prepared.memory,
            prepared.program,
            prepared.counters,
            prepared.proxies.count,
            prepared.contents,
            launches,
            has_contract(prepared.plan),
            late,
        )
        results: list[LaunchResult] = []
        while len(results) < launches and not (results and len(results[-1].blocked)):
            results.append(execution.launch())
        new_counters = execution.unordered_counters()
        if not new_counters:
            return execution, results
        late |= new_counters


def _report(findings: PlanFindings, verdict: str, relaunch: str, order: Int64Array) -> PlanReport:
    """Build the report with the verdicts of the first launch and of all launches (`relaunch`).

    A fragment has no verdict on all launches. Findings about loading come first, because they are
    recorded first.
    """
    is_fragment = not has_contract(findings.plan)
    return PlanReport(
        is_loadable=not findings.breaks_loading,
        verdict=verdict,
        verdict_relaunch=UNKNOWN if is_fragment else relaunch,
        is_fragment=is_fragment,
        diagnostics=tuple(findings.found),
        order=order,
    )


def _judge_launch(result: LaunchResult, findings: PlanFindings) -> str:
    """Return the most severe result of a launch: deadlock, race, wrong contents, or ok.

    Missing block barriers count as races, some violated rules as wrong contents.
    """
    if len(result.blocked):
        return DEADLOCK
    # Threads without a block barrier race like thread blocks without an order.
    if result.races or findings.found.has("missing-nop"):
        return RACE
    if result.wrong.any() or any(findings.found.has(code) for code in _WRONG_CODES):
        return WRONG
    return OK


_WORDS = {
    OK: "it runs rightly",
    "race": "operations race",
    "deadlock": "it never ends",
    "wrong": "it gives wrong contents",
    UNKNOWN: "it could not be followed",
}


def check_mscclpp(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check whether MSCCL++ loads the plan of a request and runs it rightly, for 3 launches.

    A file that is no plan gives a report with `ok=False`. Calls are listed only if the plan is
    correct. Raises `UsageError` without a file.
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
        verdict=_describe_verdict(report),
        diagnostics=report.diagnostics,
        calls=tuple(_list_calls(plan)) if report.ok else (),
        facts={
            "is_accepted": report.is_loadable,
            "is_fragment": report.is_fragment,
            "verdict": report.verdict,
            "verdict_relaunch": report.verdict_relaunch,
            "launches": LAUNCHES,
        },
    )


def _describe_verdict(report: PlanReport) -> str:
    """Describe in one line whether the plan loads, and the verdicts of one and of repeated
    launches.

    A fragment (a plan whose collective has no expected result) has only the verdict of one launch;
    two verdicts are named only if they differ, and the number of launches only if both are good.
    """
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


def _list_calls(plan: Plan) -> Iterator[LoadableCall]:
    """Yield the one call that the plan can serve; none if its window of sizes is empty.

    Sizes are in bytes, of the output for an all-gather, else of the input, and None for no maximum.
    The maximum is the least of that of the plan and the 65 535 slices of a pipeline that the
    executor can count, on the smallest buffer. Conditions: input bytes divisible by
    `buffer_alignment` times the most input chunks of a rank, and sum. The executor itself uses a
    plan for any call to which the user assigns it.
    """
    header = plan.header
    largest = None if header.max_bytes == MOST_BYTES else header.max_bytes
    # The executor cannot count more than `MOST_SLICES` slices of a pipeline.
    table = plan.operations
    rows = np.flatnonzero(table.slice_bytes > 0)
    if len(rows):
        chunk = int((MOST_SLICES * table.slice_bytes[rows] // table.slice_chunks[rows]).min())
        is_output = header.collective == "allgather"
        counts = [gpu.output_chunks if is_output else gpu.input_chunks for gpu in plan.gpus]
        possible = chunk * min(counts)
        largest = possible if largest is None else min(largest, possible)
    if largest is not None and largest < header.min_bytes:
        return
    divisor = header.alignment * max(gpu.input_chunks for gpu in plan.gpus)
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
