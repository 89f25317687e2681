"""Write an algorithm as MSCCL-IR XML that a chosen runtime loads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_columns import Int64Array

from collhub_msccl.options import WriteOptions
from collhub_msccl.runtimes.known_runtimes import (
    MAX_CHILDREN,
    MAX_COUNT,
    MAX_OFFSET,
    Runtime,
)
from collhub_msccl.runtimes.versions import describe_versions
from collhub_msccl.writing.choose import WritingTask, choose_program
from collhub_msccl.writing.emission import Memory
from collhub_msccl.writing.emission_header import Target, largest_size, target_of
from collhub_msccl.writing.emission_text import xml_text
from collhub_msccl.writing.xml_losses import losses_of, note_of
from hub_core.model import Algorithm, Collective, InputError, JsonValue, Location, StepTable
from hub_core.plugin_api import Artifact, WriteResult
from hub_core.verification import common_unit

# The file has them in the form of its runtime: steps in thread blocks, waits instead of
# dependencies, its own header.
_RESTATED = ("steps", "lane", "dependencies", "source_line", "scratch_units", "extensions")
_MOST_UNITS = (1 << 31) - 1


def write(algorithm: Algorithm, options: WriteOptions) -> WriteResult:
    """Write one file for the runtime that the options name; see the plugin's page for what is kept.

    Raises `InputError` for what the runtime has no way to run, naming its limit, and `UsageError`
    for options that do not fit the algorithm.
    """
    coarse = _in_larger_units(algorithm)
    target = target_of(coarse, options)
    _check_size(coarse, target.runtime)
    chosen = choose_program(_task(coarse, target, options))
    largest = largest_size(coarse, target, chosen.safety)
    content = xml_text(target.attributes(chosen.program, largest), chosen.program)
    losses = losses_of(algorithm, coarse, target, largest, chosen)
    notes = [note_of(chosen.figures, coarse.collective.unit_count)]
    # Without the option the default is not one of the user's choice, and is not discussed.
    notes += describe_versions(target.runtime.name, "is") if options.runtime else []
    return WriteResult([Artifact("", lambda: content)], losses, _RESTATED, notes)


def _in_larger_units(algorithm: Algorithm) -> Algorithm:
    """The same algorithm in the largest units that divide everything, if that is needed.

    It is where counts or offsets are too large for the format.
    """
    if _fits(algorithm.steps):
        return algorithm
    unit = common_unit(algorithm)
    contract = algorithm.collective.contract
    # What a contract expects is stated unit by unit.
    if unit == 1 or (contract is not None and contract.expected is not None):
        return algorithm
    steps = algorithm.steps
    columns = {name: getattr(steps, name) // unit for name in ("src_offset", "dst_offset", "count")}
    return replace(
        algorithm,
        collective=_collective_in(algorithm.collective, unit),
        steps=replace(steps, **columns),
        scratch_units=algorithm.scratch_units // unit,
    )


def _fits(steps: StepTable) -> bool:
    """Whether the format has place for all counts and offsets."""
    source_end = steps.src_offset + steps.count
    target_end = steps.dst_offset + steps.count
    reach = max(int(source_end.max(initial=0)), int(target_end.max(initial=0)))
    return int(steps.count.max(initial=0)) <= MAX_COUNT and reach <= MAX_OFFSET


def _collective_in(collective: Collective, unit: int) -> Collective:
    """The same collective in units `unit` times as large."""
    contract = collective.contract
    if contract is not None:
        contract = replace(
            contract,
            input_units=contract.input_units // unit,
            output_units=contract.output_units // unit,
        )
    # The model wants one at least.
    unit_count = max(1, collective.unit_count // unit)
    return replace(collective, unit_count=unit_count, contract=contract)


def _check_size(algorithm: Algorithm, runtime: Runtime) -> None:
    """Refuse at once what no arrangement of steps could make fit."""
    place = Location(algorithm.provenance.source_name or None)
    for found, most, what in (
        (algorithm.num_ranks, MAX_CHILDREN, "ranks"),
        (algorithm.collective.unit_count, _MOST_UNITS, "chunks"),
    ):
        if found > most:
            limit = f"{found} {what}, more than the {most} that it takes"
            message = f"cannot be written for {runtime.title}: {limit}"
            raise InputError(message, location=place, code="runtime-limit")


def _task(
    algorithm: Algorithm,
    target: Target,
    options: WriteOptions,
) -> WritingTask:
    """What is to be written, within the runtime's limits or those that the user asks for."""
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
        _memory(algorithm, target),
        limits,
        _channels(algorithm, options, limits.max_channels),
    )


def _channels(algorithm: Algorithm, options: WriteOptions, most: int) -> int | None:
    """Channels to spread over; None where the producer has chosen."""
    if options.channels is not None:
        return min(options.channels, most)
    extension = algorithm.extensions.get("msccl")
    is_open = isinstance(extension, dict) and extension.get("channels") == "unstated"
    return most if is_open else None


def _memory(algorithm: Algorithm, target: Target) -> Memory:
    """The buffers, and how they alias in every mode that the file claims."""
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
        scratch_chunks=_declared_scratch(algorithm),
        bases=tuple(collective.memory_layout(mode, scratch).base for mode in modes),
        is_compact=False,
    )


def _declared_scratch(algorithm: Algorithm) -> Int64Array:
    """The scratch that an imported file declared, 0 where there was none."""
    extension = algorithm.extensions.get("msccl")
    declared: JsonValue = extension.get("s_chunks") if isinstance(extension, dict) else None
    # One number for all ranks, or one each; see the reader.
    sizes = declared if isinstance(declared, list) else [declared] * algorithm.num_ranks
    if len(sizes) != algorithm.num_ranks:
        return np.zeros(algorithm.num_ranks, np.int64)
    return np.asarray([_size_or_zero(size) for size in sizes], np.int64)


def _size_or_zero(size: JsonValue) -> int:
    """A size that the format can state; extensions can be anything."""
    if isinstance(size, int) and 0 <= size <= MAX_OFFSET:
        return size
    return 0
