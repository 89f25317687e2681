"""Typing rules of computations: pointwise operations and contractions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collhub_coconet.program.operations import ARITHMETIC, COMPARISONS, Kind
from collhub_coconet.program.tensors import (
    LOCAL,
    REPLICATED,
    ElementType,
    Layout,
    Shape,
    Size,
    TensorType,
    from_end,
    has_dimension,
    sliced,
)
from collhub_coconet.typing.operands import Operands, TypingMistakeError, check_sliceable


def arithmetic(operands: Operands) -> TensorType:
    """Two tensors, or a tensor and a number, of one element type; quotients are floats."""
    found = _joined(operands, [0, 1])
    is_quotient = operands.operation.kind is Kind.DIVIDE
    if found.element is ElementType.BOOL or (is_quotient and not found.element.is_float):
        message = f"operands are {found.element}"
        raise TypingMistakeError("element-type", message, "insert a Cast")
    return found


def comparison(operands: Operands) -> TensorType:
    """As arithmetic; the result is bool."""
    return replace(_joined(operands, [0, 1]), element=ElementType.BOOL)


def select(operands: Operands) -> TensorType:
    """`Select(c, a, b)`: a where the bool c is true, else b."""
    if operands.tensor(0).element is not ElementType.BOOL:
        message = f"the condition {operands.name(0)} is {operands.tensor(0).element}, not bool"
        raise TypingMistakeError("element-type", message, "compare it with something")
    return _joined(operands, [1, 2])


def float_function(operands: Operands) -> TensorType:
    """Sqrt and tanh: the type stays."""
    operands.check_float(0)
    return operands.tensor(0)


def cast(operands: Operands) -> TensorType:
    """The element type changes.

    Shape, layout and group stay.
    """
    element = operands.operation.element
    return replace(operands.tensor(0), element=element or operands.tensor(0).element)


def dropout(operands: Operands) -> TensorType:
    """The type stays: numbers are keyed by the global index, so that slices equal the whole."""
    rate = operands.operation.rate
    if rate is None or not 0 <= rate < 1:
        raise TypingMistakeError("rate", f"the rate is {rate}", "a rate is at least 0, less than 1")
    return float_function(operands)


POINTWISE_RULES = {
    **dict.fromkeys(ARITHMETIC, arithmetic),
    **dict.fromkeys(COMPARISONS, comparison),
    Kind.SELECT: select,
    Kind.SQRT: float_function,
    Kind.TANH: float_function,
    Kind.CAST: cast,
    Kind.DROPOUT: dropout,
}


def _joined(operands: Operands, positions: list[int]) -> TensorType:
    """Shape and layout of all operands together, element type of those at `positions`."""
    if not operands.tensors:
        raise TypingMistakeError("operand", "all operands are numbers", "compute the number")
    operands.check_same_group()
    operands.check_same_element(positions)
    typed = [operands.all[position] for position in positions]
    elements = [one.element for one in typed if one is not None]
    if not elements:
        raise TypingMistakeError("operand", "both values are numbers", "name a tensor")
    shape = broadcast_shape([found.shape for found in operands.tensors])
    layout = _layout(operands, shape)
    return TensorType(elements[0], shape, layout, operands.tensors[0].group)


def broadcast_shape(shapes: list[Shape]) -> Shape:
    """The shape of a result by numpy's rule: dimensions from the end, 1 stretches."""
    first, *others = shapes
    if all(shape == first for shape in others):
        return first
    rank = max(map(len, shapes))
    return tuple(_size(shapes, distance) for distance in range(rank, 0, -1))


def _size(shapes: list[Shape], distance: int) -> Size:
    """The common size at one distance from the end."""
    sizes = {shape[-distance] for shape in shapes if has_dimension(shape, distance)}
    if len(sizes) > 1:
        message = f"sizes {' and '.join(sorted(map(str, sizes)))} do not fit"
        raise TypingMistakeError("shape", message, "equal sizes or 1, compared from the last one")
    return sizes.pop() if sizes else 1


def _layout(operands: Operands, shape: Shape) -> Layout:
    """Equal layouts stay; R with X is X; L with S, and S of two dimensions, are illegal."""
    distances = {
        from_end(found.layout.dimension, len(found.shape))
        for found in operands.tensors
        if found.layout.is_sliced
    }
    is_local = any(found.layout == LOCAL for found in operands.tensors)
    if not distances:
        return LOCAL if is_local else REPLICATED
    if is_local:
        cure = "ReduceScatter the local operand first"
        raise TypingMistakeError("layout", "a local operand meets a sliced one", cure)
    if len(distances) > 1:
        cure = "AllGather one of them"
        raise TypingMistakeError("layout", "operands are sliced along different dimensions", cure)
    dimension = len(shape) - distances.pop()
    result = TensorType(operands.tensors[0].element, shape, REPLICATED)
    check_sliceable(result, dimension, operands.operation.name)
    return sliced(dimension)


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
    layout = _contraction_layout(x.layout, w.layout, axes_of(kind, len(x.shape)))
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


def _contraction_layout(x: Layout, w: Layout, axes: Axes) -> Layout:
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
