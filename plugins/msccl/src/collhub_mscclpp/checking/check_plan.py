"""Check a plan by the executor's rules: loading, and the results of repeated launches.

`check_mscclpp` is the check `mscclpp` of the plugin: it reads the plan and reports the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.checking.execution import LaunchResult, PlanState
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
    CellContents,
    PlanMemory,
    contents_of,
    has_contract,
    plan_memory,
)
from collhub_mscclpp.checking.program import PlanColumns
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
    """Check a plan by static rules, and by simulating `launches` launches, up to a deadlock.

    Defects are diagnostics of the report; only `launches` below 1 raises (`IndexError`). The
    verdict of a launch is the first and thereby most severe one that applies:

    1. deadlock: a thread block waits forever.
    2. race: operations race, also with earlier launches, or a static rule reports `missing-nop`.
    3. wrong: an output is wrong, or a static rule reports `chunk-counts` or `buffer-offset`.
    4. ok.
    `verdict` is that of launch 1, `verdict_relaunch` the most severe of all; without an expected
    result it is n/a. If an operation cannot be simulated or the plan is too large, both are n/a and
    `order` is empty. If ranks that use each other's double scratch have unequal sizes of it, one
    launch is simulated, and `verdict_relaunch` is deadlock.
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
    program: PlanColumns
    counters: Counters
    proxies: Proxies
    contents: CellContents


def prepare_plan(
    plan: Plan,
    findings: PlanFindings,
) -> PreparedPlan:
    """Check the rules of a plan that need its memory layout, and prepare its simulation.

    Violations and warnings are added to `findings` and raise no exception. A plan with
    violations is prepared, too. Names and references must be valid (`check_operations`).
    The order of the checks is: counters (semaphores, or signals of a channel) that are
    unbalanced after a launch, wrong offsets in place, barriers, pipelines, packets in
    scratch, overlaps within an operation, operations that the executor runs differently
    (`check_habits`), relaxed signals, missing block barriers.

    Raises `InputError` (`plan-size`), in this order:

    - The buffers have more than 2^24 cells (parts of chunks of which all ranges consist).
    - The ranges of all operations together have more than 2^22 cells.
    - There are more than 8192 thread blocks, ranks and port channels with late puts
      (`lagging_proxies`) together. Only this error is raised after the checks.
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


def launch_plan(prepared: PreparedPlan, launches: int) -> tuple[PlanState, list[LaunchResult]]:
    """Simulate consecutive launches of a plan, up to the first in which a block waits forever.

    Returns the execution after the last launch, and the results of the launches in their order.
    There are `launches` results, or fewer if a block waits forever in the last one. `launches` must
    be at least 1; 0 gives an empty list.

    If thread blocks increment a counter (semaphore or signals of a channel) without an order, its
    count does not identify the signal that a wait receives. All launches are then simulated again
    from the beginning with these counters marked as late, until no further ones are detected. Only
    the execution and the results of the last simulation are returned. `prepared` is not changed.
    """
    late: frozenset[int] = frozenset()
    while True:
        execution = PlanState(
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
    """Build the report from the findings, the two verdicts and the order of execution.

    `verdict`: of the first launch. `relaunch`: of all launches; it is replaced by n/a for a
    fragment (a plan without an expected result). `order`: executed operations in order.
    Diagnostics are in the order in which they were recorded. The plan counts as loadable
    unless a finding breaks a rule of the executor's loader.
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
    """Return the verdict of a launch, the first that applies:

    - deadlock: a thread block waits forever.
    - race: the launch has races, or `findings` (of the entire plan) have a `missing-nop`.
    - wrong: the launch has wrong contents, or `findings` have a code of `_WRONG_CODES`.
    - ok.
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
    """Check whether MSCCL++ loads a plan and executes it correctly, also in repeated launches.

    The check is `check_plan` with 3 launches; `options` is ignored. The report has:

    - `ok`: no diagnostic is an error. Warnings do not matter.
    - `verdict`: one line of text (`_describe_verdict`)
    - `calls`: the call that the plan can serve, at most one (`_list_calls`); empty unless `ok`
    - `facts`: `is_accepted` (the loader accepts the plan), `is_fragment` (it has no expected
      result), `verdict` and `verdict_relaunch` (`PlanReport`), and `launches`, which is 3

    If the source is no plan, `ok` is False, its errors are the diagnostics, and the only fact is
    `is_accepted`, False. Raises `UsageError` if the request has no source, or a source of several
    files.
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
    """Return one line of text: first whether mscclpp loads the plan, then its verdicts.

    The verdicts depend on the first case that applies:

    - The plan is a fragment, which has no expected result: only the verdict of one launch.
    - The verdict of repeated launches differs from that of one launch: both verdicts.
    - Both verdicts are ok: this verdict, and the number of launches.
    - Otherwise: the common verdict.
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
    """Yield the call of the collective that the plan can serve: one, or none.

    Sizes are in bytes: of the output for an all-gather, otherwise of the input. The minimum is that
    of the plan. The maximum is the lower one of two limits; None if neither applies:

    - the maximum of the plan, unless it is `MOST_BYTES`
    - with pipelines: F x the smallest number of chunks of a rank (output chunks for an all-gather,
      otherwise input chunks). F is the minimum of 65 535 x slice bytes // slice chunks over the
      operations in pipelines, because a pipeline has at most 65 535 slices.

    Yields nothing if the maximum is less than the minimum. The conditions of the call are texts. D
    is `buffer_alignment` times the largest number of input chunks of a rank:

    - all-gather: "bytes of the output", then "input bytes divisible by D"
    - other collectives: "input bytes divisible by D", then "operator sum"

    The name of the collective, the number of ranks and the mode (in place) are those of the plan.
    The plan must have at least one rank.
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
