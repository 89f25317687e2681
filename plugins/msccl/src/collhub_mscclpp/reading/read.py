"""Read execution plans, and programs that generate them, as algorithms.

The steps are those of one launch, in the order of its rules. Also small correct samples, for the
conformance kit and for compiling all kernels in advance. Programs are executed in a sandboxed
process.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from collhub_packing.warming import warm_check

from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.checking.lowering import counters_of, ranges_of
from collhub_mscclpp.checking.memory import plan_memory
from collhub_mscclpp.checking.report import OK, WRONG
from collhub_mscclpp.plan_records import Plan
from collhub_mscclpp.reading.follow import PlanFollower
from collhub_mscclpp.reading.read_plan import list_operation_lines, parse_plan
from collhub_mscclpp.reading.steps import places_of
from hub_core.model import Algorithm, Diagnostic, InputError, Location, Provenance, Severity
from hub_core.model import JsonValue as Json
from hub_core.plugin_api import (
    CheckReport,
    CheckRequest,
    NoOptions,
    Source,
    SourcePart,
    WarmOptions,
)
from hub_core.sandbox import (
    ProcessLimits,
    SourceProgramOptions,
    imports_any,
    parsed_source,
    run_program,
    shell_words,
    warn_at,
)

EXTENSION = "mscclpp"
"""Key of `Algorithm.extensions` for the members of the plan."""

# Codes of findings that the hub's verification reports in more detail.
_REPORTED_ELSEWHERE = ("wrong-output",)
# Codes of findings about later launches; the steps of the first launch are still known.
_LATER_LAUNCH_CODES = ("race", "deadlock", "unbalanced", "scratch-halves")
_SWITCH = ("glres", "gstore", "gstorepkt")


def read(source: Source, options: NoOptions) -> Algorithm:
    """Read a plan as an algorithm.

    A unit is a chunk, or a part of it if thread blocks transfer parts of chunks. The steps are
    those of the first launch, in the order of its simulation. The extension `mscclpp` has the
    header, the units per chunk and the number of operations by name.

    The plan is checked first (`check_plan`). Its errors raise one `InputError`, with two
    exceptions:

    - Wrong outputs are dropped, because the verification of the algorithm reports them.
    - Errors that concern only later launches become warnings, unless the first launch deadlocks or
      has a race.

    Warnings and notes of the check go to `source.report`. A plan with operations of switches gives
    one more note: they are read as messages from and to every rank of the group. Also raises
    `InputError` for a document that is no valid plan.
    """
    del options
    return _read_plan(source, has_lines=True)


def _read_plan(source: Source, *, has_lines: bool) -> Algorithm:
    """Read a plan as `read` does: check it, and translate its first launch to steps.

    `has_lines`: steps get the lines of the document, because it is the user's file; otherwise they
    have no line. Steps are in the order of the simulated first launch. Findings of the check:

    - Wrong results (`_REPORTED_ELSEWHERE`) are dropped, because later verification reports them.
    - Errors about later launches (`_LATER_LAUNCH_CODES`, such as `race`) are reported to `source`
      as warnings, if the first launch neither deadlocks nor races.
    - All other errors are raised together as one `InputError`; then nothing is reported.
    - Warnings and notes are reported to `source` unchanged.

    Plans with operations of switches give one more note (`switch-operations`). Raises `InputError`
    first of all for a document that is no valid plan.
    """
    plan = parse_plan(source.content(), source.name)
    report = check_plan(plan)
    # Errors that leave the result of the first launch undefined.
    is_followed = report.verdict in (OK, WRONG)
    passed = {*_REPORTED_ELSEWHERE, *(_LATER_LAUNCH_CODES if is_followed else ())}
    errors = [finding for finding in report.errors if finding.code not in passed]
    if errors:
        raise InputError(errors)
    for finding in report.diagnostics:
        if finding.code in _REPORTED_ELSEWHERE:
            continue
        # Remaining errors concern later launches; the first launch is correct.
        is_error = finding.severity is Severity.ERROR
        source.report(replace(finding, severity=Severity.WARNING) if is_error else finding)
    names = _count_operations(plan)
    if any(name in names for name in _SWITCH):
        message = "operations of switches are read as messages from and to every rank of the group"
        location = Location(source.name)
        source.report(Diagnostic("switch-operations", message, Severity.NOTE, location))
    memory = plan_memory(plan)
    counters, ranges = counters_of(plan), ranges_of(plan, memory)
    places = places_of(memory, ranges)
    count = len(plan.operations)
    lines = list_operation_lines(source.content(), count) if has_lines else np.full(count, -1)
    follower = PlanFollower(plan, memory, counters, ranges, places, lines)
    for operation in report.order.tolist():
        follower.follow(operation)
    return Algorithm(
        memory.collective,
        follower.steps.table(source.name),
        places.scratch_units,
        Provenance("mscclpp", "", source.name, source.sha256()),
        extensions={EXTENSION: _collect_extension(plan, memory.cells_per_chunk)},
    )


def _count_operations(plan: Plan) -> dict[str, int]:
    """Return the number of operations of the plan by name, in alphabetical order.

    Operations that the executor does not have are left out.
    """
    rows = range(len(plan.operations))
    kinds = [plan.operation(row) for row in rows]
    return dict(sorted(Counter(kind.name for kind in kinds if kind).items()))


def _collect_extension(plan: Plan, cells_per_chunk: int) -> Json:
    """Return the data of a plan that steps do not have, as a JSON object without nested header.

    Its keys are, in this order:

    - the fields of the header, as the format names them: `name`, `collective`, `protocol`,
      `inplace`, `reuse_resources`, `use_double_scratch_buffer`, `buffer_alignment`,
      `num_threads_per_block`, `min_message_size`, `max_message_size`
    - `units_per_chunk`: `cells_per_chunk`, because cells become units
    - `operations`: number of operations of all ranks by name, in alphabetical order. Unknown
      operations are not counted.
    """
    header = plan.header
    counts: dict[str, Json] = {**_count_operations(plan)}
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
    """Return one sample plan, `two-ranks.json`, for the conformance kit.

    It is an out-of-place all-gather of two ranks, each of which puts its input into the other's
    output.
    """
    plan = {
        "name": "two_ranks",
        "collective": "allgather",
        "protocol": "Simple",
        "inplace": False,
        "gpus": [_build_gpu(rank) for rank in range(2)],
    }
    return [Source.of_bytes("two-ranks.json", json.dumps(plan).encode())]


def _build_gpu(rank: int) -> dict[str, object]:
    """Build the JSON object of rank 0 or 1 of the sample plan, an all-gather of one chunk each.

    A rank has 1 input chunk, 2 output chunks, no scratch and two memory channels to its peer.

    - Thread block 0 signals that its rank is ready, then waits for the data of the other
      rank.
    - Thread block 1 waits until the other rank is ready, puts its input chunk into the output
      of the other rank at index `rank`, signals, and copies the chunk to the same index of
      its own output.
    """
    # Both ranks list the connection 0 -> 1 first, so that channels with equal ids are paired.
    sending, receiving = rank, 1 - rank
    nop: dict[str, object] = {"name": "nop"}
    put: dict[str, object] = {
        "name": "put",
        "channel_type": "memory",
        "src_buff": _INPUT,
        "dst_buff": [{"buffer_id": 0, "index": rank, "size": 1}],
    }
    local_output = [{"type": "o", "index": rank, "size": 1}]
    copy: dict[str, object] = {"name": "copy", "src_buff": _INPUT, "dst_buff": local_output}
    return {
        "id": rank,
        "input_chunks": 1,
        "output_chunks": 2,
        "scratch_chunks": 0,
        "channels": [{"channel_type": "memory", "connected_to": [1 - rank, 1 - rank]}],
        "remote_buffers": [{"rank": 1 - rank, "type": "o", "access_channel_types": ["memory"]}],
        "threadblocks": [
            _build_block(
                0,
                receiving,
                [],
                [_build_signal("rlxsignal"), _build_signal("wait"), {"name": "nop"}],
            ),
            _build_block(
                1,
                sending,
                [0],
                [_build_signal("rlxwait"), nop, put, nop, _build_signal("signal"), nop, copy],
            ),
        ],
    }


def _build_block(
    position: int, channel: int, buffers: list[int], ops: list[dict[str, object]]
) -> dict[str, object]:
    references = [{"access_channel_type": "memory", "remote_buffer_ids": buffers}]
    return {
        "id": position,
        "channels": [{"channel_type": "memory", "channel_ids": [channel]}],
        "remote_buffer_refs": references if buffers else [],
        "ops": ops,
    }


def _build_signal(name: str) -> dict[str, object]:
    return {"name": name, "channel_type": "memory", "channel_ids": [0]}


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile the missing kernels if `options.warm` is set; else report success."""
    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    """Read the samples, which executes, and therefore compiles, every kernel."""
    for source in samples():
        read(source, NoOptions())


_ALL_PAIRS = b"""\
from mscclpp.language.channel import *
from mscclpp.language.collectives import *
from mscclpp.language.general import *
from mscclpp.language.program import *
from mscclpp.language.rank import *

size = 3
with CollectiveProgram("all_pairs", AllGather(size, 1, True), size):
    channels = {}
    for source in range(size):
        for target in range(size):
            if source != target:
                channels[target, source] = MemoryChannel(target, source)
    for source in range(size):
        peers = [target for target in range(size) if target != source]
        part = Rank(source).get_output_buffer()[source : source + 1]
        for target in peers:
            channels[target, source].signal(tb=0, relaxed=True)
        for target in peers:
            channels[target, source].wait(tb=0, relaxed=True)
        for target in peers:
            there = Rank(target).get_output_buffer()[source : source + 1]
            channels[target, source].put(there, part, tb=0)
            channels[target, source].signal(tb=0)
        for target in peers:
            channels[target, source].wait(tb=0)
    print(JSON())
"""


def list_program_samples() -> Sequence[Source]:
    """Return an all-gather in place of 3 ranks, in which each rank puts its part to its peers."""
    return [Source.of_bytes("all_pairs.py", _ALL_PAIRS)]


_CHILD = "collhub_mscclpp.language.child:main"
_PACKAGES = ("mscclpp", "collhub_mscclpp")


def read_program(source: Source, options: SourceProgramOptions) -> Algorithm:
    """Execute a program of MSCCL++ in a separate process and read its plan as an algorithm.

    The program uses the package `mscclpp` if it is installed, otherwise the implementation in this
    plugin. In the latter case, each defect that the package would have with this program is
    reported as a warning (`package-defect`). The plan is read as in `read`, with its warnings, but
    steps have no line. The provenance has the hash of the program, the language (`mscclpp` or
    `collhub-mscclpp`) and the arguments.

    Raises `InputError`, with the line if known:

    - before execution: `too-large` above 16 MiB, `syntax`, and `not-a-program` if no import
      statement names `mscclpp` or `collhub_mscclpp`
    - if the program fails, exceeds a limit in `options`, or ends without a plan
    - if the plan is invalid or has no defined result

    Raises `UsageError` if the file defines several programs, and `options.program` is missing or
    names none of them.
    """
    content = source.content()
    # Any file may be named *.py; only programs of the language may be executed.
    tree = parsed_source(source.name, content)
    is_of_language = any(imports_any(node, _PACKAGES) for node in ast.walk(tree))
    if not is_of_language:
        message = "is no program of MSCCL++: it does not import mscclpp; it was not executed"
        raise InputError(message, location=Location(source.name), code="not-a-program")
    limits = ProcessLimits(options.time_limit, options.memory_limit, options.sandbox)
    arguments = shell_words(options.arguments)
    report = run_program(_CHILD, source.name, content, arguments, limits, options.program)
    for defect in report["defects"]:
        message = f"the package mscclpp makes another plan of it: {defect}"
        warn_at(source, "package-defect", message, int(report["line"]))
    plan = str(report["plan"]).encode()
    part = SourcePart(source.name, lambda: plan)
    algorithm = _read_plan(Source(source.name, (part,), source.report), has_lines=False)
    language = "mscclpp" if report["package"] else "collhub-mscclpp"
    run_options = {"language": language, "arguments": options.arguments or ""}
    provenance = replace(algorithm.provenance, source_sha256=source.sha256(), options=run_options)
    return replace(algorithm, provenance=provenance)
