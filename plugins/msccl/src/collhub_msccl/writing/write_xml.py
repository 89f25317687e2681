"""Write an algorithm as MSCCL-IR XML that a given runtime loads, and list the losses.

Losses are properties of the algorithm that the format or the runtime cannot express.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from collhub_msccl.plugin import WriteOptions
from collhub_msccl.reading.header import RUNTIME_ATTRIBUTES, find_possible_roots
from collhub_msccl.runtimes.known_runtimes import (
    MAX_CHILDREN,
    MAX_COUNT,
    MAX_OFFSET,
    describe_versions,
)
from collhub_msccl.thread_block_program import StepType
from collhub_msccl.true_dependencies import list_claimed_modes
from collhub_msccl.writing.attempts import WritingTask
from collhub_msccl.writing.choose import (
    ChosenProgram,
    ProgramSearch,
    count_necessary_blocks,
    has_unstated_channels,
)
from collhub_msccl.writing.emission import Memory
from collhub_msccl.writing.emission_header import Target, choose_target, compute_largest_size
from collhub_msccl.writing.emission_program import format_xml
from collhub_msccl.writing.execution_times import BlockFigures
from collhub_msccl.writing.known_fits import KnownFits
from hub_core.columns import Int64Array
from hub_core.model import (
    COLUMN_DTYPES,
    Algorithm,
    Collective,
    InputError,
    JsonValue,
    Location,
    Loss,
    ReduceOp,
    format_count,
)
from hub_core.plugin_api import (
    RESOURCES,
    Artifact,
    LimitError,
    RuntimeFit,
    RuntimeLimits,
    WriteResult,
)
from hub_core.verification import in_largest_units

# The file contains these in the form of its runtime: steps in thread blocks, waits instead of
# dependencies, and a new header.
_CONVERTED = ("steps", "lane", "dependencies", "source_line", "scratch_units", "extensions")
# Steps up to which the resources of an algorithm are those of the written program.
_MAX_STEPS_FOR_EXACT_FIT = 1 << 10
_MAX_UNITS = (1 << 31) - 1
_KNOWN_FITS = KnownFits()


def write(algorithm: Algorithm, options: WriteOptions) -> WriteResult:
    """Write an algorithm as one MSCCL-IR XML file for the runtime of the options, with its losses.

    The limits of thread blocks, steps and channels are those of the runtime, unless the options
    `max_blocks`, `max_steps` and `max_channels` replace them. The option `channels` gives the
    number of channels that may be chosen freely. Without it the channels of the algorithm are kept,
    unless its extension declares that they are not assigned. If counts or offsets are too large for
    the format, units are joined to larger ones.

    The notes have the figures of the program, and, if the option `runtime` is given, which versions
    of the runtime use the file. Raises `InputError` with the exceeded limit if the runtime cannot
    execute the algorithm, and `UsageError` for options that do not fit it. No file is written to
    disk.
    """
    coarse = _convert_to_larger_units(algorithm)
    target, task = _create_task(coarse, options)
    chosen = ProgramSearch(task).choose()
    largest = compute_largest_size(coarse, target, chosen.safety)
    content = format_xml(target.build_attributes(chosen.program, largest), chosen.program)
    losses = find_losses(algorithm, coarse, target, largest, chosen)
    notes = [describe_figures(chosen.figures, coarse.collective.unit_count)]
    # Without the option the user did not choose the runtime: no note about its versions.
    notes += describe_versions(target.runtime.name, "is") if options.runtime else []
    return WriteResult([Artifact("", lambda: content)], losses, _CONVERTED, notes)


def measure_fit(
    algorithm: Algorithm, options: WriteOptions, limits: RuntimeLimits | None = None
) -> RuntimeFit:
    """Return the resources of the file that `write` would write, without creating it.

    - `blocks`, `operations`, `block_operations`: thread blocks of a rank, steps of a rank except
      nops, and steps of a thread block with nops. Each is the maximum over ranks or blocks.
    - `channels`: channels in use. `units`: chunks of the file.
    - `max_bytes`: the largest size in bytes for which the file may be used: the smaller one of the
      limit of the options or the imported file, and of the largest size without a deadlock. `None`
      if there is neither.

    Above `_MAX_STEPS_FOR_EXACT_FIT` (1024) steps the first safe program is measured, which can
    differ from the program of `write`. Raises the errors of `write`.

    With `limits`, another program within them may be measured instead, if it is found faster. Then
    a `LimitError` is raised before any attempt if a rank needs more thread blocks than they allow.
    Results and errors are cached for repeated calls with `limits`.
    """
    coarse = _convert_to_larger_units(algorithm)
    if limits is None:
        target, task = _create_task(coarse, options)
        return _measure(coarse, target, ProgramSearch(task))
    # The size limits only the calls that use the file.
    unlimited = replace(options, max_bytes=None)
    fit = _KNOWN_FITS.find(
        coarse, (unlimited, limits), lambda: _measure_within(coarse, unlimited, limits)
    )
    bytes_limits = [one for one in (fit.max_bytes, options.max_bytes) if one is not None]
    return replace(fit, max_bytes=min(bytes_limits, default=None))


def _measure_within(coarse: Algorithm, options: WriteOptions, limits: RuntimeLimits) -> RuntimeFit:
    """Return the resources of a program within limits if one is found without list scheduling.

    Otherwise the result is that of `measure_fit` without limits. Raises `LimitError` if a rank
    needs too many thread blocks, and as `write` does.
    """
    # A thread block serves at most one connection per direction.
    needed = count_necessary_blocks(coarse)
    if limits.max_blocks is not None and needed > limits.max_blocks:
        resource = RESOURCES["blocks"]
        excess = f"at least {needed} {resource.noun}, {resource.bound.format(limits.max_blocks)}"
        message = f"{options.runtime} cannot run the algorithm: {excess}"
        raise LimitError(message).about(resource.name)
    target, task = _create_task(coarse, options)
    search = ProgramSearch(task)
    chosen = search.find_any()
    if chosen is not None:
        fit = _build_fit(coarse, target, chosen)
        if not fit.find_excess(limits):
            return fit
    return _measure(coarse, target, search)


def _measure(coarse: Algorithm, target: Target, search: ProgramSearch) -> RuntimeFit:
    """Return the resources of a program for an algorithm in the units of the file.

    `coarse`: result of `_convert_to_larger_units`; `target`: its header; `search`: for its program.
    Up to `_MAX_STEPS_FOR_EXACT_FIT` (1024) steps, the program is the one that `write` would write.
    Above, it is the first safe program that is found, which may be another one.

    Raises `InputError` with the code `runtime-limit` for too many blocks, steps or channels,
    `fifo-deadlock` if a program deadlocks at every size, and `size-range` if the file could serve
    no size.
    """
    is_first = len(coarse.steps) > _MAX_STEPS_FOR_EXACT_FIT
    return _build_fit(coarse, target, search.choose(is_first=is_first))


def _build_fit(coarse: Algorithm, target: Target, chosen: ChosenProgram) -> RuntimeFit:
    """Return the resources of a program: blocks, operations, channels, units and largest size.

    `coarse`: the algorithm in the units of the file. `operations`: the largest number of steps of a
    rank, without nops. `block_operations`: steps of the longest thread block, with nops.
    `max_bytes`: the largest size for which the file may be used (`compute_largest_size`, whose
    `InputError` is raised), None for no limit.
    """
    program = chosen.program
    operations = np.bincount(program.rank[~program.is_type(StepType.NOP)], minlength=1)
    figures = chosen.figures
    return RuntimeFit(
        blocks=figures.blocks,
        operations=int(operations.max(initial=0)),
        block_operations=figures.longest,
        channels=figures.channels,
        units=coarse.collective.unit_count,
        max_bytes=compute_largest_size(coarse, target, chosen.safety),
    )


def _create_task(coarse: Algorithm, options: WriteOptions) -> tuple[Target, WritingTask]:
    """Return the header of the file, and the task of choosing its program.

    `coarse`: an algorithm whose units fit the format. The options `max_blocks`, `max_steps` and
    `max_channels` replace the limits of the runtime if they are given and not 0.

    Channels, the first rule that applies:

    1. With the option `channels`, they are chosen freely, at most that number and at most the limit
       of channels.
    2. If the extension `msccl` declares that channels are not assigned, they are chosen freely, at
       most the limit of channels.
    3. Otherwise the channels of the algorithm are kept.

    Raises the errors of `choose_target`, then `InputError` (`runtime-limit`) for more ranks than
    `MAX_CHILDREN`, then for more chunks than 2^31 - 1.
    """
    target = choose_target(coarse, options)
    # Sizes that no assignment of steps can fit into the runtime.
    location = Location(coarse.provenance.source_name or None)
    for number, limit, noun in (
        (coarse.num_ranks, MAX_CHILDREN, "ranks"),
        (coarse.collective.unit_count, _MAX_UNITS, "chunks"),
    ):
        if number > limit:
            excess = f"{number} {noun}, more than the {limit} that it accepts"
            message = f"cannot be written for {target.runtime.title}: {excess}"
            raise InputError(message, location=location, code="runtime-limit")
    runtime = target.runtime
    limits = replace(
        runtime,
        max_steps=options.max_steps or runtime.max_steps,
        max_blocks=options.max_blocks or runtime.max_blocks,
        max_channels=options.max_channels or runtime.max_channels,
    )
    # Addresses in every mode that the file claims.
    collective, scratch = target.collective, coarse.scratch_units
    layouts = [collective.memory_layout(mode, scratch) for mode in list_claimed_modes(collective)]
    bases = tuple(layout.base for layout in layouts)
    memory = Memory(*target.declared_chunks, _read_declared_scratch(coarse), bases, False)
    # Without the option, the producer's channels are kept if it declares any.
    channels: int | None = None
    if options.channels is not None:
        channels = min(options.channels, limits.max_channels)
    elif has_unstated_channels(coarse):
        channels = limits.max_channels
    task = WritingTask(coarse, collective, target.protocol, memory, limits, channels)
    return target, task


def _convert_to_larger_units(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm in larger units if its counts or offsets are too large for the format.

    That is, if a count exceeds MAX_COUNT (71), or a range ends above MAX_OFFSET. The new unit is
    the largest that divides all sizes and offsets (`in_largest_units`); the result may still be too
    large. The algorithm itself is returned if it fits, or if no larger unit exists (also for a
    custom collective with an expected result).
    """
    steps = algorithm.steps
    source_end = steps.src_offset + steps.count
    target_end = steps.dst_offset + steps.count
    reach = max(int(source_end.max(initial=0)), int(target_end.max(initial=0)))
    if int(steps.count.max(initial=0)) <= MAX_COUNT and reach <= MAX_OFFSET:
        return algorithm
    return in_largest_units(algorithm)


def _read_declared_scratch(algorithm: Algorithm) -> Int64Array:
    """Return the scratch that the imported file declared: int64, in chunks per rank.

    The extension has one number for all ranks or a list. All entries are 0 if there was no imported
    file or the list has a wrong length. A value that is not an integer in 0..MAX_OFFSET counts as
    0.
    """
    extension = algorithm.extensions.get("msccl")
    declared: JsonValue = extension.get("s_chunks") if isinstance(extension, dict) else None
    # One number for all ranks, or one per rank; see the reader.
    sizes = declared if isinstance(declared, list) else [declared] * algorithm.num_ranks
    if len(sizes) != algorithm.num_ranks:
        return np.zeros(algorithm.num_ranks, np.int64)
    # Extensions can contain any value.
    is_valid = [isinstance(size, int) and 0 <= size <= MAX_OFFSET for size in sizes]
    return np.asarray(
        [size if valid else 0 for size, valid in zip(sizes, is_valid, strict=True)], np.int64
    )


def find_losses(
    algorithm: Algorithm,
    coarse: Algorithm,
    target: Target,
    largest: int | None,
    chosen: ChosenProgram,
) -> list[Loss]:
    """List the properties of the algorithm that the file does not express, in a fixed order.

    `coarse`: the algorithm in the units of the file, the same object if they are equal. `largest`:
    maximum size in bytes of the file, None without a limit. After the losses of
    `_find_collective_losses` there is one loss for each of:

    1. larger units in `coarse`
    2. steps with a duration (0 ns or more), with their number; then a stated `collective_bytes`
    3. extensions other than `msccl`, by their sorted names
    4. sorted attributes of the imported `<algo>` that the runtime does not know. Only a runtime
       with one mode per file knows `nthreads`. Values of attributes are not compared.
    5. a `largest` below the maximum of the target, or any `largest` if the target has none
    6. a lower maximum of thread blocks per rank in the file than of lanes per rank in the algorithm
    """
    losses = list(_find_collective_losses(algorithm.collective, coarse, target))
    if algorithm is not coarse:
        units = f"{algorithm.collective.unit_count} to {coarse.collective.unit_count}"
        feature = "unit_count and offsets and counts of steps"
        losses.append(Loss(feature, units, "the same program in larger units"))
    timed = int(np.count_nonzero(algorithm.steps.duration_ns >= 0))
    if timed:
        losses.append(Loss("durations", f"{timed} steps", "the file contains no times"))
    if algorithm.collective_bytes is not None:
        size = str(algorithm.collective_bytes)
        losses.append(Loss("collective bytes", size, "the file serves a range of sizes"))

    foreign = sorted(set(algorithm.extensions) - {"msccl"})
    if foreign:
        consequence = "the file has no place for data of other formats"
        losses.append(Loss("extensions", ", ".join(foreign), consequence))
    # Only microsoft/msccl reads nthreads.
    is_microsoft = not target.runtime.has_both_modes
    supported = RUNTIME_ATTRIBUTES | {"nthreads"} if is_microsoft else RUNTIME_ATTRIBUTES
    dropped = sorted(set(target.imported) - supported)
    if dropped:
        where = f"attributes {', '.join(dropped)} of <algo>"
        losses.append(Loss("extensions", where, f"{target.runtime.title} does not know them"))

    if largest is not None and (target.max_bytes is None or largest < target.max_bytes):
        consequence = (
            "the runtime does not use the file above,"
            " where the FIFOs of connections could fill up and deadlock"
        )
        losses.append(Loss("extensions: maxBytes", f"{largest} bytes", consequence))
    if chosen.figures.blocks < chosen.source_blocks:
        where = f"up to {chosen.source_blocks} thread blocks of a rank"
        where += f" become {chosen.figures.blocks}"
        consequence = f"within the limits of {target.runtime.title}, fewer steps run in parallel"
        losses.append(Loss("lane", where, consequence))
    return losses


def _find_collective_losses(
    collective: Collective, coarse: Algorithm, target: Target
) -> Iterator[Loss]:
    """Yield a loss for each property of a collective that the file cannot express.

    `coarse`: the algorithm in the units of the file. `target`: the header of the file. In this
    order:

    - `in_place`, then `out_of_place`: `collective` supports the mode and the file does not.
    - `kind`: the `coll` of the file is neither the runtime's name of the kind nor the `coll` of the
      imported file.
    - `contract`: a custom collective has a contract with an expected result or with undefined
      inputs.
    - `contract`, separate from the previous one and for every kind: the input or output sizes that
      the file declares differ from those of the collective.
    - `reduce_op`: the operator is not SUM, also if the collective does not reduce.
    - `root`: the collective has a root that the reader cannot infer from the steps of `coarse`.
    """
    written = target.collective
    where = f"a file for {target.runtime.title} or with -O mode serves one mode"
    consequence = "write a second file with -O mode for calls of this kind"
    if collective.in_place and not written.in_place:
        yield Loss("in_place", where, consequence)
    if collective.out_of_place and not written.out_of_place:
        yield Loss("out_of_place", where, consequence)
    native_name = target.runtime.spelling.get(collective.kind)
    if target.spelling not in (native_name, target.imported.get("coll")):
        where = f"{collective.kind} is written as coll={target.spelling!r}"
        yield Loss("kind", where, "only calls of that collective use it")
    contract = collective.contract
    # A file defines the sizes of buffers, but neither undefined inputs nor a result.
    if contract is not None and (contract.expected is not None or not np.all(contract.defined)):
        yield Loss("contract", "the custom collective", "the file does not define its result")
    declared_input, declared_output = target.declared_chunks
    is_input_kept = np.array_equal(declared_input, written.input_units())
    is_output_kept = np.array_equal(declared_output, written.output_units())
    if not (is_input_kept and is_output_kept):
        consequence = f"{target.runtime.title} accepts no size other than nchunksperloop"
        yield Loss("contract", "buffers of uneven sizes", consequence)
    if collective.reduce_op is not ReduceOp.SUM:
        consequence = "the file serves calls with every operator that the runtime knows"
        yield Loss("reduce_op", str(collective.reduce_op), consequence)
    if collective.root is None:
        return
    columns = {name: getattr(coarse.steps, name).astype(np.int64) for name in COLUMN_DTYPES}
    is_aliased = coarse.collective.in_place and not coarse.collective.out_of_place
    roots = find_possible_roots(collective.kind, columns, collective.num_ranks, is_aliased)
    if roots != [collective.root]:
        consequence = "it cannot be inferred from the steps; reading the file requires -O root"
        yield Loss("root", f"rank {collective.root}", consequence)


def describe_figures(figures: BlockFigures, unit_count: int) -> str:
    """Describe the thread blocks, channels, steps and modelled time of a file for a message.

    Example: `has 4 thread blocks a rank at most on 2 channels, the longest of 8 steps, 3
    steps fused; by the model of thread blocks they take 1.75 of the time of a buffer`. The
    subject of the sentence is missing. The time is divided by the time of a buffer of
    `unit_count` chunks on a link; 0 chunks count as 1.
    """
    time = figures.makespan / max(unit_count, 1)
    blocks = f"{format_count(figures.blocks, 'thread block')} a rank at most"
    longest, fused = format_count(figures.longest, "step"), format_count(figures.fused, "step")
    model = f"by the model of thread blocks they take {time:.3g} of the time of a buffer"
    channels = format_count(figures.channels, "channel")
    return f"has {blocks} on {channels}, the longest of {longest}, {fused} fused; {model}"
