"""Common work of all executors: level the request, check inputs and memory, divide averages."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collhub_execution.data.element_types import AnyArray, divide_averages
from collhub_execution.data.inputs import (
    check_inputs,
    choose_background,
    count_block_elements,
)
from collhub_execution.levelling.levelled_program import levelled_program
from collhub_execution.levelling.program import LevelledProgram
from hub_core.model import Algorithm, Buffer, ReduceOp, UsageError, format_bytes
from hub_core.plugin_api import ExecutionRequest, ExecutionResult


@dataclass(frozen=True, slots=True)
class LevelledRequest:
    """An `ExecutionRequest` in a form that a transport can run.

    The steps are a levelled program, and an average is a sum that is divided at the end. `inputs`:
    read-only flat arrays that fit the program. `reduce_op`: never AVG. `background`: the
    initial value of all memory except INPUT, which reveals elements that are never written. The
    remaining fields as in `ExecutionRequest`.
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
        """Number of runs of the program, including the one that is timed step by step."""
        step_timing = int(self.wants_step_times)
        return self.warmups + self.repeats + step_timing

    @property
    def elements(self) -> int:
        """Elements per block."""
        return count_block_elements(self.program.blocks, self.inputs)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of all inputs and outputs."""
        return self.inputs[0].dtype

    @property
    def flat_size(self) -> int:
        """Elements of one flat memory for the buffers of all ranks."""
        return self.program.layout.total * self.elements


def execute_levelled(
    request: ExecutionRequest, run: Callable[[LevelledRequest], ExecutionResult]
) -> ExecutionResult:
    """Level a request, `run` it, and complete the result: the only function that an executor calls.

    Averages are divided after the timed part, and `statistics` gets `messages` and `levels`. Raises
    `InputError` for algorithms that cannot run (see `levelled_program`), `UsageError` for inputs of
    wrong sizes and if the memory of this host is too small.
    """
    levelled = levelled_request(request)
    return _update_result(request, levelled, run(levelled))


def levelled_request(request: ExecutionRequest) -> LevelledRequest:
    """Level a request and check its inputs; raises as `execute_levelled` does."""
    program = levelled_program(request.algorithm, request.in_place)
    # The background of a sum also serves an average, which is a sum that is divided at the end.
    fill = choose_background(request.inputs[0].dtype, request.reduce_op)
    collective = request.algorithm.collective
    inputs = check_inputs(collective, program.blocks, request.inputs, fill)
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


def _update_result(
    request: ExecutionRequest, levelled: LevelledRequest, result: ExecutionResult
) -> ExecutionResult:
    """Divide sums of averages, and add the statistics of the program."""
    outputs = result.outputs
    if request.reduce_op is ReduceOp.AVG:
        outputs = divide_averages(request.algorithm.collective, outputs)
    program = levelled.program
    counts = {"messages": program.num_messages, "levels": program.num_rounds}
    return replace(result, outputs=outputs, statistics={**counts, **result.statistics})


def check_memory(program: LevelledProgram, elements: int, dtype: np.dtype[Any]) -> None:
    """Raise `UsageError` if inputs and the memory of all ranks exceed the memory of this host.

    `elements`: per block.
    """
    blocks = program.layout.total + int(program.layout.size[:, Buffer.INPUT].sum())
    needed = blocks * elements * dtype.itemsize
    available = find_memory_bytes()
    if available is not None and needed > available:
        raise UsageError(
            f"{program.num_ranks} ranks need {format_bytes(needed)} of memory, "
            f"this machine has {format_bytes(available)}",
            cure="use a smaller size",
            code="too-large",
        )


def find_memory_bytes() -> int | None:
    """Return the memory of this host in bytes, None if the system does not report it."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
