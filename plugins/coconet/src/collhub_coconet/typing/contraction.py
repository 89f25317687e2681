"""Typing rules of contractions: matrix product and convolution."""

from __future__ import annotations

from dataclasses import dataclass

from collhub_coconet.program.operations import Kind
from collhub_coconet.program.tensors import LOCAL, REPLICATED, Layout, Shape, TensorType, sliced
from collhub_coconet.typing.mistakes import Operands, TypingMistakeError


@dataclass(frozen=True, slots=True)
class Axes:
    """Dimensions of a contraction of x with w.

    `rows`: of x and of the result, at the same place. `x_sum` and `w_sum`: the contracted one.
    `w_free`: of w, in the result at `result_free`.
    """

    rows: tuple[int, ...]
    x_sum: int
    w_sum: int
    w_free: int
    result_free: int


def axes_of(kind: Kind, x_rank: int) -> Axes:
    """The dimensions of a matrix product, or of a convolution, of an x with so many of them."""
    last = x_rank - 1
    if kind is Kind.MATMUL:
        return Axes(tuple(range(last)), last, 0, 1, last)
    if kind is Kind.BATCH_MATMUL:
        # The batch is in both operands: it is no row.
        return Axes((last - 1,), last, last - 1, last, last)
    # Batch, channels, positions; positions have neighbours, so that they are no rows.
    return Axes((0,), 1, 1, 0, 1)


def contraction(operands: Operands) -> TensorType:
    """Partial sums are local: both operands sliced along the contracted dimension, or one local.

    MatMul: x[..., K], w[K, N] -> [..., N]. Conv: x[B, C, positions], w[O, C, window] -> [B, O,
    positions], zeros around, every window of odd length. BatchMatMul: x[..., M, K], w[..., K, N]
    -> [..., M, N], the same batch in front; a batch sliced alike in both is sliced in the result.
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
    layout = _layout(x.layout, w.layout, axes_of(kind, len(x.shape)))
    return TensorType(x.element, shape, layout, x.group)


def _product_shape(left: TensorType, right: TensorType) -> Shape:
    """The shape of a matrix product."""
    x, w = left.shape, right.shape
    if len(x) < 2 or len(w) != 2 or x[-1] != w[0]:
        message = f"shapes {_text(x)} and {_text(w)} do not fit"
        raise TypingMistakeError("shape", message, "MatMul takes [..., K] and [K, N]")
    return (*x[:-1], w[1])


def _batch_shape(left: TensorType, right: TensorType) -> Shape:
    """The shape of matrix products of one batch."""
    x, w = left.shape, right.shape
    is_fit = len(x) == len(w) >= 3 and x[:-2] == w[:-2] and x[-1] == w[-2]
    if not is_fit:
        message = f"shapes {_text(x)} and {_text(w)} do not fit"
        raise TypingMistakeError("shape", message, "BatchMatMul takes [..., M, K] and [..., K, N]")
    return (*x[:-1], w[-1])


def _conv_shape(x: TensorType, w: TensorType) -> Shape:
    """The shape of a convolution."""
    window = w.shape[2:]
    is_fit = len(x.shape) == len(w.shape) >= 3 and x.shape[1] == w.shape[1]
    is_odd = all(isinstance(size, int) and size % 2 for size in window)
    if not (is_fit and is_odd):
        message = f"shapes {_text(x.shape)} and {_text(w.shape)} do not fit"
        cure = "Conv takes [B, C, positions] and [O, C, window], windows of odd numbers"
        raise TypingMistakeError("shape", message, cure)
    if x.layout.is_sliced and x.layout.dimension > 1:
        message = "x is sliced along positions, which have neighbours on other ranks"
        raise TypingMistakeError("layout", message, "slice along the batch or the channels")
    return (x.shape[0], w.shape[0], *x.shape[2:])


_SHAPES = {
    Kind.MATMUL: _product_shape,
    Kind.BATCH_MATMUL: _batch_shape,
    Kind.CONV: _conv_shape,
}


def _layout(x: Layout, w: Layout, axes: Axes) -> Layout:
    """The layout of a contraction."""
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


def _text(shape: Shape) -> str:
    """A shape in brackets."""
    return f"[{', '.join(map(str, shape))}]"
