"""What every executor does around its runs: level, check inputs, choose the background, divide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collhub_execution.data.averages import averaged
from collhub_execution.data.checked_inputs import (
    AnyArray,
    background,
    checked_inputs,
    elements_of_block,
)
from collhub_execution.data.memory_check import check_memory
from collhub_execution.levelling.levelled_program import levelled_program
from collhub_execution.levelling.program import LevelledProgram
from hub_core.model import Algorithm, ReduceOp
from hub_core.plugin_api import ExecutionRequest, ExecutionResult


@dataclass(frozen=True, slots=True)
class LevelledRequest:
    """An `ExecutionRequest` as a transport can run it: steps are a program, an average is a sum.

    `inputs`: read-only flat arrays that fit the program. `reduce_op`: never AVG. `background`: what
    all memory but INPUT holds before a run, so that what nothing wrote is seen. The rest as in
    `ExecutionRequest`.
    """

    algorithm: Algorithm
    program: LevelledProgram
    inputs: tuple[AnyArray, ...]
    reduce_op: ReduceOp
    background: np.generic
    repeats: int = 1
    warmups: int = 0
    timeout_s: float = 60.0
    wants_step_times: bool = False

    @property
    def runs(self) -> int:
        """All runs of the program, the one that is timed step by step included."""
        step_timing = int(self.wants_step_times)
        return self.warmups + self.repeats + step_timing

    @property
    def elements(self) -> int:
        """Elements of a block."""
        return elements_of_block(self.program.blocks, self.inputs)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all inputs and outputs."""
        return self.inputs[0].dtype

    @property
    def flat_size(self) -> int:
        """Elements of one flat memory for the buffers of all ranks."""
        return self.program.layout.total * self.elements


def execute_levelled(
    request: ExecutionRequest, run: Callable[[LevelledRequest], ExecutionResult]
) -> ExecutionResult:
    """Level a request, `run` it, and finish the result: all that an executor has to call.

    Averages are divided behind the timed part, and `statistics` tells `messages` and `levels`.
    Raises `InputError` for what cannot run (see `levelled_program`), `UsageError` for inputs of
    wrong sizes and for more memory than the machine has.
    """
    levelled = levelled_request(request)
    return _finished(request, levelled, run(levelled))


def levelled_request(request: ExecutionRequest) -> LevelledRequest:
    """Level a request and check its inputs; see `execute_levelled` for what it raises."""
    program = levelled_program(request.algorithm, request.in_place)
    # A sum that is divided at the end also carries an average's background on.
    fill = background(request.inputs[0].dtype, request.reduce_op)
    collective = request.algorithm.collective
    inputs = checked_inputs(collective, program.blocks, request.inputs, fill)
    levelled = LevelledRequest(
        algorithm=request.algorithm,
        program=program,
        inputs=inputs,
        reduce_op=ReduceOp.SUM if request.reduce_op is ReduceOp.AVG else request.reduce_op,
        background=fill,
        repeats=request.repeats,
        warmups=request.warmups,
        timeout_s=request.timeout_s,
        wants_step_times=request.wants_step_times,
    )
    check_memory(program, levelled.elements, levelled.dtype)
    return levelled


def _finished(
    request: ExecutionRequest, levelled: LevelledRequest, result: ExecutionResult
) -> ExecutionResult:
    """Divide sums that stand for averages, and add what the program itself tells."""
    outputs = result.outputs
    if request.reduce_op is ReduceOp.AVG:
        outputs = averaged(request.algorithm.collective, outputs)
    program = levelled.program
    counts = {"messages": program.num_messages, "levels": program.num_rounds}
    return replace(result, outputs=outputs, statistics={**counts, **result.statistics})
