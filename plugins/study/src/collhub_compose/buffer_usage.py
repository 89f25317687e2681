"""How much of its buffers an algorithm uses, and the contract that it must fulfil there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_compose.buffer_moves import SIDES
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Buffer, Collective, CustomContract, InputError, StepTable

# A table of contents takes some hundred bytes per unit: gigabytes beyond this limit.
MAX_UNITS_IN_TABLE = 1 << 25


@dataclass(frozen=True, slots=True)
class BufferUsage:
    """Number of units used in each rank's INPUT and OUTPUT, from unit 0 on; int64[num_ranks] each.

    `input`, `output`: by required data and by steps. `reached_input`, `reached_output`: by steps
    only.
    """

    input: Int64Array
    output: Int64Array
    reached_input: Int64Array
    reached_output: Int64Array


def build_contract(collective: Collective) -> CustomContract:
    """Build the contract of a collective as a table.

    `expected` is None only for a custom collective without expected results. Raises `InputError` if
    the table would be too large.
    """
    if collective.contract is not None:
        return collective.contract
    # As floats, so that the product of two large numbers does not overflow.
    if float(collective.num_ranks) * collective.unit_count > MAX_UNITS_IN_TABLE:
        size = f"{collective.num_ranks} ranks with {collective.unit_count} units"
        raise InputError(
            f"too large to compose: {size} (limit {MAX_UNITS_IN_TABLE} in all)",
            cure="compose a smaller instance",
            code="too-large",
        )
    return CustomContract(
        collective.input_units(),
        collective.output_units(),
        collective.defined_inputs(),
        collective.postcondition(),
    )


def measure_usage(algorithm: Algorithm, contract: CustomContract) -> BufferUsage:
    """Measure the use of the buffers; `contract`: that of the algorithm's collective."""
    inputs = _find_touched_ends(algorithm.steps, Buffer.INPUT)
    outputs = _find_touched_ends(algorithm.steps, Buffer.OUTPUT)
    needed_inputs = np.where(contract.defined, contract.input_units, inputs)
    needed_outputs = np.maximum(outputs, count_required_units(contract))
    return BufferUsage(needed_inputs, needed_outputs, inputs, outputs)


def count_required_units(contract: CustomContract) -> Int64Array:
    """Count the units of OUTPUT up to the last result of each rank, int64[num_ranks].

    All of OUTPUT if the contract has no expected results.
    """
    expected = contract.expected
    if expected is None:
        return contract.output_units
    unit_counts = np.zeros_like(contract.output_units)
    np.maximum.at(unit_counts, expected.rank, expected.offset + 1)
    return unit_counts


def _find_touched_ends(steps: StepTable, buffer: Buffer) -> Int64Array:
    """Find the end of the last unit of a buffer that steps touch: int64[num_ranks]."""
    touched_ends = np.zeros(steps.num_ranks, np.int64)
    for side in SIDES:
        rows, buffers, offset = side.regions(steps)
        is_in_buffer = buffers == buffer
        touching = rows[is_in_buffer]
        region_ends = offset[is_in_buffer] + steps.count[touching]
        np.maximum.at(touched_ends, steps.rank[touching], region_ends)
    return touched_ends
