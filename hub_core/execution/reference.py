"""The definition of every collective, computed directly from the inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.execution.data import divided, is_floating, rounding_unit
from hub_core.execution.memory import REDUCTIONS
from hub_core.model.collectives import Collective, Contributions
from hub_core.model.kinds import REDUCING, CollectiveKind, ReduceOp

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """OUTPUT of a rank by definition: `values`, and the `bound` on the rounding errors of any order, None for none.

    Without bound, values are of the dtype of the inputs; with one, wider. `is_stated`: which elements must hold `values`.
    """

    values: Array
    bound: Array | None = None
    is_stated: npt.NDArray[np.bool_] | None = None


def expected_outputs(
    collective: Collective, inputs: Sequence[Array], op: ReduceOp, is_exact: bool
) -> list[Expected | None] | None:
    """What every rank must hold: None for a rank that nothing is promised to; None at all for a contract without result.

    `is_exact`: reductions are exact in any order, so that nothing is rounded. Else, for floating-point sums and products of
    k contributions, the bound is k eps sum |x|, or k eps |product| (Higham, Accuracy and Stability of Numerical Algorithms,
    sections 3.1 and 4.2), eps being the distance from 1 to the next number: twice what k - 1 roundings and the division of
    an average need to first order.
    """
    if collective.kind is CollectiveKind.CUSTOM:
        return _custom(collective, inputs, op, is_exact)
    if collective.kind in REDUCING:
        return _reducing(collective, _reduced(inputs, op, is_exact))
    return [
        Expected(values) if values is not None else None for values in _moving(collective, inputs)
    ]


def _reduced(parts: Sequence[Array], op: ReduceOp, is_exact: bool) -> Expected:
    """All parts reduced."""
    dtype, plain = parts[0].dtype, ReduceOp.SUM if op is ReduceOp.AVG else op
    function: Callable[..., Array] = REDUCTIONS[plain]  # type: ignore[assignment]
    if is_exact or not is_floating(dtype) or plain in (ReduceOp.MIN, ReduceOp.MAX):
        with np.errstate(all="ignore"):
            total = reduce(function, parts[1:], parts[0].copy())
        return Expected(_of_op(total, op, len(parts)))
    wide = np.longdouble if dtype.itemsize == 8 else np.float64
    total = reduce(function, (part.astype(wide) for part in parts))
    size = (
        reduce(np.add, (np.abs(part.astype(wide)) for part in parts))
        if plain is ReduceOp.SUM
        else np.abs(total)
    )
    bound = len(parts) * 2 * rounding_unit(dtype) * size
    return Expected(
        _of_op(total, op, len(parts)), bound / len(parts) if op is ReduceOp.AVG else bound
    )


def _of_op(total: Array, op: ReduceOp, count: int) -> Array:
    return divided(total, count) if op is ReduceOp.AVG else total


def _reducing(collective: Collective, total: Expected) -> list[Expected | None]:
    ranks = range(collective.num_ranks)
    if collective.kind is CollectiveKind.ALL_REDUCE:
        return [total for _ in ranks]
    if collective.kind is CollectiveKind.REDUCE:
        return [total if rank == collective.root else None for rank in ranks]
    bounds = [None] * len(ranks) if total.bound is None else np.split(total.bound, len(ranks))
    return [
        Expected(part, bound)
        for part, bound in zip(np.split(total.values, len(ranks)), bounds, strict=True)
    ]


def _moving(collective: Collective, inputs: Sequence[Array]) -> list[Array]:
    """Outputs of the collectives that reduce nothing."""
    n, kind, root = collective.num_ranks, collective.kind, collective.root or 0
    if kind is CollectiveKind.BROADCAST:
        return [inputs[root]] * n
    if kind is CollectiveKind.SCATTER:
        return np.split(inputs[root], n)
    if kind is CollectiveKind.ALL_TO_ALL:
        shares = [np.split(part, n) for part in inputs]
        return [np.concatenate([share[rank] for share in shares]) for rank in range(n)]
    whole = np.concatenate(inputs)
    return [
        whole if kind is CollectiveKind.ALL_GATHER or rank == root else whole[:0]
        for rank in range(n)
    ]


def _custom(
    collective: Collective, inputs: Sequence[Array], op: ReduceOp, is_exact: bool
) -> list[Expected | None] | None:
    contract = collective.postcondition()
    if contract is None:
        return None
    blocks = collective.input_units().tolist()
    elements = max(array.size // size for array, size in zip(inputs, blocks, strict=True) if size)
    parts = [array.reshape(size, elements) for array, size in zip(inputs, blocks, strict=True)]
    cells = _cells(contract, collective.num_ranks)
    return [
        _custom_rank(cells[rank], units, elements, parts, op, is_exact)
        for rank, units in enumerate(collective.output_units().tolist())
    ]


def _cells(contract: Contributions, num_ranks: int) -> dict[int, dict[int, list[tuple[int, int]]]]:
    """(source rank, unit) of all contributions, by rank and unit of the output."""
    cells: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    columns = (contract.rank, contract.offset, contract.source_rank, contract.source_unit)
    for rank, offset, source, unit in zip(*(column.tolist() for column in columns), strict=True):
        sources = range(num_ranks) if source < 0 else (source,)
        cells[rank][offset] += [(each, unit) for each in sources]
    return cells


def _custom_rank(
    cells: dict[int, list[tuple[int, int]]],
    units: int,
    elements: int,
    parts: Sequence[Array],
    op: ReduceOp,
    is_exact: bool,
) -> Expected:
    found = {
        offset: _reduced([parts[rank][unit] for rank, unit in cell], op, is_exact)
        for offset, cell in cells.items()
    }
    values = np.zeros(
        (units, elements), next(iter(found.values())).values.dtype if found else parts[0].dtype
    )
    bound = np.zeros((units, elements), values.dtype)
    is_stated = np.zeros((units, elements), np.bool_)
    for offset, expected in found.items():
        values[offset], is_stated[offset] = expected.values, True
        bound[offset] = 0 if expected.bound is None else expected.bound
    is_bounded = any(expected.bound is not None for expected in found.values())
    return Expected(
        values.reshape(-1), bound.reshape(-1) if is_bounded else None, is_stated.reshape(-1)
    )
