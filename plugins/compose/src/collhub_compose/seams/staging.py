"""Make an algorithm that works only in place usable out of place, by copies there and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_columns import BoolArray, Int64Array, counted_positions

from collhub_compose.buffers.relocation import Relocation
from collhub_compose.buffers.usage import BufferUsage, contract_of, usage_of
from collhub_compose.naming import display_name
from collhub_compose.seams.joining import join
from collhub_compose.seams.placement import input_in_output
from hub_core.model import Algorithm, Buffer, CustomContract, StepKind, StepTable, UsageError

# As many as contributions, which a table of contents holds too: copies one by one cost no more.
UnitsOfRanks = tuple[Int64Array, Int64Array]
"""Units of a buffer as (ranks, units), of equal length."""


def out_of_place(algorithm: Algorithm) -> Algorithm:
    """The algorithm as it is if it claims to be out of place, else with copies that make it so.

    A rank works in OUTPUT where its INPUT is a part of that in place, else in new SCRATCH: units of
    INPUT are copied there one by one, and from SCRATCH the results to OUTPUT. Raises `UsageError`
    where nobody says which these are.
    """
    if algorithm.collective.out_of_place:
        return algorithm
    contract = contract_of(algorithm.collective)
    usage = usage_of(algorithm, contract)
    place = input_in_output(algorithm.collective)
    in_output = (place >= 0) & (place + usage.input <= usage.output)
    relocation, span = _moved_buffers(algorithm, usage, in_output, place)
    results = _results(algorithm, contract, ~in_output)
    parts = [
        _copies_into(_inputs(contract), relocation, Buffer.INPUT),
        relocation.apply(algorithm.steps),
        _copies_back(results, relocation, Buffer.OUTPUT),
    ]
    collective = replace(algorithm.collective, in_place=False, out_of_place=True)
    scratch = algorithm.scratch_units + np.where(in_output, 0, span)
    return replace(
        algorithm,
        collective=collective,
        steps=join(parts, collective, scratch),
        scratch_units=scratch,
    )


def _moved_buffers(
    algorithm: Algorithm, usage: BufferUsage, in_output: BoolArray, place: Int64Array
) -> tuple[Relocation, Int64Array]:
    """Where INPUT and OUTPUT go, and the units of SCRATCH that both take together there.

    `in_output`: the ranks that work in OUTPUT, at unit `place`.
    """
    no_scratch = np.zeros(algorithm.num_ranks, np.int64)
    layout = algorithm.collective.memory_layout(True, no_scratch).base
    inputs, outputs = layout[:, Buffer.INPUT], layout[:, Buffer.OUTPUT]
    low = np.minimum(inputs, outputs)
    high = np.maximum(inputs + usage.input, outputs + usage.output)
    relocation = Relocation.none(algorithm.num_ranks)
    relocation.move(Buffer.INPUT, in_output, Buffer.OUTPUT, place)
    # In SCRATCH the two lie to each other as they do in place, behind what is there.
    start = algorithm.scratch_units - low
    for buffer in (Buffer.INPUT, Buffer.OUTPUT):
        relocation.move(buffer, ~in_output, Buffer.SCRATCH, start + layout[:, buffer])
    return relocation, high - low


def _inputs(contract: CustomContract) -> UnitsOfRanks:
    """All data before."""
    # Ranks without data may have an INPUT, in which nothing stands.
    units = np.where(contract.defined, contract.input_units, 0)
    rank = np.repeat(np.arange(len(units)), units)
    return rank, counted_positions(units)


def _results(algorithm: Algorithm, contract: CustomContract, where: BoolArray) -> UnitsOfRanks:
    """All results of the ranks `where`. Raises `UsageError` where none are stated."""
    if contract.expected is not None:
        stated = np.stack([contract.expected.rank, contract.expected.offset])
        rank, unit = np.unique(stated, axis=1)
        is_chosen = where[rank]
        return rank[is_chosen], unit[is_chosen]
    if where.any():
        what = "works only in place and states no result, so none can be copied out"
        raise UsageError(
            f"{display_name(algorithm)} {what}",
            cure="state the contract of the custom collective",
            code="no-result",
        )
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _copies_into(cells: UnitsOfRanks, relocation: Relocation, buffer: Buffer) -> StepTable:
    """Copy units of `buffer` one by one to where they are worked on."""
    # One by one, so that a step waits for the units that it touches and no others.
    rank, unit = cells
    source = np.full(len(rank), int(buffer)), unit
    target = _new_place(cells, relocation, buffer)
    return _copies(rank, source, target, len(relocation.shift))


def _copies_back(cells: UnitsOfRanks, relocation: Relocation, buffer: Buffer) -> StepTable:
    """Copy units of `buffer` one by one from where they were worked on."""
    # In OUTPUT results stand where they belong already: only those of SCRATCH are copied.
    rank, unit = cells
    source = _new_place(cells, relocation, buffer)
    target = np.full(len(rank), int(buffer)), unit
    return _copies(rank, source, target, len(relocation.shift))


def _new_place(
    cells: UnitsOfRanks, relocation: Relocation, buffer: Buffer
) -> tuple[Int64Array, Int64Array]:
    """(buffer, unit) of relocated units of `buffer`, int64."""
    rank, unit = cells
    moved_unit = relocation.shift[rank, buffer] + unit
    moved_buffer = relocation.buffer[rank, buffer]
    return moved_buffer.astype(np.int64), moved_unit


def _copies(
    rank: Int64Array,
    source: tuple[Int64Array, Int64Array],
    target: tuple[Int64Array, Int64Array],
    num_ranks: int,
) -> StepTable:
    """Copies of one unit each, from (buffer, unit) to (buffer, unit)."""
    columns = {
        "rank": rank,
        "kind": np.full(len(rank), int(StepKind.COPY)),
        "src_buffer": source[0],
        "src_offset": source[1],
        "dst_buffer": target[0],
        "dst_offset": target[1],
        "count": np.ones(len(rank), np.int64),
    }
    return StepTable.from_columns(num_ranks, columns)
