"""Typing rules of contractions: matrix products, batches of them, and convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from collhub_coconet.program.operations import (
    LOCAL,
    REPLICATED,
    Kind,
    Layout,
    Shape,
    TensorType,
    sliced,
)
from collhub_coconet.program.typing_rules import Operands, TypingMistakeError


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
    """Return the dimensions of a contraction (rows, contracted and free ones) by its kind.

    `x_rank`: number of dimensions of the first operand.
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
    """Type a matrix product or convolution; partial sums over the ranks are local.

    The result is local if both operands are sliced along the contracted dimension, or if one is
    local. MatMul: x[..., K], w[K, N] -> [..., N]. Conv: x[B, C, positions], w[O, C, window] -> [B,
    O, positions], with zero padding and windows of odd lengths. BatchMatMul: x[..., M, K], w[...,
    K, N] -> [..., M, N] with equal batch dimensions; if both are sliced along the same one, the
    result is, too.
    """
    operands.check_float(0)
    operands.check_float(1)
    operands.check_same_element([0, 1])
    operands.check_same_group()
    x, w = operands.tensor(0), operands.tensor(1)
    kind = operands.operation.kind
    shape = _SHAPES[kind](x, w)
    is_in_batch = kind is Kind.BATCH_MATMUL and 0 <= x.layout.dimension < len(x.shape) - 2
    if is_in_batch and x.layout == w.layout:
        return TensorType(x.element, shape, x.layout, x.group)
    layout = _find_contraction_layout(x.layout, w.layout, find_axes(kind, len(x.shape)))
    return TensorType(x.element, shape, layout, x.group)


def _compute_product_shape(left: TensorType, right: TensorType) -> Shape:
    """Return the shape of [..., K] times [K, N]. Raises `TypingMistakeError` for other shapes."""
    x, w = left.shape, right.shape
    if len(x) < 2 or len(w) != 2 or x[-1] != w[0]:
        message = f"shapes {_format_shape(x)} and {_format_shape(w)} do not fit"
        raise TypingMistakeError("shape", message, "MatMul takes [..., K] and [K, N]")
    return (*x[:-1], w[1])


def _compute_batch_shape(left: TensorType, right: TensorType) -> Shape:
    """Return the shape of [..., M, K] times [..., K, N].

    Raises `TypingMistakeError` for other shapes.
    """
    x, w = left.shape, right.shape
    is_fit = len(x) == len(w) >= 3 and x[:-2] == w[:-2] and x[-1] == w[-2]
    if not is_fit:
        message = f"shapes {_format_shape(x)} and {_format_shape(w)} do not fit"
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
        message = f"shapes {_format_shape(x.shape)} and {_format_shape(w.shape)} do not fit"
        cure = "Conv takes [B, C, positions] and [O, C, window], windows of odd numbers"
        raise TypingMistakeError("shape", message, cure)
    if x.layout.is_sliced and x.layout.dimension > 1:
        message = "x is sliced along positions, which have neighbours on other ranks"
        raise TypingMistakeError("layout", message, "slice along the batch or the channels")
    return (x.shape[0], w.shape[0], *x.shape[2:])


_SHAPES = {
    Kind.MATMUL: _compute_product_shape,
    Kind.BATCH_MATMUL: _compute_batch_shape,
    Kind.CONV: _compute_conv_shape,
}


def _find_contraction_layout(x: Layout, w: Layout, axes: Axes) -> Layout:
    """Return the layout of a contraction.

    A sliced row of x or column of w stays sliced; slices of the contracted dimension, or one local
    operand, give local sums; two replicated operands a replicated result. Raises
    `TypingMistakeError` for all other pairs.
    """
    if w == REPLICATED and x.is_sliced and x.dimension in axes.rows:
        return x
    is_sum = x == sliced(axes.x_sum) and w == sliced(axes.w_sum)
    if is_sum or (x, w) in ((LOCAL, REPLICATED), (REPLICATED, LOCAL)):
        return LOCAL
    if x == REPLICATED and w == sliced(axes.w_free):
        return sliced(axes.result_free)
    if x == w == REPLICATED:
        return REPLICATED
    message = f"layouts {x} and {w} have no product"
    cure = "slice a row of the first, the last of the second, or the contracted one of both"
    raise TypingMistakeError("layout", message, cure)


def _format_shape(shape: Shape) -> str:
    """Format a shape in brackets."""
    return f"[{', '.join(map(str, shape))}]"
