"""Compare what the ranks hold after a run with the definition of the collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collhub_execution.data.element_types import Array
from collhub_execution.judgement.definition import ExpectedPart, expected_parts
from hub_core.model import Collective, CollectiveKind, Diagnostic, Location, ReduceOp

_LISTED_RANKS = 8
# Elements that are compared at once.
_PART = 1 << 20
_SAME_EVERYWHERE = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST}
)


class Comparison(StrEnum):
    """How outputs were compared.

    BITWISE: equal to the definition. BOUND: within the rounding error of a correct order. NONE:
    not, as a custom collective states no result.
    """

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
    of `expected_parts`.
    """
    agree = _agree(outputs) if collective.kind in _SAME_EVERYWHERE else None
    expected = expected_parts(collective, inputs, op, is_exact)
    if expected is None:
        return OutputJudgement(True, Comparison.NONE, None, 0.0, agree)
    compared = [_RankComparison(rank, output) for rank, output in enumerate(outputs)]
    for part in expected:
        compared[part.rank].add(part)
    return _judgement(compared, agree)


def _judgement(compared: Sequence[_RankComparison], ranks_agree: bool | None) -> OutputJudgement:
    """What the comparisons of all ranks come to."""
    worst = float(np.max([rank.largest for rank in compared], initial=0.0))
    bounds = [rank.bound for rank in compared if rank.bound is not None]
    wrong = [rank for rank in compared if rank.count]
    return OutputJudgement(
        is_right=not wrong,
        comparison=Comparison.BOUND if bounds else Comparison.BITWISE,
        # The maximum is no number either where one difference is none.
        max_abs_error=worst if np.isfinite(worst) else None,
        max_bound=max(bounds, default=0.0),
        ranks_agree=ranks_agree,
        diagnostics=tuple(rank.diagnostic() for rank in wrong[:_LISTED_RANKS]),
    )


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays of one dtype hold the same bits.

    A NaN equals itself, and 0.0 differs from -0.0.
    """
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    # By parts, as comparing takes a byte an element.
    return all(
        np.array_equal(_bits(one[start : start + _PART]), _bits(other[start : start + _PART]))
        for start in range(0, len(one), _PART)
    )


def _bits(values: Array) -> Array:
    """The same memory as unsigned integers of the same size."""
    return values.view(f"u{values.dtype.itemsize}")


def _agree(outputs: Sequence[Array]) -> bool:
    """Whether all ranks hold the same bits."""
    return all(same_bits(outputs[0], output) for output in outputs[1:])


@dataclass(slots=True)
class _RankComparison:
    """OUTPUT of a rank beside what it must be, part by part.

    `count`: wrong elements, of which `first` is told in words; `largest` difference of all;
    `bound`: the largest on a rounding error, None where nothing is rounded.
    """

    rank: int
    output: Array
    count: int = 0
    first: str = ""
    largest: float = 0.0
    bound: float | None = None

    def add(self, part: ExpectedPart) -> None:
        """Compare a part by bits, or within the bound where there is one."""
        wanted = part.wanted
        held = self.output[part.start : part.start + wanted.values.size]
        # The usual case, a right result that needs no bound, takes one pass.
        is_plain = wanted.bound is None and wanted.is_stated is None
        if is_plain and same_bits(held, wanted.values):
            return
        error = _differences(held, wanted.values)
        if wanted.bound is not None:
            self.bound = max(self.bound or 0.0, float(wanted.bound.max(initial=0.0)))
            # A NaN is not within any bound.
            is_wrong = ~(error <= wanted.bound)
        else:
            is_wrong = _bits(held) != _bits(wanted.values)
        if wanted.is_stated is not None:
            is_wrong = is_wrong & wanted.is_stated
            error = error[wanted.is_stated]
        # Unlike max(), this keeps what is no number.
        self.largest = float(np.maximum(self.largest, error.max(initial=0.0)))
        if is_wrong.any() and not self.count:
            self.first = _told(part, held, int(np.argmax(is_wrong)))
        self.count += int(np.count_nonzero(is_wrong))

    def diagnostic(self) -> Diagnostic:
        """The first wrong element in words."""
        message = f"{self.first}; {self.count} of {self.output.size} elements are wrong"
        return Diagnostic("wrong-output", message, location=Location(rank=self.rank))


def _told(part: ExpectedPart, held: Array, place: int) -> str:
    """A wrong element in words; `place` in the part, which holds `held`."""
    wanted = part.wanted
    within = "" if wanted.bound is None else f" within {float(wanted.bound[place]):.3g}"
    return (
        f"OUTPUT holds {held[place]!s} at element {part.start + place}, "
        f"expected {wanted.values[place]!s}{within}"
    )


def _differences(one: Array, other: Array) -> Array:
    """How far elements differ, in a type in which the difference is not rounded away."""
    # Differences of large int64 do not fit float64.
    wide = np.longdouble if other.dtype.itemsize >= 8 else np.float64
    difference: Array = np.abs(one.astype(wide) - other.astype(wide))
    return difference
