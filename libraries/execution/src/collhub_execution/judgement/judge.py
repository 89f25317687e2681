"""Compare what the ranks hold after a run with the definition of the collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collhub_execution.data.element_types import Array
from collhub_execution.judgement.definition import ExpectedOutput, expected_outputs
from hub_core.model import BoolArray, Collective, CollectiveKind, Diagnostic, Location, ReduceOp

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
class OutputJudgement:
    """Whether outputs are right, and how far they are off.

    `max_abs_error`: largest difference from the definition; None where a difference is no number,
    or nothing was compared. `max_bound`: the largest bound on the rounding error of a correct
    result, 0.0 for bitwise comparison. `ranks_agree`: whether all ranks got the same bits, None
    where they are not meant to hold the same. `diagnostics`: the first wrong element of the first
    ranks.
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
) -> OutputJudgement:
    """Judge the outputs of a run on `inputs`, which must hold what the executor got.

    `is_exact`: every order of reduction gives the same bits (`exact_inputs`). Integers, minima,
    maxima and what is only moved are always compared by their bits, other results within the bound
    of `expected_outputs`.
    """
    agree = _agree(outputs) if collective.kind in _SAME_EVERYWHERE else None
    expected = expected_outputs(collective, inputs, op, is_exact)
    if expected is None:
        return OutputJudgement(True, Comparison.NONE, None, 0.0, agree)
    compared = [
        _RankComparison.of(rank, output, wanted)
        for rank, (output, wanted) in enumerate(zip(outputs, expected, strict=True))
        if wanted is not None
    ]
    return _judgement(compared, agree)


def _judgement(compared: Sequence[_RankComparison], ranks_agree: bool | None) -> OutputJudgement:
    """What the comparisons of all ranks come to."""
    worst = float(np.max([rank.largest for rank in compared], initial=0.0))
    bounds = [rank.wanted.bound for rank in compared if rank.wanted.bound is not None]
    wrong = [rank for rank in compared if rank.count]
    return OutputJudgement(
        is_right=not wrong,
        comparison=Comparison.BOUND if bounds else Comparison.BITWISE,
        # The maximum is no number either where one difference is none.
        max_abs_error=worst if np.isfinite(worst) else None,
        max_bound=max((float(bound.max(initial=0.0)) for bound in bounds), default=0.0),
        ranks_agree=ranks_agree,
        diagnostics=tuple(rank.diagnostic() for rank in wrong[:_LISTED_RANKS]),
    )


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays of one dtype hold the same bits.

    A NaN equals itself, and 0.0 differs from -0.0.
    """
    return one.dtype == other.dtype and np.array_equal(_bits(one), _bits(other))


def _bits(values: Array) -> Array:
    """The same memory as unsigned integers of the same size."""
    return values.view(f"u{values.dtype.itemsize}")


def _agree(outputs: Sequence[Array]) -> bool:
    """Whether all ranks hold the same bits."""
    return all(same_bits(outputs[0], output) for output in outputs[1:])


@dataclass(frozen=True, slots=True)
class _RankComparison:
    """OUTPUT of a rank beside what it must be.

    `count`: wrong elements, `first` of them, -1 for none; `largest` difference of all elements.
    """

    rank: int
    output: Array
    wanted: ExpectedOutput
    count: int = 0
    first: int = -1
    largest: float = 0.0

    @classmethod
    def of(cls, rank: int, output: Array, wanted: ExpectedOutput) -> _RankComparison:
        """Compare by bits, or within the bound where there is one."""
        # The usual case, a right result that needs no bound, takes one pass.
        is_plain = wanted.bound is None and wanted.is_stated is None
        if is_plain and same_bits(output, wanted.values):
            return cls(rank, output, wanted)
        error = _differences(output, wanted.values)
        if wanted.bound is not None:
            # A NaN is not within any bound.
            is_wrong = ~(error <= wanted.bound)
        else:
            is_wrong = _bits(output) != _bits(wanted.values)
        if wanted.is_stated is not None:
            is_wrong = is_wrong & wanted.is_stated
            error = error[wanted.is_stated]
        return cls(rank, output, wanted, *_counted(is_wrong), float(error.max(initial=0.0)))

    def diagnostic(self) -> Diagnostic:
        """The first wrong element in words."""
        place, wanted = self.first, self.wanted
        within = "" if wanted.bound is None else f" within {float(wanted.bound[place]):.3g}"
        message = (
            f"OUTPUT holds {self.output[place]!s} at element {place}, "
            f"expected {wanted.values[place]!s}{within}; "
            f"{self.count} of {self.output.size} elements are wrong"
        )
        return Diagnostic("wrong-output", message, location=Location(rank=self.rank))


def _differences(one: Array, other: Array) -> Array:
    """How far elements differ, in a type in which the difference is not rounded away."""
    # Differences of large int64 do not fit float64.
    wide = np.longdouble if other.dtype.itemsize >= 8 else np.float64
    difference: Array = np.abs(one.astype(wide) - other.astype(wide))
    return difference


def _counted(is_wrong: BoolArray) -> tuple[int, int]:
    """(how many, the first, -1 for none)."""
    # argmax of a mask is its first True, and 0 where there is none.
    count = int(np.count_nonzero(is_wrong))
    return count, int(np.argmax(is_wrong)) if count else -1
