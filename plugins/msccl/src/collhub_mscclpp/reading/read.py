"""Read execution plans as algorithms: the steps of one launch, in the order that its rules give."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.checking.lowering import counters_of, ranges_of
from collhub_mscclpp.checking.memory import plan_memory
from collhub_mscclpp.checking.report import OK, WRONG, PlanReport
from collhub_mscclpp.plans.read_plan import parse_plan
from collhub_mscclpp.plans.records import Plan
from collhub_mscclpp.reading.follow import PlanFollower
from collhub_mscclpp.reading.steps import places_of
from hub_core.model import Algorithm, Diagnostic, InputError, Location, Provenance, Severity
from hub_core.model import JsonValue as Json
from hub_core.plugin_api import NoOptions, Source

EXTENSION = "mscclpp"
"""Key of `Algorithm.extensions` under which members of the plan are kept."""

# What the hub's own verification says, better.
_TOLD_ELSEWHERE = ("wrong-output",)
# What does not keep the steps of one launch from being known.
_OF_LATER_LAUNCHES = ("race", "deadlock", "unbalanced", "scratch-halves")
_SWITCH = ("glres", "gstore", "gstorepkt")


def read(source: Source, options: NoOptions) -> Algorithm:
    """Read a plan: units are chunks, or the parts that thread block groups split them into.

    Raises `InputError` where the plan has no meaning that the hub could verify: defects of its
    structure, what the executor refuses, a deadlock or a race in the first launch. What concerns
    later launches is reported.
    """
    del options
    plan = parse_plan(source.content(), source.name)
    report = check_plan(plan)
    _raise_errors(report)
    for found in report.diagnostics:
        if found.code not in _TOLD_ELSEWHERE:
            source.report(_softened(found))
    _report_switches(plan, source)
    memory = plan_memory(plan)
    counters, ranges = counters_of(plan), ranges_of(plan, memory)
    places = places_of(memory, ranges)
    follower = PlanFollower(plan, memory, counters, ranges, places)
    for operation in report.order.tolist():
        follower.follow(operation)
    return Algorithm(
        memory.collective,
        follower.steps.table(source.name),
        places.scratch_units,
        Provenance("mscclpp", "", source.name, source.sha256()),
        extensions={EXTENSION: _extension(plan, memory.cells_per_chunk)},
    )


def _raise_errors(report: PlanReport) -> None:
    """Refuse a plan that one launch gives no meaning."""
    is_followed = report.verdict in (OK, WRONG)
    passed = {*_TOLD_ELSEWHERE, *(_OF_LATER_LAUNCHES if is_followed else ())}
    errors = [found for found in report.errors if found.code not in passed]
    if errors:
        raise InputError(errors)


def _softened(found: Diagnostic) -> Diagnostic:
    """An error of later launches as a warning: the algorithm of one launch is right."""
    if found.severity is Severity.ERROR:
        return replace(found, severity=Severity.WARNING)
    return found


def _report_switches(
    plan: Plan,
    source: Source,
) -> None:
    """Say how operations of switches are read."""
    names = _operation_counts(plan)
    if any(name in names for name in _SWITCH):
        message = "operations of switches are read as messages from and to every rank of the group"
        place = Location(source.name)
        source.report(Diagnostic("switch-operations", message, Severity.NOTE, place))


def _operation_counts(plan: Plan) -> dict[str, int]:
    """How often each operation stands in the plan, by name."""
    rows = range(len(plan.operations))
    kinds = [plan.operation(row) for row in rows]
    return dict(sorted(Counter(kind.name for kind in kinds if kind).items()))


def _extension(plan: Plan, cells_per_chunk: int) -> Json:
    """What steps cannot say: members of the plan, and its operations, synchronisation included."""
    header = plan.header
    counts: dict[str, Json] = {**_operation_counts(plan)}
    return {
        "name": header.name,
        "collective": header.collective,
        "protocol": header.protocol,
        "inplace": header.in_place,
        "reuse_resources": header.reuse_resources,
        "use_double_scratch_buffer": header.double_scratch,
        "buffer_alignment": header.alignment,
        "num_threads_per_block": header.threads_per_block,
        "min_message_size": header.min_bytes,
        "max_message_size": header.max_bytes,
        "units_per_chunk": cells_per_chunk,
        "operations": counts,
    }
