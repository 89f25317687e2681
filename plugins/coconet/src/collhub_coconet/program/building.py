"""Build programs in Python: values with operators, and a function for every other operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from collhub_coconet.program.checking import Checker
from collhub_coconet.program.operations import (
    REPLICATED,
    Argument,
    ElementType,
    Kind,
    Layout,
    Operand,
    Operation,
    Reduction,
    Size,
    TensorType,
    on_mesh,
)
from collhub_coconet.program.program import Program
from hub_core.model import InputError, Location


class ProgramBuilder:
    """Program under construction; every operation is checked when it is added.

    `mesh`: names of the axes of a group, the slowest first, such as `("dp", "tp")`; without it a
    group has one axis without a name. `sizes`: symbols with (minimum, maximum) size, such as `N=(1,
    2**30)`, or with a fixed size.
    """

    def __init__(self, name: str, mesh: Sequence[str] = (), **sizes: int | tuple[int, int]) -> None:
        self.name = name
        self.mesh = tuple(mesh)
        self._sizes = {
            symbol: (bounds, bounds) if isinstance(bounds, int) else bounds
            for symbol, bounds in sizes.items()
        }
        self._checker = Checker(name, self._sizes, self.mesh)
        self._checker.raise_findings()
        self._arguments: list[Argument] = []
        self._operations: list[Operation] = []

    def argument(
        self,
        name: str,
        element: str,
        *shape: Size,
        layout: Layout | Mapping[str, Layout] = REPLICATED,
        group: int = 0,
    ) -> Value:
        """Declare an input tensor, replicated by default, and return its value.

        `shape`: numbers or symbols. `layout`: on a mesh by the name of an axis, replicated along
        axes that are left out; one layout counts for all axes. Raises `InputError` for an invalid
        type, layout, group or name.
        """
        kind = self._create_tensor_type(name, element, shape, layout, group)
        return self._declare(Argument(name, kind))

    def state(
        self,
        name: str,
        element: str,
        *shape: Size,
        layout: Layout | Mapping[str, Layout] = REPLICATED,
        group: int = 0,
        whole_after: bool = False,
    ) -> Value:
        """Declare a tensor that the program may update, and return its value; raises as `argument`.

        `whole_after`: every rank reads the complete state after the program.
        """
        kind = self._create_tensor_type(name, element, shape, layout, group)
        return self._declare(Argument(name, kind, is_state=True, whole_after=whole_after))

    def apply(self, kind: Kind, operands: Sequence[Value | float], **attributes: object) -> Value:
        """Add one operation and return its value, which has a name with `_` until it is named.

        Raises `InputError` with the operation's number and the violated typing condition.
        """
        names = tuple(self._operand(operand) for operand in operands)
        line = len(self._operations) + 1
        operation = Operation(f"_{line}", kind, names, **attributes)  # type: ignore[arg-type]
        self._checker.add_operation(operation, line)
        self._checker.raise_findings()
        self._operations.append(operation)
        return Value(self, operation.name)

    def rename(self, value: Value, name: str) -> None:
        """Name the value of the last operation; later uses must take the new name.

        Raises `InputError` for any other value, if there is no operation yet, and for a used name,
        which includes the present one.
        """
        line = len(self._operations)
        last = self._operations[-1] if line else None
        if last is None or last.name != value.name or name in self._checker.types:
            message = f"{value.name} cannot be named {name}: only a new value, by a name not taken"
            location = Location(self.name, line)
            cure = "call named() where the value is made"
            raise InputError(message, location=location, cure=cure, code="name")
        self._operations[-1] = replace(last, name=name)
        self._checker.rename(last.name, name)

    def program(self, *outputs: Value) -> Program:
        """Return the complete program with these outputs, in order.

        Raises `InputError` for an invalid output. The builder can be used further.
        """
        names = tuple(value.name for value in outputs)
        operations = tuple(self._operations)
        arguments = tuple(self._arguments)
        return Program(self.name, self._sizes, arguments, operations, names, mesh=self.mesh)

    def type_of(self, value: Value) -> TensorType:
        """Return the type of a value."""
        return self._checker.types[value.name]

    def _declare(self, argument: Argument) -> Value:
        """Check an argument, add it, and return its value.

        Raises `InputError` with all violations.
        """
        self._checker.add_argument(argument)
        self._checker.raise_findings()
        self._arguments.append(argument)
        return Value(self, argument.name)

    def _create_tensor_type(
        self,
        name: str,
        element: str,
        shape: tuple[Size, ...],
        layout: Layout | Mapping[str, Layout],
        group: int,
    ) -> TensorType:
        """Create the type of an argument named `name`; shape and group are not checked here.

        Raises `InputError` for a layout that is no `Layout`, for an axis that the mesh does not
        have, and for an unknown name of an element type.
        """
        layouts = layout.values() if isinstance(layout, Mapping) else (layout,)
        for entry in layouts:
            if not isinstance(entry, Layout):
                message = f"argument {name}: layout {entry!r} is none"
                cure = "state LOCAL, REPLICATED or sliced(0)"
                raise InputError(message, cure=cure, code="layout")
        known = [str(element_type) for element_type in ElementType]
        if element not in known:
            message = f"argument {name}: element type {element!r} is none"
            raise InputError(message, cure=f"state one of {', '.join(known)}", code="element")
        if isinstance(layout, Mapping):
            unknown = sorted(layout.keys() - set(self.mesh))
            if unknown:
                message = f"argument {name}: the mesh has no axis {unknown[0]}"
                cure = f"axes of the mesh: {', '.join(self.mesh) or 'none'}"
                raise InputError(message, cure=cure, code="axis")
            layout = on_mesh(*(layout.get(axis, REPLICATED) for axis in self.mesh))
        elif len(self.mesh) > 1 and not layout.axes:
            layout = on_mesh(*(layout,) * len(self.mesh))
        return TensorType(ElementType(element), shape, layout, group)

    def _operand(self, operand: Value | float) -> Operand:
        """Return the name of a value of this program, or the number itself.

        Raises `InputError` for a value of another builder.
        """
        if not isinstance(operand, Value):
            return operand
        if operand.builder is not self:
            message = f"{operand.name} belongs to program {operand.builder.name}"
            raise InputError(message, location=Location(self.name), cure="declare it here")
        return operand.name


class Value:
    """Tensor in a program under construction; operators add pointwise operations."""

    def __init__(self, builder: ProgramBuilder, name: str) -> None:
        self.builder = builder
        self.name = name

    @property
    def type(self) -> TensorType:
        """Element type, shape, layout and group."""
        return self.builder.type_of(self)

    def named(self, name: str) -> Value:
        """Name the value for text, documents and transformations; returns the value."""
        self.builder.rename(self, name)
        self.name = name
        return self

    def __add__(self, other: Value | float) -> Value:
        """Add element by element."""
        return self._apply_left(Kind.ADD, other)

    def __radd__(self, other: float) -> Value:
        """Add element by element."""
        return self._apply_right(Kind.ADD, other)

    def __sub__(self, other: Value | float) -> Value:
        """Subtract element by element."""
        return self._apply_left(Kind.SUBTRACT, other)

    def __rsub__(self, other: float) -> Value:
        """Subtract from a number."""
        return self._apply_right(Kind.SUBTRACT, other)

    def __mul__(self, other: Value | float) -> Value:
        """Multiply element by element."""
        return self._apply_left(Kind.MULTIPLY, other)

    def __rmul__(self, other: float) -> Value:
        """Multiply element by element."""
        return self._apply_right(Kind.MULTIPLY, other)

    def __truediv__(self, other: Value | float) -> Value:
        """Divide element by element."""
        return self._apply_left(Kind.DIVIDE, other)

    def __rtruediv__(self, other: float) -> Value:
        """Divide a number."""
        return self._apply_right(Kind.DIVIDE, other)

    def __pow__(self, other: Value | float) -> Value:
        """Raise to a power, element by element."""
        return self._apply_left(Kind.POWER, other)

    def __rpow__(self, other: float) -> Value:
        """Raise a number to powers."""
        return self._apply_right(Kind.POWER, other)

    def __lt__(self, other: Value | float) -> Value:
        """Whether elements are less; the element type is bool."""
        return self._apply_left(Kind.LESS, other)

    def __gt__(self, other: Value | float) -> Value:
        """Whether elements are greater; the element type is bool."""
        return self._apply_left(Kind.GREATER, other)

    def _apply_left(self, kind: Kind, operand: Value | float) -> Value:
        """Apply a kind with this value as the first operand."""
        return self.builder.apply(kind, (self, operand))

    def _apply_right(self, kind: Kind, operand: float) -> Value:
        """Apply a kind with this value as the second operand."""
        return self.builder.apply(kind, (operand, self))


Axes = str | Sequence[str] | None
"""Names of axes of a mesh over which a communication goes; None: the only axis of the program."""


def all_reduce(x: Value, reduction: str = "sum", axes: Axes = None) -> Value:
    """Reduce a local or partial tensor over all ranks: the result is replicated."""
    attributes = {"reduction": Reduction(reduction), "axes": _name_axes(axes)}
    return x.builder.apply(Kind.ALL_REDUCE, (x,), **attributes)


def reduce_scatter(
    x: Value, dimension: int = 0, reduction: str = "sum", axes: Axes = None
) -> Value:
    """Reduce a local or partial tensor: rank i receives block i of the result."""
    attributes = {"reduction": Reduction(reduction), "dimension": dimension}
    return x.builder.apply(Kind.REDUCE_SCATTER, (x,), **attributes, axes=_name_axes(axes))


def all_gather(x: Value, axes: Axes = None) -> Value:
    """Collect a sliced tensor on every rank: the result is replicated."""
    return x.builder.apply(Kind.ALL_GATHER, (x,), axes=_name_axes(axes))


def broadcast(x: Value, root: int = 0, axes: Axes = None) -> Value:
    """Copy a tensor of the root, a coordinate on the axis, to every rank."""
    return x.builder.apply(Kind.BROADCAST, (x,), root=root, axes=_name_axes(axes))


def reduce(x: Value, root: int = 0, reduction: str = "sum", axes: Axes = None) -> Value:
    """Reduce over all ranks, with the result on the root only.

    Only a Broadcast from this root, a Send, and an Update of a state on the root may read it.
    """
    attributes = {"root": root, "reduction": Reduction(reduction), "axes": _name_axes(axes)}
    return x.builder.apply(Kind.REDUCE, (x,), **attributes)


def all_to_all(x: Value, dimension: int, axes: Axes = None) -> Value:
    """Exchange the slices of a tensor so that it is sliced along `dimension`, counted from 0.

    Every rank sends to each other rank the intersection of its block with the new block of that
    rank.
    """
    return x.builder.apply(Kind.ALL_TO_ALL, (x,), dimension=dimension, axes=_name_axes(axes))


def _name_axes(axes: Axes) -> tuple[str, ...] | None:
    """Return names of axes as the attribute of an operation."""
    return (axes,) if isinstance(axes, str) else tuple(axes) if axes is not None else None


def send(x: Value, offset: int = 1) -> Value:
    """Send from rank i of this group to rank i of the group `offset` positions later in the row.

    Element type, shape and layout remain.
    """
    return x.builder.apply(Kind.SEND, (x,), offset=offset)


def slice_of(x: Value, dimension: int = 0, axes: Axes = None) -> Value:
    """Slice a replicated tensor without communication.

    Rank i keeps block i of the dimension, counted from 0.
    """
    return x.builder.apply(Kind.SLICE, (x,), dimension=dimension, axes=_name_axes(axes))


def sqrt(x: Value) -> Value:
    """Compute the square root."""
    return x.builder.apply(Kind.SQRT, (x,))


def tanh(x: Value) -> Value:
    """Compute the hyperbolic tangent."""
    return x.builder.apply(Kind.TANH, (x,))


def exp(x: Value) -> Value:
    """Compute the exponential."""
    return x.builder.apply(Kind.EXP, (x,))


def log(x: Value) -> Value:
    """Compute the natural logarithm."""
    return x.builder.apply(Kind.LOG, (x,))


def cast(x: Value, element: str) -> Value:
    """Convert to another element type, named as in numpy (`float16`)."""
    return x.builder.apply(Kind.CAST, (x,), element=ElementType(element))


def equal(x: Value, y: Value | float) -> Value:
    """Whether elements are equal; the element type is bool.

    Python's `==` has its usual meaning: whether two objects are the same value.
    """
    return x.builder.apply(Kind.EQUAL, (x, y))


def select(condition: Value, x: Value | float, y: Value | float) -> Value:
    """Take elements of x where the condition is true, and of y elsewhere."""
    return condition.builder.apply(Kind.SELECT, (condition, x, y))


def dropout(x: Value, rate: float, seed: int) -> Value:
    """Set a fraction `rate` of the elements to zero, and divide the others by 1 - rate.

    The random number of an element depends on the seed and on its index in the complete tensor.
    """
    return x.builder.apply(Kind.DROPOUT, (x,), rate=rate, seed=seed)


def matmul(x: Value, w: Value) -> Value:
    """Multiply matrices x[..., K] w[K, N].

    If both are sliced along K, every rank has a partial sum: the result is local.
    """
    return x.builder.apply(Kind.MATMUL, (x, w))


def batch_matmul(x: Value, w: Value) -> Value:
    """Multiply matrices x[..., M, K] w[..., K, N] of the same batch.

    If both are sliced along the same batch dimension, every rank computes the products of its
    block.
    """
    return x.builder.apply(Kind.BATCH_MATMUL, (x, w))


def transpose(x: Value) -> Value:
    """Swap the last two dimensions. A slice along one becomes a slice along the other."""
    return x.builder.apply(Kind.TRANSPOSE, (x,))


def conv(x: Value, w: Value) -> Value:
    """Convolve x[B, C, positions] with w[O, C, window]: zero padding, stride 1.

    If both are sliced along C, every rank has a partial sum: the result is local.
    """
    return x.builder.apply(Kind.CONV, (x, w))


def norm(x: Value) -> Value:
    """Compute the 2-norm of the complete tensor, a scalar."""
    return x.builder.apply(Kind.NORM, (x,))


def total(x: Value) -> Value:
    """Sum the complete tensor to a scalar."""
    return x.builder.apply(Kind.SUM, (x,))


def largest(x: Value) -> Value:
    """Find the largest element of the complete tensor, a scalar."""
    return x.builder.apply(Kind.MAX, (x,))


def row_reduce(x: Value, dimension: int, reduction: str = "sum") -> Value:
    """Reduce along one dimension, whose size becomes 1: sum, prod, min or max.

    If x is sliced along the dimension, the result is partial: `all_reduce` completes it.
    """
    attributes = {"reduction": Reduction(reduction), "dimension": dimension}
    return x.builder.apply(Kind.ROW_REDUCE, (x,), **attributes)


def arg_max(x: Value, dimension: int) -> Value:
    """Find the position of the first largest element along one dimension, whose size becomes 1."""
    return x.builder.apply(Kind.ARG_MAX, (x,), dimension=dimension)


def index_of(x: Value, dimension: int) -> Value:
    """Number the elements along one dimension of the complete tensor; int64, shape of x."""
    return x.builder.apply(Kind.INDEX, (x,), dimension=dimension)


def gather(x: Value, indices: Value) -> Value:
    """Select rows of x[rows, ...], as an embedding does: the result is [indices..., ...].

    If the rows are sliced, rows of other ranks count as zeros, and the result is partial.
    """
    return x.builder.apply(Kind.GATHER, (x, indices))


def scatter(indices: Value, values: Value, *shape: Size) -> Value:
    """Add values[indices..., ...] at rows of a tensor of zeros of `shape`, as the gradient of
    `gather`.

    If indices and values are sliced alike, the result is partial.
    """
    return values.builder.apply(Kind.SCATTER, (indices, values), shape=shape)


def top_k(x: Value, count: int, dimension: int) -> tuple[Value, Value]:
    """Find the `count` largest elements along one dimension, in descending order, and their places.

    Of equal elements the first ones are selected. Returns values and positions (int64).
    """
    attributes = {"dimension": dimension, "count": count}
    values = x.builder.apply(Kind.TOP_VALUES, (x,), **attributes)
    return values, x.builder.apply(Kind.TOP_INDICES, (x,), **attributes)


def reshape(x: Value, *shape: Size) -> Value:
    """Give the elements, in row-major order, another shape; symbols remain dimensions.

    A sliced dimension may be joined or divided only as the first one of the affected dimensions;
    the ranks must then divide its size before and after.
    """
    return x.builder.apply(Kind.RESHAPE, (x,), shape=shape)


def permute(x: Value, *order: int) -> Value:
    """Reorder dimensions: dimension i of the result is dimension `order[i]` of x."""
    return x.builder.apply(Kind.PERMUTE, (x,), order=order)


def concat(*tensors: Value, dimension: int) -> Value:
    """Join tensors along a dimension of known sizes, along which none is sliced."""
    return tensors[0].builder.apply(Kind.CONCAT, tensors, dimension=dimension)


def update(state: Value, value: Value) -> Value:
    """Write a value into a state; the result is the value.

    Both have the same type and layout. The name of the state still denotes its value before the
    program.
    """
    return state.builder.apply(Kind.UPDATE, (state, value))
