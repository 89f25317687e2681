"""Typing rules of contractions, and of operations that reduce, select, reorder or reshape.

Contractions are matrix products, batches of them, and convolutions. Row reductions and top-k work
along one dimension, Gather and Scatter select rows by an index, Reshape, Concat, Transpose and
Permute change the shape. The layouts follow from the roles of the dimensions by the table of
`layout_rules`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from collhub_coconet.program.layout_rules import Role, number_roles
from collhub_coconet.program.operands import Operands, TypingMistakeError
from collhub_coconet.program.operations import (
    ElementType,
    Kind,
    Reduction,
    Shape,
    Size,
    TensorType,
    format_shape,
)


def type_row_reduction(operands: Operands) -> TensorType:
    """Return the type of a RowReduce, ArgMax, TopValues or TopIndices along one dimension.

    The shape is that of the operand, where the size of the dimension (default 0) becomes `count`,
    the number of largest elements, or 1 without it. The element type is that of the operand, but
    int64 for ArgMax and TopIndices. The group is that of the operand. The layout on each axis of
    the mesh:

    - replicated, local, and sliced along another dimension: unchanged
    - a RowReduce of a tensor that is sliced along the dimension: partial, each rank has a term
    - a RowReduce of a tensor that is partial with the same reduction: unchanged

    Raises `TypingMistakeError` for a number or bool, a dimension that does not exist, the reduction
    `replace`, a count below 1 or above a known size, and any other layout; checked in this order.
    """
    operation, operand = operands.operation, operands.tensor(0)
    operands.check_not_bool(0)
    dimension, count = operation.dimension or 0, operation.count
    _check_dimension(operands, operand, dimension)
    if operation.reduction is Reduction.REPLACE:
        raise TypingMistakeError("reduction", "a row has no last rank", "sum, prod, min or max")
    length = operand.shape[dimension]
    if count is not None and (count < 1 or (isinstance(length, int) and count > length)):
        message = f"the {count} largest of {length} elements are requested"
        raise TypingMistakeError("count", message, f"state a count of 1..{length}")
    shape = _replace_size(operand.shape, dimension, count or 1)
    roles = tuple(
        ("reduced" if index == dimension else "kept", index) for index in range(len(operand.shape))
    )
    layout = operands.derive_layout(shape, (roles,), roles)
    is_index = operation.kind in (Kind.ARG_MAX, Kind.TOP_INDICES)
    element = ElementType.INT64 if is_index else operand.element
    return TensorType(element, shape, layout, operand.group)


def type_index(operands: Operands) -> TensorType:
    """Return the type of an Index, which gives for each element its position along a dimension.

    It is the type of the operand with int64 elements; its layout follows from the table of
    rules. The dimension is 0 if the operation names none. Raise `TypingMistakeError` for a
    dimension that the operand does not have (also 0 for a scalar), for an operand that is a
    number, and for a layout without a rule.
    """
    operand = operands.tensor(0)
    _check_dimension(operands, operand, operands.operation.dimension or 0)
    return replace(operands.type_like(), element=ElementType.INT64)


def type_gather(operands: Operands) -> TensorType:
    """Return the type of a Gather: rows of x[rows, ...] at indices[...], as [indices..., ...].

    x is the first operand; the result has its element type and group. A layout on a mesh axis, for
    (x, indices):

    - both replicated: replicated. x local and indices local or replicated, or reverse: local
    - x sliced by rows (dimension 0), or a partial sum; indices replicated: a partial sum (ranks
      have zeros for the rows of others)
    - one sliced along another dimension, the other replicated: sliced along that dimension of
      the result. For x it is d - 1 plus the number of dimensions of indices.

    Raises `TypingMistakeError` at the first of: a number as operand, indices that are no integers,
    different groups, a scalar x, another layout.
    """
    rows, indices = operands.tensor(0), operands.tensor(1)
    operands.check_index(1)
    operands.check_same_group()
    if not rows.shape:
        raise TypingMistakeError("shape", f"{operands.name(0)} is a scalar", "gather rows")
    width = number_roles("width", len(rows.shape) - 1)
    of_indices = number_roles("ids", len(indices.shape))
    shape = (*indices.shape, *rows.shape[1:])
    roles = ((("rows", 0), *width), of_indices)
    layout = operands.derive_layout(shape, roles, (*of_indices, *width))
    return TensorType(rows.element, shape, layout, rows.group)


def type_scatter(operands: Operands) -> TensorType:
    """Return the type of a Scatter, which adds values to rows of a tensor of zeros.

    The first operand has the indices, the second one the values. With indices [B], values [B, D]
    and the shape [N, D] of the operation, row b of the values is added at row `indices[b]` of the
    result [N, D]. The shape of the values is that of the indices, followed by that of a row. The
    result has the element type and the group of the values. A Scatter is the gradient of a Gather.

    The layout of the result on each axis of the mesh, for (indices, values):

    - both replicated: replicated
    - both sliced along the same dimension of the indices: a partial sum
    - replicated, and sliced along a dimension of a row: sliced along that dimension
    - replicated, and a partial sum: a partial sum
    - one local, the other local or replicated: local

    Raises `TypingMistakeError` in the first of these cases: an operand is a number, not a tensor;
    the indices are no integers; the values are bool; the groups differ; the operation has no shape,
    or the values do not fit it; another layout.
    """
    indices, values = operands.tensor(0), operands.tensor(1)
    operands.check_index(0)
    operands.check_not_bool(1)
    operands.check_same_group()
    shape = operands.operation.shape or ()
    if not shape or values.shape != (*indices.shape, *shape[1:]):
        message = f"values {format_shape(values.shape)} do not fit {format_shape(shape)}"
        cure = "values have the dimensions of the indices, then those of a row of the result"
        raise TypingMistakeError("shape", message, cure)
    width = number_roles("width", len(shape) - 1)
    of_indices = number_roles("ids", len(indices.shape))
    roles = (of_indices, (*of_indices, *width))
    layout = operands.derive_layout(shape, roles, (("rows", 0), *width))
    return TensorType(values.element, shape, layout, values.group)


def type_reshape(operands: Operands) -> TensorType:
    """Return the type of a Reshape: the same elements in row-major order, with another shape.

    The dimensions are matched by `match_dimensions`: 24 of [24, 5] can become 4 x 6 in [4, 6, 5]. A
    tensor that is sliced along the first dimension of a matched run (24) is then sliced along the
    first new one (4). That its size can be divided is checked later, by `check_binding`.
    Replicated, local and partial layouts, element type and group are unchanged.

    Raises `TypingMistakeError` for a number, for shapes that do not match (another number of
    elements, or a symbol that is joined with other dimensions), for a slice along another dimension
    of a run or along one of size 1, and for a value on a root only.
    """
    operand, shape = operands.tensor(0), operands.operation.shape or ()
    pieces = match_dimensions(operand.shape, shape)
    if pieces is None:
        message = f"{format_shape(operand.shape)} has not the elements of {format_shape(shape)}"
        cure = "keep symbols as dimensions, and the product of the numbers"
        raise TypingMistakeError("shape", message, cure)
    roles, result = ([("inner", index) for index in range(len(s))] for s in (operand.shape, shape))
    for number, (old, new) in enumerate(pieces):
        # The leading dimensions vary slowest, so that their blocks are contiguous alike.
        roles[old] = result[new] = ("dim", number)
    layout = operands.derive_layout(shape, (tuple(roles),), tuple(result))
    return replace(operand, shape=shape, layout=layout)


def match_dimensions(old: Shape, new: Shape) -> list[tuple[int, int]] | None:
    """Match runs of dimensions of two shapes with equal products; return their first positions.

    Each run is as short as possible, from the left; dimensions of size 1 are skipped. For [6, 4]
    and [2, 3, 4] the runs are 6 = 2 x 3 and 4 = 4, so the result is [(0, 0), (1, 2)]: pairs
    (position in `old`, position in `new`), ascending. A symbol matches only the same symbol, as a
    run of its own.

    Returns None if dimensions remain without a match: for other numbers of elements, and for a
    symbol that would be joined with other dimensions. With sizes of 0 it can be None although the
    numbers of elements are equal. Shapes with only sizes of 1, or without dimensions, give [].
    """
    left = [index for index, size in enumerate(old) if size != 1]
    right = [index for index, size in enumerate(new) if size != 1]
    pairs = []
    while left and right:
        first, second = left.pop(0), right.pop(0)
        pairs.append((first, second))
        a, b = old[first], new[second]
        while a != b:
            if isinstance(a, str) or isinstance(b, str):
                return None
            source, queue, shape = (a, left, old) if a < b else (b, right, new)
            if not queue:
                return None
            size = shape[queue.pop(0)]
            if isinstance(size, str):
                return None
            if a < b:
                a = source * size
            else:
                b = source * size
    return None if left or right else pairs


def type_concat(operands: Operands) -> TensorType:
    """Return the type of a Concat of tensors along one dimension (from 0, default 0).

    The sizes along it add up. Element type, group and all other sizes are those of the first
    tensor. The layout (how ranks share the tensor) follows from those of the operands. Raises
    `TypingMistakeError` in these cases:

    - There is no operand, or one is a number.
    - Groups, element types or numbers of dimensions differ.
    - The dimension does not exist; a negative one never does.
    - Sizes of another dimension differ, or a size along the joined one is a symbol.
    - The layouts have no rule, such as slices along the joined dimension.
    """
    if not operands.all:
        raise TypingMistakeError("operands", "no operand is given", "name at least one")
    tensors = [operands.tensor(position) for position in range(len(operands.all))]
    operands.check_same_group()
    operands.check_same_element(list(range(len(tensors))))
    first, dimension = tensors[0], operands.operation.dimension or 0
    _check_dimension(operands, first, dimension)
    has_one_rank = len({len(tensor.shape) for tensor in tensors}) == 1
    sizes = [tensor.shape[dimension] for tensor in tensors] if has_one_rank else []
    others = {_replace_size(tensor.shape, dimension, 0) for tensor in tensors}
    is_known = has_one_rank and all(isinstance(size, int) for size in sizes)
    if len(others) > 1 or not is_known:
        shapes = " and ".join(format_shape(tensor.shape) for tensor in tensors)
        cure = f"other sizes are equal, and those along dimension {dimension} are numbers"
        raise TypingMistakeError("shape", f"shapes {shapes} do not fit", cure)
    total = sum(size for size in sizes if isinstance(size, int))
    shape = _replace_size(first.shape, dimension, total)
    roles = tuple(
        ("joined" if index == dimension else "kept", index) for index in range(len(shape))
    )
    layout = operands.derive_layout(shape, (roles,) * len(tensors), roles)
    return TensorType(first.element, shape, layout, first.group)


def type_transpose(operands: Operands) -> TensorType:
    """Return the type of a Transpose, which swaps the last two dimensions.

    A slice along one of them becomes one along the other. Other layouts, element type and
    group remain. Raise `TypingMistakeError` for a number, for fewer than two dimensions,
    for a slice along a dimension of size 1, and for a value on a root only.
    """
    operand = operands.tensor(0)
    rank = len(operand.shape)
    if rank < 2:
        message = f"{operands.name(0)} has {rank} dimensions"
        raise TypingMistakeError("shape", message, "Transpose takes a matrix, or a batch of them")
    *batch, rows, columns = operand.shape
    *roles, row, column = number_roles("dim", rank)
    shape = (*batch, columns, rows)
    layout = operands.derive_layout(shape, ((*roles, row, column),), (*roles, column, row))
    return TensorType(operand.element, shape, layout, operand.group)


def type_permute(operands: Operands) -> TensorType:
    """Return the type of a Permute: dimension i of the result is dimension `order[i]`.

    A slice follows its dimension: if the operand is sliced along `order[i]`, the result is
    sliced along i. Other layouts, element type and group remain. A missing order is the
    empty one, which a scalar needs. Raise `TypingMistakeError` for a number, for an order
    that does not contain every dimension exactly once (from 0), for a slice along a
    dimension of size 1, and for a value on a root only.
    """
    operand, order = operands.tensor(0), operands.operation.order or ()
    rank = len(operand.shape)
    if sorted(order) != list(range(rank)):
        message = f"order {', '.join(map(str, order))} is none of {rank} dimensions"
        raise TypingMistakeError("dimension", message, "name every dimension once")
    roles = number_roles("dim", rank)
    shape = tuple(operand.shape[dimension] for dimension in order)
    layout = operands.derive_layout(shape, (roles,), tuple(roles[dimension] for dimension in order))
    return replace(operand, shape=shape, layout=layout)


def type_part(operands: Operands) -> TensorType:
    """Return the type of a Part: `count` positions of a dimension from position `start` on.

    The size of the dimension becomes `count`; element type, group and layout are those of the
    operand. The default of dimension and start is 0; a count is required. Raises
    `TypingMistakeError` for a number, a dimension that does not exist, a negative start, a count
    below 1, positions outside of a dimension of known size (not checked for a symbol), slices along
    the dimension, and a value on a root only; checked in this order.
    """
    operation, operand = operands.operation, operands.tensor(0)
    dimension, start, count = operation.dimension or 0, operation.start or 0, operation.count or 0
    _check_dimension(operands, operand, dimension)
    length = operand.shape[dimension]
    if start < 0 or count < 1 or (isinstance(length, int) and start + count > length):
        message = f"positions {start}..{start + count - 1} of {length} are requested"
        raise TypingMistakeError(
            "count", message, f"state at least one position of 0..{length} - 1"
        )
    shape = _replace_size(operand.shape, dimension, count)
    roles = tuple(
        ("cut" if index == dimension else "kept", index) for index in range(len(operand.shape))
    )
    return replace(operand, shape=shape, layout=operands.derive_layout(shape, (roles,), roles))


SHAPE_RULES = {
    Kind.ROW_REDUCE: type_row_reduction,
    Kind.ARG_MAX: type_row_reduction,
    Kind.TOP_VALUES: type_row_reduction,
    Kind.TOP_INDICES: type_row_reduction,
    Kind.INDEX: type_index,
    Kind.GATHER: type_gather,
    Kind.SCATTER: type_scatter,
    Kind.RESHAPE: type_reshape,
    Kind.CONCAT: type_concat,
    Kind.TRANSPOSE: type_transpose,
    Kind.PERMUTE: type_permute,
    Kind.PART: type_part,
}


def _check_dimension(operands: Operands, operand: TensorType, dimension: int) -> None:
    """Raise `TypingMistakeError` for a dimension that a tensor does not have."""
    if not 0 <= dimension < len(operand.shape):
        message = f"{operands.name(0)}{format_shape(operand.shape)} has no dimension {dimension}"
        raise TypingMistakeError("dimension", message, "count dimensions from 0")


def _replace_size(shape: Shape, dimension: int, size: Size) -> Shape:
    """Copy a shape with another size of one dimension."""
    return (*shape[:dimension], size, *shape[dimension + 1 :])


@dataclass(frozen=True, slots=True)
class Axes:
    """Dimensions of a contraction of x with w.

    `rows`: dimensions of x that the result has at the same position. `x_sum`, `w_sum`: the
    contracted dimension. `w_free`: the remaining dimension of w, which is `result_free` in the
    result.
    """

    rows: tuple[int, ...]
    x_sum: int
    w_sum: int
    w_free: int
    result_free: int


def find_axes(kind: Kind, x_rank: int) -> Axes:
    """Return which dimensions of a contraction of x with w are rows, summed and free (`Axes`).

    `x_rank` is the number of dimensions of x. Rows are the dimensions of x that the result
    has at the same position. The kind decides:

    - MatMul: x[rows..., sum], w[sum, free], result[rows..., free].
    - BatchMatMul: x[..., row, sum], w[..., sum, free], result[..., row, free]. Only the
      dimension before the last is a row; batch dimensions are not.
    - Any other kind, treated as a Conv: x[row, sum, ...], w[free, sum, ...],
      result[row, free, ...]. Only dimension 0 is a row.
    """
    last = x_rank - 1
    if kind is Kind.MATMUL:
        return Axes(tuple(range(last)), last, 0, 1, last)
    if kind is Kind.BATCH_MATMUL:
        # The batch dimensions belong to both operands, hence they are not rows.
        return Axes((last - 1,), last, last - 1, last, last)
    # Dimensions: batch, channels, positions. A position depends on its neighbours, hence no row.
    return Axes((0,), 1, 1, 0, 1)


def type_contraction(operands: Operands) -> TensorType:
    """Return the type of a matrix product or convolution of two operands x and w.

    - MatMul: x[..., K], w[K, N] -> [..., N]
    - BatchMatMul: x[..., M, K], w[..., K, N] -> [..., M, N] with equal batch dimensions
    - Conv: x[B, C, positions], w[O, C, window] -> [B, O, positions], with zero padding and
      windows of odd lengths

    Element type and group are those of x. The layout on each axis of the mesh, for (x, w):

    - both replicated: replicated
    - x sliced along a row (a dimension before K of a MatMul, M, or B of a Conv), w
      replicated: sliced along this dimension
    - x replicated, w sliced along N or O: sliced along this dimension
    - both sliced along the contracted dimension (K or C): a partial sum; local in a program
      without a mesh
    - both sliced along the same batch dimension of a BatchMatMul: sliced along it
    - one local, the other local or replicated: local
    - one a partial sum, the other replicated: a partial sum. Two partial sums are refused,
      since the sum of products is not the product of sums.

    Raise `TypingMistakeError` for a number, elements that are no floats, different element
    types, different groups, shapes that do not fit, and other layouts; checked in this
    order.
    """
    operands.check_float(0)
    operands.check_float(1)
    operands.check_same_element([0, 1])
    operands.check_same_group()
    x, w = operands.tensor(0), operands.tensor(1)
    kind = operands.operation.kind
    shape = _SHAPES[kind](x, w)
    roles, result = _find_roles(kind, len(x.shape), len(w.shape), len(shape))
    return TensorType(x.element, shape, operands.derive_layout(shape, roles, result), x.group)


@cache
def _find_roles(
    kind: Kind, x_rank: int, w_rank: int, rank: int
) -> tuple[tuple[tuple[Role, ...], ...], tuple[Role, ...]]:
    """Return the roles of the dimensions of a contraction's operands x and w, and of its result.

    The result is ((roles of x, roles of w), roles of the result), with one (name, number) per
    dimension. `x_rank`, `w_rank`, `rank`: number of dimensions of x, w and the result. Dimensions
    with equal roles correspond, except those that are `whole`. The names by kind:

    - MatMul: x (row, ..., sum), w (sum, free), result (row, ..., free)
    - BatchMatMul: x (batch, ..., row, sum), w (batch, ..., sum, free),
      result (batch, ..., row, free)
    - other kinds, treated as Conv: x (row, sum, whole, ...), w (free, sum, whole, ...),
      result (row, free, whole, ...)

    The number is 0 for `sum` and `free`, otherwise the position of the dimension. Surplus
    dimensions are `whole`. The sizes are not checked. Results are cached.
    """
    axes = find_axes(kind, x_rank)
    x: list[Role] = [("whole", index) for index in range(x_rank)]
    w: list[Role] = [("whole", index) for index in range(w_rank)]
    result: list[Role] = [("whole", index) for index in range(rank)]
    if kind is Kind.BATCH_MATMUL:
        for index in range(x_rank - 2):
            x[index] = w[index] = result[index] = "batch", index
    for row in axes.rows:
        x[row] = result[row] = "row", row
    x[axes.x_sum] = w[axes.w_sum] = "sum", 0
    w[axes.w_free] = result[axes.result_free] = "free", 0
    return (tuple(x), tuple(w)), tuple(result)


def _compute_product_shape(left: TensorType, right: TensorType) -> Shape:
    """Return the shape [..., N] of the matrix product of [..., K] and [K, N].

    Raises `TypingMistakeError` (`shape`) if the first operand has fewer than 2 dimensions, the
    second another number than 2, or the contracted sizes K differ.
    """
    x, w = left.shape, right.shape
    if len(x) < 2 or len(w) != 2 or x[-1] != w[0]:
        message = f"shapes {format_shape(x)} and {format_shape(w)} do not fit"
        raise TypingMistakeError("shape", message, "MatMul takes [..., K] and [K, N]")
    return (*x[:-1], w[1])


def _compute_batch_shape(left: TensorType, right: TensorType) -> Shape:
    """Return the shape [..., M, N] of the product of [..., M, K] and [..., K, N].

    Both shapes need the same number of dimensions, at least three, equal leading dimensions
    and equal K; symbols are equal to themselves only. Raises `TypingMistakeError` (`shape`)
    otherwise.
    """
    x, w = left.shape, right.shape
    is_fit = len(x) == len(w) >= 3 and x[:-2] == w[:-2] and x[-1] == w[-2]
    if not is_fit:
        message = f"shapes {format_shape(x)} and {format_shape(w)} do not fit"
        raise TypingMistakeError("shape", message, "BatchMatMul takes [..., M, K] and [..., K, N]")
    return (*x[:-1], w[-1])


def _compute_conv_shape(x: TensorType, w: TensorType) -> Shape:
    """Return the shape of a convolution of x [B, C, positions] with w [O, C, window].

    It is [B, O, positions], with the positions of x unchanged. x and w need the same number
    of dimensions, at least three, so there can be several dimensions of positions. Raise
    `TypingMistakeError` (`shape`) otherwise, for different C, and for window sizes that are
    even or symbols; and (`layout`) for an x that is sliced along positions on any axis.
    """
    window = w.shape[2:]
    is_fit = len(x.shape) == len(w.shape) >= 3 and x.shape[1] == w.shape[1]
    is_odd = all(isinstance(size, int) and size % 2 for size in window)
    if not (is_fit and is_odd):
        message = f"shapes {format_shape(x.shape)} and {format_shape(w.shape)} do not fit"
        cure = "Conv takes [B, C, positions] and [O, C, window], windows of odd numbers"
        raise TypingMistakeError("shape", message, cure)
    if any(layout.dimension > 1 for layout in x.layout.by_axis):
        message = "x is sliced along positions, which have neighbours on other ranks"
        raise TypingMistakeError("layout", message, "slice along the batch or the channels")
    return (x.shape[0], w.shape[0], *x.shape[2:])


_SHAPES = {
    Kind.MATMUL: _compute_product_shape,
    Kind.BATCH_MATMUL: _compute_batch_shape,
    Kind.CONV: _compute_conv_shape,
}
