"""Compare the outputs of all ranks after a run with the definition of the collective.

The expected outputs are computed directly from the inputs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce

import numpy as np

from collhub_execution.input_data import (
    REDUCTIONS,
    Array,
    divide_values,
    is_floating,
    rounding_unit,
)
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    REDUCING,
    Collective,
    CollectiveKind,
    Diagnostic,
    Location,
    ReduceOp,
)

_LISTED_RANKS = 8
# Number of elements that are compared at once.
_COMPARED_ELEMENTS = 1 << 20
_SAME_EVERYWHERE = frozenset(
    {
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.BROADCAST,
        CollectiveKind.ALL_GATHER_V,
    }
)


# Number of elements reduced at once: their memory is small compared with the data of a run.
_COMPUTED_ELEMENTS = 1 << 20


# Per unit of an OUTPUT: its contributions (source rank, unit of its INPUT).
_Cells = dict[int, list[tuple[int, int]]]


class ComparisonMethod(StrEnum):
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
    comparison: ComparisonMethod
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
    """Compare the outputs of a run with the outputs that the collective requires.

    `inputs` must be those of the executor, by rank; `outputs`: OUTPUT of every rank. `is_exact`
    means that the inputs come from `exact_inputs`, for which every order of reduction gives the
    same bits. Fields of the result:
    - `is_right`: no element is wrong. Sums, products and averages of floating-point data that are
      not exact must be within the bound of `compute_expected_parts`; all other data must have the
      required bits.
    - `comparison`: BOUND if any part had a bound, else BITWISE.
    - `max_abs_error`: the largest absolute error of any rank, also within the bound; None if it is
      infinite or NaN.
    - `max_bound`: the largest bound, 0.0 without bounds.
    - `ranks_agree`: whether all outputs have equal bits; None unless the kind is in
      `_SAME_EVERYWHERE` (all-reduce, all-gather, all-gather-v, broadcast).
    - `diagnostics`: one finding `wrong-output` for each of the first `_LISTED_RANKS` (8) ranks with
      wrong elements, by rank.

    Elements for which the collective requires no value are ignored. A custom collective without a
    defined result gives `is_right`, comparison NONE, error None and bound 0.0.
    """
    agree = None
    if collective.kind in _SAME_EVERYWHERE:
        agree = all(same_bits(outputs[0], output) for output in outputs[1:])
    expected = compute_expected_parts(collective, inputs, op, is_exact)
    if expected is None:
        return OutputJudgement(True, ComparisonMethod.NONE, None, 0.0, agree)
    compared = [_RankComparison(rank, output) for rank, output in enumerate(outputs)]
    for part in expected:
        compared[part.rank].add(part)
    # Combine the comparisons of all ranks; only the first wrong ranks get diagnostics.
    worst = float(np.max([rank.largest for rank in compared], initial=0.0))
    bounds = [rank.bound for rank in compared if rank.bound is not None]
    wrong = [rank for rank in compared if rank.count]
    return OutputJudgement(
        is_right=not wrong,
        comparison=ComparisonMethod.BOUND if bounds else ComparisonMethod.BITWISE,
        # The maximum is NaN if a difference is NaN.
        max_abs_error=worst if np.isfinite(worst) else None,
        max_bound=max(bounds, default=0.0),
        ranks_agree=agree,
        diagnostics=tuple(rank.make_diagnostic() for rank in wrong[:_LISTED_RANKS]),
    )


def same_bits(array: Array, other_array: Array) -> bool:
    """Return whether two arrays have the same dtype, shape and bits.

    A NaN equals one with the same bits, and 0.0 differs from -0.0. Empty arrays of the same dtype
    and shape are equal. The arrays need not be contiguous in memory.
    """
    if array.dtype != other_array.dtype or array.shape != other_array.shape:
        return False
    # There is no unsigned integer of 16 bytes, the size of a complex128: its bits are two of 8.
    word = f"u{math.gcd(array.dtype.itemsize, 8)}"
    flat, other_flat = (np.ascontiguousarray(values).reshape(-1) for values in (array, other_array))
    # In parts, because the comparison allocates one byte per word.
    return all(
        np.array_equal(
            flat[start : start + _COMPARED_ELEMENTS].view(word),
            other_flat[start : start + _COMPARED_ELEMENTS].view(word),
        )
        for start in range(0, flat.size, _COMPARED_ELEMENTS)
    )


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """OUTPUT of a rank, or a part of it, by definition.

    `values`: of the dtype of the inputs if there is no bound, else wider. `bound`: on the rounding
    errors of any order of reduction, None for none. `is_stated`: mask of elements that must equal
    `values`, None for all.
    """

    values: Array
    bound: Array | None = None
    is_stated: BoolArray | None = None


@dataclass(frozen=True, slots=True)
class ExpectedPart:
    """The required contents of a rank's OUTPUT from the element `start` on."""

    rank: int
    start: int
    expected: ExpectedOutput


def compute_expected_parts(
    collective: Collective, inputs: Sequence[Array], op: ReduceOp, is_exact: bool
) -> Iterator[ExpectedPart] | None:
    """Return an iterator over the required contents of every rank's OUTPUT, part by part.

    Parts are in the order of `_reduce_inputs` for reducing collectives, otherwise by rank. Ranks
    without a result get no part. Each part is computed when it is requested, to save memory.
    Returns None for a custom collective without a defined result. Raises `ValueError` for a custom
    one whose ranks have inputs with different numbers of elements per unit.

    Reduced floating-point data has a bound of its error per element, if `is_exact` is False and
    `op` is a sum, product or average. For k contributions x it is k eps sum |x| for a sum, k eps
    |product| for a product, and eps sum |x| for an average. eps is the distance from 1 to the next
    number of the dtype. This is twice the first-order error (Higham, Accuracy and Stability of
    Numerical Algorithms, sections 3.1 and 4.2). All other data must be equal bit by bit.
    """
    arithmetic = _Arithmetic(op, is_exact)
    if collective.kind is CollectiveKind.CUSTOM:
        # The parts that a contract requires; None if it defines no result.
        contract = collective.postcondition()
        if contract is None:
            return None
        # One matrix per rank with a row per unit of INPUT. All have equally many columns, of which
        # ranks without INPUT do not decide; 1 if no rank has any (an empty tensor).
        input_units = collective.input_units().tolist()
        pairs = list(zip(inputs, input_units, strict=True))
        num_elements = max((array.size // size for array, size in pairs if size), default=1)
        parts = [array.reshape(size, num_elements) for array, size in pairs]
        # Contributions by rank and unit of its OUTPUT, in the order of the contract. Defaults, so
        # that ranks and units missing in the contract need no test.
        cells: dict[int, _Cells] = defaultdict(lambda: defaultdict(list))
        columns = (contract.rank, contract.offset, contract.source_rank, contract.source_unit)
        for row in zip(*(column.tolist() for column in columns), strict=True):
            rank, offset, source, unit = row
            sources = range(collective.num_ranks) if source < 0 else (source,)
            cells[rank][offset] += [(source_rank, unit) for source_rank in sources]
        return (
            ExpectedPart(rank, 0, _compute_custom_output(cells[rank], units, parts, arithmetic))
            for rank, units in enumerate(collective.output_units().tolist())
        )
    if collective.kind in REDUCING:
        return _reduce_inputs(collective, inputs, arithmetic)
    return _move_inputs(collective, inputs)


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
        """Compare one part of a rank's output with the expected values, and count wrong elements.

        With bounds, an element is wrong if its absolute error is above its bound or NaN.
        Without bounds, it is wrong if its bits differ. Elements with `is_stated` False
        (undefined values) are never wrong. Updates:
        - `count`: increased by the number of wrong elements.
        - `largest`: maximum of the absolute errors of all defined elements so far, also of
          right ones; NaN once an error is NaN. It stays if all bits are equal and the part has
          neither bounds nor `is_stated`.
        - `bound`: maximum of all bounds so far, also of undefined elements. A part without
          bounds does not change it.
        - `first`: text for the first wrong element of the rank, set only once: its value, index
          in OUTPUT, expected value and bound.
        """
        expected = part.expected
        actual = self.output[part.start : part.start + expected.values.size]
        # The usual case, a correct result without bound, takes one pass.
        is_plain = expected.bound is None and expected.is_stated is None
        if is_plain and same_bits(actual, expected.values):
            return
        # Differences of large int64 do not fit float64.
        wide = np.longdouble if expected.values.dtype.itemsize >= 8 else np.float64
        error: Array = np.abs(actual.astype(wide) - expected.values.astype(wide))
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
            index = int(np.argmax(is_wrong))
            within = "" if expected.bound is None else f" within {float(expected.bound[index]):.3g}"
            self.first = (
                f"OUTPUT has {actual[index]!s} at element {part.start + index}, "
                f"expected {expected.values[index]!s}{within}"
            )
        self.count += int(np.count_nonzero(is_wrong))

    def make_diagnostic(self) -> Diagnostic:
        """Return the finding `wrong-output` of the rank: its first wrong element, and their number.

        It must have a wrong element.
        """
        message = f"{self.first}; {self.count} of {self.output.size} elements are wrong"
        return Diagnostic("wrong-output", message, location=Location(rank=self.rank))


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """The reduction of contributions. `is_exact`: no order of reduction rounds."""

    op: ReduceOp
    is_exact: bool

    def reduce_parts(self, parts: Sequence[Array]) -> ExpectedOutput:
        """Reduce arrays of one shape and dtype by `op`, in their order.

        `parts` is not changed and must not be empty.
        - Without rounding (`is_exact`, an integer dtype, minimum or maximum) the values have the
          dtype of the parts, and there is no bound. Integers wrap around on overflow.
        - Otherwise the values and the bound are float64, for 8-byte dtypes longdouble. The bound of
          an element is 2 n u times the sum of the absolute values, for a product times the absolute
          product. n is the number of parts, and u the largest relative error of one rounding to the
          dtype. For an average the bound is divided by n.

        An average is the sum divided by n; integers are rounded towards zero.
        """
        function: Callable[..., Array] = REDUCTIONS[self.plain_op]  # type: ignore[assignment]
        # A minimum or maximum is one of its operands, so it is not rounded.
        is_choice = self.plain_op in (ReduceOp.MIN, ReduceOp.MAX)
        if self.is_exact or is_choice or not is_floating(parts[0].dtype):
            # Integers may overflow, as they do in a run.
            with np.errstate(all="ignore"):
                total = reduce(function, parts[1:], parts[0].copy())
            return ExpectedOutput(self._divide_average(total, len(parts)))
        # The total in a wider type, with the bound of `compute_expected_parts`.
        dtype = parts[0].dtype
        # The reference's rounding must not matter: float64 is compared in extended precision.
        wide = np.longdouble if dtype.itemsize == 8 else np.float64
        # Parts are widened one by one: all at once would take twice the memory of the run.
        total = reduce(function, (part.astype(wide) for part in parts))
        magnitude = np.abs(total)
        if self.plain_op is ReduceOp.SUM:
            magnitude = reduce(np.add, (np.abs(part.astype(wide)) for part in parts))
        bound = len(parts) * 2 * rounding_unit(dtype) * magnitude
        if self.op is ReduceOp.AVG:
            bound = bound / len(parts)
        return ExpectedOutput(self._divide_average(total, len(parts)), bound)

    @property
    def plain_op(self) -> ReduceOp:
        """Return the operator by which two inputs are combined.

        It is the sum for an average, which is divided at the end, else the operator itself.
        """
        is_average = self.op is ReduceOp.AVG
        return ReduceOp.SUM if is_average else self.op

    def _divide_average(self, total: Array, count: int) -> Array:
        """Return the total of `count` parts, divided for an average."""
        return divide_values(total, count) if self.op is ReduceOp.AVG else total


def _reduce_inputs(
    collective: Collective, inputs: Sequence[Array], arithmetic: _Arithmetic
) -> Iterator[ExpectedPart]:
    """Yield the expected outputs of a reducing collective, in pieces of limited size.

    - All-reduce: all ranks get the total of all inputs.
    - Reduce: the root (rank 0 if it has none) gets the total.
    - Reduce-scatter: rank r gets part r of n equal parts of the total.
    - Reduce-scatter-v: rank r gets part r, whose size is entry r of the counts.

    Inputs are reduced in the order of the ranks. A piece has at most `_COMPUTED_ELEMENTS` elements;
    its `start` is the index of its first element in the rank's OUTPUT. An all-reduce yields the
    first piece for every rank, then the second one for every rank, and so on; the ranks share the
    arrays. Otherwise pieces are sorted by rank, then by start. An empty part gives no piece.
    """
    size, num_ranks = inputs[0].size, collective.num_ranks
    # (ranks that get it, first element, number of elements)
    shares: list[tuple[Sequence[int], int, int]] = [(range(num_ranks), 0, size)]
    if collective.kind is CollectiveKind.REDUCE:
        shares = [([collective.root or 0], 0, size)]
    elif collective.kind is CollectiveKind.REDUCE_SCATTER:
        share = size // num_ranks
        shares = [([rank], rank * share, share) for rank in range(num_ranks)]
    elif collective.counts is not None:
        borders = _element_borders(collective.counts.table, size)
        shares = [([rank], first, last - first) for rank, (first, last) in enumerate(borders)]
    for ranks, first, length in shares:
        for start in range(0, length, _COMPUTED_ELEMENTS):
            piece = slice(first + start, first + min(start + _COMPUTED_ELEMENTS, length))
            total = arithmetic.reduce_parts([array[piece] for array in inputs])
            for rank in ranks:
                yield ExpectedPart(rank, start, total)


def _move_inputs(collective: Collective, inputs: Sequence[Array]) -> Iterator[ExpectedPart]:
    """Yield the parts of every rank's OUTPUT, by ascending rank, if data are only moved.

    Each part is a view of an input; those of a rank follow one another in the order of the inputs.
    n: number of ranks. A missing root is 0.

    - Gather: only the root has an OUTPUT, all inputs.
    - Broadcast: every rank gets the root's input.
    - Scatter, all-to-all: rank r gets part r of n equal parts of the root's, or of every, input.
      `ValueError` if equal parts are not possible.
    - All-to-all-v: rank r gets part r of every input. The parts of input s have the units of row s
      of the counts. A unit has (length of the input // sum of its row) elements; further elements
      are in no part.
    - Other kinds: every rank gets all inputs.
    """
    num_ranks, kind = collective.num_ranks, collective.kind
    # Collectives without root ignore it.
    root = collective.root or 0
    for rank in [root] if kind is CollectiveKind.GATHER else range(num_ranks):
        sources = inputs
        if kind is CollectiveKind.BROADCAST:
            sources = [inputs[root]]
        elif kind is CollectiveKind.SCATTER:
            sources = [np.split(inputs[root], num_ranks)[rank]]
        elif kind is CollectiveKind.ALL_TO_ALL:
            sources = [np.split(array, num_ranks)[rank] for array in inputs]
        elif kind is CollectiveKind.ALL_TO_ALL_V and collective.counts is not None:
            rows = zip(collective.counts.table, inputs, strict=True)
            parts = [(array, _element_borders(row, array.size)[rank]) for row, array in rows]
            sources = [array[first:last] for array, (first, last) in parts]
        start = 0
        for source in sources:
            yield ExpectedPart(rank, start, ExpectedOutput(source))
            start += source.size


def _element_borders(counts: Int64Array, elements: int) -> list[tuple[int, int]]:
    """Return the parts of a buffer as (first element, element after the last one).

    `counts`: units of the parts, which follow one another without gaps; at least one part.
    `elements`: elements of the entire buffer. Every unit has `elements` divided by the sum
    of `counts`, rounded down; remaining elements are in no part. If all counts are 0, all
    parts are (0, 0).
    """
    units = max(1, int(counts.sum()))
    ends = (np.cumsum(counts) * (elements // units)).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


# ---- custom collectives --------------------------------------------------------------------------


def _compute_custom_output(
    cells: _Cells, units: int, parts: Sequence[Array], arithmetic: _Arithmetic
) -> ExpectedOutput:
    """Compute the OUTPUT of one rank from a contract: each unit is reduced from its contributions.

    `cells`: for each defined unit of OUTPUT, its contributions as (rank, unit) in the order of the
    reduction. `units`: number of units of OUTPUT. `parts`: for each rank a matrix of its input with
    one row per unit.

    The results are flat arrays, unit by unit, with as many elements per unit as `parts` has
    columns. `is_stated` is always an array: True for the elements of units with contributions,
    False for all other elements, whose `values` are 0. `bound` is None if `reduce_parts` gives no
    unit a bound; otherwise units without a bound have 0. The dtype is that of the reduced units, or
    of `parts` if `cells` is empty.
    """
    expected_by_unit: dict[int, ExpectedOutput] = {}
    for offset, cell in cells.items():
        contributions = [parts[rank][unit] for rank, unit in cell]
        expected_by_unit[offset] = arithmetic.reduce_parts(contributions)
    # All cells have one dtype: wider than the inputs if results are rounded.
    dtype = (
        next(iter(expected_by_unit.values())).values.dtype if expected_by_unit else parts[0].dtype
    )
    shape = (units, parts[0].shape[1])
    values, bound = np.zeros(shape, dtype), np.zeros(shape, dtype)
    # Units that the contract does not mention may have any value.
    is_stated = np.zeros(shape, np.bool_)
    for offset, expected in expected_by_unit.items():
        values[offset] = expected.values
        is_stated[offset] = True
        bound[offset] = 0 if expected.bound is None else expected.bound
    is_bounded = any(expected.bound is not None for expected in expected_by_unit.values())
    return ExpectedOutput(
        values.reshape(-1), bound.reshape(-1) if is_bounded else None, is_stated.reshape(-1)
    )
