"""Cut the buffers of an algorithm in finer units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hub_core.composition.memory import MOST_UNITS
from hub_core.composition.naming import composed_provenance
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import MAX_UNITS, Contributions, CustomContract
from hub_core.model.diagnostics import UsageError


def rescale(algorithm: Algorithm, factor: int) -> Algorithm:
    """The same algorithm with `factor` units in the place of each; vendor extensions are dropped."""
    if factor < 1:
        raise UsageError(
            f"units cannot be cut in {factor} parts", cure="give a factor of 1 or more"
        )
    if factor == 1:
        return algorithm
    steps, collective = algorithm.steps, algorithm.collective
    largest = max(
        int(column.max(initial=0))
        for column in (steps.src_offset, steps.dst_offset, algorithm.scratch_units)
    )
    if max(largest, collective.unit_count) > MAX_UNITS // factor:
        raise UsageError(f"units cut in {factor} parts are more than 2^62", code="too-large")
    rows = (
        0
        if collective.contract is None or collective.contract.expected is None
        else len(collective.contract.expected)
    )
    if rows * factor > MOST_UNITS:
        raise UsageError(
            f"a contract of {rows * factor} rows is too large (limit {MOST_UNITS})",
            code="too-large",
        )
    contract = None if collective.contract is None else _contract(collective.contract, factor)
    return Algorithm(
        replace(collective, unit_count=collective.unit_count * factor, contract=contract),
        replace(
            steps,
            src_offset=steps.src_offset * factor,
            dst_offset=steps.dst_offset * factor,
            count=steps.count * factor,
        ),
        algorithm.scratch_units * factor,
        composed_provenance("rescale", [algorithm], factor),
        algorithm.collective_bytes,
    )


def _contract(contract: CustomContract, factor: int) -> CustomContract:
    sizes = contract.input_units * factor, contract.output_units * factor
    expected = contract.expected
    if expected is None:
        return CustomContract(*sizes, contract.defined)
    within = np.tile(np.arange(factor, dtype=np.int64), len(expected))
    rank, offset, source_rank, source_unit = (
        np.repeat(column, factor)
        for column in (expected.rank, expected.offset, expected.source_rank, expected.source_unit)
    )
    finer = Contributions(
        rank, offset * factor + within, source_rank, source_unit * factor + within
    )
    return CustomContract(*sizes, contract.defined, finer)
