"""A run for users: its checked parameters, before any data is created, and its result.

The result has a verdict, times, and bandwidths as defined by nccl-tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from collhub_execution.command_options import RunOptions
from collhub_execution.input_data import (
    Array,
    are_results_exact,
    block_elements,
    element_type,
    exact_inputs,
    random_inputs,
)
from collhub_execution.levelling import (
    check_memory,
    find_memory_bytes,
    levelled_program,
    refuse_timing_only,
)
from collhub_execution.output_judgement import OutputJudgement, judge
from collhub_execution.program_levels import BlockCounts, block_counts
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    Diagnostic,
    JsonValue,
    ReduceOp,
    Severity,
    UsageError,
)

_FULL_VECTOR = frozenset({CollectiveKind.BROADCAST, CollectiveKind.REDUCE})


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
        """Check the options against the algorithm and build the setup; `name` is used in messages.

        The size is `options.size`, else that of the algorithm, in bytes of the full buffer. The
        number of elements per block is rounded down, or up with the option `pad`, and is at
        least 1. The operator is `options.op`, in any case of letters, else that of the collective.
        The run is in place if the options request it or if the collective has no out-of-place form.

        Raises, in this order: `UsageError` (`no-size`) if there is no size; `UsageError` for an
        unknown type, or `PluginError` for bfloat16 without ml_dtypes; `UsageError` (`unknown-op`);
        `InputError` (`timing-only`) for an algorithm without contents. If the buffers of all ranks
        and a copy of the inputs exceed the memory of this host (not checked if that is unknown):
        the `InputError` of `levelled_program`, or `UsageError` (`too-large`) without one.
        """
        # The bytes of the full buffer: `size` if given, else that of the algorithm.
        if options.size is not None:
            size = options.size
        else:
            if algorithm.collective_bytes is None:
                cure = "give one, for example --size 1MiB"
                raise UsageError(f"{name} states no size", cure=cure, code="no-size")
            size = algorithm.collective_bytes
        dtype = element_type(options.dtype)
        op = algorithm.collective.reduce_op
        if options.op is not None:
            if options.op.lower() not in set(ReduceOp):
                cure = f"use one of {', '.join(ReduceOp)}"
                message = f"there is no reduction {options.op!r}"
                raise UsageError(message, cure=cure, code="unknown-op")
            op = ReduceOp(options.op.lower())
        refuse_timing_only(algorithm)
        in_place = options.in_place or not algorithm.collective.out_of_place
        blocks = block_counts(algorithm)
        elements = block_elements(blocks, size, dtype, options.pad)
        setup = cls(algorithm, in_place, size, dtype, op, blocks, elements, options)
        # The buffers of all ranks and a second copy of all inputs must fit. Levelling adds SCRATCH,
        # which executors check.
        layout = algorithm.collective.memory_layout(in_place, algorithm.scratch_units)
        units = layout.total + int(algorithm.collective.input_units().sum())
        unit_bytes = setup.collective_bytes / algorithm.collective.unit_count
        available = find_memory_bytes()
        if available is not None and units * unit_bytes > available:
            # Levelled only on the way to an error, which then reports the exact requirement.
            program = levelled_program(algorithm, in_place)
            check_memory(program, elements, dtype)
        return setup

    @property
    def collective_bytes(self) -> int:
        """Bytes of the full buffer, with an integral number of elements per block."""
        return self.elements * self.blocks.full_buffer * self.dtype.itemsize

    def notes(self) -> list[Diagnostic]:
        """Return a note (`size-rounded`) if the run moves another number of bytes than requested.

        The list is empty if the numbers are equal. They differ if the requested bytes are not a
        multiple of the bytes of one element in every block: the size is then rounded down (to
        at least one element per block), or up with the option `pad`. The message has both
        sizes.
        """
        if self.collective_bytes == self.asked_bytes:
            return []
        message = (
            f"{self.asked_bytes} bytes are not a whole number of {self.dtype.name} elements in "
            f"each of {self.blocks.full_buffer} chunks: {self.collective_bytes} bytes are run"
        )
        if self.options.pad:
            message += f", {self.collective_bytes - self.asked_bytes} of them padding"
        return [Diagnostic("size-rounded", message, Severity.NOTE)]

    @property
    def is_exact(self) -> bool:
        """Return whether results must be bitwise correct for any order of reduction.

        It is False without `data=exact`. With it, sums and averages need fewer than 2^b ranks,
        where b is the number of bits with which the dtype stores integers exactly
        (`significand_bits`): 8 for bfloat16, 24 for float32. All other operators give True for any
        number of ranks.
        """
        # Sums over too many ranks are rounded even with patterns of integers.
        is_pattern = self.options.data == "exact"
        return is_pattern and are_results_exact(self.algorithm.num_ranks, self.dtype, self.op)

    @property
    def claims_mode(self) -> bool:
        """Return whether the algorithm supports the mode of this run.

        The mode is in place or out of place.
        """
        collective = self.algorithm.collective
        return collective.in_place if self.in_place else collective.out_of_place

    def inputs(self) -> tuple[Array, ...]:
        """Create the inputs of all ranks: exact integers, or random numbers with `data=random`.

        Every call computes new arrays with equal values.
        """
        create = exact_inputs if self.options.data == "exact" else random_inputs
        return create(self.blocks, self.elements, self.dtype, self.op)

    def judge(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> OutputJudgement:
        """Compare the outputs of a run on `inputs` with the definition of the collective."""
        return judge(self.algorithm.collective, inputs, outputs, self.op, self.is_exact)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Result of a run: seconds of its repeats, and of the library's collective, if any."""

    setup: RunSetup
    judgement: OutputJudgement
    repeat_times_s: tuple[float, ...]
    native_times_s: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every rank's output is as the collective defines it."""
        return self.judgement.is_right

    @property
    def time_s(self) -> float:
        """Median of the repeats in seconds."""
        return median(self.repeat_times_s)

    @property
    def native_time_s(self) -> float | None:
        """Median of the library's collective in seconds."""
        return median(self.native_times_s) if self.native_times_s else None

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes per second, as defined by nccl-tests."""
        return algorithm_bandwidth(self.setup.collective_bytes, self.time_s)

    @property
    def bus_bandwidth(self) -> float | None:
        """Return the bus bandwidth in bytes/s as nccl-tests defines it, from the median time.

        None for custom collectives.
        """
        setup = self.setup
        return bus_bandwidth(setup.algorithm.collective, setup.collective_bytes, self.time_s)

    def fields(self) -> dict[str, JsonValue]:
        """Return the result as fields of the JSON report, in their order.

        These are ok, collective, num_ranks, collective_bytes, dtype, reduce_op, in_place,
        comparison, max_abs_error, ranks_agree_bitwise, time_s, algorithm_bandwidth_bytes_per_s,
        bus_bandwidth_bytes_per_s and native_time_s. `collective_bytes` is the size after rounding.
        `time_s` and `native_time_s` are medians of the repeats in seconds; bandwidths are in bytes
        per second. `collective`, `dtype`, `reduce_op` and `comparison` are texts.
        `bus_bandwidth_bytes_per_s` is None for a custom collective, and `native_time_s` if the
        native collective was not run.
        """
        setup, judgement = self.setup, self.judgement
        return {
            "ok": self.ok,
            "collective": str(setup.algorithm.collective.kind),
            "num_ranks": setup.algorithm.num_ranks,
            "collective_bytes": setup.collective_bytes,
            "dtype": setup.dtype.name,
            "reduce_op": str(setup.op),
            "in_place": setup.in_place,
            "comparison": str(judgement.comparison),
            "max_abs_error": judgement.max_abs_error,
            "ranks_agree_bitwise": judgement.ranks_agree,
            "time_s": self.time_s,
            "algorithm_bandwidth_bytes_per_s": self.algorithm_bandwidth,
            "bus_bandwidth_bytes_per_s": self.bus_bandwidth,
            "native_time_s": self.native_time_s,
        }


def algorithm_bandwidth(collective_bytes: int, time_s: float) -> float:
    """Return bytes of the full buffer per second."""
    return collective_bytes / time_s


def bus_bandwidth(collective: Collective, collective_bytes: int, time_s: float) -> float | None:
    """Return the bus bandwidth in bytes/s as nccl-tests defines it; None for custom collectives.

    It is the rate of the busiest link of an ideal network: `collective_bytes` (the full
    buffer) divided by `time_s`, times a factor. For n ranks the factor is 2 (n - 1) / n for
    an all-reduce, 1 for a broadcast or reduce, and (n - 1) / n for other collectives (NVIDIA
    nccl-tests, doc/PERFORMANCE.md). `time_s` must not be 0.
    """
    kind, num_ranks = collective.kind, collective.num_ranks
    if kind is CollectiveKind.CUSTOM:
        return None
    if kind in _FULL_VECTOR:
        factor = 1.0
    else:
        factor = (num_ranks - 1) / num_ranks
        # Every element crosses the links twice: once to be reduced, once to be distributed.
        if kind is CollectiveKind.ALL_REDUCE:
            factor = 2 * factor
    return factor * algorithm_bandwidth(collective_bytes, time_s)
