"""Write a program in Python: values with operators, and a function for each other operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collhub_coconet.program.operations import Argument, Kind, Operand, Operation, Reduction
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import (
    REPLICATED,
    ElementType,
    Layout,
    Size,
    TensorType,
)
from collhub_coconet.typing.checking import Checker
from hub_core.model import InputError, Location


class ProgramBuilder:
    """A program under construction; every operation is checked as it is written.

    `sizes`: symbols with (smallest, largest) size, as `N=(1, 2**30)`, or one number.
    """

    def __init__(self, name: str, **sizes: int | tuple[int, int]) -> None:
        self.name = name
        pairs = {key: (one, one) if isinstance(one, int) else one for key, one in sizes.items()}
        self._sizes = pairs
        self._checker = Checker(name, pairs)
        self._checker.fail()
        self._arguments: list[Argument] = []
        self._operations: list[Operation] = []

    def argument(
        self,
        name: str,
        element: str,
        *shape: Size,
        layout: Layout = REPLICATED,
        group: int = 0,
    ) -> Value:
        """Declare a tensor that the program is given."""
        kind = _tensor_type(name, element, shape, layout, group)
        return self._declare(Argument(name, kind))

    def state(
        self,
        name: str,
        element: str,
        *shape: Size,
        layout: Layout = REPLICATED,
        group: int = 0,
        whole_after: bool = False,
    ) -> Value:
        """Declare a state; `whole_after`: every rank reads all of it after the program."""
        kind = _tensor_type(name, element, shape, layout, group)
        return self._declare(Argument(name, kind, is_state=True, whole_after=whole_after))

    def apply(self, kind: Kind, operands: Sequence[Value | float], **attributes: object) -> Value:
        """Add one operation. Raises `InputError` with its line and the condition it violates."""
        names = tuple(self._operand(operand) for operand in operands)
        line = len(self._operations) + 1
        operation = Operation(f"_{line}", kind, names, **attributes)  # type: ignore[arg-type]
        self._checker.operation(operation, line)
        self._checker.fail()
        self._operations.append(operation)
        return Value(self, operation.name)

    def rename(self, value: Value, name: str) -> None:
        """Name the value of the last operation, which nothing reads yet."""
        line = len(self._operations)
        last = self._operations[-1] if line else None
        if last is None or last.name != value.name or name in self._checker.types:
            message = f"{value.name} cannot be named {name}: only a new value, by a name not taken"
            place = Location(self.name, line)
            cure = "call named() where the value is made"
            raise InputError(message, location=place, cure=cure, code="name")
        self._operations[-1] = replace(last, name=name)
        self._checker.rename(last.name, name)

    def program(self, *outputs: Value) -> Program:
        """The finished program with these outputs, in their order."""
        names = tuple(value.name for value in outputs)
        operations = tuple(self._operations)
        return Program(self.name, self._sizes, tuple(self._arguments), operations, names)

    def type_of(self, value: Value) -> TensorType:
        """The type of a value."""
        return self._checker.types[value.name]

    def _declare(self, argument: Argument) -> Value:
        """Enter an argument that has been checked."""
        self._checker.argument(argument)
        self._checker.fail()
        self._arguments.append(argument)
        return Value(self, argument.name)

    def _operand(self, operand: Value | float) -> Operand:
        """The name of a value of this program, or the number itself."""
        # Numbers need no name.
        if not isinstance(operand, Value):
            return operand
        if operand.builder is not self:
            message = f"{operand.name} belongs to program {operand.builder.name}"
            raise InputError(message, location=Location(self.name), cure="declare it here")
        return operand.name


class Value:
    """A tensor in a program under construction; operators write pointwise operations."""

    def __init__(self, builder: ProgramBuilder, name: str) -> None:
        self.builder = builder
        self.name = name

    @property
    def type(self) -> TensorType:
        """Element type, shape, layout and group."""
        return self.builder.type_of(self)

    def named(self, name: str) -> Value:
        """The same value under a name that text, documents and transformations use."""
        self.builder.rename(self, name)
        self.name = name
        return self

    def __add__(self, other: Value | float) -> Value:
        """Sum, element by element."""
        return self._before(Kind.ADD, other)

    def __radd__(self, other: float) -> Value:
        """Sum, element by element."""
        return self._behind(Kind.ADD, other)

    def __sub__(self, other: Value | float) -> Value:
        """Difference, element by element."""
        return self._before(Kind.SUBTRACT, other)

    def __rsub__(self, other: float) -> Value:
        """Difference from a number."""
        return self._behind(Kind.SUBTRACT, other)

    def __mul__(self, other: Value | float) -> Value:
        """Product, element by element."""
        return self._before(Kind.MULTIPLY, other)

    def __rmul__(self, other: float) -> Value:
        """Product, element by element."""
        return self._behind(Kind.MULTIPLY, other)

    def __truediv__(self, other: Value | float) -> Value:
        """Quotient, element by element."""
        return self._before(Kind.DIVIDE, other)

    def __rtruediv__(self, other: float) -> Value:
        """Quotient of a number."""
        return self._behind(Kind.DIVIDE, other)

    def __pow__(self, other: Value | float) -> Value:
        """Power, element by element."""
        return self._before(Kind.POWER, other)

    def __rpow__(self, other: float) -> Value:
        """Power of a number."""
        return self._behind(Kind.POWER, other)

    def __lt__(self, other: Value | float) -> Value:
        """Whether elements are less, as bool."""
        return self._before(Kind.LESS, other)

    def __gt__(self, other: Value | float) -> Value:
        """Whether elements are greater, as bool."""
        return self._before(Kind.GREATER, other)

    def _before(self, kind: Kind, other: Value | float) -> Value:
        """This value as the first operand."""
        # Order counts: a difference is no sum.
        operands = (self, other)
        return self.builder.apply(kind, operands)

    def _behind(self, kind: Kind, other: float) -> Value:
        """This value as the second operand."""
        operands = (other, self)
        return self.builder.apply(kind, operands)


def all_reduce(x: Value, reduction: str = "sum") -> Value:
    """Local to replicated: the reduction over all ranks."""
    # The builder checks types at once.
    return x.builder.apply(Kind.ALL_REDUCE, (x,), reduction=Reduction(reduction))


def reduce_scatter(x: Value, dimension: int = 0, reduction: str = "sum") -> Value:
    """Local to sliced: rank i has block i of the reduction."""
    attributes = {"reduction": Reduction(reduction), "dimension": dimension}
    return x.builder.apply(Kind.REDUCE_SCATTER, (x,), **attributes)


def all_gather(x: Value) -> Value:
    """Sliced to replicated."""
    return x.builder.apply(Kind.ALL_GATHER, (x,))


def broadcast(x: Value, root: int = 0) -> Value:
    """The values of the root on every rank.

    Local or replicated to replicated.
    """
    return x.builder.apply(Kind.BROADCAST, (x,), root=root)


def reduce(x: Value, root: int = 0, reduction: str = "sum") -> Value:
    """The reduction over all ranks, on the root only."""
    return x.builder.apply(Kind.REDUCE, (x,), root=root, reduction=Reduction(reduction))


def all_to_all(x: Value, dimension: int) -> Value:
    """Sliced along one dimension to sliced along another, counted from 0.

    Every rank gives every other the part of its block that lies in the other's new block.
    """
    return x.builder.apply(Kind.ALL_TO_ALL, (x,), dimension=dimension)


def send(x: Value, offset: int = 1) -> Value:
    """From rank i of this group to rank i of the group `offset` further in the row.

    Element type, shape and layout stay.
    """
    return x.builder.apply(Kind.SEND, (x,), offset=offset)


def slice_of(x: Value, dimension: int = 0) -> Value:
    """Replicated to sliced, without traffic.

    Rank i keeps block i of the dimension, counted from 0.
    """
    return x.builder.apply(Kind.SLICE, (x,), dimension=dimension)


def sqrt(x: Value) -> Value:
    """Square root."""
    return x.builder.apply(Kind.SQRT, (x,))


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    return x.builder.apply(Kind.TANH, (x,))


def cast(x: Value, element: str) -> Value:
    """The same values in another element type.

    `element`: a name of numpy, as `float16`; shape and layout stay.
    """
    return x.builder.apply(Kind.CAST, (x,), element=ElementType(element))


def equal(x: Value, y: Value | float) -> Value:
    """Whether elements are equal, as bool.

    `==` of Python stays what it is: whether two values are the same one.
    """
    return x.builder.apply(Kind.EQUAL, (x, y))


def select(condition: Value, x: Value | float, y: Value | float) -> Value:
    """Elements of x where the condition holds, else of y."""
    return condition.builder.apply(Kind.SELECT, (condition, x, y))


def dropout(x: Value, rate: float, seed: int) -> Value:
    """Zero for a share of the elements, the others divided by 1 - rate.

    The random number of an element depends on the seed and its place in the whole tensor.
    """
    return x.builder.apply(Kind.DROPOUT, (x,), rate=rate, seed=seed)


def matmul(x: Value, w: Value) -> Value:
    """Matrix product x[..., K] w[K, N].

    Of two tensors sliced along K, every rank has a partial sum: the result is local.
    """
    return x.builder.apply(Kind.MATMUL, (x, w))


def batch_matmul(x: Value, w: Value) -> Value:
    """Matrix products x[..., M, K] w[..., K, N] of the same batch.

    Of a batch that is sliced alike in both, every rank makes the products of its block.
    """
    return x.builder.apply(Kind.BATCH_MATMUL, (x, w))


def transpose(x: Value) -> Value:
    """The last two dimensions change places.

    A tensor that is sliced along one of them is sliced along the other then.
    """
    return x.builder.apply(Kind.TRANSPOSE, (x,))


def conv(x: Value, w: Value) -> Value:
    """Convolution x[B, C, positions] w[O, C, window] with zeros around, stride 1.

    Of two tensors sliced along C, every rank has a partial sum: the result is local.
    """
    return x.builder.apply(Kind.CONV, (x, w))


def norm(x: Value) -> Value:
    """The 2-norm of the whole tensor, a scalar."""
    return x.builder.apply(Kind.NORM, (x,))


def total(x: Value) -> Value:
    """The sum of the whole tensor, a scalar."""
    return x.builder.apply(Kind.SUM, (x,))


def largest(x: Value) -> Value:
    """The largest element of the whole tensor, a scalar."""
    return x.builder.apply(Kind.MAX, (x,))


def update(state: Value, value: Value) -> Value:
    """Write a value into a state; the result is the value.

    Both have one type and layout; the name of the state goes on to mean what it was before.
    """
    return state.builder.apply(Kind.UPDATE, (state, value))


def _tensor_type(
    name: str, element: str, shape: tuple[Size, ...], layout: Layout, group: int
) -> TensorType:
    """The type of an argument. Raises `InputError` for an element type or layout that is none."""
    if not isinstance(layout, Layout):
        message = f"argument {name}: layout {layout!r} is none"
        raise InputError(message, cure="state LOCAL, REPLICATED or sliced(0)", code="layout")
    # A program in Python may state anything.
    known = [str(one) for one in ElementType]
    if element not in known:
        message = f"argument {name}: element type {element!r} is none"
        raise InputError(message, cure=f"state one of {', '.join(known)}", code="element")
    found = ElementType(element)
    return TensorType(found, shape, layout, group)
