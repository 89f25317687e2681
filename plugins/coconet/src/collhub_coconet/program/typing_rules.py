"""Typing rules of operations: collectives, Send and Slice, and pointwise operations.

A rule computes the type of the result from the operands, or raises the error of a violated rule.
"""

from __future__ import annotations

from dataclasses import replace

from collhub_coconet.program.operations import (
    ARITHMETIC,
    COMPARISONS,
    LOCAL,
    REPLICATED,
    ElementType,
    Kind,
    Layout,
    Operation,
    Placement,
    Shape,
    Size,
    TensorType,
    distance_from_end,
    has_dimension,
    sliced,
)

_CURES = {
    Placement.REPLICATED: "every rank has the same values already: use the operand itself",
    Placement.SLICED: "AllGather the slices instead",
    Placement.LOCAL: "AllReduce or ReduceScatter the local values first",
}


class TypingMistakeError(Exception):
    """Violation of a typing rule: `code` names the rule, `cure` the remedy.

    The rule knows the operands of an operation but not its position in the program.
    """

    def __init__(self, code: str, message: str, cure: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.cure = cure


class Operands:
    """Operands of one operation with their types; the type of a number is None."""

    def __init__(self, operation: Operation, types: list[TensorType | None]) -> None:
        self.operation = operation
        self.all = types
        self.tensors = [tensor for tensor in types if tensor is not None]

    def tensor(self, position: int) -> TensorType:
        """Return the type of the operand at a position.

        Raises `TypingMistakeError` if it is a number.
        """
        tensor = self.all[position]
        if tensor is None:
            message = f"operand {position + 1} is a number, a tensor is expected"
            raise TypingMistakeError("operand", message, "name a value")
        return tensor

    def name(self, position: int) -> str:
        """Format the operand at a position for messages."""
        return str(self.operation.operands[position])

    def check_float(self, position: int) -> None:
        """Raise `TypingMistakeError` unless the operand at a position is a tensor of floats."""
        element = self.tensor(position).element
        if not element.is_float:
            message = f"{self.name(position)} is {element}, a float is expected"
            raise TypingMistakeError("element-type", message, "insert a Cast")

    def check_same_group(self) -> None:
        """Raise `TypingMistakeError` if two tensors are on different groups."""
        groups = {tensor.group for tensor in self.tensors}
        if len(groups) > 1:
            message = f"operands lie on groups {', '.join(map(str, sorted(groups)))}"
            raise TypingMistakeError("group", message, "Send one of them to the other group")

    def check_same_element(self, positions: list[int]) -> None:
        """Raise `TypingMistakeError` if the tensors at these positions have different element
        types.

        Numbers have no type of their own.
        """
        operands = [self.all[position] for position in positions]
        elements = {operand.element for operand in operands if operand is not None}
        if len(elements) > 1:
            message = f"element types differ: {' and '.join(sorted(elements))}"
            raise TypingMistakeError("element-type", message, "insert a Cast")


def check_sliceable(tensor: TensorType, dimension: int, name: str) -> None:
    """Raise `TypingMistakeError` if a tensor cannot be sliced along a dimension.

    That is a dimension outside of 0..rank - 1, so any for a scalar, or one of size 1, which is
    broadcast. Other sizes, also symbols, need not be multiples of the ranks. `name` is for the
    message.
    """
    rank = len(tensor.shape)
    sizes = ", ".join(map(str, tensor.shape))
    if not 0 <= dimension < rank:
        message = f"{name}[{sizes}] has no dimension {dimension}"
        cure = f"slice along 0..{rank - 1}" if rank else "a scalar stays replicated"
        raise TypingMistakeError("dimension", message, cure)
    if tensor.shape[dimension] == 1:
        message = f"{name}[{sizes}] is broadcast along dimension {dimension}, its size is 1"
        raise TypingMistakeError("dimension", message, "leave it replicated")


def type_scalar(tensor: TensorType) -> TensorType:
    """Type the reduction of a tensor to a scalar.

    That of a sliced tensor is replicated, since an all-reduce of one scalar follows.
    """
    layout = REPLICATED if tensor.layout.is_sliced else tensor.layout
    return TensorType(tensor.element, (), layout, tensor.group)


def type_all_reduce(operands: Operands) -> TensorType:
    """Type an AllReduce: local -> replicated.

    Raises `TypingMistakeError` for any other layout: replicated values would be multiplied by p.
    """
    operand = _require_local(operands)
    return replace(operand, layout=REPLICATED)


def type_reduce_scatter(operands: Operands) -> TensorType:
    """Type a ReduceScatter: local -> sliced; the shape remains that of the complete tensor."""
    operand = _require_local(operands)
    dimension = operands.operation.dimension or 0
    check_sliceable(operand, dimension, operands.name(0))
    return replace(operand, layout=sliced(dimension))


def type_all_gather(operands: Operands) -> TensorType:
    """Type an AllGather: sliced -> replicated. Raises `TypingMistakeError` for any other layout."""
    operand = operands.tensor(0)
    if not operand.layout.is_sliced:
        cure = (
            "ReduceScatter or Slice it first" if operand.layout == LOCAL else "leave AllGather out"
        )
        raise _create_layout_error(operands, "a sliced", cure)
    return replace(operand, layout=REPLICATED)


def type_broadcast(operands: Operands) -> TensorType:
    """L or R -> R."""
    return replace(_require_unsliced(operands), layout=REPLICATED)


def type_reduce(operands: Operands) -> TensorType:
    """Type a Reduce: local or replicated -> local, valid on the root only."""
    operand = _require_unsliced(operands)
    _check_arithmetic(operands, operand)
    return replace(operand, layout=LOCAL)


def type_send(operands: Operands) -> TensorType:
    """Type a Send: the same type on the group at distance `offset` (0 by default) of its own.

    Raises `TypingMistakeError` for a distance of 0 and for a group below 0; there is no upper
    limit.
    """
    operand = operands.tensor(0)
    offset = operands.operation.offset or 0
    group = operand.group + offset
    # Rank i of one group sends to rank i of the other.
    if offset == 0 or group < 0:
        message = f"group {operand.group} with offset {offset} is no other group of the row"
        raise TypingMistakeError("group", message, "an offset leads to another group, from 0 on")
    return replace(operand, group=group)


def type_all_to_all(operands: Operands) -> TensorType:
    """Type an AllToAll: a tensor sliced along d becomes sliced along its `dimension` e (default 0).

    Rank i sends each rank one part of its block i; shape, element type and group remain. Raises
    `TypingMistakeError` for an operand that is not sliced, for e equal to d, and for a dimension
    that does not exist or has size 1.
    """
    operand = operands.tensor(0)
    if not operand.layout.is_sliced:
        cure = "ReduceScatter or Slice it first" if operand.layout == LOCAL else "Slice it instead"
        raise _create_layout_error(operands, "a sliced", cure)
    dimension = operands.operation.dimension or 0
    check_sliceable(operand, dimension, operands.name(0))
    if dimension == operand.layout.dimension:
        message = f"{operands.name(0)} is sliced along dimension {dimension} already"
        raise TypingMistakeError("dimension", message, "name another dimension, or leave it out")
    return replace(operand, layout=sliced(dimension))


def type_slice(operands: Operands) -> TensorType:
    """Type a Slice: replicated -> sliced along its dimension (0 by default), without communication.

    Shape, element type and group remain. Raises `TypingMistakeError` for any other layout, or a
    dimension that does not exist or has size 1.
    """
    operand = operands.tensor(0)
    if operand.layout != REPLICATED:
        cure = _CURES[operand.layout.placement]
        raise _create_layout_error(
            operands, "a replicated", cure if operand.layout == LOCAL else "use it"
        )
    dimension = operands.operation.dimension or 0
    check_sliceable(operand, dimension, operands.name(0))
    return replace(operand, layout=sliced(dimension))


COMMUNICATION_RULES = {
    Kind.ALL_REDUCE: type_all_reduce,
    Kind.REDUCE_SCATTER: type_reduce_scatter,
    Kind.ALL_GATHER: type_all_gather,
    Kind.BROADCAST: type_broadcast,
    Kind.REDUCE: type_reduce,
    Kind.SEND: type_send,
    Kind.ALL_TO_ALL: type_all_to_all,
    Kind.SLICE: type_slice,
}


def type_arithmetic(operands: Operands) -> TensorType:
    """Type arithmetic: two tensors, or a tensor and a number, of one element type; see
    `_join_types`.

    Raises `TypingMistakeError` for bool, and for a quotient of integers.
    """
    result = _join_types(operands, [0, 1])
    is_quotient = operands.operation.kind is Kind.DIVIDE
    if result.element is ElementType.BOOL or (is_quotient and not result.element.is_float):
        message = f"operands are {result.element}"
        raise TypingMistakeError("element-type", message, "insert a Cast")
    return result


def type_comparison(operands: Operands) -> TensorType:
    """As for arithmetic, except that the result is bool."""
    return replace(_join_types(operands, [0, 1]), element=ElementType.BOOL)


def type_select(operands: Operands) -> TensorType:
    """Type `Select(c, a, b)`, which is a where the bool c is true, else b: the joined type of a and
    b.

    Raises `TypingMistakeError` if c is not bool.
    """
    if operands.tensor(0).element is not ElementType.BOOL:
        message = f"the condition {operands.name(0)} is {operands.tensor(0).element}, not bool"
        raise TypingMistakeError("element-type", message, "compare it with something")
    return _join_types(operands, [1, 2])


def type_float_function(operands: Operands) -> TensorType:
    """Sqrt and tanh: the type of the operand, which must be a float."""
    operands.check_float(0)
    return operands.tensor(0)


def type_cast(operands: Operands) -> TensorType:
    """Change the element type; shape, layout and group remain."""
    element = operands.operation.element
    return replace(operands.tensor(0), element=element or operands.tensor(0).element)


def type_dropout(operands: Operands) -> TensorType:
    """Type a Dropout: the type of the operand, which must be a float; the rate is in [0, 1).

    Slices give the same values as the complete tensor, since the random numbers depend on the index
    of an element in the complete tensor.
    """
    rate = operands.operation.rate
    if rate is None or not 0 <= rate < 1:
        raise TypingMistakeError("rate", f"the rate is {rate}", "a rate is at least 0, less than 1")
    return type_float_function(operands)


POINTWISE_RULES = {
    **dict.fromkeys(ARITHMETIC, type_arithmetic),
    **dict.fromkeys(COMPARISONS, type_comparison),
    Kind.SELECT: type_select,
    Kind.SQRT: type_float_function,
    Kind.TANH: type_float_function,
    Kind.CAST: type_cast,
    Kind.DROPOUT: type_dropout,
}


def compute_broadcast_shape(shapes: list[Shape]) -> Shape:
    """Compute the shape of a result by the rules of numpy.

    Dimensions are aligned at the end, and a dimension of size 1 is stretched.
    """
    first, *remaining_shapes = shapes
    if all(shape == first for shape in remaining_shapes):
        return first
    rank = max(map(len, shapes))
    return tuple(_join_sizes(shapes, distance) for distance in range(rank, 0, -1))


def _require_local(operands: Operands) -> TensorType:
    """Return the operand of a reduction.

    Raises `TypingMistakeError` unless it is local and arithmetic.
    """
    operand = operands.tensor(0)
    if operand.layout != LOCAL:
        raise _create_layout_error(operands, "a local", _CURES[operand.layout.placement])
    _check_arithmetic(operands, operand)
    return operand


def _require_unsliced(operands: Operands) -> TensorType:
    """Return the operand. Raises `TypingMistakeError` if it is sliced."""
    operand = operands.tensor(0)
    if operand.layout.is_sliced:
        raise _create_layout_error(operands, "a local or replicated", "AllGather it first")
    return operand


def _check_arithmetic(operands: Operands, operand: TensorType) -> None:
    """Refuse operands of type bool."""
    if operand.element is ElementType.BOOL:
        message = f"{operands.name(0)} is bool, which is not reduced"
        raise TypingMistakeError("element-type", message, "insert a Cast")


def _create_layout_error(operands: Operands, expected: str, cure: str) -> TypingMistakeError:
    """Create the error for an operand whose layout is not the expected one."""
    layout: Layout = operands.tensor(0).layout
    message = f"{expected} operand is expected, {operands.name(0)} is {layout.placement} ({layout})"
    return TypingMistakeError("layout", message, cure)


def _join_types(operands: Operands, positions: list[int]) -> TensorType:
    """Join the operands of a pointwise operation: broadcast shape, joined layout, element type.

    `positions`: the operands whose element types must be equal; the type of the first of them that
    is no number is the result's. The group is that of all tensors. Raises `TypingMistakeError` for
    operands that do not fit, and if all, or all of `positions`, are numbers.
    """
    if not operands.tensors:
        raise TypingMistakeError("operand", "all operands are numbers", "compute the number")
    operands.check_same_group()
    operands.check_same_element(positions)
    candidates = [operands.all[position] for position in positions]
    elements = [operand.element for operand in candidates if operand is not None]
    if not elements:
        raise TypingMistakeError("operand", "both values are numbers", "name a tensor")
    shape = compute_broadcast_shape([tensor.shape for tensor in operands.tensors])
    layout = _join_layouts(operands, shape)
    return TensorType(elements[0], shape, layout, operands.tensors[0].group)


def _join_sizes(shapes: list[Shape], distance: int) -> Size:
    """Return the common size of all shapes at a distance from the end, ignoring sizes of 1.

    Raises `TypingMistakeError` for different ones.
    """
    sizes = {shape[-distance] for shape in shapes if has_dimension(shape, distance)}
    if len(sizes) > 1:
        message = f"sizes {' and '.join(sorted(map(str, sizes)))} do not fit"
        raise TypingMistakeError("shape", message, "equal sizes or 1, compared from the last one")
    return sizes.pop() if sizes else 1


def _join_layouts(operands: Operands, shape: Shape) -> Layout:
    """Find the layout of a pointwise result of shape `shape` from the layouts of its operands.

    Sliced dimensions are compared by their distance from the end, as broadcasting aligns shapes.
    Any sliced operand makes the result sliced along the same dimension; otherwise any local one
    makes it local; replicated operands change nothing, and without others the result is replicated.
    Raises `TypingMistakeError` for a local operand with a sliced one, for two different sliced
    dimensions, and if the result cannot be sliced along the dimension.
    """
    distances = {
        distance_from_end(tensor.layout.dimension, len(tensor.shape))
        for tensor in operands.tensors
        if tensor.layout.is_sliced
    }
    is_local = any(tensor.layout == LOCAL for tensor in operands.tensors)
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
