"""Typing rules of contractions: matrix products, batches of them, and convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from collhub_coconet.program.layout_rules import Role
from collhub_coconet.program.operands import Operands, TypingMistakeError
from collhub_coconet.program.operations import Kind, Shape, TensorType, format_shape


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
    """Return the dimensions of a contraction by role: rows, contracted and free ones; see `Axes`.

    `x_rank`: number of dimensions of the first operand. Of a product, all dimensions of x but the
    last are rows; of a batch product, only the last but one; of a convolution, only the batch.
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
    """Type a matrix product or convolution; partial sums over the ranks are partial or local.

    MatMul: x[..., K], w[K, N] -> [..., N]. Conv: x[B, C, positions], w[O, C, window] -> [B, O,
    positions], with zero padding and windows of odd lengths. BatchMatMul: x[..., M, K], w[..., K,
    N] -> [..., M, N] with equal batch dimensions; if both are sliced along the same one, the result
    is, too. The product of two local operands is the product on every rank; that of two partial
    ones is refused, since the sum of products is not the product of sums.
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
    """Return the roles of the dimensions of both operands, and of the result.

    Dimensions without a role in the table, such as those of a window, are `whole`.
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
    """Return the shape of [..., K] times [K, N]. Raises `TypingMistakeError` for other shapes."""
    x, w = left.shape, right.shape
    if len(x) < 2 or len(w) != 2 or x[-1] != w[0]:
        message = f"shapes {format_shape(x)} and {format_shape(w)} do not fit"
        raise TypingMistakeError("shape", message, "MatMul takes [..., K] and [K, N]")
    return (*x[:-1], w[1])


def _compute_batch_shape(left: TensorType, right: TensorType) -> Shape:
    """Return the shape of [..., M, K] times [..., K, N].

    Raises `TypingMistakeError` for other shapes.
    """
    x, w = left.shape, right.shape
    is_fit = len(x) == len(w) >= 3 and x[:-2] == w[:-2] and x[-1] == w[-2]
    if not is_fit:
        message = f"shapes {format_shape(x)} and {format_shape(w)} do not fit"
        raise TypingMistakeError("shape", message, "BatchMatMul takes [..., M, K] and [..., K, N]")
    return (*x[:-1], w[-1])


def _compute_conv_shape(x: TensorType, w: TensorType) -> Shape:
    """Return the shape of a convolution of [B, C, positions] with [O, C, window].

    Raises `TypingMistakeError` for other shapes, even windows, and an x that is sliced along
    positions.
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
