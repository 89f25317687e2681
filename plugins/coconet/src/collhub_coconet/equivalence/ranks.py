"""Run a program on p simulated ranks in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.equivalence.array_operations import (
    Array,
    OnRanks,
    batch_product,
    block,
    collected,
    convolution,
    global_indices,
    kept,
    matrix_product,
    over_ranks,
    pointwise,
    scaled,
    spread,
    to_scalar,
)
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    Kind,
    Operation,
    Reduction,
)
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import (
    Binding,
    TensorType,
    block_bounds,
    from_end,
    has_dimension,
)
from hub_core.model import InputError, Location

Replacement = Callable[[Operation, OnRanks, OnRanks], OnRanks]
"""`replace(operation, its first operand, its value) -> value to go on with`."""


@dataclass(slots=True)
class Run:
    """Values of all operations on all ranks of their group; masks of Dropout, as whole tensors."""

    program: Program
    binding: Binding
    values: dict[str, OnRanks] = field(default_factory=dict)
    masks: list[Array] = field(default_factory=list)


def run(
    program: Program,
    binding: Binding,
    arguments: Mapping[str, OnRanks],
    replacement: Replacement | None = None,
) -> Run:
    """Execute kernel by kernel; stages run as one. `replacement` may exchange results."""
    # Arguments are values like all others.
    found = Run(program, binding, dict(arguments))
    _check_roots(program, binding)
    # Random data may leave the range of a type; both programs then do.
    with np.errstate(all="ignore"):
        for kernel in program.kernels():
            for operation in kernel:
                value = _value(found, operation)
                if replacement is not None:
                    value = replacement(operation, found.values[operation.reads[0]], value)
                found.values[operation.name] = value
    return found


def _check_roots(program: Program, binding: Binding) -> None:
    for line, operation in enumerate(program.operations, 1):
        # Known only now: a program is for any number of ranks.
        root = operation.root or 0
        if not 0 <= root < binding.num_ranks:
            place = Location(program.name, line)
            message = f"{operation.name}: root {root} is no rank of {binding.num_ranks}"
            raise InputError(message, location=place, cure="count ranks from 0", code="root")


def _value(found: Run, operation: Operation) -> OnRanks:
    # Some operations look at all ranks, others at one after the other.
    whole = _WHOLE.get(operation.kind)
    if whole is not None:
        return whole(found, operation)
    if operation.kind in REDUCTIONS_TO_SCALARS:
        return _to_scalar(found, operation)
    ranks = range(found.binding.num_ranks)
    if operation.kind in CONTRACTIONS:
        function = _CONTRACTIONS[operation.kind]
        x, w = (found.values[name] for name in operation.reads)
        return [function(x[rank], w[rank]) for rank in ranks]
    return [_pointwise(found, operation, rank) for rank in ranks]


def _pointwise(found: Run, operation: Operation, rank: int) -> Array:
    kind = found.program.types[operation.name]
    operands = [found.values[name][rank] for name in operation.reads]
    if operation.kind is Kind.CAST:
        return operands[0].astype(kind.element)
    parts = _numbers_and_blocks(found, operation, rank)
    return pointwise(operation.kind, parts)


def _numbers_and_blocks(found: Run, operation: Operation, rank: int) -> list[Array]:
    """Operands of a pointwise operation as one rank sees them, numbers in the tensors' type."""
    result = found.program.types[operation.name]
    # The condition of a select is bool, its values tell the type.
    typed = operation.operands[1:] if operation.kind is Kind.SELECT else operation.operands
    name = next(operand for operand in typed if isinstance(operand, str))
    dtype = np.dtype(str(found.program.types[name].element))
    parts = []
    for operand in operation.operands:
        if isinstance(operand, str):
            parts.append(_part(found, operand, result, rank))
        else:
            parts.append(np.asarray(operand, dtype))
    return parts


def _part(found: Run, name: str, result: TensorType, rank: int) -> Array:
    """A rank's part of an operand: of a replicated one with the sliced dimension, its block."""
    kind = found.program.types[name]
    value = found.values[name][rank]
    if not result.layout.is_sliced or kind.layout.is_sliced:
        return value
    # Operands with fewer dimensions are aligned at the end.
    distance = from_end(result.layout.dimension, len(result.shape))
    if not has_dimension(kind.shape, distance):
        return value
    return block(value, len(kind.shape) - distance, found.binding.num_ranks, rank)


def _all_reduce(found: Run, operation: Operation) -> OnRanks:
    # One array for all: nothing is written in place.
    reduced = over_ranks(found.values[operation.reads[0]], operation.reduction or Reduction.SUM)
    return [reduced] * found.binding.num_ranks


def _reduce_scatter(found: Run, operation: Operation) -> OnRanks:
    num_ranks, dimension = found.binding.num_ranks, operation.dimension or 0
    # Every rank reduces its block of all contributions.
    contributions = found.values[operation.reads[0]]
    blocks = [
        [block(one, dimension, num_ranks, rank) for one in contributions]
        for rank in range(num_ranks)
    ]
    return [over_ranks(parts, operation.reduction or Reduction.SUM) for parts in blocks]


def _all_gather(found: Run, operation: Operation) -> OnRanks:
    name = operation.reads[0]
    whole = collected(found.values[name], found.program.types[name])
    return [whole] * found.binding.num_ranks


def _all_to_all(found: Run, operation: Operation) -> OnRanks:
    # The same whole tensor, cut along the other dimension.
    name = operation.reads[0]
    whole = collected(found.values[name], found.program.types[name])
    return spread(whole, found.program.types[operation.name], found.binding.num_ranks)


def _broadcast(found: Run, operation: Operation) -> OnRanks:
    return [found.values[operation.reads[0]][operation.root or 0]] * found.binding.num_ranks


def _reduce(found: Run, operation: Operation) -> OnRanks:
    """The reduction on the root; the others keep their own."""
    # A copy, since the operand lives on.
    values = list(found.values[operation.reads[0]])
    values[operation.root or 0] = over_ranks(values, operation.reduction or Reduction.SUM)
    return values


def _send(found: Run, operation: Operation) -> OnRanks:
    """Rank i of the other group has what rank i of this one had.

    Values are kept by name, and each name has one group.
    """
    return list(found.values[operation.reads[0]])


def _slice(found: Run, operation: Operation) -> OnRanks:
    values, num_ranks = found.values[operation.reads[0]], found.binding.num_ranks
    dimension = operation.dimension or 0
    return [block(value, dimension, num_ranks, rank) for rank, value in enumerate(values)]


def _update(found: Run, operation: Operation) -> OnRanks:
    # The state itself is not read.
    return found.values[operation.reads[1]]


def _dropout(found: Run, operation: Operation) -> OnRanks:
    """Every rank draws the numbers of its own elements; the mask is kept as a whole."""
    kind = found.program.types[operation.name]
    shape = found.binding.shape(kind.shape)
    rate, seed = operation.rate or 0.0, operation.seed or 0
    keeps, results = [], []
    for rank, values in enumerate(found.values[operation.reads[0]]):
        dimension, bounds = 0, None
        if kind.layout.is_sliced:
            dimension = kind.layout.dimension
            bounds = block_bounds(shape[dimension], found.binding.num_ranks, rank)
        keep = kept(global_indices(shape, dimension, bounds), rate, seed)
        keeps.append(keep)
        results.append(scaled(values, keep, rate))
    found.masks.append(collected(keeps, kind))
    return results


def _to_scalar(found: Run, operation: Operation) -> OnRanks:
    name = operation.reads[0]
    values = found.values[name]
    if not found.program.types[name].layout.is_sliced:
        return [to_scalar(operation.kind, [value]) for value in values]
    # Every rank's partial result, all-reduced.
    return [to_scalar(operation.kind, values)] * found.binding.num_ranks


def _transpose(found: Run, operation: Operation) -> OnRanks:
    # A block along one dimension is one along the other.
    values = found.values[operation.reads[0]]
    return [np.ascontiguousarray(np.swapaxes(one, -1, -2)) for one in values]


_CONTRACTIONS = {
    Kind.MATMUL: matrix_product,
    Kind.BATCH_MATMUL: batch_product,
    Kind.CONV: convolution,
}
_WHOLE: dict[Kind, Callable[[Run, Operation], OnRanks]] = {
    Kind.ALL_REDUCE: _all_reduce,
    Kind.REDUCE_SCATTER: _reduce_scatter,
    Kind.ALL_GATHER: _all_gather,
    Kind.ALL_TO_ALL: _all_to_all,
    Kind.BROADCAST: _broadcast,
    Kind.REDUCE: _reduce,
    Kind.SEND: _send,
    Kind.SLICE: _slice,
    Kind.TRANSPOSE: _transpose,
    Kind.UPDATE: _update,
    Kind.DROPOUT: _dropout,
}
