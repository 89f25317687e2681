"""Read execution plans as algorithms: the steps of one launch, in the order of its rules.

Also a small correct plan, for the conformance kit and for compiling all kernels beforehand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from collhub_packing.warming import warm_check

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
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions, Source, WarmOptions

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


_CHUNK = {"index": 0, "size": 1}
_INPUT = [{"type": "i", **_CHUNK}]


def samples() -> Sequence[Source]:
    """An out-of-place all-gather among two ranks, direct into the output of the other one."""
    plan = {
        "name": "two_ranks",
        "collective": "allgather",
        "protocol": "Simple",
        "inplace": False,
        "gpus": [_gpu(rank) for rank in range(2)],
    }
    return [Source.of_bytes("two-ranks.json", json.dumps(plan).encode())]


def _gpu(rank: int) -> dict[str, object]:
    """One rank: a thread block that receives, and one that sends."""
    # Both ranks list the connection 0 -> 1 first, so that channels of one number are a pair.
    sending, receiving = rank, 1 - rank
    return {
        "id": rank,
        "input_chunks": 1,
        "output_chunks": 2,
        "scratch_chunks": 0,
        "channels": [{"channel_type": "memory", "connected_to": [1 - rank, 1 - rank]}],
        "remote_buffers": [{"rank": 1 - rank, "type": "o", "access_channel_types": ["memory"]}],
        "threadblocks": [
            _block(0, receiving, [], [_signal("rlxsignal"), _signal("wait"), {"name": "nop"}]),
            _block(1, sending, [0], _sending(rank)),
        ],
    }


def _block(
    position: int, channel: int, buffers: list[int], ops: list[dict[str, object]]
) -> dict[str, object]:
    references = [{"access_channel_type": "memory", "remote_buffer_ids": buffers}]
    return {
        "id": position,
        "channels": [{"channel_type": "memory", "channel_ids": [channel]}],
        "remote_buffer_refs": references if buffers else [],
        "ops": ops,
    }


def _signal(name: str) -> dict[str, object]:
    return {"name": name, "channel_type": "memory", "channel_ids": [0]}


def _sending(rank: int) -> list[dict[str, object]]:
    """Operations that put the input where it belongs on both ranks."""
    nop: dict[str, object] = {"name": "nop"}
    put: dict[str, object] = {
        "name": "put",
        "channel_type": "memory",
        "src_buff": _INPUT,
        "dst_buff": [{"buffer_id": 0, "index": rank, "size": 1}],
    }
    own = [{"type": "o", "index": rank, "size": 1}]
    copy: dict[str, object] = {"name": "copy", "src_buff": _INPUT, "dst_buff": own}
    return [_signal("rlxwait"), nop, put, nop, _signal("signal"), nop, copy]


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile what is not compiled yet where `options.warm` asks for it, else look at nothing."""
    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    # Imported here, as the work of this plugin is: for the kernels.

    for source in samples():
        read(source, NoOptions())
