"""The definition of every collective, computed directly from the inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from collhub_execution.data.element_types import (
    REDUCTIONS,
    Array,
    divide_values,
    is_floating,
    rounding_unit,
)
from hub_core.columns import BoolArray
from hub_core.model import REDUCING, Collective, CollectiveKind, Contributions, ReduceOp

# Number of elements reduced at once: their memory is small compared with the data of a run.
_PART = 1 << 20


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
class _Arithmetic:
    """The reduction of contributions. `is_exact`: no order of reduction rounds."""

    op: ReduceOp
    is_exact: bool

    def reduce_parts(self, parts: Sequence[Array]) -> ExpectedOutput:
        """Reduce all parts, arrays of one shape and dtype.

        Without bound if no rounding occurs: exact data, integers, minima and maxima.
        """
        function: Callable[..., Array] = REDUCTIONS[self.plain_op]  # type: ignore[assignment]
        # A minimum or maximum is one of its operands, so it is not rounded.
        is_choice = self.plain_op in (ReduceOp.MIN, ReduceOp.MAX)
        if self.is_exact or is_choice or not is_floating(parts[0].dtype):
            # Integers may overflow, as they do in a run.
            with np.errstate(all="ignore"):
                total = reduce(function, parts[1:], parts[0].copy())
            return ExpectedOutput(self._divide_average(total, len(parts)))
        return self._reduce_with_bound(parts, function)

    @property
    def plain_op(self) -> ReduceOp:
        """The operator of the reduction; for an average the sum."""
        is_average = self.op is ReduceOp.AVG
        return ReduceOp.SUM if is_average else self.op

    def _reduce_with_bound(
        self, parts: Sequence[Array], function: Callable[..., Array]
    ) -> ExpectedOutput:
        """Return the total in a wider type, with the bound of `compute_expected_parts`."""
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

    def _divide_average(self, total: Array, count: int) -> Array:
        """Return the total of `count` parts, divided for an average."""
        return divide_values(total, count) if self.op is ReduceOp.AVG else total


@dataclass(frozen=True, slots=True)
class ExpectedPart:
    """The required contents of a rank's OUTPUT from the element `start` on."""

    rank: int
    start: int
    expected: ExpectedOutput


def compute_expected_parts(
    collective: Collective, inputs: Sequence[Array], op: ReduceOp, is_exact: bool
) -> Iterator[ExpectedPart] | None:
    """Return the required contents of every rank's OUTPUT, part by part.

    Ranks without a defined result are skipped. None for a contract without result. Parts are
    generated one by one, because all of them together would be as large as the data of a run.
    `is_exact`: reductions are exact in any order. Otherwise, for floating-point sums and
    products of k contributions, the bound is k eps sum |x|, or k eps |product| (Higham, Accuracy
    and Stability of Numerical Algorithms, sections 3.1 and 4.2), where eps is the distance from 1
    to the next number: twice the first-order error of k - 1 roundings and the division of an
    average.
    """
    arithmetic = _Arithmetic(op, is_exact)
    if collective.kind is CollectiveKind.CUSTOM:
        return _evaluate_contract(collective, inputs, arithmetic)
    if collective.kind in REDUCING:
        return _reduce_inputs(collective, inputs, arithmetic)
    return _move_inputs(collective, inputs)


def _reduce_inputs(
    collective: Collective, inputs: Sequence[Array], arithmetic: _Arithmetic
) -> Iterator[ExpectedPart]:
    """Yield the total, or the share of it that a rank gets."""
    size, num_ranks = inputs[0].size, collective.num_ranks
    # (ranks that get it, first element, number of elements)
    shares: list[tuple[Sequence[int], int, int]] = [(range(num_ranks), 0, size)]
    if collective.kind is CollectiveKind.REDUCE:
        shares = [([collective.root or 0], 0, size)]
    elif collective.kind is CollectiveKind.REDUCE_SCATTER:
        share = size // num_ranks
        shares = [([rank], rank * share, share) for rank in range(num_ranks)]
    for ranks, first, length in shares:
        for start in range(0, length, _PART):
            piece = slice(first + start, first + min(start + _PART, length))
            total = arithmetic.reduce_parts([array[piece] for array in inputs])
            for rank in ranks:
                yield ExpectedPart(rank, start, total)


def _move_inputs(collective: Collective, inputs: Sequence[Array]) -> Iterator[ExpectedPart]:
    """Yield inputs, or shares of them, at their positions in collectives that only move data."""
    for rank, sources in _list_moved_arrays(collective, inputs):
        start = 0
        for source in sources:
            yield ExpectedPart(rank, start, ExpectedOutput(source))
            start += source.size


def _list_moved_arrays(
    collective: Collective, inputs: Sequence[Array]
) -> Iterator[tuple[int, Sequence[Array]]]:
    """Yield (rank, arrays that its OUTPUT contains in sequence).

    Only for collectives that move data. For a gather only the root, for other kinds every rank.
    """
    num_ranks, kind = collective.num_ranks, collective.kind
    # Collectives without root ignore it.
    root = collective.root or 0
    if kind is CollectiveKind.GATHER:
        # Only the root has an OUTPUT.
        yield root, inputs
        return
    for rank in range(num_ranks):
        if kind is CollectiveKind.BROADCAST:
            yield rank, [inputs[root]]
        elif kind is CollectiveKind.SCATTER:
            yield rank, [np.split(inputs[root], num_ranks)[rank]]
        elif kind is CollectiveKind.ALL_TO_ALL:
            yield rank, [np.split(array, num_ranks)[rank] for array in inputs]
        else:
            yield rank, inputs


# ---- custom collectives --------------------------------------------------------------------------

# Per unit of an OUTPUT: its contributions (source rank, unit of its INPUT).
_Cells = dict[int, list[tuple[int, int]]]


def _evaluate_contract(
    collective: Collective, inputs: Sequence[Array], arithmetic: _Arithmetic
) -> Iterator[ExpectedPart] | None:
    """Return the parts that a contract requires; None if it defines no result."""
    contract = collective.postcondition()
    if contract is None:
        return None
    parts = _split_by_unit(collective, inputs)
    cells = _collect_cells(contract, collective.num_ranks)
    return (
        ExpectedPart(rank, 0, _compute_custom_output(cells[rank], units, parts, arithmetic))
        for rank, units in enumerate(collective.output_units().tolist())
    )


def _split_by_unit(collective: Collective, inputs: Sequence[Array]) -> list[Array]:
    """Return every rank's input as rows, one per unit.

    With an empty tensor, rows have one element.
    """
    # Ranks without INPUT do not determine the number of elements per unit.
    units = collective.input_units().tolist()
    sizes = [array.size // size for array, size in zip(inputs, units, strict=True) if size]
    # With an empty tensor no rank has an input.
    elements = max(sizes, default=1)
    return [array.reshape(size, elements) for array, size in zip(inputs, units, strict=True)]


def _collect_cells(contract: Contributions, num_ranks: int) -> dict[int, _Cells]:
    """Return the contributions by rank and unit of the output; source rank -1 means all ranks."""
    # Defaults, so that ranks and units missing in the contract need no test.
    cells: dict[int, _Cells] = defaultdict(lambda: defaultdict(list))
    columns = (contract.rank, contract.offset, contract.source_rank, contract.source_unit)
    for rank, offset, source, unit in zip(*(column.tolist() for column in columns), strict=True):
        sources = range(num_ranks) if source < 0 else (source,)
        cells[rank][offset] += [(source_rank, unit) for source_rank in sources]
    return cells


def _compute_custom_output(
    cells: _Cells, units: int, parts: Sequence[Array], arithmetic: _Arithmetic
) -> ExpectedOutput:
    """Compute OUTPUT of one rank, unit by unit.

    Units that the contract does not mention may have any value (`is_stated` False).
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
