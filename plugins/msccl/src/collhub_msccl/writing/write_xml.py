"""Write an algorithm as MSCCL-IR XML that a given runtime loads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collhub_msccl.options import WriteOptions
from collhub_msccl.runtimes.known_runtimes import (
    MAX_CHILDREN,
    MAX_COUNT,
    MAX_OFFSET,
    Runtime,
    describe_versions,
)
from collhub_msccl.writing.choose import WritingTask, choose_program
from collhub_msccl.writing.emission import Memory
from collhub_msccl.writing.emission_header import Target, choose_target, compute_largest_size
from collhub_msccl.writing.emission_program import format_xml
from collhub_msccl.writing.xml_losses import describe_figures, find_losses
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Collective, InputError, JsonValue, Location, StepTable
from hub_core.plugin_api import Artifact, WriteResult
from hub_core.verification import common_unit

# The file contains these in the form of its runtime: steps in thread blocks, waits instead of
# dependencies, and a new header.
_CONVERTED = ("steps", "lane", "dependencies", "source_line", "scratch_units", "extensions")
_MAX_UNITS = (1 << 31) - 1


def write(algorithm: Algorithm, options: WriteOptions) -> WriteResult:
    """Write one file for the runtime of the options; the plugin's documentation lists the losses.

    Raises `InputError` with the exceeded limit if the runtime cannot execute the algorithm, and
    `UsageError` for options that do not fit it.
    """
    coarse = _convert_to_larger_units(algorithm)
    target = choose_target(coarse, options)
    _check_size(coarse, target.runtime)
    chosen = choose_program(_build_task(coarse, target, options))
    largest = compute_largest_size(coarse, target, chosen.safety)
    content = format_xml(target.build_attributes(chosen.program, largest), chosen.program)
    losses = find_losses(algorithm, coarse, target, largest, chosen)
    notes = [describe_figures(chosen.figures, coarse.collective.unit_count)]
    # Without the option the user did not choose the runtime: no note about its versions.
    notes += describe_versions(target.runtime.name, "is") if options.runtime else []
    return WriteResult([Artifact("", lambda: content)], losses, _CONVERTED, notes)


def _convert_to_larger_units(algorithm: Algorithm) -> Algorithm:
    """The algorithm in the largest unit that divides all sizes, if counts or offsets are too
    large for the format; else unchanged."""
    if _is_representable(algorithm.steps):
        return algorithm
    unit = common_unit(algorithm)
    contract = algorithm.collective.contract
    # The expected result of a contract is defined per unit.
    if unit == 1 or (contract is not None and contract.expected is not None):
        return algorithm
    steps = algorithm.steps
    columns = {name: getattr(steps, name) // unit for name in ("src_offset", "dst_offset", "count")}
    return replace(
        algorithm,
        collective=_scale_collective(algorithm.collective, unit),
        steps=replace(steps, **columns),
        scratch_units=algorithm.scratch_units // unit,
    )


def _is_representable(steps: StepTable) -> bool:
    """Whether the format can represent all counts and offsets."""
    source_end = steps.src_offset + steps.count
    target_end = steps.dst_offset + steps.count
    reach = max(int(source_end.max(initial=0)), int(target_end.max(initial=0)))
    return int(steps.count.max(initial=0)) <= MAX_COUNT and reach <= MAX_OFFSET


def _scale_collective(collective: Collective, unit: int) -> Collective:
    """The same collective in units that are `unit` times as large."""
    contract = collective.contract
    if contract is not None:
        contract = replace(
            contract,
            input_units=contract.input_units // unit,
            output_units=contract.output_units // unit,
        )
    # The model requires at least one unit.
    unit_count = max(1, collective.unit_count // unit)
    return replace(collective, unit_count=unit_count, contract=contract)


def _check_size(algorithm: Algorithm, runtime: Runtime) -> None:
    """Raise `InputError` for sizes that no assignment of steps can fit into the runtime."""
    location = Location(algorithm.provenance.source_name or None)
    for number, limit, noun in (
        (algorithm.num_ranks, MAX_CHILDREN, "ranks"),
        (algorithm.collective.unit_count, _MAX_UNITS, "chunks"),
    ):
        if number > limit:
            excess = f"{number} {noun}, more than the {limit} that it accepts"
            message = f"cannot be written for {runtime.title}: {excess}"
            raise InputError(message, location=location, code="runtime-limit")


def _build_task(
    algorithm: Algorithm,
    target: Target,
    options: WriteOptions,
) -> WritingTask:
    """Writing task within the limits of the runtime or of the options."""
    runtime = target.runtime
    limits = replace(
        runtime,
        max_steps=options.max_steps or runtime.max_steps,
        max_channels=options.max_channels or runtime.max_channels,
    )
    return WritingTask(
        algorithm,
        target.collective,
        target.protocol,
        _build_memory(algorithm, target),
        limits,
        _choose_channels(algorithm, options, limits.max_channels),
    )


def _choose_channels(algorithm: Algorithm, options: WriteOptions, max_channels: int) -> int | None:
    """Number of channels to distribute steps over; None if the producer's channels are kept."""
    if options.channels is not None:
        return min(options.channels, max_channels)
    extension = algorithm.extensions.get("msccl")
    is_open = isinstance(extension, dict) and extension.get("channels") == "unstated"
    return max_channels if is_open else None


def _build_memory(algorithm: Algorithm, target: Target) -> Memory:
    """Buffers, and their aliases in every mode that the file claims."""
    collective, scratch = target.collective, algorithm.scratch_units
    modes = []
    if collective.in_place:
        modes.append(True)
    if collective.out_of_place:
        modes.append(False)
    input_chunks, output_chunks = target.declared_chunks
    return Memory(
        input_chunks,
        output_chunks,
        scratch_chunks=_read_declared_scratch(algorithm),
        bases=tuple(collective.memory_layout(mode, scratch).base for mode in modes),
        is_compact=False,
    )


def _read_declared_scratch(algorithm: Algorithm) -> Int64Array:
    """Scratch that the imported file declared, int64 per rank; 0 if there was none."""
    extension = algorithm.extensions.get("msccl")
    declared: JsonValue = extension.get("s_chunks") if isinstance(extension, dict) else None
    # One number for all ranks, or one per rank; see the reader.
    sizes = declared if isinstance(declared, list) else [declared] * algorithm.num_ranks
    if len(sizes) != algorithm.num_ranks:
        return np.zeros(algorithm.num_ranks, np.int64)
    return np.asarray([_to_size(size) for size in sizes], np.int64)


def _to_size(size: JsonValue) -> int:
    """A size that the format can represent, else 0: extensions can contain any value."""
    if isinstance(size, int) and 0 <= size <= MAX_OFFSET:
        return size
    return 0
