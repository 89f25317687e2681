"""Values on the ranks of a flat program, and the computations that produce them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from collhub_coconet.equivalence.array_operations import (
    Array,
    OnRanks,
    convolution,
    kept,
    matrix_product,
    pointwise,
    scaled,
    to_scalar,
)
from collhub_coconet.lowering.flat_program import viewed
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import CONTRACTIONS, REDUCTIONS_TO_SCALARS, Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding, TensorType, block_bounds
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError


def elements_on(kind: TensorType, binding: Binding, position: int) -> Int64Array:
    """Indices of the elements that a rank has of a tensor: all, or those of its block."""
    shape = binding.shape(kind.shape)
    if not kind.layout.is_sliced:
        return np.arange(int(np.prod(shape, dtype=np.int64)))
    return Grid(shape, kind.layout.dimension, binding.num_ranks, 1).elements(position)


@dataclass(slots=True)
class Values:
    """Arrays of whole tensors on each rank of the job, and which of their elements are there.

    Slices are views. What a collective leaves where it stood (`pass_through`: by name, (rank,
    chunk)) is read from its operand.
    """

    program: Program
    binding: Binding
    grids: Mapping[str, Grid]
    pass_through: Mapping[str, frozenset[tuple[int, int]]]
    arrays: dict[tuple[str, int], tuple[Array, BoolArray]] = field(default_factory=dict)

    def load(self, arguments: Mapping[str, OnRanks]) -> None:
        """Put the arguments on the ranks of their groups, as `equivalence.run` takes them."""
        for argument in self.program.arguments:
            ranks = self.binding.ranks_of(argument.type.group)
            for position, part in enumerate(arguments[argument.name]):
                chosen = elements_on(argument.type, self.binding, position)
                self.write(argument.name, ranks[position], chosen, part.reshape(-1))

    def read(self, name: str, rank: int, chosen: Int64Array) -> Array:
        """Elements of a value. Raises `InputError` for one that is not there yet."""
        operation = self.program.by_name.get(name)
        source = None if operation is None else viewed(self.program, operation)
        if source is not None:
            return self.read(source, rank, chosen)
        array, is_there = self._cells(name, rank)
        lacking = ~is_there[chosen]
        if not lacking.any():
            return array[chosen]
        if operation is None or not self._passes(name, rank, chosen[lacking]):
            element = int(chosen[np.argmax(lacking)])
            message = f"rank {rank} reads element {element} of {name} before it is there"
            cure = "a dependency is missing"
            raise InputError(message, cure=cure, code="not-there")
        found = array[chosen]
        found[lacking] = self.read(operation.reads[0], rank, chosen[lacking])
        return found

    def write(self, name: str, rank: int, chosen: Int64Array, values: Array) -> None:
        """Put elements where they belong."""
        array, is_there = self._cells(name, rank)
        array[chosen] = values
        # Whoever reads them from now on finds them.
        is_there[chosen] = True

    def on_rank(self, name: str, position: int) -> Array:
        """What a rank of its group has of a value, as `equivalence.run` gives it."""
        kind = self.program.types[name]
        chosen = elements_on(kind, self.binding, position)
        rank = self.binding.ranks_of(kind.group)[position]
        shape = list(self.binding.shape(kind.shape))
        if kind.layout.is_sliced:
            rest = int(np.prod(shape, dtype=np.int64)) // shape[kind.layout.dimension]
            shape[kind.layout.dimension] = len(chosen) // rest
        return self.read(name, rank, chosen).reshape(shape)

    def _cells(self, name: str, rank: int) -> tuple[Array, BoolArray]:
        key = name, rank
        if key not in self.arrays:
            kind = self.program.types[name]
            count = self.binding.elements(kind.shape)
            self.arrays[key] = np.zeros(count, str(kind.element)), np.zeros(count, np.bool_)
        return self.arrays[key]

    def _passes(self, name: str, rank: int, chosen: Int64Array) -> bool:
        """Whether all these elements stay where they were."""
        kept = self.pass_through.get(name, frozenset())
        mine = [chunk for owner, chunk in kept if owner == rank]
        if not mine:
            return False
        inside = np.concatenate([self.grids[name].elements(chunk) for chunk in mine])
        return bool(np.isin(chosen, inside).all())


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
