"""Table of aten operators that the language describes: the operations of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from collhub_captured_graphs import Tensor
from collhub_captured_graphs.graph import ArgumentValue, ElementName

from collhub_coconet.program.operands import TypingMistakeError
from collhub_coconet.program.operations import ElementType, Kind, Operand, Shape


class Builder(Protocol):
    """Node of a graph whose operations are added to a program.

    Methods raise `TypingMistakeError` for operands that the language does not permit; the node is
    then opaque.
    """

    def argument(self, *names: str) -> ArgumentValue:
        """Return the first of the named arguments that is present; None if none is."""

    def operand(self, *names: str) -> Operand:
        """Return the first of the named arguments that is present, as the name of a value or a
        number.

        Raises `TypingMistakeError` if it is neither, or none is present.
        """

    def is_sliced(self, operand: Operand) -> bool:
        """Whether an operand is a value that any axis of the mesh slices; False for a number."""

    def rank(self, operand: Operand) -> int:
        """Return the number of dimensions of an operand; 0 for a number."""

    def result(self) -> Tensor:
        """Return the only result of the node, as in the graph."""

    def size(self, *names: str) -> int:
        """Return the number of elements of a tensor argument on one rank."""

    def find_complete_shape(self, operand: Operand) -> Shape | None:
        """Return the complete shape of the result, the rank's elements of an operand in order.

        None if a slice of the operand is no slice of the result.
        """

    def add(self, kind: Kind, *operands: Operand, **attributes: object) -> str:
        """Add an operation for an intermediate value, and return the name of the value.

        Raises `TypingMistakeError` if it is ill-typed.
        """

    def finish(self, kind: Kind, *operands: Operand, **attributes: object) -> str:
        """Add the operation that computes the result of the node, and return the name of the value.

        Raises `TypingMistakeError` if it is ill-typed.
        """


Expansion = Callable[[Builder], str]
"""Adds the operations of a node, and returns the name of its result."""


def _refuse(reason: str) -> TypingMistakeError:
    """Return (do not raise) the error for a form of an operator that the language does not have.

    The node then becomes an opaque operation.
    """
    return TypingMistakeError("operator", reason, "it becomes an opaque operation")


def _is_one(value: ArgumentValue) -> bool:
    """Whether a factor is absent, or the number 1; False for True and for values."""
    return value is None or (not isinstance(value, bool) and value in (1, 1.0))


def _scale(build: Builder, operand: Operand, *names: str) -> Operand:
    """Multiply an operand by the first named argument that is present.

    Returns the operand itself if the factor is absent or 1.
    """
    factor = build.argument(*names)
    if _is_one(factor):
        return operand
    return build.add(Kind.MULTIPLY, operand, build.operand(*names))


def _add_binary(kind: Kind) -> Expansion:
    """Return the expansion of an operator with the operands `self` and `other` (or `exponent`).

    It refuses quotients with a rounding mode.
    """

    def expand(build: Builder) -> str:
        if build.argument("rounding_mode") is not None:
            raise _refuse("rounded quotients")
        return build.finish(kind, build.operand("self"), build.operand("other", "exponent"))

    return expand


def _add_sum(kind: Kind) -> Expansion:
    """Return the expansion of `self + alpha * other`, or of the difference if `kind` is Subtract.

    A missing `alpha` is 1.
    """

    def expand(build: Builder) -> str:
        other = _scale(build, build.operand("other"), "alpha")
        return build.finish(kind, build.operand("self"), other)

    return expand


def _subtract_reversed(build: Builder) -> str:
    self = _scale(build, build.operand("self"), "alpha")
    return build.finish(Kind.SUBTRACT, build.operand("other"), self)


def _add_unary(kind: Kind) -> Expansion:
    """Return the expansion of an operator with the operand `self` to one operation."""
    return lambda build: build.finish(kind, build.operand("self"))


def _negate(build: Builder) -> str:
    return build.finish(Kind.MULTIPLY, build.operand("self"), -1.0)


def _invert(build: Builder) -> str:
    return build.finish(Kind.DIVIDE, 1.0, build.operand("self"))


def _invert_root(build: Builder) -> str:
    return build.finish(Kind.DIVIDE, 1.0, build.add(Kind.SQRT, build.operand("self")))


def _square(build: Builder) -> str:
    return build.finish(Kind.MULTIPLY, build.operand("self"), build.operand("self"))


def _apply_sigmoid(build: Builder) -> str:
    """Add the sigmoid 1 / (1 + exp(-x)) in the order of PyTorch, and return its name."""
    power = build.add(Kind.EXP, build.add(Kind.MULTIPLY, build.operand("self"), -1.0))
    return build.finish(Kind.DIVIDE, 1.0, build.add(Kind.ADD, power, 1.0))


def _apply_silu(build: Builder) -> str:
    """Add SiLU, x / (1 + exp(-x)), in the order of PyTorch, and return its name."""
    x = build.operand("self")
    power = build.add(Kind.EXP, build.add(Kind.MULTIPLY, x, -1.0))
    return build.finish(Kind.DIVIDE, x, build.add(Kind.ADD, power, 1.0))


def _differentiate_tanh(build: Builder) -> str:
    """Add the gradient of tanh, grad * (1 - y^2) with its result y, in the order of PyTorch."""
    y = build.operand("output")
    slope = build.add(Kind.SUBTRACT, 1.0, build.add(Kind.MULTIPLY, y, y))
    return build.finish(Kind.MULTIPLY, build.operand("grad_output"), slope)


def _differentiate_sigmoid(build: Builder) -> str:
    """Add the gradient of the sigmoid, grad * (1 - y) * y with its result y, as PyTorch does."""
    y = build.operand("output")
    factor = build.add(Kind.SUBTRACT, 1.0, y)
    slope = build.add(Kind.MULTIPLY, build.operand("grad_output"), factor)
    return build.finish(Kind.MULTIPLY, slope, y)


def _differentiate_silu(build: Builder) -> str:
    """Add the gradient of SiLU, grad * s * (1 + x * (1 - s)), as PyTorch computes it.

    Here x is the operand `self`, and s = 1 / (1 + exp(-x)).
    """
    x = build.operand("self")
    power = build.add(Kind.EXP, build.add(Kind.MULTIPLY, x, -1.0))
    s = build.add(Kind.DIVIDE, 1.0, build.add(Kind.ADD, power, 1.0))
    inner = build.add(Kind.MULTIPLY, x, build.add(Kind.SUBTRACT, 1.0, s))
    slope = build.add(Kind.MULTIPLY, build.operand("grad_output"), s)
    return build.finish(Kind.MULTIPLY, slope, build.add(Kind.ADD, inner, 1.0))


def _differentiate_threshold(build: Builder) -> str:
    """Add the gradient of a threshold: 0 where the operand is at most the threshold.

    Elsewhere, and where the operand is NaN, it is `grad_output`.
    """
    x, limit = build.operand("self"), build.operand("threshold")
    equal = build.add(Kind.EQUAL, x, limit)
    slope = build.add(Kind.SELECT, equal, 0.0, build.operand("grad_output"))
    return build.finish(Kind.SELECT, build.add(Kind.LESS, x, limit), 0.0, slope)


def _rectify(build: Builder) -> str:
    x = build.operand("self")
    return build.finish(Kind.SELECT, build.add(Kind.LESS, x, 0.0), 0.0, x)


def _clamp(build: Builder) -> str:
    """Add selections of the limits where the operand exceeds them; NaN remains NaN.

    With both limits, `min` is applied first. Refused without a limit.
    """
    x = build.operand("self")
    limits = [(Kind.LESS, "min"), (Kind.GREATER, "max")]
    used = [(kind, name) for kind, name in limits if build.argument(name) is not None]
    for kind, name in used[:-1]:
        limit = build.operand(name)
        x = build.add(Kind.SELECT, build.add(kind, x, limit), limit, x)
    if not used:
        raise _refuse("no limit")
    kind, name = used[-1]
    limit = build.operand(name)
    return build.finish(Kind.SELECT, build.add(kind, x, limit), limit, x)


def _select(build: Builder) -> str:
    operands = build.operand("condition"), build.operand("self"), build.operand("other")
    return build.finish(Kind.SELECT, *operands)


def _cast(build: Builder) -> str:
    """Add a Cast to the element type `dtype`.

    Refused without `dtype`, or if the language lacks the type, so that the operator becomes opaque.
    """
    element = build.argument("dtype")
    if not isinstance(element, ElementName) or element.name not in list(ElementType):
        raise _refuse("no element type of the language")
    return build.finish(Kind.CAST, build.operand("self"), element=ElementType(element.name))


def _interpolate(build: Builder) -> str:
    start = build.operand("self")
    difference = build.add(Kind.SUBTRACT, build.operand("end"), start)
    return build.finish(
        Kind.ADD, start, build.add(Kind.MULTIPLY, difference, build.operand("weight"))
    )


def _add_product(kind: Kind) -> Expansion:
    """Return the expansion of `self + value * (tensor1 * tensor2)`, or of the quotient by `kind`.

    A missing `value` is 1.
    """

    def expand(build: Builder) -> str:
        product = build.add(kind, build.operand("tensor1"), build.operand("tensor2"))
        return build.finish(Kind.ADD, build.operand("self"), _scale(build, product, "value"))

    return expand


def _multiply(build: Builder) -> str:
    return build.finish(Kind.MATMUL, build.operand("self"), build.operand("mat2"))


def _multiply_batches(build: Builder) -> str:
    return build.finish(Kind.BATCH_MATMUL, build.operand("self"), build.operand("mat2"))


def _multiply_any(build: Builder) -> str:
    x, w = build.operand("self"), build.operand("other")
    ranks = build.rank(x), build.rank(w)
    if ranks[1] == 2 and ranks[0] >= 2:
        return build.finish(Kind.MATMUL, x, w)
    if ranks[0] != ranks[1] or ranks[0] < 3:
        raise _refuse("a product of vectors or of different batches")
    return build.finish(Kind.BATCH_MATMUL, x, w)


def _multiply_and_add(build: Builder) -> str:
    if not _is_one(build.argument("beta")) or not _is_one(build.argument("alpha")):
        raise _refuse("scaled products")
    product = build.add(Kind.MATMUL, build.operand("mat1"), build.operand("mat2"))
    return build.finish(Kind.ADD, product, build.operand("self"))


def _apply_linear(build: Builder) -> str:
    weight = build.add(Kind.TRANSPOSE, build.operand("weight"))
    if build.argument("bias") is None:
        return build.finish(Kind.MATMUL, build.operand("input"), weight)
    product = build.add(Kind.MATMUL, build.operand("input"), weight)
    return build.finish(Kind.ADD, product, build.operand("bias"))


def _transpose(build: Builder) -> str:
    """Add a Transpose, which swaps the last two dimensions.

    Other permutations, and operands of fewer than two dimensions, are refused, so that the operator
    becomes opaque. Accepts `dims`, `dim0` and `dim1`, or no dimensions for a matrix.
    """
    x = build.operand("self")
    rank = build.rank(x)
    order = list(range(rank))
    dims = build.argument("dims")
    if isinstance(dims, tuple):
        order = [one % rank for one in dims if type(one) is int]
    else:
        first, second = build.argument("dim0"), build.argument("dim1")
        if type(first) is int and type(second) is int:
            order[first % rank], order[second % rank] = order[second % rank], order[first % rank]
        elif rank == 2:
            order = [1, 0]
    if rank < 2 or order != [*range(rank - 2), rank - 1, rank - 2]:
        raise _refuse("a permutation of other dimensions")
    return build.finish(Kind.TRANSPOSE, x)


def _reshape(build: Builder) -> str:
    """Add a Reshape to the shape of the result; elements keep their order.

    Refused unless each sliced dimension of the operand has a corresponding one in the result, so
    that blocks remain blocks.
    """
    x = build.operand("self")
    shape = build.find_complete_shape(x)
    if shape is None:
        raise _refuse("a view of parts of blocks")
    return build.finish(Kind.RESHAPE, x, shape=shape)


def _reduce(kind: Kind) -> Expansion:
    """Return the expansion of a reduction of all elements of a rank's tensor.

    A sliced operand is refused here, since the language would reduce the complete tensor.
    """

    def expand(build: Builder) -> str:
        x = build.operand("self")
        dimensions = build.argument("dim")
        if dimensions not in (None, ()) or build.argument("keepdim") is True:
            raise _refuse("a reduction of some dimensions")
        if build.is_sliced(x) or build.argument("dtype") is not None:
            raise _refuse("the elements of one block")
        if kind is Kind.NORM and build.argument("ord", "p") not in (None, 2, 2.0):
            raise _refuse("a norm other than 2")
        return build.finish(kind, x)

    return expand


def _average(build: Builder) -> str:
    x = build.operand("self")
    if build.argument("dim") not in (None, ()) or build.is_sliced(x):
        raise _refuse("a mean of some dimensions or of one block")
    return build.finish(Kind.DIVIDE, build.add(Kind.SUM, x), float(build.size("self")))


EXPANSIONS: dict[str, Expansion] = {
    "aten.add": _add_sum(Kind.ADD),
    "aten.sub": _add_sum(Kind.SUBTRACT),
    "aten.rsub": _subtract_reversed,
    "aten.mul": _add_binary(Kind.MULTIPLY),
    "aten.div": _add_binary(Kind.DIVIDE),
    "aten.pow": _add_binary(Kind.POWER),
    "aten.lt": _add_binary(Kind.LESS),
    "aten.gt": _add_binary(Kind.GREATER),
    "aten.eq": _add_binary(Kind.EQUAL),
    "aten.sqrt": _add_unary(Kind.SQRT),
    "aten.tanh": _add_unary(Kind.TANH),
    "aten.exp": _add_unary(Kind.EXP),
    "aten.log": _add_unary(Kind.LOG),
    "aten.sigmoid": _apply_sigmoid,
    "aten.silu": _apply_silu,
    "aten.tanh_backward": _differentiate_tanh,
    "aten.sigmoid_backward": _differentiate_sigmoid,
    "aten.silu_backward": _differentiate_silu,
    "aten.threshold_backward": _differentiate_threshold,
    "aten.neg": _negate,
    "aten.reciprocal": _invert,
    "aten.rsqrt": _invert_root,
    "aten.square": _square,
    "aten.relu": _rectify,
    "aten.clamp": _clamp,
    "aten.clamp_min": _clamp,
    "aten.clamp_max": _clamp,
    "aten.where": _select,
    "aten._to_copy": _cast,
    "aten.lerp": _interpolate,
    "aten.addcmul": _add_product(Kind.MULTIPLY),
    "aten.addcdiv": _add_product(Kind.DIVIDE),
    "aten.mm": _multiply,
    "aten.bmm": _multiply_batches,
    "aten.matmul": _multiply_any,
    "aten.addmm": _multiply_and_add,
    "aten.linear": _apply_linear,
    **dict.fromkeys(("aten.view", "aten._unsafe_view", "aten.reshape"), _reshape),
    **dict.fromkeys(("aten.unsqueeze", "aten.squeeze", "aten.flatten"), _reshape),
    "aten.t": _transpose,
    "aten.transpose": _transpose,
    "aten.permute": _transpose,
    "aten.sum": _reduce(Kind.SUM),
    "aten.amax": _reduce(Kind.MAX),
    "aten.linalg_vector_norm": _reduce(Kind.NORM),
    "aten.mean": _average,
}
