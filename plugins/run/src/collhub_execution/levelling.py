"""Convert an algorithm to a levelled program, or report the steps that prevent it from running.

A levelled request is the common work of all executors: level the algorithm of a request, check its
inputs and the memory, run it, and divide averages.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collhub_execution.input_data import (
    AnyArray,
    check_inputs,
    choose_background,
    count_block_elements,
    divide_averages,
)
from collhub_execution.program_levels import (
    Edges,
    LevelledProgram,
    assign_levels,
    convert_to_blocks,
    find_units_per_block,
)
from collhub_execution.record_expansion import SortedRecords, expand_steps
from hub_core.columns import group_pointer
from hub_core.model import (
    CAP,
    Algorithm,
    Buffer,
    Collective,
    Diagnostic,
    Findings,
    InputError,
    Location,
    ReduceOp,
    StepTable,
    UsageError,
    action,
    describe,
    format_bytes,
    match_messages,
)
from hub_core.plugin_api import ExecutionRequest, ExecutionResult
from hub_core.verification import (
    HappensBefore,
    OrderGraph,
    Regions,
    adjacent_conflicts,
    check_regions,
    find_regions,
    happens_before,
    report_deadlock,
    sequential_positions,
    unordered_in,
)

# Limit with which addresses in bytes fit into 64 bits.
_MAX_BLOCKS = 1 << 40


def levelled_program(
    algorithm: Algorithm, in_place: bool, *, allow_races: bool = False
) -> LevelledProgram:
    """Build the levelled program of an algorithm: the records of each rank, ordered by level.

    A record is an operation of a rank. A message has the same level at both ends, so that ranks
    that work level by level never wait in a cycle. Within a level, messages come first, in the same
    order at both ends; local operations follow. If a transport without buffers would deadlock, some
    messages are stored in SCRATCH first (`assign_levels`). Conflicting accesses of a rank keep
    their order. `in_place`: whether INPUT and OUTPUT share memory. It is not checked that the
    collective supports this. The time is nearly linear in the number of steps.

    Raises `InputError` for the first of these defects:

    1. a timing-only algorithm (`timing-only`)
    2. unmatched messages and regions outside their buffers (all of them)
    3. a deadlock even with unbounded buffers: one cycle, and the first blocked step of every rank
    4. 2^40 blocks of memory or more (`too-large`)
    5. without `allow_races`: accesses to common units that nothing orders. With it, they have the
       order of a run that visits the ranks in ascending order (`_find_conflicts`).
    """
    findings = Findings(algorithm.provenance.source_name or None)
    refuse_timing_only(algorithm)
    messages = match_messages(algorithm.steps, findings)
    is_valid = check_regions(algorithm, findings)
    if findings.has_errors():
        raise InputError(findings)
    # Cycles are searched before races: the order of a deadlock does not determine races.
    relation = happens_before(algorithm.steps)
    if not relation.order.is_complete:
        # Diagnostics: one for a cycle of waiting steps, then one for each rank that is blocked.
        report_deadlock(algorithm.steps, relation, findings)
        cycle = next(item for item in findings if item.code == "deadlock")
        # Rows are grouped by rank, so the first index of a rank is its first step.
        stuck = np.flatnonzero(relation.order.position < 0)
        _, first = np.unique(algorithm.steps.rank[stuck], return_index=True)
        waiting = []
        for row in stuck[first].tolist():
            message = f"is at this {action(algorithm.steps, row)}, which never runs"
            location = algorithm.steps.location(row, findings.file)
            waiting.append(Diagnostic("blocked", message, location=location))
        raise InputError([cycle, *waiting])
    block_units = find_units_per_block(algorithm)
    collective = convert_to_blocks(algorithm.collective, block_units)
    scratch = algorithm.scratch_units // block_units
    # Addresses in bytes might otherwise exceed 64 bits.
    parts = (collective.input_units(), collective.output_units(), scratch)
    # Summed as floats, because the sum may not fit into 64 bits.
    blocks = sum(float(part.astype(np.float64).sum()) for part in parts)
    if blocks >= _MAX_BLOCKS:
        raise InputError(
            f"too large to run: {blocks:.3g} blocks of memory (limit 2^40)", code="too-large"
        )
    layout = collective.memory_layout(in_place, scratch)
    regions = find_regions(algorithm, layout, is_valid, block_units)
    conflicts = _find_conflicts(algorithm.steps, relation, regions, allow_races, findings)
    levels = assign_levels(algorithm.steps, messages, relation, conflicts)
    records = expand_steps(algorithm.steps, messages, regions, levels, scratch, block_units)
    return _build_program(records, collective, block_units, in_place)


def levelled_request(request: ExecutionRequest) -> LevelledRequest:
    """Prepare a request for an executor: level its algorithm, check inputs and memory.

    - Operator: an average becomes a sum, and the caller must divide the results.
    - Background, i.e. the value with which memory without input is filled: that of
      `choose_background` for the dtype of the first input and the operator of the request.
    - Inputs: read-only flat views. If the collective defines no input for a rank, a new array of
      the same size with the background replaces it. The arrays of the request stay writable.

    The request is not changed. Raises, in this order: `InputError` as `levelled_program` (races are
    refused); `UsageError` for another number of inputs than ranks, or a wrong size or dtype;
    `UsageError` (`too-large`) if all buffers plus a copy of the inputs exceed the physical memory
    of this host. The memory is not checked if its size is unknown.
    """
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
        """Return how often each rank executes the program.

        It is the sum of warm-ups and repeats, and one more if step times are requested.
        """
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
    """Level a request, run it with the function `run`, and complete the result.

    All executors use it. `run` gets the operations ordered by level (`LevelledRequest`). For an
    average, it sums, and the sums are divided after the timed part. `messages` and `levels` are
    added to the statistics, unless `run` returns them. Raises `InputError` for algorithms that
    cannot run (see `levelled_program`), and `UsageError` for invalid inputs and if this host has
    too little memory.
    """
    levelled = levelled_request(request)
    # Divide sums of averages, and add the statistics of the program.
    result = run(levelled)
    outputs = result.outputs
    if request.reduce_op is ReduceOp.AVG:
        outputs = divide_averages(request.algorithm.collective, outputs)
    program = levelled.program
    counts = {"messages": program.num_messages, "levels": program.num_rounds}
    return replace(result, outputs=outputs, statistics={**counts, **result.statistics})


def check_memory(program: LevelledProgram, elements: int, dtype: np.dtype[Any]) -> None:
    """Raise `UsageError` (`too-large`) if the program needs more memory than this host has.

    Needed are the buffers of all ranks plus a second copy of all inputs. `elements`: number of
    elements per block. The host counts with its entire physical memory, even if other programs use
    some. There is no check if it is unknown.
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
    """Return the physical memory of this host in bytes.

    None if the system does not report it.
    """
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_timing_only(algorithm: Algorithm) -> None:
    """Raise `InputError` for an algorithm whose steps do not specify the units that they access."""
    if not algorithm.has_contents:
        message = (
            "a timing-only algorithm: its steps do not specify the units that they access, "
            "so it cannot be run"
        )
        file = algorithm.provenance.source_name or None
        raise InputError(message, location=Location(file), code="timing-only")


def _find_conflicts(
    steps: StepTable,
    relation: HappensBefore,
    regions: Regions,
    allow_races: bool,
    findings: Findings,
) -> Edges:
    """Return pairs of rows (earlier, later) with a common unit that must keep their order.

    At least one row of a pair writes the unit. In the order of `relation` (happens-before), only
    neighbouring accesses of a unit are paired (`adjacent_conflicts`). All other pairs follow from
    these. A pair that `relation` leaves unordered is a race.

    - No race: the pairs are returned; `allow_races` has no effect.
    - Races and `allow_races`: the neighbours of another order are returned. It is the order of a
      run that visits the ranks in ascending order, again and again. On each visit it executes all
      steps of the rank that are ready.
    - Races otherwise: up to `CAP` races, each at its later step, and the number of further races
      are added to `findings`, then `InputError` is raised from `findings`.
    """
    # Neighbours in one linear extension suffice: the remaining pairs follow transitively.
    earlier, later = adjacent_conflicts(regions, relation.order.position)
    racing = unordered_in(OrderGraph(steps, relation), earlier, later)
    if not len(racing):
        return earlier, later
    if allow_races:
        return adjacent_conflicts(regions, sequential_positions(relation))
    for index in racing[:CAP].tolist():
        first, second = int(earlier[index]), int(later[index])
        message = (
            f"nothing orders this {action(steps, second)} after {describe(steps, first)}, "
            "which accesses the same units"
        )
        location = steps.location(second, findings.file)
        findings.add("race", message, location, cure="add a dependency between the two")
    findings.count("race", len(racing) - CAP)
    raise InputError(findings)


def _build_program(
    records: SortedRecords, collective: Collective, block_units: int, in_place: bool
) -> LevelledProgram:
    """Convert sorted records to a `LevelledProgram` with the memory layout of all ranks.

    A record is a step in executable form. `records` must be sorted by rank; a rank may have
    none. `records.scratch` is the size of SCRATCH of every rank. The columns `kind`,
    `src_buffer` and `dst_buffer` become uint8; `level` and `peer` become int32. Values must
    fit, which is not checked. All other columns are shared with `records`.

    All sizes, offsets and counts of the arguments are in blocks of `block_units` units, also
    those of `collective`. They are not converted; `block_units` is only stored. With
    `in_place`, input and output share memory as the collective defines.
    """
    columns = records.columns
    return LevelledProgram(
        kind=columns["kind"].astype(np.uint8),
        level=columns["level"].astype(np.int32),
        peer=columns["peer"].astype(np.int32),
        message=columns["message"],
        src_buffer=columns["src_buffer"].astype(np.uint8),
        src_offset=columns["src_offset"],
        dst_buffer=columns["dst_buffer"].astype(np.uint8),
        dst_offset=columns["dst_offset"],
        count=columns["count"],
        row=columns["row"],
        rank_indptr=group_pointer(records.rank, collective.num_ranks),
        unit_count=collective.unit_count,
        block_units=block_units,
        in_place=in_place,
        layout=collective.memory_layout(in_place, records.scratch),
    )
