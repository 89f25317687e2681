"""Averages as divided sums, so that no transport needs an operator for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collhub_execution.data.checked_inputs import AnyArray
from collhub_execution.data.element_types import Array, is_floating
from hub_core.columns import Int64Array
from hub_core.model import REDUCING, Collective, Contributions


def averaged(collective: Collective, outputs: Sequence[AnyArray]) -> tuple[AnyArray, ...]:
    """Return the sums divided by the number of their contributions; see `divided`.

    `outputs`: OUTPUT of every rank after a run that sums.
    """
    contract = collective.contract
    if contract is not None and contract.expected is not None:
        return _compute_averages_by_unit(collective, contract.expected, outputs)
    if collective.kind not in REDUCING:
        return tuple(outputs)
    return tuple(divided(output, collective.num_ranks) for output in outputs)


def _compute_averages_by_unit(
    collective: Collective, expected: Contributions, outputs: Sequence[AnyArray]
) -> tuple[AnyArray, ...]:
    # A custom contract may reduce some units and only move others, so divisors differ.
    """Divide each unit by its number of contributions."""
    averages = []
    for rank, units in enumerate(collective.output_units().tolist()):
        output = outputs[rank]
        divisor = _count_contributions(expected, rank, units, collective.num_ranks)
        elements = output.size // max(units, 1)
        averages.append(divided(output, np.repeat(divisor, elements)))
    return tuple(averages)


def _count_contributions(
    expected: Contributions, rank: int, units: int, num_ranks: int
) -> Int64Array:
    """Return the contribution count of each unit of a rank's OUTPUT, at least 1, int64[units]."""
    # A source rank below 0 means all ranks.
    weights = np.where(expected.source_rank < 0, num_ranks, 1)
    # Contributions outside OUTPUT are reported by the verifier, not here.
    is_mine = (expected.rank == rank) & (expected.offset >= 0) & (expected.offset < units)
    counts = np.bincount(expected.offset[is_mine], weights[is_mine], units)
    return np.maximum(counts, 1).astype(np.int64)


def divided(values: Array, divisor: int | Int64Array) -> Array:
    """Return `values` divided by `divisor` in their dtype; integers are rounded towards zero, as in
    NCCL.
    """
    if not is_floating(values.dtype):
        # numpy's // rounds towards minus infinity.
        quotient: Array = np.sign(values) * (np.abs(values) // divisor)
        return quotient.astype(values.dtype)
    # bfloat16 times a Python number would be computed in another type.
    scaled: Array = values / np.asarray(divisor, values.dtype)
    return scaled.astype(values.dtype)
