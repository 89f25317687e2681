"""Write an algorithm as MSCCL-IR XML that a chosen runtime loads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.lowering import lower
from collhub_msccl.runtimes.known_runtimes import (
    FIFO_CAPACITY,
    MOST_CHILDREN,
    MOST_COUNT,
    MOST_OFFSET,
    Runtime,
)
from collhub_msccl.thread_block_program import ThreadBlockProgram
from collhub_msccl.writing.assemble import ProgramLimits, assemble
from collhub_msccl.writing.emission import Memory
from collhub_msccl.writing.emission_header import Target, largest_size, target_of
from collhub_msccl.writing.emission_text import xml_text
from collhub_msccl.writing.xml_losses import losses_of
from hub_core.algorithm import Algorithm, JsonValue
from hub_core.collectives import Collective
from hub_core.diagnostics import Diagnostic, InputError, Location
from hub_core.plugins.contract import Artifact, Options, WriteResult
from hub_core.steps import StepTable
from hub_core.verification import FifoSafety, fifo_safety
from hub_core.verification.regions import common_unit

# The file has them in the form of its runtime: steps in thread blocks, waits instead of dependencies, its own header.
_RESTATED = ("steps", "lane", "dependencies", "source_line", "scratch_units", "extensions")


def write(algorithm: Algorithm, options: Options) -> WriteResult:
    """Write one file for the runtime that the options name; see the plugin's page for what is kept.

    Raises `InputError` for what the runtime has no way to run, naming its limit, and `UsageError` for options that do
    not fit the algorithm.
    """
    coarse = _in_larger_units(algorithm)
    target = target_of(coarse, options)
    _check_size(coarse, target.runtime)
    program, safety = _safe_program(coarse, target, options)
    largest = largest_size(coarse, target, safety)
    content = xml_text(target.attributes(program, largest), program)
    return WriteResult(
        [Artifact("", lambda: content)], losses_of(algorithm, coarse, target, largest), _RESTATED
    )


def _in_larger_units(algorithm: Algorithm) -> Algorithm:
    """The same algorithm in the largest units that divide everything, where the given ones are too small for the format."""
    steps, collective = algorithm.steps, algorithm.collective
    reach = int(
        max((side + steps.count).max(initial=0) for side in (steps.src_offset, steps.dst_offset))
    )
    if int(steps.count.max(initial=0)) <= MOST_COUNT and reach <= MOST_OFFSET:
        return algorithm
    unit = common_unit(algorithm)
    contract = collective.contract
    if unit == 1 or (contract is not None and contract.expected is not None):
        return algorithm
    if contract is not None:
        sizes = contract.input_units // unit, contract.output_units // unit
        contract = replace(contract, input_units=sizes[0], output_units=sizes[1])
    columns = {name: getattr(steps, name) // unit for name in ("src_offset", "dst_offset", "count")}
    return replace(
        algorithm,
        collective=replace(
            collective, unit_count=max(1, collective.unit_count // unit), contract=contract
        ),
        steps=replace(steps, **columns),
        scratch_units=algorithm.scratch_units // unit,
    )


def _check_size(algorithm: Algorithm, runtime: Runtime) -> None:
    place = Location(algorithm.provenance.source_name or None)
    for found, most, what in (
        (algorithm.num_ranks, MOST_CHILDREN, "ranks"),
        (algorithm.collective.unit_count, (1 << 31) - 1, "chunks"),
    ):
        if found > most:
            message = f"cannot be written for {runtime.title}: {found} {what}, more than the {most} that it takes"
            raise InputError(message, location=place, code="runtime-limit")


def _safe_program(
    algorithm: Algorithm, target: Target, options: Options
) -> tuple[ThreadBlockProgram, FifoSafety]:
    """The program, with steps fused unless that makes it deadlock where the FIFOs of connections fill up."""
    memory = _memory(algorithm, target)
    for is_fusing in (True, False) if target.runtime.has_fused_steps else (False,):
        program = assemble(algorithm, memory, _limits(target.runtime, options, is_fusing))
        safety = fifo_safety(_lowered(program, target.collective), FIFO_CAPACITY[target.protocol])
        if safety.min_units is not None:
            return program, safety
    raise InputError(
        f"cannot be written for {target.runtime.title}: it deadlocks at every size, as a connection holds only"
        f" {safety.capacity} transfers in the protocol {target.protocol}",
        location=Location(algorithm.provenance.source_name or None),
        cure="choose -O proto=LL or LL128"
        if target.protocol == "Simple"
        else "let receives come before further sends",
        code="fifo-deadlock",
    )


def _limits(runtime: Runtime, options: Options, is_fusing: bool) -> ProgramLimits:
    stated = {name: options.get(name) for name in ("max_steps", "max_channels")}
    steps, channels = (value if isinstance(value, int) else None for value in stated.values())
    return ProgramLimits(
        runtime,
        runtime.max_blocks,
        runtime.max_steps if steps is None else steps,
        runtime.max_channels if channels is None else channels,
        is_fusing,
    )


def _memory(algorithm: Algorithm, target: Target) -> Memory:
    collective = target.collective
    modes = [
        mode
        for mode, is_claimed in ((True, collective.in_place), (False, collective.out_of_place))
        if is_claimed
    ]
    return Memory(
        *target.declared_chunks,
        scratch_chunks=_declared_scratch(algorithm),
        bases=tuple(collective.memory_layout(mode, algorithm.scratch_units).base for mode in modes),
        is_compact=False,
    )


def _declared_scratch(algorithm: Algorithm) -> npt.NDArray[np.int64]:
    """The scratch that an imported file declared, 0 where there was none."""
    extension = algorithm.extensions.get("msccl")
    declared: JsonValue = extension.get("s_chunks") if isinstance(extension, dict) else None
    sizes = declared if isinstance(declared, list) else [declared] * algorithm.num_ranks
    if len(sizes) != algorithm.num_ranks:
        return np.zeros(algorithm.num_ranks, np.int64)
    return np.asarray(
        [size if isinstance(size, int) and 0 <= size <= MOST_OFFSET else 0 for size in sizes],
        np.int64,
    )


def _lowered(program: ThreadBlockProgram, collective: Collective) -> Algorithm:
    """What the file does, as its reader would have it, but for dependencies that follow from others."""
    lowered = lower(program, False, FileFindings("", _ignore))
    table = StepTable.from_columns(
        program.num_ranks, lowered.columns, lowered.data, lowered.control
    )
    return Algorithm(collective, table, lowered.scratch_units)


def _ignore(_diagnostic: Diagnostic) -> None:
    pass
