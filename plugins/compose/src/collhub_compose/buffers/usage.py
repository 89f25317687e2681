"""How far an algorithm uses its buffers, and the contract that it must keep there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import Int64Array

from collhub_compose.buffers.regions import SIDES
from hub_core.model import Algorithm, Buffer, Collective, CustomContract, InputError, StepTable

# A table of contents takes some hundred bytes a unit: beyond this, gigabytes.
MOST_UNITS = 1 << 25


@dataclass(frozen=True, slots=True)
class BufferUsage:
    """How far each rank's INPUT and OUTPUT are used, int64[num_ranks] each.

    `input`, `output`: by data that must be there, and by steps. `reached_input`, `reached_output`:
    by steps alone.
    """

    input: Int64Array
    output: Int64Array
    reached_input: Int64Array
    reached_output: Int64Array


def contract_of(collective: Collective) -> CustomContract:
    """What a collective promises, as a table.

    `expected` is None only for a custom one that states nothing. Raises `InputError` where the
    table would be too large.
    """
    if collective.contract is not None:
        return collective.contract
    # As floats, so that the product of two large numbers does not wrap around.
    if float(collective.num_ranks) * collective.unit_count > MOST_UNITS:
        size = f"{collective.num_ranks} ranks with {collective.unit_count} units"
        raise InputError(
            f"too large to compose: {size} (limit {MOST_UNITS} in all)",
            cure="compose a smaller instance",
            code="too-large",
        )
    return CustomContract(
        collective.input_units(),
        collective.output_units(),
        collective.defined_inputs(),
        collective.postcondition(),
    )


def usage_of(algorithm: Algorithm, contract: CustomContract) -> BufferUsage:
    """How far the buffers are used; `contract` is that of the algorithm's collective."""
    inputs = _reach(algorithm.steps, Buffer.INPUT)
    outputs = _reach(algorithm.steps, Buffer.OUTPUT)
    needed_inputs = np.where(contract.defined, contract.input_units, inputs)
    needed_outputs = np.maximum(outputs, required_units(contract))
    return BufferUsage(needed_inputs, needed_outputs, inputs, outputs)


def required_units(contract: CustomContract) -> Int64Array:
    """Where the results of each rank end in OUTPUT, int64[num_ranks]; unstated: all of it."""
    expected = contract.expected
    if expected is None:
        return contract.output_units
    ends = np.zeros_like(contract.output_units)
    np.maximum.at(ends, expected.rank, expected.offset + 1)
    return ends


def _reach(steps: StepTable, buffer: Buffer) -> Int64Array:
    """The end of the last unit of a buffer that steps touch: int64[num_ranks]."""
    ends = np.zeros(steps.num_ranks, np.int64)
    for side in SIDES:
        rows, used, offset = side.regions(steps)
        is_here = used == buffer
        here = rows[is_here]
        np.maximum.at(ends, steps.rank[here], offset[is_here] + steps.count[here])
    return ends
