"""Build programs in Python: the builder, and values whose operators add pointwise operations."""

from __future__ import annotations

import numbers
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
        """Declare an input tensor, and return its value.

        `shape`: numbers of at least 1, or symbols; no entries for a scalar. `layout`: one
        layout for all axes of the mesh, or layouts by axis name; axes without an entry are
        replicated. `group`: number of the group of ranks, from 0. Raise `InputError` for an
        unknown element type, symbol or axis, an invalid layout or group, and a name that is
        already used.
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
        """Declare a tensor that the program may update once, and return its value.

        `whole_after`: every rank reads the complete state after the program, so that the state
        must not be sliced by a transformation. All other parameters and errors are those of
        `argument`. In addition, `InputError` (`layout`) is raised for a state that is local or
        partial (each rank has a term of a sum).
        """
        kind = self._create_tensor_type(name, element, shape, layout, group)
        return self._declare(Argument(name, kind, is_state=True, whole_after=whole_after))

    def apply(self, kind: Kind, operands: Sequence[Value | float], **attributes: object) -> Value:
        """Add one operation to the program, and return the value that it computes.

        `operands`: values of this program, or numbers. `attributes`: further fields of the
        operation, such as `root`. The value gets the provisional name `_N`, where N is the
        number of the operation, from 1; `Value.named` replaces it. Raise `InputError` for a
        value of another builder and, with the number of the operation, for a violated typing
        condition or if an argument is named `_N`. Raise `TypeError` for an unknown attribute
        and for an operand that is neither a value nor a number. The
        program is unchanged after an error.
        """
        names = tuple(self._operand(operand) for operand in operands)
        line = len(self._operations) + 1
        operation = Operation(f"_{line}", kind, names, **attributes)  # type: ignore[arg-type]
        self._checker.add_operation(operation, line)
        self._checker.raise_findings()
        self._operations.append(operation)
        return Value(self, operation.name)

    def rename(self, value: Value, name: str) -> None:
        """Change the name of the last operation; later operations must read it by the new name.

        `value` itself keeps the old name; `Value.named` changes both. Raise `InputError`
        (`name`) if `value` is not that of the last operation, and for a name that is already
        used, including the present one.
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
        """Return the complete program with these outputs, in their order; there may be none.

        All arguments and operations are checked again. Raise `InputError` with all violations,
        for example for an output that the program does not define, and with one (`name`) for a
        value of another builder. Outputs are identified by name. The builder may be used
        further.
        """
        names = tuple(self._find_name(value) for value in outputs)
        operations = tuple(self._operations)
        arguments = tuple(self._arguments)
        return Program(self.name, self._sizes, arguments, operations, names, mesh=self.mesh)

    def type_of(self, value: Value) -> TensorType:
        """Return the type of a value."""
        return self._checker.types[value.name]

    def _declare(self, argument: Argument) -> Value:
        """Check an argument, add it to the program, and return its value.

        Raise `InputError` with the first violation of the argument (`Checker.add_argument`).
        The builder is then unchanged, so that a corrected argument of this name is accepted.
        """
        self._checker.declare_argument(argument)
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

        The layout of the type is, by the form of `layout`:

        - A mapping from axis names to layouts: one layout per axis of the mesh, in the order of
          the mesh. Axes that the mapping lacks are replicated. With a single axis, it is the
          layout of that axis.
        - A single layout, if the mesh has two or more axes: this layout on every axis. A layout
          that `on_mesh` has already made of several axes is used unchanged.
        - A single layout otherwise: used unchanged.

        Raises `InputError`, in this order: `layout` for a layout, or the first value of the
        mapping, that is no `Layout`; `element` for an unknown name of an element type; `axis`
        for an axis of the mapping that the mesh lacks, the alphabetically first. Without a
        mesh, every axis is such an axis.
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
        """Return the name of a value of this program; return a number unchanged.

        Raise `InputError` (`name`) for a value of another builder, and `TypeError` for an operand
        that is neither a value nor a number; a boolean is no number.
        """
        if isinstance(operand, Value):
            return self._find_name(operand)
        if isinstance(operand, bool) or not isinstance(operand, numbers.Real):
            raise TypeError(f"operand {operand!r:.40} is neither a value nor a number")
        return operand

    def _find_name(self, value: Value) -> str:
        """Return the name of a value in the program of this builder.

        Raise `InputError` (`name`) if another builder created the value. This
        also holds if this program has a value of the same name.
        """
        if value.builder is not self:
            message = f"{value.name} belongs to program {value.builder.name}"
            raise InputError(
                message, location=Location(self.name), cure="declare it here", code="name"
            )
        return value.name


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
        """Rename the value, for text, documents and transformations; return the value itself.

        Only the value of the last operation of the program can be renamed. Raise `InputError`
        (`name`) for any other value, also an argument, and for a name that is already used,
        including the present name of the value.
        """
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
