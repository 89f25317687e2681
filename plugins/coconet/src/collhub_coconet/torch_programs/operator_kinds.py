"""Table of aten operators that the language describes: the operations of each."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, prod, sqrt
from typing import Protocol

from collhub_captured_graphs import Tensor
from collhub_captured_graphs.graph import ArgumentValue, ElementName

from collhub_coconet.program.operands import TypingMistakeError
from collhub_coconet.program.operations import ElementType, Kind, Operand, Reduction, Shape


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

    def is_sliced(self, operand: Operand, dimension: int | None = None) -> bool:
        """Whether an operand is a value that any axis of the mesh slices; False for a number.

        With `dimension`, only slices along it count.
        """

    def list_operands(self, name: str) -> list[Operand]:
        """Return an argument that is a list of values or numbers.

        Raises `TypingMistakeError` if it is not.
        """

    def shape(self, operand: Operand) -> Shape:
        """Return the complete shape of an operand; empty for a number."""

    def local_shape(self, *names: str) -> tuple[int, ...]:
        """Return the shape of a tensor argument on one rank.

        Raises `TypingMistakeError` if it is no tensor.
        """

    def results(self) -> tuple[Tensor | None, ...]:
        """Return the results of the node, as in the graph; None for one that is not used."""

    def find_complete_shape(self, operand: Operand) -> Shape | None:
        """Return the complete shape of the first result, an operand's elements in their order.

        None if a slice of the operand is no slice of the result.
        """

    def add(self, kind: Kind, *operands: Operand, **attributes: object) -> str:
        """Add an operation for an intermediate value, and return the name of the value.

        Raises `TypingMistakeError` if it is ill-typed.
        """

    def finish(self, kind: Kind, *operands: Operand, output: int = 0, **attributes: object) -> str:
        """Add the operation that computes a result of the node, and return the name of its value.

        `output` is the number of the result, from 0. Raises `TypingMistakeError` if the operation
        is ill-typed.
        """


Expansion = Callable[[Builder], str | tuple[str | None, ...]]
"""Adds the operations of a node, and returns the name of its result, or of all its results."""


def _refuse(reason: str) -> TypingMistakeError:
    """Return (do not raise) the error for a form of an operator that the language does not have.

    The node then becomes an opaque operation.
    """
    return TypingMistakeError("operator", reason, "it becomes an opaque operation")


def _is_one(value: ArgumentValue) -> bool:
    """Whether a factor is absent, or the number 1; False for True and for values."""
    return value is None or (not isinstance(value, bool) and value in (1, 1.0))


def _scale(build: Builder, operand: Operand, *names: str) -> Operand:
    """Return an operand multiplied by the first named argument that is present.

    The operand itself is returned if the factor is absent or 1. Otherwise a Multiply is added, and
    its name returned. Raises `TypingMistakeError` if the factor is neither a value nor a number.
    """
    factor = build.argument(*names)
    if _is_one(factor):
        return operand
    return build.add(Kind.MULTIPLY, operand, build.operand(*names))


def _add_binary(kind: Kind) -> Expansion:
    """Return a function that expands an operator with two operands to one operation.

    The operation has the kind `kind`. Its first operand is the argument `self`. The second is
    the first one present of `other`, `exponent`, `scalar` and `scalars`; an argument with the
    value None counts as present. Other arguments are ignored, for example `alpha`.

    The function raises `TypingMistakeError` in these cases; the operator is then kept as an
    opaque call:

    - `rounding_mode` is not None, for any kind.
    - One of both operands is missing, or neither a value nor a number.
    """

    def expand(build: Builder) -> str:
        if build.argument("rounding_mode") is not None:
            raise _refuse("rounded quotients")
        return build.finish(
            kind, build.operand("self"), build.operand("other", "exponent", "scalar", "scalars")
        )

    return expand


def _add_sum(kind: Kind) -> Expansion:
    """Return the expansion of `self + alpha * other`, or of the difference if `kind` is SUBTRACT.

    An expansion adds the operations of a node and returns the name of its result. The
    second operand is the first present argument of `other`, `scalar` and `scalars`. If
    `alpha` is missing or 1, no Multiply is added. The expansion raises `TypingMistakeError`
    for a missing argument, and for operands that do not fit.
    """

    def expand(build: Builder) -> str:
        other = _scale(build, build.operand("other", "scalar", "scalars"), "alpha")
        return build.finish(kind, build.operand("self"), other)

    return expand


def _subtract_reversed(build: Builder) -> str:
    self = _scale(build, build.operand("self"), "alpha")
    return build.finish(Kind.SUBTRACT, build.operand("other"), self)


def _add_operation(kind: Kind, *names: str | float) -> Expansion:
    """Return the expansion of an operator to one operation of `kind`.

    Its operands are, in order, the arguments with these names, or these numbers. The expansion
    raises `TypingMistakeError` for an argument that is missing or is neither a value nor a number.
    """
    return lambda build: build.finish(
        kind, *(build.operand(name) if isinstance(name, str) else name for name in names)
    )


def _invert_root(build: Builder) -> str:
    return build.finish(Kind.DIVIDE, 1.0, build.add(Kind.SQRT, build.operand("self")))


def _apply_sigmoid(build: Builder) -> str:
    """Add the sigmoid 1 / (1 + exp(x * -1)), and return the name of the result.

    x is the operand `self`. The operations have the order of PyTorch. Raise
    `TypingMistakeError` if x has no float elements or a layout without a rule.
    """
    power = build.add(Kind.EXP, build.add(Kind.MULTIPLY, build.operand("self"), -1.0))
    return build.finish(Kind.DIVIDE, 1.0, build.add(Kind.ADD, power, 1.0))


def _apply_silu(build: Builder) -> str:
    """Add SiLU, x / (1 + exp(-x)), in the order of PyTorch, and return the name of the result.

    x is the operand `self`. Raises `TypingMistakeError` if it has no float elements or a layout
    without a rule.
    """
    x = build.operand("self")
    power = build.add(Kind.EXP, build.add(Kind.MULTIPLY, x, -1.0))
    return build.finish(Kind.DIVIDE, x, build.add(Kind.ADD, power, 1.0))


def _differentiate_tanh(build: Builder) -> str:
    """Add the gradient of tanh, grad * (1 - y * y), and return the name of the result.

    y is the operand `output`, the result of tanh, and grad is `grad_output`. The operations have
    the order of PyTorch. Raises `TypingMistakeError` if an operand is missing or is neither a value
    nor a number, or if an operation is ill-typed.
    """
    y = build.operand("output")
    slope = build.add(Kind.SUBTRACT, 1.0, build.add(Kind.MULTIPLY, y, y))
    return build.finish(Kind.MULTIPLY, build.operand("grad_output"), slope)


def _differentiate_sigmoid(build: Builder) -> str:
    """Add the gradient of the sigmoid, grad * (1 - y) * y, as PyTorch does; return its name.

    y is the operand `output`, the result of the sigmoid, and grad is `grad_output`. The product is
    evaluated from the left.
    """
    y = build.operand("output")
    factor = build.add(Kind.SUBTRACT, 1.0, y)
    slope = build.add(Kind.MULTIPLY, build.operand("grad_output"), factor)
    return build.finish(Kind.MULTIPLY, slope, y)


def _differentiate_silu(build: Builder) -> str:
    """Add the gradient of SiLU, grad * s * (1 + x * (1 - s)), in the order of PyTorch.

    Here x is the operand `self`, and s = 1 / (1 + exp(-x)). Returns the name of the result.
    """
    x = build.operand("self")
    power = build.add(Kind.EXP, build.add(Kind.MULTIPLY, x, -1.0))
    s = build.add(Kind.DIVIDE, 1.0, build.add(Kind.ADD, power, 1.0))
    inner = build.add(Kind.MULTIPLY, x, build.add(Kind.SUBTRACT, 1.0, s))
    slope = build.add(Kind.MULTIPLY, build.operand("grad_output"), s)
    return build.finish(Kind.MULTIPLY, slope, build.add(Kind.ADD, inner, 1.0))


def _differentiate_threshold(build: Builder) -> str:
    """Add the gradient of a threshold: 0 where the operand is at most the threshold.

    Elsewhere, and where the operand is NaN, it is `grad_output`. Returns the name of the result.
    """
    x, limit = build.operand("self"), build.operand("threshold")
    equal = build.add(Kind.EQUAL, x, limit)
    slope = build.add(Kind.SELECT, equal, 0.0, build.operand("grad_output"))
    return build.finish(Kind.SELECT, build.add(Kind.LESS, x, limit), 0.0, slope)


def _rectify(build: Builder) -> str:
    x = build.operand("self")
    return build.finish(Kind.SELECT, build.add(Kind.LESS, x, 0.0), 0.0, x)


def _clamp(build: Builder) -> str:
    """Add selections of the limits where the operand exceeds them; return the name.

    The limits are the arguments `min` and `max`, of which one may be None. With both, `min` is
    applied first, so that `max` is the result if it is below `min`. NaN in the operand
    remains. Refused (`TypingMistakeError`) without a limit.
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


def _cast(build: Builder) -> str:
    """Add a Cast of the operand `self` to the element type `dtype`; return the name of its result.

    Raise `TypingMistakeError` without `dtype`, for a type that the language does not have,
    and for an operand that cannot be cast. The caller then adds an opaque operation
    instead.
    """
    element = build.argument("dtype")
    if not isinstance(element, ElementName) or element.name not in list(ElementType):
        raise _refuse("no element type of the language")
    return build.finish(Kind.CAST, build.operand("self"), element=ElementType(element.name))


def _interpolate(build: Builder) -> str:
    start = build.operand("self")
    difference = build.add(Kind.SUBTRACT, build.operand("end", "tensors1"), start)
    weight = build.operand("weight", "weights")
    return build.finish(Kind.ADD, start, build.add(Kind.MULTIPLY, difference, weight))


def _add_product(kind: Kind) -> Expansion:
    """Return the expansion of `self + value * (tensor1 * tensor2)`.

    An expansion adds the operations of a node and returns the name of its result. `kind`:
    MULTIPLY, or DIVIDE for the quotient of the tensors. The factor may be called `value` or
    `scalars`; if it is missing or 1, no Multiply is added for it. The expansion raises
    `TypingMistakeError` for a missing argument, and for operands that do not fit.
    """

    def expand(build: Builder) -> str:
        product = build.add(kind, build.operand("tensor1"), build.operand("tensor2"))
        return build.finish(
            Kind.ADD, build.operand("self"), _scale(build, product, "value", "scalars")
        )

    return expand


def _multiply_any(build: Builder) -> str:
    x, w = build.operand("self"), build.operand("other")
    ranks = len(build.shape(x)), len(build.shape(w))
    if ranks[1] == 2 and ranks[0] >= 2:
        return build.finish(Kind.MATMUL, x, w)
    if ranks[0] != ranks[1] or ranks[0] < 3:
        raise _refuse("a product of vectors or of different batches")
    return build.finish(Kind.BATCH_MATMUL, x, w)


def _add_scaled_product(kind: Kind, *factors: str) -> Expansion:
    """Return the expansion of `beta * self + alpha * (product of the two factors)`.

    An expansion adds the operations of a node and returns the name of its result. `kind`:
    of the product; `factors`: names of the arguments with its two operands. For an alpha or
    beta that is missing or 1, no Multiply is added. As in PyTorch, `self` is not read if
    beta is 0: the result is then the scaled product, without a sum.
    """

    def expand(build: Builder) -> str:
        x, w = (build.operand(name) for name in factors)
        if build.argument("beta") in (0, 0.0):
            if _is_one(build.argument("alpha")):
                return build.finish(kind, x, w)
            return build.finish(Kind.MULTIPLY, build.add(kind, x, w), build.operand("alpha"))
        product = _scale(build, build.add(kind, x, w), "alpha")
        return build.finish(Kind.ADD, product, _scale(build, build.operand("self"), "beta"))

    return expand


def _apply_linear(build: Builder) -> str:
    weight = build.add(Kind.TRANSPOSE, build.operand("weight"))
    if build.argument("bias") is None:
        return build.finish(Kind.MATMUL, build.operand("input"), weight)
    product = build.add(Kind.MATMUL, build.operand("input"), weight)
    return build.finish(Kind.ADD, product, build.operand("bias"))


def _transpose(build: Builder) -> str:
    """Add a Permute, or a Transpose if only the last two dimensions are swapped; return its name.

    The operand is `self`. The first rule that applies gives the order of its dimensions:

    1. `dims` is a list: its entries. (2, 0, 1): dimension 0 of the result is dimension 2 of `self`.
    2. `dim0` and `dim1` are integers, and the operand is no scalar: they are swapped.
    3. The operand is a matrix: its two dimensions are swapped.
    4. Otherwise the order is unchanged.

    Dimensions are taken modulo their number, so -1 is the last one. For the unchanged order of a
    tensor, no operation is added and the operand's name is returned. Raises `TypingMistakeError`
    for a number as the operand, and if `dims` lacks or repeats a dimension, has an entry that is no
    integer, or has entries for a scalar. The node is then opaque.
    """
    x = build.operand("self")
    rank = len(build.shape(x))
    order = list(range(rank))
    dims = build.argument("dims")
    first, second = build.argument("dim0"), build.argument("dim1")
    if isinstance(dims, tuple):
        numbers = [one for one in dims if type(one) is int]
        if len(numbers) < len(dims) or (numbers and not rank):
            raise _refuse("an order of other dimensions")
        order = [one % rank for one in numbers]
    elif type(first) is int and type(second) is int and rank:
        order[first % rank], order[second % rank] = order[second % rank], order[first % rank]
    elif rank == 2:
        order = [1, 0]
    if isinstance(x, str) and order == list(range(rank)):
        return x
    if order == [*range(rank - 2), rank - 1, rank - 2]:
        return build.finish(Kind.TRANSPOSE, x)
    return build.finish(Kind.PERMUTE, x, order=tuple(order))


def _reshape(build: Builder) -> str:
    """Add a Reshape to the shape of the result, and return its name; elements keep their order.

    Refused (`TypingMistakeError`) unless each sliced dimension of the operand has a corresponding
    one in the result, so that each rank's block remains a block. Also refused for a number.
    """
    x = build.operand("self")
    shape = build.find_complete_shape(x)
    if shape is None:
        raise _refuse("a view of parts of blocks")
    return build.finish(Kind.RESHAPE, x, shape=shape)


def _find_dimensions(build: Builder, rank: int) -> list[int]:
    """Return the dimensions of the argument `dim`, ascending from 0, each once.

    `dim` is a number or a tuple of numbers; other values are ignored. Negative numbers
    count from the end. Numbers outside of the `rank` dimensions are not detected: they are
    taken modulo `rank`. Without any number, also for an empty tuple, all dimensions are
    returned. The list is empty for a scalar (`rank` 0).
    """
    value = build.argument("dim")
    numbers = value if isinstance(value, tuple) else (value,)
    chosen = sorted({one % rank for one in numbers if type(one) is int and rank})
    return chosen or list(range(rank))


def _reduce_rows(build: Builder, x: Operand, reduction: Reduction) -> str:
    """Reduce x along the dimensions of `dim`, and return the name of the result.

    Without a number in `dim`, all dimensions are reduced; a number outside of the dimensions is
    taken modulo how many there are (`_find_dimensions`). One RowReduce is added per dimension, in
    ascending order; each leaves a size of 1. A Reshape then removes these dimensions, unless
    `keepdim` is True. If an axis of the mesh slices a reduced dimension, the result is partial:
    each rank has the reduction of its block.

    Raises `TypingMistakeError` if x is a number; if an axis slices a dimension that is not reduced,
    and `find_complete_shape` finds no dimension of the result for it, also with `keepdim`; and
    if an added operation is ill-typed, such as a sum of values that are partial with `max`.
    """
    name = x
    for dimension in _find_dimensions(build, len(build.shape(x))):
        name = build.add(Kind.ROW_REDUCE, name, reduction=reduction, dimension=dimension)
    shape = build.find_complete_shape(name)
    if shape is None or not isinstance(name, str):
        raise _refuse("a reduction of some blocks")
    return name if build.argument("keepdim") is True else build.add(Kind.RESHAPE, name, shape=shape)


def _reduce(kind: Kind, reduction: Reduction | None) -> Expansion:
    """Return the expansion of a PyTorch reduction, of all elements or along dimensions.

    The expansion adds operations for the operand `self`, and returns the name of its result. To
    refuse means to raise `TypingMistakeError`, so that the node becomes opaque. The first rule
    that applies:

    1. There is an argument `dtype` (another element type): refused.
    2. `dim` has an entry, or `keepdim` is true: refused if `reduction` is None. Otherwise one
       RowReduce per dimension of `dim`; without entries, per dimension of the operand
       (`_reduce_rows`).
    3. The operand is sliced: refused, since the language would reduce the complete tensor instead
       of one rank's block.
    4. `kind` is a norm, and its argument `ord` or `p` is neither 2 nor absent: refused.
    5. Otherwise one operation of `kind` reduces all elements to a scalar.
    """

    def expand(build: Builder) -> str:
        x = build.operand("self")
        if build.argument("dtype") is not None:
            raise _refuse("a sum in another element type")
        is_partial = build.argument("dim") not in (None, ()) or build.argument("keepdim") is True
        if is_partial and reduction is not None:
            return _reduce_rows(build, x, reduction)
        if is_partial:
            raise _refuse("a reduction of some dimensions")
        if build.is_sliced(x):
            raise _refuse("the elements of one block")
        if kind is Kind.NORM and build.argument("ord", "p") not in (None, 2, 2.0):
            raise _refuse("a norm other than 2")
        return build.finish(kind, x)

    return expand


def _average(build: Builder) -> str:
    """Add a mean to the program and return its name: a sum divided by a number of elements.

    The dimensions are those of `dim`, and all if `dim` is missing or empty. The divisor is the
    number of elements that one rank adds. Reduced dimensions are removed, unless `dim` is given
    and `keepdim` is true. If an axis of the mesh slices a reduced dimension, the result is a
    partial sum: the term of each rank is the mean of its own block.

    Raise `TypingMistakeError` in these cases:

    - The argument `dtype` is present, or the elements are no floats.
    - All elements of a sliced operand would be averaged without `dim`.
    """
    x = build.operand("self")
    if build.argument("dtype") is not None:
        raise _refuse("a mean in another element type")
    sizes = build.local_shape("self")
    if build.argument("dim") not in (None, ()):
        count = prod(sizes[dimension] for dimension in _find_dimensions(build, len(sizes)))
        return build.finish(Kind.DIVIDE, _reduce_rows(build, x, Reduction.SUM), float(count))
    if build.is_sliced(x):
        raise _refuse("the elements of one block")
    return build.finish(Kind.DIVIDE, build.add(Kind.SUM, x), float(prod(sizes)))


def _apply_gelu(build: Builder) -> str:
    """Add GELU in the order of PyTorch, and return the name of the result.

    It is x/2 (1 + erf(x / sqrt 2)). If the argument `approximate` is `tanh`, it is x/2 (1 +
    tanh(sqrt(2 / pi) (x + c x^3))) with c = `_GELU_CUBE`. x is the operand `self`.
    """
    x = build.operand("self")
    inner = _add_gelu_argument(build, x)
    kind = Kind.TANH if build.argument("approximate") == "tanh" else Kind.ERF
    factor = build.add(Kind.ADD, build.add(kind, inner), 1.0)
    return build.finish(Kind.MULTIPLY, build.add(Kind.MULTIPLY, x, 0.5), factor)


def _add_gelu_argument(build: Builder, x: Operand) -> str:
    """Add the argument of the error function, or of tanh, in GELU; return its name.

    It is x / sqrt 2. If the argument `approximate` is `tanh`, it is sqrt(2 / pi) (x + c x^3) with c
    = `_GELU_CUBE`. Raises `TypingMistakeError` if an operation is ill-typed, e.g. for integers.
    """
    if build.argument("approximate") != "tanh":
        return build.add(Kind.MULTIPLY, x, sqrt(0.5))
    cube = build.add(Kind.MULTIPLY, build.add(Kind.MULTIPLY, x, x), x)
    inner = build.add(Kind.ADD, x, build.add(Kind.MULTIPLY, cube, _GELU_CUBE))
    return build.add(Kind.MULTIPLY, inner, sqrt(2 / pi))


_GELU_CUBE = 0.044715
"""Factor of the cube in the form of GELU with tanh (Hendrycks and Gimpel, arXiv 1606.08415)."""


def _differentiate_gelu(build: Builder) -> str:
    """Add the gradient of GELU, where GELU is x c(x); return the name of the result.

    The result is g (c(x) + x c'(x)), with x = `self` and g = `grad_output`. It is a Multiply; all
    other operations are intermediate values. If the argument `approximate` is `tanh`,

        c(x) = (1 + tanh(u)) / 2,  u = sqrt(2 / pi) (x + a x^3),  a = `_GELU_CUBE`
        c'(x) = (1 - tanh(u)^2) sqrt(2 / pi) (1 + 3 a x^2) / 2

    For any other value, or without this argument,

        c(x) = (1 + erf(x / sqrt 2)) / 2
        c'(x) = exp(-x^2 / 2) / sqrt(2 pi)

    Raises `TypingMistakeError` if an argument is missing or the operands do not fit.
    """
    x, gradient = build.operand("self"), build.operand("grad_output")
    square = build.add(Kind.MULTIPLY, x, x)
    inner = _add_gelu_argument(build, x)
    if build.argument("approximate") == "tanh":
        value = build.add(Kind.TANH, inner)
        rest = build.add(Kind.SUBTRACT, 1.0, build.add(Kind.MULTIPLY, value, value))
        rate = build.add(Kind.MULTIPLY, square, 3 * _GELU_CUBE * sqrt(2 / pi))
        rate = build.add(Kind.ADD, rate, sqrt(2 / pi))
        slope = build.add(Kind.MULTIPLY, build.add(Kind.MULTIPLY, rest, rate), 0.5)
    else:
        value = build.add(Kind.ERF, inner)
        density = build.add(Kind.EXP, build.add(Kind.MULTIPLY, square, -0.5))
        slope = build.add(Kind.MULTIPLY, density, 1 / sqrt(2 * pi))
    factor = build.add(Kind.MULTIPLY, build.add(Kind.ADD, value, 1.0), 0.5)
    total = build.add(Kind.ADD, factor, build.add(Kind.MULTIPLY, x, slope))
    return build.finish(Kind.MULTIPLY, gradient, total)


def _find_dimension(build: Builder, rank: int) -> int:
    """Return the dimension in the argument `dim`, counted from 0; 0 if it is absent.

    `rank`: number of dimensions. A negative number counts from the end. A number outside of
    the dimensions is not detected: it is taken modulo `rank`. Raise `TypingMistakeError`
    (so that the node becomes opaque) for a scalar, and if `dim` is no integer.
    """
    value = build.argument("dim")
    if not rank or not (value is None or type(value) is int):
        raise _refuse("no dimension")
    return (value or 0) % rank


def _add_parts(build: Builder) -> tuple[str | None, ...]:
    """Add one Part for each result of a split along a dimension; return their names.

    The operand is `self`, the dimension is `dim` (default 0, negative ones count from the end).
    Results follow each other from position 0. The size of result i is:

    - entry i, if `split_size` or `split_sizes` is a list
    - otherwise the size of the result's tensor in this dimension, so the last one can be smaller
    - for a result that no node uses, the single `split_size`

    An unused result has no Part and the name None, but its size counts for the start of the next
    ones. Raises `TypingMistakeError` (the node is then opaque) for a scalar, a `dim` or size that
    is no integer, a dimension that is sliced, and positions outside of it.
    """
    x = build.operand("self")
    dimension = _find_dimension(build, len(build.shape(x)))
    sizes = build.argument("split_size", "split_sizes")
    names: list[str | None] = []
    start = 0
    for position, tensor in enumerate(build.results()):
        if isinstance(sizes, tuple):
            size = sizes[position]
        else:
            size = sizes if tensor is None else tensor.shape[dimension]
        if type(size) is not int:
            raise _refuse("a division with unknown sizes")
        attributes = {"dimension": dimension, "start": start, "count": size}
        is_used = tensor is not None
        names.append(build.finish(Kind.PART, x, output=position, **attributes) if is_used else None)
        start += size
    return tuple(names)


def _unbind(build: Builder) -> tuple[str | None, ...]:
    """Add one slice of `self` per result, each without the dimension `dim`; return their names.

    Result i has position i of the dimension (default 0), by a Part and a Reshape
    (`_select_position`). For a result that is not used, no operation is added and its name
    is None. Raise `TypingMistakeError` for a scalar, and if the operand is sliced along the
    dimension.
    """
    x = build.operand("self")
    dimension = _find_dimension(build, len(build.shape(x)))
    return tuple(
        None if tensor is None else _select_position(build, x, dimension, position, position)
        for position, tensor in enumerate(build.results())
    )


def _select_position(
    build: Builder, x: Operand, dimension: int, start: int, output: int = 0
) -> str:
    """Add a Part of one position of a dimension, and a Reshape that removes the dimension.

    `start`: the position, from 0. `output`: number of the result of the node that the
    Reshape computes. Return the name of the Reshape. Raise `TypingMistakeError` if x is a
    number, does not have the dimension, or is sliced along it.
    """
    part = build.add(Kind.PART, x, dimension=dimension, start=start, count=1)
    shape = build.shape(part)
    shape = (*shape[:dimension], *shape[dimension + 1 :])
    return build.finish(Kind.RESHAPE, part, output=output, shape=shape)


def _select_index(build: Builder) -> str:
    x, index = build.operand("self"), build.argument("index")
    shape = build.shape(x)
    dimension = _find_dimension(build, len(shape))
    length = shape[dimension]
    if type(index) is not int or not isinstance(length, int):
        raise _refuse("a position that depends on data")
    return _select_position(build, x, dimension, index % length)


def _cut(build: Builder) -> str:
    """Add a Part from `start` to `end`, or of `length` positions, and return its name.

    The operand is `self`. The dimension is the argument `dim`, default 0, taken modulo the number
    of dimensions. `start` (default 0) and `end` (excluded, default: the size) count from the end of
    the dimension if negative, and are then limited to 0 and its size. If `length` is given, it is
    the number of positions, and `end` is ignored. A range of all positions adds no operation and
    returns the operand's name.

    Raises `TypingMistakeError` (the node is then opaque) for:

    - a scalar, and a `dim`, `start`, `end` or `length` that is no integer
    - a dimension whose size is unknown, or that is sliced over ranks
    - a step other than 1 or None
    - an empty range, and a `length` that exceeds the dimension
    """
    x = build.operand("self")
    shape = build.shape(x)
    dimension = _find_dimension(build, len(shape))
    length, start, count = shape[dimension], build.argument("start"), build.argument("length")
    start = 0 if start is None else start
    if type(length) is not int or type(start) is not int or not _is_one(build.argument("step")):
        raise _refuse("positions with a step")
    end = length if build.argument("end") is None else build.argument("end")
    if type(end) is not int or not (count is None or type(count) is int):
        raise _refuse("positions that depend on data")
    start = min(max(start + length if start < 0 else start, 0), length)
    if count is None:
        count = min(max(end + length if end < 0 else end, 0), length) - start
    if isinstance(x, str) and (start, count) == (0, length):
        return x
    return build.finish(Kind.PART, x, dimension=dimension, start=start, count=count)


def _join(build: Builder) -> str:
    """Add a Concat of the values in the argument `tensors`, in their order, and return its name.

    The dimension is the argument `dim`, default 0 (`_find_dimension`). Raise
    `TypingMistakeError` for an empty list, for scalars, and for tensors that do not fit or
    are sliced along the dimension. The node then becomes opaque.
    """
    tensors = build.list_operands("tensors")
    dimension = _find_dimension(build, len(build.shape(tensors[0])) if tensors else 0)
    return build.finish(Kind.CONCAT, *tensors, dimension=dimension)


def _stack(build: Builder) -> str:
    """Add a Concat of the values in `tensors` along a new dimension, and return its name.

    A Reshape first gives each operand the shape of the first one with an additional
    size of 1 at the position `dim` (default 0). The position is taken modulo the number
    of dimensions of the new shape, so negative ones count from its end. A single tensor
    also gets a Concat.

    Raise `TypingMistakeError` for an empty list, for a `dim` that is no integer, and for
    tensors that do not fit.
    """
    tensors = build.list_operands("tensors")
    shape = build.shape(tensors[0]) if tensors else ()
    dimension = _find_dimension(build, len(shape) + 1)
    wide = (*shape[:dimension], 1, *shape[dimension:])
    reshaped = [build.add(Kind.RESHAPE, one, shape=wide) for one in tensors]
    return build.finish(Kind.CONCAT, *reshaped, dimension=dimension)


def _look_up(build: Builder) -> str:
    """Add a Gather of rows of an embedding table, and return its name.

    The operands are `weight` (the table) and `indices`. Raise `TypingMistakeError` for a
    table of which each rank has a block of rows: indices of the graph count within the
    block, and indices of a Gather count in the complete table. The node then becomes
    opaque.
    """
    if build.is_sliced(build.operand("weight"), 0):
        raise _refuse("a table in blocks of rows")
    return build.finish(Kind.GATHER, build.operand("weight"), build.operand("indices"))


def _add_rows(build: Builder) -> str:
    """Add the gradient of an embedding, a Scatter of rows into zeros, and return its name.

    The operands are `indices` and `grad_output`; the result has `num_weights` rows, and the
    dimensions of the gradient after those of the indices. Refused (`TypingMistakeError`) are
    `scale_grad_by_freq` True (gradients scaled by frequency), an unknown number of rows, and a
    padding index of 0 or more.
    """
    padding, rows = build.argument("padding_idx"), build.argument("num_weights")
    if build.argument("scale_grad_by_freq") is True or type(rows) is not int:
        raise _refuse("gradients scaled by frequency")
    if type(padding) is int and padding >= 0:
        raise _refuse("an embedding with padding")
    indices, gradient = build.operand("indices"), build.operand("grad_output")
    shape = (rows, *build.shape(gradient)[len(build.shape(indices)) :])
    return build.finish(Kind.SCATTER, indices, gradient, shape=shape)


def _drop_nothing(build: Builder) -> str | tuple[str | None, ...]:
    """Return the names of the results of a Dropout that has no effect, without a new operation.

    The first result is the operand `input` itself; the names of all further results are
    None. Dropout has no effect if its rate `p` is 0, or if `train` is False. All other
    Dropouts, and one whose mask is used, raise `TypingMistakeError`, because the random
    numbers of PyTorch cannot be repeated. So does an operand that is a number.
    """
    x = build.operand("input")
    rate, is_training = build.argument("p"), build.argument("train")
    if not isinstance(x, str) or not (rate in (0, 0.0) or is_training is False):
        raise _refuse("random numbers of PyTorch")
    if any(tensor is not None for tensor in build.results()[1:]):
        raise _refuse("a mask")
    return (x, *[None] * (len(build.results()) - 1))


def _compare_or_equal(kind: Kind) -> Expansion:
    """Return the expansion of "less or equal" or "greater or equal", for `kind` LESS or GREATER.

    The expansion adds the comparison by `kind`, an Equal, and a Select of both, and returns
    the name of the Select. The operands are `self` and `other`. The result is false where
    an operand is NaN.
    """

    def expand(build: Builder) -> str:
        operands = build.operand("self"), build.operand("other")
        strict = build.add(kind, *operands)
        return build.finish(Kind.SELECT, strict, strict, build.add(Kind.EQUAL, *operands))

    return expand


def _differ(build: Builder) -> str:
    """Add the comparison that is true where `self` and `other` differ; return its name.

    It is an Equal whose result is compared with 0. It is also true where an operand is NaN.
    """
    same = build.add(Kind.EQUAL, build.operand("self"), build.operand("other"))
    return build.finish(Kind.EQUAL, same, 0)


def _choose_extreme(kind: Kind) -> Expansion:
    """Return the expansion of the larger operand (`kind` Greater) or the smaller one (Less).

    The operands are `self` and `other`. The result is NaN where an operand is NaN; of equal ones,
    such as 0 and -0, it is `other`.
    """

    def expand(build: Builder) -> str:
        x, y = build.operand("self"), build.operand("other")
        chosen = build.add(Kind.SELECT, build.add(kind, x, y), x, y)
        # A NaN differs from itself; a NaN of y is chosen above.
        return build.finish(Kind.SELECT, build.add(Kind.EQUAL, x, x), chosen, x)

    return expand


def _take_absolute(build: Builder) -> str:
    x = build.operand("self")
    opposite = build.add(Kind.MULTIPLY, x, -1.0)
    return build.finish(Kind.SELECT, build.add(Kind.LESS, x, 0.0), opposite, x)


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
    "aten.ne": _differ,
    "aten.le": _compare_or_equal(Kind.LESS),
    "aten.ge": _compare_or_equal(Kind.GREATER),
    "aten.logical_not": _add_operation(Kind.EQUAL, "self", 0),
    # Refused for other elements than bool, because a Select needs a bool condition.
    "aten.logical_and": _add_operation(Kind.SELECT, "self", "other", "self"),
    "aten.logical_or": _add_operation(Kind.SELECT, "self", "self", "other"),
    "aten.maximum": _choose_extreme(Kind.GREATER),
    "aten.minimum": _choose_extreme(Kind.LESS),
    "aten.sqrt": _add_operation(Kind.SQRT, "self"),
    "aten.tanh": _add_operation(Kind.TANH, "self"),
    "aten.exp": _add_operation(Kind.EXP, "self"),
    "aten.log": _add_operation(Kind.LOG, "self"),
    "aten.erf": _add_operation(Kind.ERF, "self"),
    "aten.abs": _take_absolute,
    "aten.sigmoid": _apply_sigmoid,
    "aten.silu": _apply_silu,
    "aten.gelu": _apply_gelu,
    "aten.gelu_backward": _differentiate_gelu,
    "aten.tanh_backward": _differentiate_tanh,
    "aten.sigmoid_backward": _differentiate_sigmoid,
    "aten.silu_backward": _differentiate_silu,
    "aten.threshold_backward": _differentiate_threshold,
    "aten.neg": _add_operation(Kind.MULTIPLY, "self", -1.0),
    "aten.reciprocal": _add_operation(Kind.DIVIDE, 1.0, "self"),
    "aten.rsqrt": _invert_root,
    "aten.square": _add_operation(Kind.MULTIPLY, "self", "self"),
    "aten.relu": _rectify,
    "aten.clamp": _clamp,
    "aten.clamp_min": _clamp,
    "aten.clamp_max": _clamp,
    "aten.where": _add_operation(Kind.SELECT, "condition", "self", "other"),
    "aten.masked_fill": _add_operation(Kind.SELECT, "mask", "value", "self"),
    "aten._to_copy": _cast,
    "aten.lerp": _interpolate,
    "aten.addcmul": _add_product(Kind.MULTIPLY),
    "aten.addcdiv": _add_product(Kind.DIVIDE),
    "aten.mm": _add_operation(Kind.MATMUL, "self", "mat2"),
    "aten.bmm": _add_operation(Kind.BATCH_MATMUL, "self", "mat2"),
    "aten.matmul": _multiply_any,
    "aten.addmm": _add_scaled_product(Kind.MATMUL, "mat1", "mat2"),
    "aten.baddbmm": _add_scaled_product(Kind.BATCH_MATMUL, "batch1", "batch2"),
    "aten.linear": _apply_linear,
    **dict.fromkeys(("aten.view", "aten._unsafe_view", "aten.reshape"), _reshape),
    **dict.fromkeys(("aten.unsqueeze", "aten.squeeze", "aten.flatten"), _reshape),
    "aten.t": _transpose,
    "aten.transpose": _transpose,
    "aten.permute": _transpose,
    "aten.sum": _reduce(Kind.SUM, Reduction.SUM),
    "aten.amax": _reduce(Kind.MAX, Reduction.MAX),
    "aten.linalg_vector_norm": _reduce(Kind.NORM, None),
    "aten.mean": _average,
    **dict.fromkeys(("aten.split", "aten.split_with_sizes", "aten.chunk"), _add_parts),
    "aten.unbind": _unbind,
    "aten.select": _select_index,
    "aten.slice": _cut,
    "aten.narrow": _cut,
    "aten.cat": _join,
    "aten.stack": _stack,
    "aten.embedding": _look_up,
    "aten.embedding_dense_backward": _add_rows,
    **dict.fromkeys(("aten.dropout", "aten.native_dropout"), _drop_nothing),
}
