"""Reductions over ranks, in the order of the ranks, and reductions of tensors to scalars."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from collhub_coconet.equivalence.blocks import Array, OnRanks
from collhub_coconet.program.operations import Kind, Reduction

_OVER_RANKS: dict[Reduction, Callable[[Any, Any], Any]] = {
    Reduction.SUM: np.add,
    Reduction.PROD: np.multiply,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.REPLACE: lambda _, later: later,
}


def over_ranks(arrays: OnRanks, reduction: Reduction) -> Array:
    """Values of all ranks reduced from rank 0 on, so that a block has the bits of the whole."""
    result: Array = np.asarray(reduce(_OVER_RANKS[reduction], arrays))
    return result


def to_scalar(kind: Kind, parts: OnRanks) -> Array:
    """Norm, sum or largest element of the tensor whose blocks these are.

    Sums of floats are of float64, rounded once; each block is summed on its own, the partial sums
    in the order of the ranks.
    """
    dtype = parts[0].dtype
    if kind is Kind.MAX:
        return np.asarray(np.max([part.max() for part in parts if part.size]), dtype)
    is_norm = kind is Kind.NORM
    wide = [part.astype(np.float64) if dtype.kind == "f" else part for part in parts]
    partial = [np.sum(part * part if is_norm else part, dtype=part.dtype) for part in wide]
    result = reduce(np.add, partial)
    return np.asarray(np.sqrt(result) if is_norm else result).astype(dtype)


def largest_term(kind: Kind, parts: OnRanks) -> float:
    """The largest contribution of a rank to `to_scalar`: max|terms| of the bound."""
    wide = [np.abs(part.astype(np.float64)) for part in parts]
    if kind is Kind.NORM:
        return float(max(np.sqrt(np.sum(part * part)) for part in wide))
    return float(max(np.sum(part) for part in wide))
