"""Typing rules of pointwise operations: trailing broadcast, equal element types, one layout."""

from __future__ import annotations

from dataclasses import replace

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
from collhub_coconet.typing.mistakes import Operands, TypingMistakeError, check_sliceable


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
