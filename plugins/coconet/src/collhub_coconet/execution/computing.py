"""Values on the ranks of a flat program, and the computations that produce them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from collhub_coconet.equivalence.array_operations import (
    Array,
    OnRanks,
    apply_dropout,
    apply_pointwise,
    convolve,
    draw_dropout_mask,
    multiply_matrices,
    reduce_to_scalar,
)
from collhub_coconet.lowering.flat_program import find_viewed_value
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import CONTRACTIONS, REDUCTIONS_TO_SCALARS, Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding, TensorType, block_bounds
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError


def find_elements(kind: TensorType, binding: Binding, position: int) -> Int64Array:
    """Find the indices of the elements that a rank has of a tensor: all, or those of its block."""
    shape = binding.shape(kind.shape)
    if not kind.layout.is_sliced:
        return np.arange(int(np.prod(shape, dtype=np.int64)))
    return Grid(shape, kind.layout.dimension, binding.num_ranks, 1).elements(position)


@dataclass(slots=True)
class Values:
    """Arrays of complete tensors on each rank of the job, with masks of the available elements.

    Views have no arrays: the viewed value is read instead. `pass_through`: by name of a collective,
    the (rank, chunk) pairs of its result that equal its operand; these are read from the operand.
    """

    program: Program
    binding: Binding
    grids: Mapping[str, Grid]
    pass_through: Mapping[str, frozenset[tuple[int, int]]]
    arrays: dict[tuple[str, int], tuple[Array, BoolArray]] = field(default_factory=dict)

    def load(self, arguments: Mapping[str, OnRanks]) -> None:
        """Write the arguments on the ranks of their groups; arrays as for `simulate_ranks`."""
        for argument in self.program.arguments:
            ranks = self.binding.ranks_of(argument.type.group)
            for position, part in enumerate(arguments[argument.name]):
                elements = find_elements(argument.type, self.binding, position)
                self.write(argument.name, ranks[position], elements, part.reshape(-1))

    def read(self, name: str, rank: int, elements: Int64Array) -> Array:
        """Read elements of a value. Raises `InputError` for one that is not available yet."""
        operation = self.program.by_name.get(name)
        source = None if operation is None else find_viewed_value(self.program, operation)
        if source is not None:
            return self.read(source, rank, elements)
        array, is_available = self._cells(name, rank)
        is_missing = ~is_available[elements]
        if not is_missing.any():
            return array[elements]
        if operation is None or not self._are_unchanged(name, rank, elements[is_missing]):
            element = int(elements[np.argmax(is_missing)])
            message = f"rank {rank} reads element {element} of {name} before it is there"
            cure = "a dependency is missing"
            raise InputError(message, cure=cure, code="not-there")
        values = array[elements]
        values[is_missing] = self.read(operation.reads[0], rank, elements[is_missing])
        return values

    def write(self, name: str, rank: int, elements: Int64Array, values: Array) -> None:
        """Write elements of a value, and mark them as available."""
        array, is_available = self._cells(name, rank)
        array[elements] = values
        is_available[elements] = True

    def on_rank(self, name: str, position: int) -> Array:
        """Read the complete array of a rank, as in `simulate_ranks`; `position`: in the group."""
        kind = self.program.types[name]
        elements = find_elements(kind, self.binding, position)
        rank = self.binding.ranks_of(kind.group)[position]
        shape = list(self.binding.shape(kind.shape))
        if kind.layout.is_sliced:
            width = int(np.prod(shape, dtype=np.int64)) // shape[kind.layout.dimension]
            shape[kind.layout.dimension] = len(elements) // width
        return self.read(name, rank, elements).reshape(shape)

    def _cells(self, name: str, rank: int) -> tuple[Array, BoolArray]:
        key = name, rank
        if key not in self.arrays:
            kind = self.program.types[name]
            count = self.binding.elements(kind.shape)
            self.arrays[key] = np.zeros(count, str(kind.element)), np.zeros(count, np.bool_)
        return self.arrays[key]

    def _are_unchanged(self, name: str, rank: int, elements: Int64Array) -> bool:
        """Whether a collective leaves all these elements of its operand unchanged."""
        unchanged = self.pass_through.get(name, frozenset())
        chunks = [chunk for owner, chunk in unchanged if owner == rank]
        if not chunks:
            return False
        inside = np.concatenate([self.grids[name].elements(chunk) for chunk in chunks])
        return bool(np.isin(elements, inside).all())


def compute_elements(
    values: Values, operation: Operation, rank: int, elements: Int64Array
) -> Array:
    """Compute `elements` of the result of a computation on a rank of the job."""
    if operation.kind in REDUCTIONS_TO_SCALARS:
        return _compute_scalar(values, operation, rank).reshape(1)
    if operation.kind in CONTRACTIONS:
        return _CONTRACTIONS[operation.kind](values, operation, rank, elements)
    if operation.kind is Kind.TRANSPOSE:
        return values.read(operation.reads[0], rank, _find_transposed(values, operation, elements))
    if operation.kind is Kind.UPDATE:
        return values.read(operation.reads[1], rank, elements)
    if operation.kind is Kind.DROPOUT:
        return _compute_dropout(values, operation, rank, elements)
    operands = [
        _read_operand(values, operation, operand, rank, elements) for operand in operation.operands
    ]
    if operation.kind is Kind.CAST:
        return operands[0].astype(operation.element)
    return apply_pointwise(operation.kind, operands)


def compute_partial(values: Values, operation: Operation, rank: int) -> Array:
    """Return one rank's part of a norm, sum or maximum of slices, as an array of one element.

    The part of a norm is the sum of squares, without the root. Floats are computed in float64;
    integers keep their type. The maximum of an empty block is the lowest value of the type. `rank`
    counts modulo the number of ranks.
    """
    name = operation.reads[0]
    block = values.on_rank(name, rank % values.binding.num_ranks)
    wide = block.astype(np.float64) if block.dtype.kind == "f" else block
    if operation.kind is Kind.MAX:
        lowest = -np.inf if wide.dtype.kind == "f" else np.iinfo(str(wide.dtype)).min
        return np.asarray(wide.max(initial=lowest)).reshape(1)
    terms = wide * wide if operation.kind is Kind.NORM else wide
    return np.asarray(np.sum(terms, dtype=wide.dtype)).reshape(1)


def finish_scalar(operation: Operation, total: Array, dtype: np.dtype[np.generic]) -> Array:
    """Compute the scalar from `total`, the reduction of all parts."""
    root = np.sqrt(total) if operation.kind is Kind.NORM else total
    return np.asarray(root).astype(dtype)


def _compute_scalar(values: Values, operation: Operation, rank: int) -> Array:
    """Compute a reduction of a tensor that is complete on the rank."""
    name = operation.reads[0]
    position = rank % values.binding.num_ranks
    return reduce_to_scalar(operation.kind, [values.on_rank(name, position)])


def _read_operand(
    values: Values, operation: Operation, operand: str | float, rank: int, elements: Int64Array
) -> Array:
    """Read an operand, stretched to the elements of the result; numbers adopt their type."""
    types = values.program.types
    if not isinstance(operand, str):
        # The condition of a Select is bool; its values determine the type of the numbers.
        candidates = operation.operands[1:] if operation.kind is Kind.SELECT else operation.operands
        name = next(candidate for candidate in candidates if isinstance(candidate, str))
        return np.asarray(operand, str(types[name].element))
    shape = values.binding.shape(types[operand].shape)
    indices = np.arange(prod(shape)).reshape(shape)
    result = values.binding.shape(types[operation.name].shape)
    return values.read(operand, rank, np.broadcast_to(indices, result).reshape(-1)[elements])


def _compute_dropout(
    values: Values, operation: Operation, rank: int, elements: Int64Array
) -> Array:
    """Compute Dropout; random numbers depend on the indices in the complete tensor."""
    keep = draw_dropout_mask(elements.astype(np.uint64), operation.rate or 0.0, operation.seed or 0)
    read = values.read(operation.reads[0], rank, elements)
    return apply_dropout(read, keep, operation.rate or 0.0)


def _find_terms(
    values: Values, operation: Operation, rank: int, size: int, axis: int
) -> Int64Array:
    """Find the terms of the sums of a contraction that a rank has: all, or those of its block."""
    layout = values.program.types[operation.reads[0]].layout
    if layout.is_sliced and layout.dimension == axis:
        count = values.binding.num_ranks
        return np.arange(*block_bounds(size, count, rank % count))
    return np.arange(size)


def _compute_product(
    values: Values, operation: Operation, rank: int, elements: Int64Array
) -> Array:
    """Compute the rows and columns of a matrix product that contain the elements."""
    x, w = (values.program.types[name] for name in operation.reads)
    size, width = values.binding.shape(w.shape)
    row, column = np.divmod(elements, width)
    rows, row_at = np.unique(row, return_inverse=True)
    columns, column_at = np.unique(column, return_inverse=True)
    terms = _find_terms(values, operation, rank, size, len(x.shape) - 1)
    left = (rows[:, None] * size + terms).reshape(-1)
    right = (terms[:, None] * width + columns).reshape(-1)
    result = multiply_matrices(
        values.read(operation.reads[0], rank, left).reshape(len(rows), len(terms)),
        values.read(operation.reads[1], rank, right).reshape(len(terms), len(columns)),
    )
    return np.asarray(result[row_at, column_at])


def _compute_batch_product(
    values: Values, operation: Operation, rank: int, elements: Int64Array
) -> Array:
    """Compute elements of a batch of products.

    Terms are added in the order of the contracted dimension.
    """
    x, w = (values.program.types[name] for name in operation.reads)
    rows, size = values.binding.shape(x.shape)[-2:]
    width = values.binding.shape(w.shape)[-1]
    # The rows of all members of the batch are numbered consecutively.
    row, column = np.divmod(elements, width)
    member = row // rows
    result = np.zeros(len(elements), str(x.element))
    for term in _find_terms(values, operation, rank, size, len(x.shape) - 1):
        left = values.read(operation.reads[0], rank, row * size + term)
        right = values.read(operation.reads[1], rank, (member * size + term) * width + column)
        result += left * right
    return result


def _find_transposed(values: Values, operation: Operation, elements: Int64Array) -> Int64Array:
    """Find the elements of the operand that become these elements of a transposed tensor."""
    rows, columns = values.binding.shape(values.program.types[operation.name].shape)[-2:]
    row, column = np.divmod(elements, columns)
    member, row = np.divmod(row, rows)
    elements_of_operand: Int64Array = (member * columns + column) * rows + row
    return elements_of_operand


def _compute_convolution(
    values: Values, operation: Operation, rank: int, elements: Int64Array
) -> Array:
    """Compute the images and channels of a convolution that contain the elements."""
    x, w = (values.program.types[name] for name in operation.reads)
    shape, window = values.binding.shape(x.shape), values.binding.shape(w.shape)
    pixels = prod(shape[2:])
    image, offset = np.divmod(elements, window[0] * pixels)
    channel, pixel = np.divmod(offset, pixels)
    images, image_at = np.unique(image, return_inverse=True)
    channels, channel_at = np.unique(channel, return_inverse=True)
    terms = _find_terms(values, operation, rank, shape[1], 1)
    left = (images[:, None, None] * shape[1] + terms[:, None]) * pixels + np.arange(pixels)
    places = np.arange(prod(window[2:]))
    right = (channels[:, None, None] * window[1] + terms[:, None]) * len(places) + places
    result = convolve(
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
    Kind.MATMUL: _compute_product,
    Kind.BATCH_MATMUL: _compute_batch_product,
    Kind.CONV: _compute_convolution,
}
