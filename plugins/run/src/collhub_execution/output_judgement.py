"""Compare the outputs of all ranks after a run with the definition of the collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collhub_execution.data.element_types import Array
from collhub_execution.expected_outputs import ExpectedPart, compute_expected_parts
from hub_core.model import Collective, CollectiveKind, Diagnostic, Location, ReduceOp

_LISTED_RANKS = 8
# Number of elements that are compared at once.
_PART = 1 << 20
_SAME_EVERYWHERE = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST}
)


class Comparison(StrEnum):
    """How outputs were compared.

    BITWISE: equal to the definition. BOUND: within the rounding error of a correct order. NONE: not
    compared, because a custom collective defines no result.
    """

    BITWISE = "bitwise"
    BOUND = "bound"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class OutputJudgement:
    """Whether outputs are right, and their errors.

    `max_abs_error`: largest difference from the definition; None if a difference is no number, or
    if there was no comparison. `max_bound`: the largest bound on the rounding error of a correct
    result, 0.0 for bitwise comparison. `ranks_agree`: whether all ranks got the same bits, None if
    their outputs are not defined to be equal. `diagnostics`: the first wrong element of the first
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
    """Compare the outputs of a run with the definition of the collective.

    `inputs` must equal the inputs of the executor. `is_exact`: every order of reduction gives the
    same bits (`exact_inputs`). Integers, minima, maxima and data that are only moved are always
    compared bitwise, other results within the bound of `compute_expected_parts`.
    """
    agree = None
    if collective.kind in _SAME_EVERYWHERE:
        agree = all(same_bits(outputs[0], output) for output in outputs[1:])
    expected = compute_expected_parts(collective, inputs, op, is_exact)
    if expected is None:
        return OutputJudgement(True, Comparison.NONE, None, 0.0, agree)
    compared = [_RankComparison(rank, output) for rank, output in enumerate(outputs)]
    for part in expected:
        compared[part.rank].add(part)
    return _summarize(compared, agree)


def _summarize(compared: Sequence[_RankComparison], ranks_agree: bool | None) -> OutputJudgement:
    """Combine the comparisons of all ranks; only the first wrong ranks get diagnostics."""
    worst = float(np.max([rank.largest for rank in compared], initial=0.0))
    bounds = [rank.bound for rank in compared if rank.bound is not None]
    wrong = [rank for rank in compared if rank.count]
    return OutputJudgement(
        is_right=not wrong,
        comparison=Comparison.BOUND if bounds else Comparison.BITWISE,
        # The maximum is NaN if a difference is NaN.
        max_abs_error=worst if np.isfinite(worst) else None,
        max_bound=max(bounds, default=0.0),
        ranks_agree=ranks_agree,
        diagnostics=tuple(rank.make_diagnostic() for rank in wrong[:_LISTED_RANKS]),
    )


def same_bits(array: Array, other_array: Array) -> bool:
    """Return whether two arrays of one dtype have the same bits.

    A NaN equals itself, and 0.0 differs from -0.0.
    """
    if array.dtype != other_array.dtype or array.shape != other_array.shape:
        return False
    # In parts, because the comparison allocates one byte per element.
    return all(
        np.array_equal(
            _as_bits(array[start : start + _PART]), _as_bits(other_array[start : start + _PART])
        )
        for start in range(0, len(array), _PART)
    )


def _as_bits(values: Array) -> Array:
    """Return the same memory as unsigned integers of the same size."""
    return values.view(f"u{values.dtype.itemsize}")


@dataclass(slots=True)
class _RankComparison:
    """Comparison of a rank's OUTPUT with the definition, part by part.

    `count`: number of wrong elements, the first of which `first` describes; `largest`: largest
    difference; `bound`: the largest bound on a rounding error, None if there is none.
    """

    rank: int
    output: Array
    count: int = 0
    first: str = ""
    largest: float = 0.0
    bound: float | None = None

    def add(self, part: ExpectedPart) -> None:
        """Compare a part bitwise, or within the bound if there is one."""
        expected = part.expected
        actual = self.output[part.start : part.start + expected.values.size]
        # The usual case, a correct result without bound, takes one pass.
        is_plain = expected.bound is None and expected.is_stated is None
        if is_plain and same_bits(actual, expected.values):
            return
        error = _compute_differences(actual, expected.values)
        if expected.bound is not None:
            self.bound = max(self.bound or 0.0, float(expected.bound.max(initial=0.0)))
            # A NaN is not within any bound.
            is_wrong = ~(error <= expected.bound)
        else:
            is_wrong = _as_bits(actual) != _as_bits(expected.values)
        if expected.is_stated is not None:
            is_wrong = is_wrong & expected.is_stated
            error = error[expected.is_stated]
        # Unlike max(), this propagates NaN.
        self.largest = float(np.maximum(self.largest, error.max(initial=0.0)))
        if is_wrong.any() and not self.count:
            self.first = _describe_wrong_element(part, actual, int(np.argmax(is_wrong)))
        self.count += int(np.count_nonzero(is_wrong))

    def make_diagnostic(self) -> Diagnostic:
        """Return the finding about the first wrong element."""
        message = f"{self.first}; {self.count} of {self.output.size} elements are wrong"
        return Diagnostic("wrong-output", message, location=Location(rank=self.rank))


def _describe_wrong_element(part: ExpectedPart, actual: Array, index: int) -> str:
    """Describe the wrong element at `index` of a part whose contents are `actual`."""
    expected = part.expected
    within = "" if expected.bound is None else f" within {float(expected.bound[index]):.3g}"
    return (
        f"OUTPUT has {actual[index]!s} at element {part.start + index}, "
        f"expected {expected.values[index]!s}{within}"
    )


def _compute_differences(actual: Array, expected: Array) -> Array:
    """Return absolute differences in a type that does not round them away."""
    # Differences of large int64 do not fit float64.
    wide = np.longdouble if expected.dtype.itemsize >= 8 else np.float64
    difference: Array = np.abs(actual.astype(wide) - expected.astype(wide))
    return difference
