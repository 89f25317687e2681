"""What tests of executors share: programs that are wrong on purpose, runs on samples, processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from collhub_execution.data.inputs import exact_inputs
from collhub_execution.judgement.judge import OutputJudgement, judge
from collhub_execution.levelling.blocks import block_counts
from collhub_execution.levelling.program import LevelledProgram, RecordKind
from collhub_execution.request_levelling import LevelledRequest, levelled_request
from hub_core.model import Algorithm, BoolArray, ReduceOp, group_pointer
from hub_core.plugin_api import ExecutionRequest, ExecutionResult

Executing = Callable[[ExecutionRequest], ExecutionResult]

_NOT_BY_RECORD = frozenset({"rank_indptr", "layout"})


def only_records(program: LevelledProgram, is_kept: BoolArray) -> LevelledProgram:
    """The program without some of its records, int64[records] of which are kept."""
    columns = {}
    for field in fields(program):
        value = getattr(program, field.name)
        if isinstance(value, np.ndarray) and field.name not in _NOT_BY_RECORD:
            columns[field.name] = value[is_kept]
    pointer = group_pointer(program.rank[is_kept], program.num_ranks)
    return replace(program, **columns, rank_indptr=pointer)


def without_send(program: LevelledProgram, message: int = 0) -> LevelledProgram:
    """The program in which a message is awaited but never sent: a deadlock, on every transport."""
    is_sending = (program.kind == RecordKind.SEND) & (program.message == message)
    return only_records(program, ~is_sending)


def request_for(
    algorithm: Algorithm,
    dtype: npt.DTypeLike = np.int64,
    op: ReduceOp = ReduceOp.SUM,
    *,
    elements: int = 3,
    in_place: bool | None = None,
    **more: Any,
) -> ExecutionRequest:
    """A request with `exact_inputs`, out of place where the algorithm claims that unless told.

    `elements`: of a block. `more`: fields of the request, such as `repeats`.
    """
    if in_place is None:
        in_place = not algorithm.collective.out_of_place
    inputs = exact_inputs(block_counts(algorithm), elements, np.dtype(dtype), op)
    return ExecutionRequest(algorithm, inputs, in_place, op, **more)


def levelled_for(
    algorithm: Algorithm, program: LevelledProgram | None = None, **more: Any
) -> LevelledRequest:
    """What `request_for` makes, levelled; `program` takes the place of the levelled one."""
    levelled = levelled_request(request_for(algorithm, **more))
    return levelled if program is None else replace(levelled, program=program)


def judged(
    request: ExecutionRequest, result: ExecutionResult, *, is_exact: bool = True
) -> OutputJudgement:
    """What is to be said of a result."""
    collective = request.algorithm.collective
    return judge(collective, request.inputs, result.outputs, request.reduce_op, is_exact)


def claimed_modes(algorithm: Algorithm) -> list[bool]:
    """The values of `in_place` for which the algorithm claims to work."""
    collective = algorithm.collective
    claims = {False: collective.out_of_place, True: collective.in_place}
    return [in_place for in_place, is_claimed in claims.items() if is_claimed]


def processes_running(module: str) -> list[int]:
    """Python processes of `python -m MODULE`, ascending; only where the system has /proc."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            # It ended while we looked.
            continue
        is_launcher = b"mpiexec" in words[0]
        if module.encode() in words and not is_launcher:
            found.append(int(process.name))
    return sorted(found)


def wait_until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Whether it became so within the limit."""
    deadline = time.monotonic() + limit_s
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_so()
