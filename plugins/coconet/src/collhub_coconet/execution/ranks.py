"""Simulate a program on p ranks with numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.execution.array_operations import (
    Array,
    OnRanks,
    apply_dropout,
    apply_pointwise,
    collect,
    compute_global_indices,
    convolve,
    draw_dropout_mask,
    dtype_of,
    mix_operands,
    multiply_batches,
    multiply_matrices,
    reduce_over_ranks,
    reduce_to_scalar,
    take_bounds,
)
from collhub_coconet.execution.row_operations import KINDS_OF_ONE_RANK, compute_on_rank
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    Binding,
    Kind,
    LayoutRule,
    Operation,
    Reduction,
    TensorType,
    has_dimension,
)
from collhub_coconet.program.program import Program, check_binding, find_axis_positions
from collhub_coconet.program.uneven_rows import read_counts

Replacement = Callable[[Operation, OnRanks, OnRanks], OnRanks]
"""Callback (operation, its first operand, its value) -> value with which the run continues."""


@dataclass(slots=True)
class SimulatedRun:
    """Values of all operations on all ranks of their group, by name; masks of Dropout, complete."""

    program: Program
    binding: Binding
    values: dict[str, OnRanks] = field(default_factory=dict)
    masks: list[Array] = field(default_factory=list)

    def bounds(self, name: str, rank: int) -> list[tuple[int, int]]:
        """Return (first, end) of a rank's block of a value, by dimension of the complete tensor."""
        return self.binding.bounds(self.program.types[name], rank)

    def subgroups(self, operation: Operation) -> list[list[int]]:
        """Return the lists of ranks that communicate with one another, each in order along the
        axes.
        """
        return self.binding.subgroups(find_axis_positions(self.program, operation))


def simulate_ranks(
    program: Program,
    binding: Binding,
    arguments: Mapping[str, OnRanks],
    replacement: Replacement | None = None,
) -> SimulatedRun:
    """Execute a program on simulated ranks with numpy; return the values of all names by rank.

    `arguments`: by name, one array per rank of the group with the part that the rank holds. They
    are not modified. Operations run in the order of the kernels. The result has the arguments and
    the value of each operation, by name and rank, and the complete masks of Dropout.

    `replacement(operation, operand, value)` is called after each operation with its first operand
    and its value, both by rank. The value that it returns is stored and used from then on.

    Overflows give no warnings. Raises `InputError` at the beginning for layouts, counts and roots
    that do not fit the ranks. Raises `KeyError` when a missing argument is used.
    """
    run = SimulatedRun(program, binding, dict(arguments))
    check_binding(program, binding)
    # Random data may overflow, in both programs alike.
    with np.errstate(all="ignore"):
        for kernel in program.kernels():
            for operation in kernel:
                value = _compute_value(run, operation)
                if replacement is not None:
                    value = replacement(operation, run.values[operation.reads[0]], value)
                run.values[operation.name] = value
    return run


def _compute_value(run: SimulatedRun, operation: Operation) -> OnRanks:
    function_of_all_ranks = _FUNCTIONS_OF_ALL_RANKS.get(operation.kind)
    if function_of_all_ranks is not None:
        return function_of_all_ranks(run, operation)
    ranks = range(run.binding.num_ranks)
    if operation.kind in CONTRACTIONS:
        function = _CONTRACTIONS[operation.kind]
        x, w = (run.values[name] for name in operation.reads)
        return [function(x[rank], w[rank]) for rank in ranks]
    if operation.kind in KINDS_OF_ONE_RANK:
        results = []
        for rank in ranks:
            parts = [run.values[name][rank] for name in operation.reads]
            results.append(compute_on_rank(run.program, run.binding, operation, parts, rank))
        return results
    return [_compute_pointwise(run, operation, rank) for rank in ranks]


def _compute_pointwise(run: SimulatedRun, operation: Operation, rank: int) -> Array:
    kind = run.program.types[operation.name]
    operands = [run.values[name][rank] for name in operation.reads]
    if operation.kind is Kind.CAST:
        return operands[0].astype(dtype_of(kind.element))
    # Collect the operands of a pointwise operation on one rank; numbers adopt their type.
    # The condition of a Select is bool; its values determine the type of the numbers.
    candidates = operation.operands[1:] if operation.kind is Kind.SELECT else operation.operands
    name = next(operand for operand in candidates if isinstance(operand, str))
    dtype = dtype_of(run.program.types[name].element)
    parts = []
    for operand in operation.operands:
        if isinstance(operand, str):
            parts.append(_take_operand(run, operand, operation.name, rank))
        else:
            parts.append(np.asarray(operand, dtype))
    return apply_pointwise(operation.kind, parts)


def _take_operand(run: SimulatedRun, name: str, result: str, rank: int) -> Array:
    """Return the part of an operand that a rank needs to compute its part of a result.

    `name`: the operand; `result`: name of the result. The array of the rank is returned unchanged
    if both have the same layout, or if the result is sliced on no axis of the mesh. Otherwise the
    array is cut to the rows that the rank has of the result, in every dimension. The dimensions of
    both are matched from the last one backwards, as in numpy's broadcasting; a dimension of size 1
    of the operand stays complete. `KeyError` for a name that has no values yet.
    """
    kind, value = run.program.types[name], run.values[name][rank]
    target = run.program.types[result]
    if target.layout == kind.layout or not _has_slices(target):
        return value
    rank_of_result, rank_of_operand = len(target.shape), len(kind.shape)
    needed, given = run.bounds(result, rank), run.bounds(name, rank)
    bounds = []
    # Operands with fewer dimensions are aligned at the end.
    for dimension, (first, stop) in enumerate(given):
        if not has_dimension(kind.shape, rank_of_operand - dimension):
            bounds.append((0, stop - first))
            continue
        low, high = needed[rank_of_result - rank_of_operand + dimension]
        bounds.append((low - first, high - first))
    is_complete = [(0, size) for size in value.shape] == bounds
    return value if is_complete else take_bounds(value, bounds)


def _has_slices(kind: TensorType) -> bool:
    return any(layout.is_sliced for layout in kind.layout.by_axis)


def _take_part(run: SimulatedRun, tensor: Array, source: str, target: str, rank: int) -> Array:
    """Copy the block of the value `target` from an array that has the block of `source`.

    `tensor`: the block of `source` on `rank` (within its group). Both values have the same complete
    shape. The block of the target must lie within that of the source, which is not checked.
    """
    pairs = zip(run.bounds(target, rank), run.bounds(source, rank), strict=True)
    return take_bounds(tensor, [(low - first, high - first) for (low, high), (first, _) in pairs])


def _compute_all_reduce(run: SimulatedRun, operation: Operation) -> OnRanks:
    values = run.values[operation.reads[0]]
    result = list(values)
    for ranks in run.subgroups(operation):
        reduced = reduce_over_ranks(
            [values[rank] for rank in ranks], operation.reduction or Reduction.SUM
        )
        # All ranks can share one array, since arrays are never modified.
        for rank in ranks:
            result[rank] = reduced
    return result


def _compute_reduce_scatter(run: SimulatedRun, operation: Operation) -> OnRanks:
    name = operation.reads[0]
    reduced = _compute_all_reduce(run, operation)
    return [
        _take_part(run, reduced[rank], name, operation.name, rank)
        for rank in range(run.binding.num_ranks)
    ]


def _compute_all_gather(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Return by rank the blocks of its subgroup, joined along the gathered dimension.

    A subgroup has the ranks that differ only along the axes of the operation, ascending. Their
    blocks are joined in this order, and they share one array. The gathered dimension is that of
    the first axis that slices the operand but not the result. Empty blocks add no elements.
    """
    values = run.values[operation.reads[0]]
    result = list(values)
    source, target = (run.program.types[name] for name in (operation.reads[0], operation.name))
    pairs = zip(source.layout.by_axis, target.layout.by_axis, strict=True)
    dimension = next(old.dimension for old, new in pairs if old.is_sliced and not new.is_sliced)
    for ranks in run.subgroups(operation):
        joined = np.concatenate([values[rank] for rank in ranks], axis=dimension)
        for rank in ranks:
            result[rank] = joined
    return result


def _compute_all_to_all(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Return for every rank its block along the new sliced dimension.

    In each subgroup of `run.subgroups`, the operands of its ranks are joined in its order, along
    the dimension that was sliced on the axis of the operation. From the joined array each rank
    takes the part of the result along `operation.dimension` (default 0) that belongs to it
    (`run.bounds`). All other dimensions stay complete. A rank in no subgroup keeps its operand. The
    values of the run are not changed.
    """
    name, dimension = operation.reads[0], operation.dimension or 0
    values = run.values[name]
    result = list(values)
    source, target = (run.program.types[value] for value in (name, operation.name))
    pairs = zip(source.layout.by_axis, target.layout.by_axis, strict=True)
    old = next(before.dimension for before, after in pairs if before != after)
    for ranks in run.subgroups(operation):
        joined = np.concatenate([values[rank] for rank in ranks], axis=old)
        for rank in ranks:
            bounds = [(0, size) for size in joined.shape]
            first = run.bounds(name, rank)[dimension][0]
            low, high = run.bounds(operation.name, rank)[dimension]
            bounds[dimension] = low - first, high - first
            result[rank] = take_bounds(joined, bounds)
    return result


def _compute_all_to_all_v(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Return the values of an AllToAllV by rank: received rows, then rows of zeros.

    The table of counts (sender, receiver), both by position in the subgroup, gives the number of
    rows that a rank sends to each rank of its subgroup. The rows for one receiver are consecutive
    in the operand of the sender, in the order of the receivers. A rank receives rows in the order
    of the senders, itself included. Zeros follow until the array has the shape of the result. Ranks
    outside the subgroups keep their operand. The values of the run are not changed. Raises
    `ValueError` if a rank receives more rows than the result has.
    """
    values = run.values[operation.reads[0]]
    result = list(values)
    counts = read_counts(operation)
    table, (first, _) = counts.table, counts.first_units()
    for ranks in run.subgroups(operation):
        for receiver, rank in enumerate(ranks):
            parts = []
            for sender, source in enumerate(ranks):
                begin = first[sender, receiver]
                parts.append(values[source][begin : begin + table[sender, receiver]])
            result[rank] = _fill_rows(run, operation, np.concatenate(parts))
    return result


def _compute_all_gather_v(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Return the values of an uneven all-gather by rank: the first rows of all ranks, joined.

    A subgroup has the ranks that differ only along the axes of the operation, ascending. The
    n-th of them contributes as many first rows (dimension 0) of its operand as the n-th count of
    the operation, which may be 0. The rows are joined in this order, and the ranks of the
    subgroup share one array. Raise `ValueError` unless there is one count per rank. The values
    of the run are not changed.
    """
    values = run.values[operation.reads[0]]
    result = list(values)
    counts = read_counts(operation).table.tolist()
    for ranks in run.subgroups(operation):
        rows = zip(ranks, counts, strict=True)
        joined = np.concatenate([values[rank][:count] for rank, count in rows])
        for rank in ranks:
            result[rank] = joined
    return result


def _compute_reduce_scatter_v(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Return the values of an uneven reduce-scatter by rank: its rows of the reduced operand.

    The operands of a subgroup (ranks that differ only along the axes of the operation,
    ascending) are reduced in rank order, by a sum if no reduction is declared. The n-th rank
    gets as many rows (dimension 0) as the n-th count, after the rows of all previous ranks. Its
    array has the shape of the result: these rows first, then rows of zeros.
    """
    reduced = _compute_all_reduce(run, operation)
    result = list(reduced)
    counts = read_counts(operation)
    table, (first, _) = counts.table, counts.first_units()
    for ranks in run.subgroups(operation):
        for position, rank in enumerate(ranks):
            begin = first[position]
            part = reduced[rank][begin : begin + table[position]]
            result[rank] = _fill_rows(run, operation, part)
    return result


def _fill_rows(run: SimulatedRun, operation: Operation, rows: Array) -> Array:
    """Return a new array of the complete shape of the operation: `rows`, then rows of zeros.

    The array has the element type of `rows`. Raise `ValueError` if there are more rows than
    the operation has.
    """
    shape = run.binding.shape(run.program.types[operation.name].shape)
    filled = np.zeros(shape, rows.dtype)
    filled[: len(rows)] = rows
    return filled


def _compute_broadcast(run: SimulatedRun, operation: Operation) -> OnRanks:
    values = run.values[operation.reads[0]]
    result = list(values)
    for ranks in run.subgroups(operation):
        for rank in ranks:
            result[rank] = values[ranks[operation.root or 0]]
    return result


def _compute_reduce(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Return the values after a reduction to a root: a list of arrays by rank.

    The ranks that communicate with one another are a subgroup (`run.subgroups`). In each subgroup,
    one rank is the root: the one at position `operation.root`, or the first if this is None. It
    gets the reduction of the operand over the subgroup (a sum by default). All other ranks keep the
    array of their operand, not a copy. `run` is not changed.
    """
    values = run.values[operation.reads[0]]
    result = list(values)
    for ranks in run.subgroups(operation):
        result[ranks[operation.root or 0]] = reduce_over_ranks(
            [values[rank] for rank in ranks], operation.reduction or Reduction.SUM
        )
    return result


def _compute_slice(run: SimulatedRun, operation: Operation) -> OnRanks:
    name = operation.reads[0]
    return [
        _take_part(run, value, name, operation.name, rank)
        for rank, value in enumerate(run.values[name])
    ]


def _compute_dropout(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Apply Dropout to the operand on every rank; return one new array of its dtype per rank.

    A kept element is divided by 1 - `rate` in this dtype, any other becomes 0. The decision depends
    only on `rate`, the seed and the index of the element in the complete tensor. Ranks with the
    same element thus decide equally.

    - A missing rate or seed is 0. A rate of 0 keeps all elements.
    - `rate` must be below 1.

    The mask of the complete tensor (bool, True: kept) is appended to `run.masks`.
    """
    kind = run.program.types[operation.name]
    shape = run.binding.shape(kind.shape)
    rate, seed = operation.rate or 0.0, operation.seed or 0
    keeps, results = [], []
    for rank, values in enumerate(run.values[operation.reads[0]]):
        bounds = run.bounds(operation.name, rank) if _has_slices(kind) else None
        keep = draw_dropout_mask(compute_global_indices(shape, bounds), rate, seed)
        keeps.append(keep)
        results.append(apply_dropout(values, keep, rate))
    run.masks.append(collect(keeps, kind, run.binding))
    return results


def _compute_scalar(run: SimulatedRun, operation: Operation) -> OnRanks:
    name = operation.reads[0]
    values = run.values[name]
    result = list(values)
    # Ranks that differ only on sliced axes have the blocks of one tensor.
    for ranks in run.subgroups(operation):
        scalar = reduce_to_scalar(operation.kind, [values[rank] for rank in ranks])
        for rank in ranks:
            result[rank] = scalar
    return result


def _compute_transpose(run: SimulatedRun, operation: Operation) -> OnRanks:
    # A block along one of the dimensions becomes a block along the other.
    values = run.values[operation.reads[0]]
    return [np.ascontiguousarray(np.swapaxes(value, -1, -2)) for value in values]


def _compute_opaque(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Compute a stand-in for an operator that the language does not describe, on every rank.

    Returns one new array or view per rank, with the shape of the result's block on that rank:

    - Rules TO_BLOCKS and TO_LOCAL, which only change the layout: the first operand's array on the
      rank, reshaped. All dimensions except the first are those of the block; the first one follows
      from the number of elements. A scalar has none.
    - Otherwise: `mix_operands` of the operand arrays of the rank, with the rank as seed if the rule
      is RANDOM, else 0.

    The values of the run are not changed. Raises `ValueError` if the elements do not fit the shape.
    """
    operands = [run.values[name] for name in operation.reads]
    kind = run.program.types[operation.name]
    results = []
    for rank in range(run.binding.num_ranks):
        shape_of_rank = tuple(stop - first for first, stop in run.bounds(operation.name, rank))
        if operation.rule in (LayoutRule.TO_BLOCKS, LayoutRule.TO_LOCAL):
            # The rows of a block differ between ranks; a scalar has none.
            part = (-1, *shape_of_rank[1:]) if shape_of_rank else ()
            results.append(operands[0][rank].reshape(part))
            continue
        seed = rank if operation.rule is LayoutRule.RANDOM else 0
        # Operands with as many rows as the block are read row by row.
        values = [operand[rank] for operand in operands]
        results.append(mix_operands(operation, seed, values, shape_of_rank, kind))
    return results


_CONTRACTIONS = {
    Kind.MATMUL: multiply_matrices,
    Kind.BATCH_MATMUL: multiply_batches,
    Kind.CONV: convolve,
}
_FUNCTIONS_OF_ALL_RANKS: dict[Kind, Callable[[SimulatedRun, Operation], OnRanks]] = {
    Kind.ALL_REDUCE: _compute_all_reduce,
    Kind.REDUCE_SCATTER: _compute_reduce_scatter,
    Kind.ALL_GATHER: _compute_all_gather,
    Kind.ALL_TO_ALL: _compute_all_to_all,
    Kind.ALL_TO_ALL_V: _compute_all_to_all_v,
    Kind.ALL_GATHER_V: _compute_all_gather_v,
    Kind.REDUCE_SCATTER_V: _compute_reduce_scatter_v,
    Kind.BROADCAST: _compute_broadcast,
    Kind.REDUCE: _compute_reduce,
    # Values are stored by name, and a name belongs to one group, so that nothing is copied.
    Kind.SEND: lambda run, operation: list(run.values[operation.reads[0]]),
    Kind.SLICE: _compute_slice,
    Kind.TRANSPOSE: _compute_transpose,
    # The old value of the state is not read.
    Kind.UPDATE: lambda run, operation: run.values[operation.reads[1]],
    Kind.DROPOUT: _compute_dropout,
    Kind.OPAQUE: _compute_opaque,
    **dict.fromkeys(REDUCTIONS_TO_SCALARS, _compute_scalar),
}
