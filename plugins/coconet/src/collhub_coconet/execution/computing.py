"""Computations on some elements of their result, in the order of additions of the whole."""

from __future__ import annotations

from math import prod

import numpy as np

from collhub_coconet.equivalence.blocks import Array
from collhub_coconet.equivalence.pointwise import convolution, matrix_product, pointwise
from collhub_coconet.equivalence.random_numbers import kept, scaled
from collhub_coconet.equivalence.reductions import to_scalar
from collhub_coconet.execution.values import Values, elements_on
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    Kind,
    Operation,
)
from collhub_coconet.program.tensors import block_bounds
from hub_core.columns import Int64Array


def computed(values: Values, operation: Operation, rank: int, chosen: Int64Array) -> Array:
    """Elements `chosen` of the result of a computation on a rank of the job."""
    if operation.kind in REDUCTIONS_TO_SCALARS:
        return _scalar(values, operation, rank).reshape(1)
    if operation.kind in CONTRACTIONS:
        return _CONTRACTIONS[operation.kind](values, operation, rank, chosen)
    if operation.kind is Kind.TRANSPOSE:
        return values.read(operation.reads[0], rank, _mirrored(values, operation, chosen))
    if operation.kind is Kind.UPDATE:
        return values.read(operation.reads[1], rank, chosen)
    if operation.kind is Kind.DROPOUT:
        return _dropout(values, operation, rank, chosen)
    operands = [_operand(values, operation, one, rank, chosen) for one in operation.operands]
    if operation.kind is Kind.CAST:
        return operands[0].astype(operation.element)
    return pointwise(operation.kind, operands)


def partial(values: Values, operation: Operation, rank: int) -> Array:
    """This rank's part of a norm, sum or maximum of slices: of float64 where they are floats."""
    name = operation.reads[0]
    part = values.on_rank(name, rank % values.binding.num_ranks)
    wide = part.astype(np.float64) if part.dtype.kind == "f" else part
    if operation.kind is Kind.MAX:
        lowest = -np.inf if wide.dtype.kind == "f" else np.iinfo(str(wide.dtype)).min
        return np.asarray(wide.max(initial=lowest)).reshape(1)
    terms = wide * wide if operation.kind is Kind.NORM else wide
    return np.asarray(np.sum(terms, dtype=wide.dtype)).reshape(1)


def finished(operation: Operation, total: Array, dtype: np.dtype[np.generic]) -> Array:
    """The scalar whose parts were reduced to `total`."""
    root = np.sqrt(total) if operation.kind is Kind.NORM else total
    return np.asarray(root).astype(dtype)


def _scalar(values: Values, operation: Operation, rank: int) -> Array:
    """A reduction that every rank computes alone."""
    name = operation.reads[0]
    position = rank % values.binding.num_ranks
    return to_scalar(operation.kind, [values.on_rank(name, position)])


def _operand(
    values: Values, operation: Operation, operand: str | float, rank: int, chosen: Int64Array
) -> Array:
    """An operand stretched to the elements of the result; numbers in the tensors' type."""
    types = values.program.types
    if not isinstance(operand, str):
        # The condition of a select is bool, its values tell the type.
        typed = operation.operands[1:] if operation.kind is Kind.SELECT else operation.operands
        name = next(one for one in typed if isinstance(one, str))
        return np.asarray(operand, str(types[name].element))
    shape = values.binding.shape(types[operand].shape)
    whole = np.arange(prod(shape)).reshape(shape)
    result = values.binding.shape(types[operation.name].shape)
    return values.read(operand, rank, np.broadcast_to(whole, result).reshape(-1)[chosen])


def _dropout(values: Values, operation: Operation, rank: int, chosen: Int64Array) -> Array:
    """Random numbers are those of the elements' places in the whole tensor."""
    keep = kept(chosen.astype(np.uint64), operation.rate or 0.0, operation.seed or 0)
    read = values.read(operation.reads[0], rank, chosen)
    return scaled(read, keep, operation.rate or 0.0)


def _terms(values: Values, operation: Operation, rank: int, size: int, axis: int) -> Int64Array:
    """Terms of the sums of a contraction that a rank has: all, or those of its block."""
    layout = values.program.types[operation.reads[0]].layout
    if layout.is_sliced and layout.dimension == axis:
        count = values.binding.num_ranks
        return np.arange(*block_bounds(size, count, rank % count))
    return np.arange(size)


def _product(values: Values, operation: Operation, rank: int, chosen: Int64Array) -> Array:
    """Rows and columns of a matrix product that have the elements."""
    x, w = (values.program.types[name] for name in operation.reads)
    size, width = values.binding.shape(w.shape)
    row, column = np.divmod(chosen, width)
    rows, row_at = np.unique(row, return_inverse=True)
    columns, column_at = np.unique(column, return_inverse=True)
    terms = _terms(values, operation, rank, size, len(x.shape) - 1)
    left = (rows[:, None] * size + terms).reshape(-1)
    right = (terms[:, None] * width + columns).reshape(-1)
    result = matrix_product(
        values.read(operation.reads[0], rank, left).reshape(len(rows), len(terms)),
        values.read(operation.reads[1], rank, right).reshape(len(terms), len(columns)),
    )
    return np.asarray(result[row_at, column_at])


def _batch_product(values: Values, operation: Operation, rank: int, chosen: Int64Array) -> Array:
    """Elements of the products of a batch, terms added in the order of the contracted dimension."""
    x, w = (values.program.types[name] for name in operation.reads)
    rows, size = values.binding.shape(x.shape)[-2:]
    width = values.binding.shape(w.shape)[-1]
    # Rows of all members of the batch stand one behind the other.
    row, column = np.divmod(chosen, width)
    member = row // rows
    result = np.zeros(len(chosen), str(x.element))
    for term in _terms(values, operation, rank, size, len(x.shape) - 1):
        left = values.read(operation.reads[0], rank, row * size + term)
        right = values.read(operation.reads[1], rank, (member * size + term) * width + column)
        result += left * right
    return result


def _mirrored(values: Values, operation: Operation, chosen: Int64Array) -> Int64Array:
    """Where elements of a transposed tensor stand in the operand."""
    rows, columns = values.binding.shape(values.program.types[operation.name].shape)[-2:]
    row, column = np.divmod(chosen, columns)
    member, row = np.divmod(row, rows)
    found: Int64Array = (member * columns + column) * rows + row
    return found


def _convolution(values: Values, operation: Operation, rank: int, chosen: Int64Array) -> Array:
    """Images and channels of a convolution that have the elements."""
    x, w = (values.program.types[name] for name in operation.reads)
    shape, window = values.binding.shape(x.shape), values.binding.shape(w.shape)
    pixels = prod(shape[2:])
    image, rest = np.divmod(chosen, window[0] * pixels)
    channel, pixel = np.divmod(rest, pixels)
    images, image_at = np.unique(image, return_inverse=True)
    channels, channel_at = np.unique(channel, return_inverse=True)
    terms = _terms(values, operation, rank, shape[1], 1)
    left = (images[:, None, None] * shape[1] + terms[:, None]) * pixels + np.arange(pixels)
    places = np.arange(prod(window[2:]))
    right = (channels[:, None, None] * window[1] + terms[:, None]) * len(places) + places
    result = convolution(
        values.read(operation.reads[0], rank, left.reshape(-1)).reshape(
            len(images), len(terms), *shape[2:]
        ),
        values.read(operation.reads[1], rank, right.reshape(-1)).reshape(
            len(channels), len(terms), *window[2:]
        ),
    )
    flat = result.reshape(len(images), len(channels), pixels)
    return np.asarray(flat[image_at, channel_at, pixel])


_CONTRACTIONS = {
    Kind.MATMUL: _product,
    Kind.BATCH_MATMUL: _batch_product,
    Kind.CONV: _convolution,
}

__all__ = ["computed", "elements_on", "finished", "partial"]
