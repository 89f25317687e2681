"""The checked parameters of a run, before any data is created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collhub_execution.data.element_types import Array, element_type
from collhub_execution.data.inputs import (
    are_results_exact,
    block_elements,
    exact_inputs,
    random_inputs,
)
from collhub_execution.levelling.levelled_program import levelled_program, refuse_timing_only
from collhub_execution.levelling.program import BlockCounts, block_counts
from collhub_execution.output_judgement import OutputJudgement, judge
from collhub_execution.request_levelling import check_memory, find_memory_bytes
from collhub_execution.running.options import RunOptions
from hub_core.model import Algorithm, Diagnostic, ReduceOp, Severity, UsageError


@dataclass(frozen=True, slots=True)
class RunSetup:
    """An algorithm with the size, the element type and the operator of a run.

    `asked_bytes`: requested size of the full buffer, before rounding. `blocks`: those of the
    algorithm; `elements`: per block. Created by `of`, which refuses contradictory options.
    """

    algorithm: Algorithm
    in_place: bool
    asked_bytes: int
    dtype: np.dtype[Any]
    op: ReduceOp
    blocks: BlockCounts
    elements: int
    options: RunOptions

    @classmethod
    def of(cls, algorithm: Algorithm, options: RunOptions, name: str) -> RunSetup:
        """Check the options against the algorithm, which messages call `name`.

        Raises `UsageError` for invalid sizes, types and operators, `InputError` for algorithms that
        cannot run.
        """
        size = _choose_size(algorithm, options.size, name)
        dtype, op = element_type(options.dtype), _choose_operator(algorithm, options.op)
        refuse_timing_only(algorithm)
        in_place = options.in_place or not algorithm.collective.out_of_place
        blocks = block_counts(algorithm)
        elements = block_elements(blocks, size, dtype)
        setup = cls(algorithm, in_place, size, dtype, op, blocks, elements, options)
        setup._refuse_too_large()
        return setup

    @property
    def collective_bytes(self) -> int:
        """Bytes of the full buffer, with an integral number of elements per block."""
        return self.elements * self.blocks.full_buffer * self.dtype.itemsize

    def notes(self) -> list[Diagnostic]:
        """Return a note if the size differs from the requested one."""
        if self.collective_bytes == self.asked_bytes:
            return []
        message = (
            f"{self.asked_bytes} bytes are not a whole number of {self.dtype.name} elements in "
            f"each of {self.blocks.full_buffer} chunks: {self.collective_bytes} bytes are run"
        )
        return [Diagnostic("size-rounded", message, Severity.NOTE)]

    @property
    def is_exact(self) -> bool:
        """Whether results must be bitwise correct, in any order of reduction."""
        # Sums over too many ranks are rounded even with patterns of integers.
        is_pattern = self.options.data == "exact"
        return is_pattern and are_results_exact(self.algorithm.num_ranks, self.dtype, self.op)

    @property
    def claims_mode(self) -> bool:
        """Whether the algorithm claims the mode of this run (in place or out of place)."""
        collective = self.algorithm.collective
        return collective.in_place if self.in_place else collective.out_of_place

    def inputs(self) -> tuple[Array, ...]:
        """Return the inputs of all ranks; every call returns the same values."""
        create = exact_inputs if self.options.data == "exact" else random_inputs
        return create(self.blocks, self.elements, self.dtype, self.op)

    def judge(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> OutputJudgement:
        """Compare the outputs of a run on `inputs` with the definition of the collective."""
        return judge(self.algorithm.collective, inputs, outputs, self.op, self.is_exact)

    def _refuse_too_large(self) -> None:
        """Raise `UsageError` if the memory of this host is too small, before inputs are created.

        Does not include the scratch that levelling adds, which executors check.
        """
        algorithm = self.algorithm
        scratch = algorithm.scratch_units
        layout = algorithm.collective.memory_layout(self.in_place, scratch)
        units = layout.total + int(algorithm.collective.input_units().sum())
        unit_bytes = self.collective_bytes / algorithm.collective.unit_count
        available = find_memory_bytes()
        if available is not None and units * unit_bytes > available:
            # Levelled only on the way to an error, which then reports the exact requirement.
            program = levelled_program(algorithm, self.in_place)
            check_memory(program, self.elements, self.dtype)


def _choose_size(algorithm: Algorithm, size: int | None, name: str) -> int:
    """Return bytes of the full buffer: the given size, else that of the algorithm.

    Raises `UsageError`.
    """
    if size is not None:
        return size
    if algorithm.collective_bytes is None:
        cure = "give one, for example --size 1MiB"
        raise UsageError(f"{name} states no size", cure=cure, code="no-size")
    return algorithm.collective_bytes


def _choose_operator(algorithm: Algorithm, text: str | None) -> ReduceOp:
    """Return the given operator, case-insensitive, else that of the collective.

    Raises `UsageError`.
    """
    if text is None:
        return algorithm.collective.reduce_op
    if text.lower() not in set(ReduceOp):
        cure = f"use one of {', '.join(ReduceOp)}"
        raise UsageError(f"there is no reduction {text!r}", cure=cure, code="unknown-op")
    return ReduceOp(text.lower())
