"""Cut the buffers of an algorithm in finer units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collhub_compose.buffers.usage import MOST_UNITS
from collhub_compose.naming import composed_provenance
from hub_core.model import (
    MAX_UNITS,
    Algorithm,
    Collective,
    Contributions,
    CustomContract,
    StepTable,
    UsageError,
)


def rescale(algorithm: Algorithm, factor: int) -> Algorithm:
    """The same algorithm with `factor` units in the place of each; vendor extensions are dropped.

    Raises `UsageError` for factors below 1 and for results that are too large.
    """
    if factor < 1:
        raise UsageError(
            f"units cannot be cut in {factor} parts",
            cure="give a factor of 1 or more",
        )
    if factor == 1:
        return algorithm
    _refuse_too_large(algorithm, factor)
    return Algorithm(
        _finer_collective(algorithm.collective, factor),
        _finer_steps(algorithm.steps, factor),
        algorithm.scratch_units * factor,
        composed_provenance("rescale", [algorithm], factor),
        algorithm.collective_bytes,
    )


def _refuse_too_large(algorithm: Algorithm, factor: int) -> None:
    steps = algorithm.steps
    columns = (steps.src_offset, steps.dst_offset, algorithm.scratch_units)
    largest = max(int(column.max(initial=0)) for column in columns)
    if max(largest, algorithm.collective.unit_count) > MAX_UNITS // factor:
        message = f"units cut in {factor} parts are more than 2^62"
        raise UsageError(message, code="too-large")
    # Steps stay as many as they are; rows of a stated contract do not.
    rows = stated_rows(algorithm.collective) * factor
    if rows > MOST_UNITS:
        message = f"a contract of {rows} rows is too large (limit {MOST_UNITS})"
        raise UsageError(message, code="too-large")


def stated_rows(collective: Collective) -> int:
    """The number of contributions that a custom collective states, 0 for other ones."""
    if collective.contract is None or collective.contract.expected is None:
        return 0
    return len(collective.contract.expected)


def _finer_collective(collective: Collective, factor: int) -> Collective:
    contract = collective.contract
    if contract is not None:
        contract = _finer_contract(contract, factor)
    # Shares of ranks grow with the whole, so the kind stays what it is.
    units = collective.unit_count * factor
    return replace(collective, unit_count=units, contract=contract)


def _finer_steps(steps: StepTable, factor: int) -> StepTable:
    return replace(
        steps,
        src_offset=steps.src_offset * factor,
        dst_offset=steps.dst_offset * factor,
        count=steps.count * factor,
    )


def _finer_contract(contract: CustomContract, factor: int) -> CustomContract:
    """Every row as `factor` rows, each of one part of the unit."""
    expected = contract.expected
    if expected is not None:
        within = np.tile(np.arange(factor, dtype=np.int64), len(expected))
        offset = np.repeat(expected.offset * factor, factor) + within
        source_unit = np.repeat(expected.source_unit * factor, factor) + within
        expected = Contributions(
            np.repeat(expected.rank, factor),
            offset,
            np.repeat(expected.source_rank, factor),
            source_unit,
        )
    return CustomContract(
        contract.input_units * factor,
        contract.output_units * factor,
        contract.defined,
        expected,
    )
