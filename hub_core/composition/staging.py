"""Make an algorithm that works only in place usable out of place, by copies to the place where it works and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hub_core.composition.joining import join
from hub_core.composition.memory import Relocation, contract_of, usage_of
from hub_core.composition.naming import display_name
from hub_core.composition.placement import input_in_output
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import CustomContract
from hub_core.model.diagnostics import UsageError
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import StepTable

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Cells = tuple[Int64Array, Int64Array]


def out_of_place(algorithm: Algorithm) -> Algorithm:
    """The algorithm as it is if it claims to be out of place, else with the copies that make it so.

    A rank works in OUTPUT where its INPUT is a part of that in place, else in new SCRATCH: units of INPUT are copied
    there one by one, and from SCRATCH the results to OUTPUT. Raises `UsageError` where nobody says which these are.
    """
    if algorithm.collective.out_of_place:
        return algorithm
    contract = contract_of(algorithm.collective)
    usage = usage_of(algorithm, contract)
    layout = algorithm.collective.memory_layout(True, np.zeros(algorithm.num_ranks, np.int64)).base
    low = np.minimum(layout[:, Buffer.INPUT], layout[:, Buffer.OUTPUT])
    place = input_in_output(algorithm.collective)
    in_output = (place >= 0) & (place + usage.input <= usage.output)
    old_scratch = algorithm.scratch_units
    span = (
        np.maximum(layout[:, Buffer.INPUT] + usage.input, layout[:, Buffer.OUTPUT] + usage.output)
        - low
    )
    relocation = Relocation.none(algorithm.num_ranks)
    relocation.move(Buffer.INPUT, in_output, Buffer.OUTPUT, place)
    for buffer in (Buffer.INPUT, Buffer.OUTPUT):
        relocation.move(buffer, ~in_output, Buffer.SCRATCH, old_scratch + layout[:, buffer] - low)
    parts = [
        _copies(_inputs(contract), relocation, Buffer.INPUT, is_into=True),
        relocation.apply(algorithm.steps),
        _copies(
            _results(algorithm, contract, ~in_output), relocation, Buffer.OUTPUT, is_into=False
        ),
    ]
    collective = replace(algorithm.collective, in_place=False, out_of_place=True)
    scratch = old_scratch + np.where(in_output, 0, span)
    return replace(
        algorithm,
        collective=collective,
        steps=join(parts, collective, scratch),
        scratch_units=scratch,
    )


def _inputs(contract: CustomContract) -> Cells:
    """(rank, unit) of all data before."""
    units = np.where(contract.defined, contract.input_units, 0)
    rank = np.repeat(np.arange(len(units)), units)
    return rank, np.arange(len(rank)) - np.repeat(np.cumsum(units) - units, units)


def _results(algorithm: Algorithm, contract: CustomContract, where: BoolArray) -> Cells:
    """(rank, unit) of all results of the ranks `where`."""
    if contract.expected is None:
        if where.any():
            message = f"{display_name(algorithm)} works only in place and states no result, so none can be copied out"
            raise UsageError(
                message, cure="state the contract of the custom collective", code="no-result"
            )
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    cells = np.unique(np.stack([contract.expected.rank, contract.expected.offset]), axis=1)
    rank, unit = cells[:, where[cells[0]]]
    return rank, unit


def _copies(cells: Cells, relocation: Relocation, buffer: Buffer, is_into: bool) -> StepTable:
    """Copy units of `buffer` one by one to where they work, or back."""
    rank, unit = cells
    here = np.full(len(rank), int(buffer)), unit
    there = relocation.buffer[rank, buffer], relocation.shift[rank, buffer] + unit
    source, target = (here, there) if is_into else (there, here)
    columns = {
        "rank": rank,
        "kind": np.full(len(rank), int(StepKind.COPY)),
        "src_buffer": source[0],
        "src_offset": source[1],
        "dst_buffer": target[0],
        "dst_offset": target[1],
        "count": np.ones(len(rank), np.int64),
    }
    return StepTable.from_columns(len(relocation.shift), columns)
