"""Compare what the ranks hold after a run with the definition of the collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.execution.reference import Expected, expected_outputs
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import Diagnostic, Location
from hub_core.model.kinds import CollectiveKind, ReduceOp

Array = npt.NDArray[Any]

_LISTED_RANKS = 8
_SAME_EVERYWHERE = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST}
)


class Comparison(StrEnum):
    """How outputs were compared. NONE: a custom collective that states no result."""

    BITWISE = "bitwise"
    BOUND = "bound"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether outputs are right, and how far they are off.

    `max_abs_error`: largest difference from the definition; None where a difference is no number, or nothing was compared.
    `max_bound`: the largest bound on the rounding error of a correct result, 0.0 for bitwise comparison. `ranks_agree`:
    whether all ranks got the same bits, None where they are not meant to hold the same. `diagnostics`: the first wrong
    element of the first ranks.
    """

    is_right: bool
    comparison: Comparison
    max_abs_error: float | None
    max_bound: float
    ranks_agree: bool | None
    diagnostics: tuple[Diagnostic, ...] = ()


def judge(
    collective: Collective,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    op: ReduceOp,
    is_exact: bool,
) -> Judgement:
    """Judge the outputs of a run on `inputs`, which must hold what the executor got.

    `is_exact`: every order of reduction gives the same bits (`exact_inputs`). Integers, minima, maxima and what is only
    moved are always compared by their bits, other results within the bound of `expected_outputs`.
    """
    agree = _agree(outputs) if collective.kind in _SAME_EVERYWHERE else None
    expected = expected_outputs(collective, inputs, op, is_exact)
    if expected is None:
        return Judgement(True, Comparison.NONE, None, 0.0, agree)
    pairs = [(rank, wanted) for rank, wanted in enumerate(expected) if wanted is not None]
    errors = [_Errors.of(outputs[rank], wanted) for rank, wanted in pairs]
    worst = float(np.max([error.largest for error in errors], initial=0.0))
    bounds = [wanted.bound for _, wanted in pairs if wanted.bound is not None]
    defects = [
        _defect(rank, outputs[rank], wanted, error)
        for (rank, wanted), error in zip(pairs, errors, strict=True)
        if error.count
    ]
    return Judgement(
        not defects,
        Comparison.BOUND if bounds else Comparison.BITWISE,
        worst if np.isfinite(worst) else None,
        max((float(bound.max(initial=0.0)) for bound in bounds), default=0.0),
        agree,
        tuple(defects[:_LISTED_RANKS]),
    )


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays of one dtype hold the same bits, so that a NaN equals itself and 0.0 differs from -0.0."""
    unsigned = f"u{one.dtype.itemsize}"
    return one.dtype == other.dtype and np.array_equal(one.view(unsigned), other.view(unsigned))


def _agree(outputs: Sequence[Array]) -> bool:
    return all(same_bits(outputs[0], output) for output in outputs[1:])


@dataclass(frozen=True, slots=True)
class _Errors:
    """Wrong elements of a rank: how many, the first, and the largest difference of all elements."""

    count: int
    first: int
    largest: float

    @classmethod
    def of(cls, output: Array, wanted: Expected) -> _Errors:
        if wanted.bound is None and wanted.is_stated is None and same_bits(output, wanted.values):
            return cls(0, -1, 0.0)
        wide = np.longdouble if wanted.values.dtype.itemsize >= 8 else np.float64
        error = np.abs(output.astype(wide) - wanted.values.astype(wide))
        wrong = (
            ~(error <= wanted.bound) if wanted.bound is not None else _differ(output, wanted.values)
        )
        if wanted.is_stated is not None:
            wrong, error = wrong & wanted.is_stated, error[wanted.is_stated]
        count = int(np.count_nonzero(wrong))
        return cls(count, int(np.argmax(wrong)) if count else -1, float(error.max(initial=0.0)))


def _differ(one: Array, other: Array) -> npt.NDArray[np.bool_]:
    unsigned = f"u{one.dtype.itemsize}"
    differ: npt.NDArray[np.bool_] = one.view(unsigned) != other.view(unsigned)
    return differ


def _defect(rank: int, output: Array, wanted: Expected, errors: _Errors) -> Diagnostic:
    place = errors.first
    off = "" if wanted.bound is None else f" within {float(wanted.bound[place]):.3g}"
    message = (
        f"OUTPUT holds {output[place]!s} at element {place}, expected {wanted.values[place]!s}{off}; "
        f"{errors.count} of {output.size} elements are wrong"
    )
    return Diagnostic("wrong-output", message, location=Location(rank=rank))
