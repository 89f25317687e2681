"""Functions that add operations to a program under construction, and return their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from collhub_coconet.program.building import Value
from collhub_coconet.program.operations import ElementType, Kind, Reduction, Size
from collhub_coconet.program.uneven_rows import COLLECTIVE_KINDS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Axes = str | Sequence[str] | None
"""Names of axes of a mesh over which a communication goes; None: the only axis of the program."""

RowCounts: TypeAlias = "Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[np.integer]"
"""Rows by rank, or by sender and receiver: integers, or an array of integers."""


def all_reduce(x: Value, reduction: str = "sum", axes: Axes = None) -> Value:
    """Reduce a local or partial tensor over all ranks along axes; the result is replicated.

    A partial tensor is one of which every rank has a term of a reduction, which must be
    `reduction`. `axes`: one name or several; None is possible only for a program with one
    axis. Raise `InputError` for another layout on these axes, for bool elements, and for
    unknown or repeated axes. Raise `ValueError` for an unknown reduction.
    """
    attributes = {"reduction": Reduction(reduction), "axes": _name_axes(axes)}
    return x.builder.apply(Kind.ALL_REDUCE, (x,), **attributes)


def reduce_scatter(
    x: Value, dimension: int = 0, reduction: str = "sum", axes: Axes = None
) -> Value:
    """Reduce a local or partial tensor; rank i gets block i of the result along `dimension`.

    A partial tensor is one of which every rank has a term of a reduction, which must be
    `reduction`. The result is sliced and has the same shape. `dimension` counts from 0.
    `axes`: as for `all_reduce`. Raise `InputError` for another layout on these axes, bool
    elements, a dimension that does not exist or has size 1, and unknown or repeated axes.
    Raise `ValueError` for an unknown reduction.
    """
    attributes = {"reduction": Reduction(reduction), "dimension": dimension}
    return x.builder.apply(Kind.REDUCE_SCATTER, (x,), **attributes, axes=_name_axes(axes))


def all_gather(x: Value, axes: Axes = None) -> Value:
    """Collect a sliced tensor on every rank along the axes; the result is replicated there.

    Raises `InputError` for a tensor that is not sliced.
    """
    return x.builder.apply(Kind.ALL_GATHER, (x,), axes=_name_axes(axes))


def broadcast(x: Value, root: int = 0, axes: Axes = None) -> Value:
    """Copy the tensor of the rank with coordinate `root` on the axis to every rank.

    The result is replicated. Raises `InputError` for a layout that has no value on this root.
    """
    return x.builder.apply(Kind.BROADCAST, (x,), root=root, axes=_name_axes(axes))


def reduce(x: Value, root: int = 0, reduction: str = "sum", axes: Axes = None) -> Value:
    """Reduce over all ranks along one axis; only the rank `root` has the result.

    The tensor must be local, replicated (each rank then contributes it), or partial with
    the same reduction (every rank has a term). `root`: position on the axis, from 0; its
    range is checked only for a number of ranks. Only a Broadcast from this root, a Send,
    and an Update of a state on the root may read the result. `axes`: one name; None is
    possible only for a program with one axis. Raise `InputError` for another layout, bool
    elements, and unknown or several axes. Raise `ValueError` for an unknown reduction.
    """
    attributes = {"root": root, "reduction": Reduction(reduction), "axes": _name_axes(axes)}
    return x.builder.apply(Kind.REDUCE, (x,), **attributes)


def all_to_all(x: Value, dimension: int, axes: Axes = None) -> Value:
    """Exchange the slices of a tensor so that it is sliced along `dimension`, counted from 0.

    Every rank sends to each other rank the intersection of its block with the new block of that
    rank.
    """
    return x.builder.apply(Kind.ALL_TO_ALL, (x,), dimension=dimension, axes=_name_axes(axes))


def all_to_all_v(x: Value, counts: RowCounts, axes: Axes = None) -> Value:
    """Exchange rows of a local tensor; rank i sends `counts[i][j]` rows to rank j.

    A row is a position of the first dimension, whose size must be a number. Rank i sends
    its first rows to rank 0, the following ones to rank 1, and so on, and receives rows in
    the order of their senders. The result is local. It has as many rows as the rank that
    receives the most, with zeros after the received rows. `counts`: n rows of n integers,
    or an integer array [n, n]. `axes`: as for `all_reduce`. Raise `InputError` for invalid
    counts (such as a row of another length, or only zeros), for another layout, and for
    fewer rows than a rank sends.
    """
    attributes = {"counts": _flatten_counts(Kind.ALL_TO_ALL_V, counts), "axes": _name_axes(axes)}
    return x.builder.apply(Kind.ALL_TO_ALL_V, (x,), **attributes)


def all_gather_v(x: Value, counts: RowCounts, axes: Axes = None) -> Value:
    """Collect the first `counts[i]` rows of every rank i, by rank; the result is replicated.

    A row is a position of the first dimension, whose size must be a number. The tensor must
    be local. `counts`: integers, also as an array. `axes`: as for `all_reduce`. Raise
    `InputError` for invalid counts (such as only zeros), for another layout, and for fewer
    rows than a rank sends.
    """
    attributes = {"counts": _flatten_counts(Kind.ALL_GATHER_V, counts), "axes": _name_axes(axes)}
    return x.builder.apply(Kind.ALL_GATHER_V, (x,), **attributes)


def reduce_scatter_v(
    x: Value, counts: RowCounts, reduction: str = "sum", axes: Axes = None
) -> Value:
    """Reduce a local or partial tensor; rank i gets the next `counts[i]` rows of the result.

    A row is a position of the first dimension, whose size must be a number, the sum of the
    counts. The result is local. It has as many rows as the largest count, with zeros after
    the received rows. `counts`: integers, also as an array. `axes`: as for `all_reduce`.
    Raise `InputError` for invalid counts, another layout or size, and bool elements. Raise
    `ValueError` for an unknown reduction.
    """
    flat = _flatten_counts(Kind.REDUCE_SCATTER_V, counts)
    attributes = {"counts": flat, "reduction": Reduction(reduction)}
    return x.builder.apply(Kind.REDUCE_SCATTER_V, (x,), **attributes, axes=_name_axes(axes))


def _flatten_counts(kind: Kind, counts: RowCounts) -> tuple[int, ...]:
    """Check the counts of an uneven collective and return them row by row, as integers.

    Raise `InputError` (`invalid-counts`) as `UnitCounts.from_table` does, for example for a
    negative count or only zeros; the message begins with the kind.
    """
    # Imported here: programs without counts need no numpy.
    from hub_core.model import UnitCounts

    is_per_pair = COLLECTIVE_KINDS[kind].traits.has_counts_per_pair
    return tuple(UnitCounts.from_table(counts, is_per_pair, str(kind)).table.ravel().tolist())


def _name_axes(axes: Axes) -> tuple[str, ...] | None:
    """Return names of axes as a tuple, the attribute of an operation; None for None.

    A text is a single name.
    """
    return (axes,) if isinstance(axes, str) else tuple(axes) if axes is not None else None


def send(x: Value, offset: int = 1) -> Value:
    """Send from rank i of this group to rank i of the group `offset` positions later in the row.

    Element type, shape and layout remain.
    """
    return x.builder.apply(Kind.SEND, (x,), offset=offset)


def slice_of(x: Value, dimension: int = 0, axes: Axes = None) -> Value:
    """Slice a replicated tensor without communication.

    Rank i keeps block i of the dimension, counted from 0.
    """
    return x.builder.apply(Kind.SLICE, (x,), dimension=dimension, axes=_name_axes(axes))


def sqrt(x: Value) -> Value:
    """Return the square root of every element.

    Raises `InputError` for elements that are not floats.
    """
    return x.builder.apply(Kind.SQRT, (x,))


def tanh(x: Value) -> Value:
    """Return the hyperbolic tangent of every element.

    Raises `InputError` for elements that are not floats.
    """
    return x.builder.apply(Kind.TANH, (x,))


def exp(x: Value) -> Value:
    """Return the exponential of every element.

    Raises `InputError` for elements that are not floats.
    """
    return x.builder.apply(Kind.EXP, (x,))


def erf(x: Value) -> Value:
    """Return the error function of every element.

    Raises `InputError` for elements that are not floats.
    """
    return x.builder.apply(Kind.ERF, (x,))


def log(x: Value) -> Value:
    """Return the natural logarithm of every element.

    Raises `InputError` for elements that are not floats.
    """
    return x.builder.apply(Kind.LOG, (x,))


def cast(x: Value, element: str) -> Value:
    """Convert to another element type, named as in numpy (`float16`).

    Raises `ValueError` for an unknown name.
    """
    return x.builder.apply(Kind.CAST, (x,), element=ElementType(element))


def equal(x: Value, y: Value | float) -> Value:
    """Whether elements are equal; the element type is bool.

    Python's `==` has its usual meaning: whether two objects are the same value.
    """
    return x.builder.apply(Kind.EQUAL, (x, y))


def select(condition: Value, x: Value | float, y: Value | float) -> Value:
    """Return elements of x where the condition is true, and of y elsewhere.

    The three are broadcast.
    """
    return condition.builder.apply(Kind.SELECT, (condition, x, y))


def dropout(x: Value, rate: float, seed: int) -> Value:
    """Set a fraction `rate` of the elements to zero, and divide the others by 1 - rate.

    The random number of an element depends on the seed and on its index in the complete tensor.
    """
    return x.builder.apply(Kind.DROPOUT, (x,), rate=rate, seed=seed)


def matmul(x: Value, w: Value) -> Value:
    """Multiply matrices x[..., K] w[K, N].

    If both are sliced along K, every rank has a partial sum: the result is local.
    """
    return x.builder.apply(Kind.MATMUL, (x, w))


def batch_matmul(x: Value, w: Value) -> Value:
    """Multiply matrices x[..., M, K] w[..., K, N] of the same batch.

    If both are sliced along the same batch dimension, every rank computes the products of its
    block.
    """
    return x.builder.apply(Kind.BATCH_MATMUL, (x, w))


def transpose(x: Value) -> Value:
    """Swap the last two dimensions.

    A slice along one becomes a slice along the other. Raises `InputError` for fewer than two
    dimensions.
    """
    return x.builder.apply(Kind.TRANSPOSE, (x,))


def conv(x: Value, w: Value) -> Value:
    """Convolve x[B, C, positions] with w[O, C, window]: zero padding, stride 1.

    If both are sliced along C, every rank has a partial sum: the result is local.
    """
    return x.builder.apply(Kind.CONV, (x, w))


def norm(x: Value) -> Value:
    """Return the 2-norm of the complete tensor as a scalar.

    Raises `InputError` for elements that are not floats.
    """
    return x.builder.apply(Kind.NORM, (x,))


def total(x: Value) -> Value:
    """Return the sum of the complete tensor as a scalar of the same element type.

    Raises `InputError` for bool elements.
    """
    return x.builder.apply(Kind.SUM, (x,))


def largest(x: Value) -> Value:
    """Return the largest element of the complete tensor as a scalar.

    Raises `InputError` for bool elements.
    """
    return x.builder.apply(Kind.MAX, (x,))


def row_reduce(x: Value, dimension: int, reduction: str = "sum") -> Value:
    """Reduce along one dimension, whose size becomes 1, by `sum`, `prod`, `min` or `max`.

    If x is sliced along the dimension, or partial with the same reduction, the result is
    partial: each rank has a term, and `all_reduce` completes it. Otherwise the layout
    remains. `dimension` counts from 0. Raise `ValueError` for an unknown reduction. Raise
    `InputError` for bool elements, the reduction `replace`, a dimension that does not
    exist, and a partial tensor of another reduction.
    """
    attributes = {"reduction": Reduction(reduction), "dimension": dimension}
    return x.builder.apply(Kind.ROW_REDUCE, (x,), **attributes)


def arg_max(x: Value, dimension: int) -> Value:
    """Return the positions (int64) of the first largest elements along one dimension.

    The size of this dimension becomes 1; it counts from 0.
    """
    return x.builder.apply(Kind.ARG_MAX, (x,), dimension=dimension)


def index_of(x: Value, dimension: int) -> Value:
    """Return the position of every element along one dimension of the complete tensor.

    The result has int64 elements, and shape and layout of x. `dimension` counts from 0.
    """
    return x.builder.apply(Kind.INDEX, (x,), dimension=dimension)


def gather(x: Value, indices: Value) -> Value:
    """Select rows of x[rows, ...], as an embedding does: the result is [indices..., ...].

    If the rows are sliced, rows of other ranks count as zeros, and the result is partial.
    """
    return x.builder.apply(Kind.GATHER, (x, indices))


def scatter(indices: Value, values: Value, *shape: Size) -> Value:
    """Add values[indices..., ...] at rows of a tensor of zeros of `shape`, as the gradient of
    `gather`.

    If indices and values are sliced alike, the result is partial.
    """
    return values.builder.apply(Kind.SCATTER, (indices, values), shape=shape)


def top_k(x: Value, count: int, dimension: int) -> tuple[Value, Value]:
    """Find the `count` largest elements along one dimension; return (values, positions).

    Both have the size `count` along the dimension, with the largest element first. Of equal
    elements, the one with the lowest position is first. Positions are int64. Each of the
    two results is a separate operation. Raise `InputError` for bool elements, a dimension
    that does not exist, a slice along it, a partial tensor, and a count below 1 or above
    the size (unless the size is a symbol).
    """
    attributes = {"dimension": dimension, "count": count}
    values = x.builder.apply(Kind.TOP_VALUES, (x,), **attributes)
    return values, x.builder.apply(Kind.TOP_INDICES, (x,), **attributes)


def reshape(x: Value, *shape: Size) -> Value:
    """Give the elements, in row-major order, another shape; symbols remain dimensions.

    A sliced dimension may be joined or divided only as the first one of the affected dimensions;
    the ranks must then divide its size before and after.
    """
    return x.builder.apply(Kind.RESHAPE, (x,), shape=shape)


def permute(x: Value, *order: int) -> Value:
    """Reorder dimensions: dimension i of the result is dimension `order[i]` of x.

    Raises `InputError` unless `order` names every dimension once, counted from 0.
    """
    return x.builder.apply(Kind.PERMUTE, (x,), order=order)


def part(x: Value, dimension: int, start: int, count: int) -> Value:
    """Return `count` positions of a dimension from position `start` on, both counted from 0.

    Raises `InputError` for slices along the dimension, and positions outside of it.
    """
    return x.builder.apply(Kind.PART, (x,), dimension=dimension, start=start, count=count)


def concat(*tensors: Value, dimension: int) -> Value:
    """Join one or more tensors along a dimension of known sizes, along which none is sliced.

    All other sizes, and the element types, must be equal; otherwise `InputError` is raised. Raises
    `IndexError` without tensors.
    """
    return tensors[0].builder.apply(Kind.CONCAT, tensors, dimension=dimension)


def update(state: Value, value: Value) -> Value:
    """Write a value into a state; the result is the value.

    Both have the same type and layout. The name of the state still denotes its value before the
    program.
    """
    return state.builder.apply(Kind.UPDATE, (state, value))
