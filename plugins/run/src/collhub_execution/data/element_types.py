"""Element types of runs on real data: precision of their arithmetic, reductions, averages.

Averages are divided sums, so that no transport needs an operator for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array
from hub_core.model import REDUCING, Collective, Contributions, PluginError, ReduceOp, UsageError

Array = npt.NDArray[Any]
AnyArray = npt.NDArray[np.generic]

DTYPE_NAMES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")

# Bits of the significand including the hidden one: IEEE 754-2019, table 3.5; bfloat16 is binary32
# without its last 16 bits.
_SIGNIFICANDS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def element_type(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of one of `DTYPE_NAMES`.

    Raises `UsageError` for another name, `PluginError` if bfloat16 is not installed.
    """
    if name not in DTYPE_NAMES:
        cure = f"use one of {', '.join(DTYPE_NAMES)}"
        raise UsageError(f"dtype {name!r} is not known", cure=cure)
    if name != "bfloat16":
        return np.dtype(name)
    try:
        # Imported here: numpy has no bfloat16, and most runs need none.
        import ml_dtypes
    except ImportError as error:
        cure = "python -m pip install ml_dtypes"
        raise PluginError("bfloat16 needs the package ml_dtypes", cure=cure) from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Return whether values of this type are rounded; true for bfloat16 (not `np.floating`)."""
    is_whole = np.issubdtype(dtype, np.integer)
    return not is_whole


def significand_bits(dtype: np.dtype[Any]) -> int:
    """Return b such that all integers up to 2^b are exact."""
    if not is_floating(dtype):
        return 8 * dtype.itemsize - 1
    return _SIGNIFICANDS[dtype.name]


def rounding_unit(dtype: np.dtype[Any]) -> float:
    """Return the largest relative error of one rounding; 0 for integers."""
    if not is_floating(dtype):
        return 0.0
    return 2.0 ** -significand_bits(dtype)


Reduction = Callable[..., object]
"""`reduction(one, other, out=target)`, element by element."""

REDUCTIONS: dict[ReduceOp, Reduction] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


def divide_averages(collective: Collective, outputs: Sequence[AnyArray]) -> tuple[AnyArray, ...]:
    """Divide the sums in every rank's OUTPUT by the number of contributions; see `divide_values`.

    `outputs`: OUTPUT of every rank after a run that sums; returned unchanged for a collective that
    only moves data. The divisor is the number of ranks, or for a custom contract the number of
    contributions of each unit.
    """
    contract = collective.contract
    if contract is not None and contract.expected is not None:
        return _compute_averages_by_unit(collective, contract.expected, outputs)
    if collective.kind not in REDUCING:
        return tuple(outputs)
    return tuple(divide_values(output, collective.num_ranks) for output in outputs)


def _compute_averages_by_unit(
    collective: Collective, expected: Contributions, outputs: Sequence[AnyArray]
) -> tuple[AnyArray, ...]:
    """Divide each unit by its number of contributions.

    A custom contract may reduce some units and only move others, so divisors differ.
    """
    averages = []
    for rank, units in enumerate(collective.output_units().tolist()):
        output = outputs[rank]
        divisor = _count_contributions(expected, rank, units, collective.num_ranks)
        elements = output.size // max(units, 1)
        averages.append(divide_values(output, np.repeat(divisor, elements)))
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


def divide_values(values: Array, divisor: int | Int64Array) -> Array:
    """Return `values` divided by `divisor` in their dtype.

    Integers are rounded towards zero, as in NCCL.
    """
    if not is_floating(values.dtype):
        # numpy's // rounds towards minus infinity.
        quotient: Array = np.sign(values) * (np.abs(values) // divisor)
        return quotient.astype(values.dtype)
    # bfloat16 times a Python number would be computed in another type.
    scaled: Array = values / np.asarray(divisor, values.dtype)
    return scaled.astype(values.dtype)
