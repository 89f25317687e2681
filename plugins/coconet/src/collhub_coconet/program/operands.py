"""Operands of an operation under the typing rules: their checks, and the layout of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from collhub_coconet.program.layout_rules import (
    Role,
    find_axes,
    find_axis_layout,
    number_roles,
    permitted_symbols,
)
from collhub_coconet.program.operations import (
    COLLECTIVES,
    CONTRACTIONS,
    LOCAL,
    POINTWISE,
    REPLICATED,
    ElementType,
    Kind,
    Layout,
    LayoutRule,
    Operation,
    Placement,
    Shape,
    TensorType,
    on_mesh,
)

_CURES = {
    Placement.REPLICATED: "every rank has the same values already: use the operand itself",
    Placement.SLICED: "AllGather the slices instead",
    Placement.LOCAL: "AllReduce or ReduceScatter the local values first",
    Placement.PARTIAL: "AllReduce or ReduceScatter the partial values first",
}
_EXPECTED = {
    ("L", "P(op)"): "a local",
    ("L", "R", "@"): "a local or replicated",
    ("L", "R", "P(op)"): "a local or replicated",
    ("L",): "a local",
    ("S(any)",): "a sliced",
    ("R",): "a replicated",
}
# Communications whose layout depends on the axis; a Send keeps all.
_OVER_AXES = COLLECTIVES | {Kind.SLICE}


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
    """Operands of one operation with their types; the type of a number is None.

    `mesh`: names of the axes of the program, empty if it has one axis without a name.
    """

    def __init__(
        self, operation: Operation, types: list[TensorType | None], mesh: Sequence[str] = ()
    ) -> None:
        self.operation = operation
        self.all = types
        self.tensors = [tensor for tensor in types if tensor is not None]
        self.mesh = mesh

    def tensor(self, position: int) -> TensorType:
        """Return the type of the operand at a position, counted from 0.

        Raise `TypingMistakeError` (`operand`) if the operand is a number.
        """
        tensor = self.all[position]
        if tensor is None:
            message = f"operand {position + 1} is a number, a tensor is expected"
            raise TypingMistakeError("operand", message, "name a value")
        return tensor

    def name(self, position: int) -> str:
        """Return the name, or the number as text, of the operand at a position, for messages."""
        return str(self.operation.operands[position])

    def check_float(self, position: int) -> None:
        """Raise `TypingMistakeError` unless the operand at a position is a tensor of floats.

        The code is `element-type` for a tensor of other elements, and `operand` for a number.
        """
        element = self.tensor(position).element
        if not element.is_float:
            message = f"{self.name(position)} is {element}, a float is expected"
            raise TypingMistakeError("element-type", message, "insert a Cast")

    def check_index(self, position: int) -> None:
        """Raise `TypingMistakeError` unless the operand at a position is a tensor of integers.

        The code is `element-type` for a tensor of floats or bool, and `operand` for a number.
        """
        element = self.tensor(position).element
        if element.is_float or element is ElementType.BOOL:
            message = f"{self.name(position)} is {element}, integers are expected"
            raise TypingMistakeError("element-type", message, "insert a Cast")

    def check_not_bool(self, position: int) -> None:
        """Raise `TypingMistakeError` if the operand at a position is a tensor of bool."""
        if self.tensor(position).element is ElementType.BOOL:
            message = f"{self.name(position)} is bool, which is not reduced"
            raise TypingMistakeError("element-type", message, "insert a Cast")

    def check_same_group(self) -> None:
        """Raise `TypingMistakeError` (`group`) if the operands are on different groups of ranks.

        Operands that are numbers are ignored.
        """
        groups = {tensor.group for tensor in self.tensors}
        if len(groups) > 1:
            message = f"operands lie on groups {', '.join(map(str, sorted(groups)))}"
            raise TypingMistakeError("group", message, "Send one of them to the other group")

    def check_same_element(self, positions: list[int]) -> None:
        """Check that the tensors at these positions have one element type; numbers are ignored.

        Raises `TypingMistakeError` (`element-type`) otherwise.
        """
        operands = [self.all[position] for position in positions]
        elements = {operand.element for operand in operands if operand is not None}
        if len(elements) > 1:
            message = f"element types differ: {' and '.join(sorted(elements))}"
            raise TypingMistakeError("element-type", message, "insert a Cast")

    def type_like(self, role: str = "dim") -> TensorType:
        """Return the type of a result with the element type, shape and group of the first operand.

        Its layout is derived from the layouts of all operands by the table of rules
        (`derive_layout`). `role` is the role of all dimensions of the first operand and of the
        result in this table, such as `dim`. Shapes and element types of further operands are not
        checked. Raise `TypingMistakeError` if the first operand is a number, and in the cases of
        `derive_layout`.
        """
        operand = self.tensor(0)
        roles = number_roles(role, len(operand.shape))
        return replace(operand, layout=self.derive_layout(operand.shape, (roles,), roles))

    def find_view_axes(self) -> tuple[int, ...]:
        """Return the positions in the mesh, ascending, of the axes that an opaque view names.

        An opaque view is an opaque operation with the rule TO_BLOCKS or TO_LOCAL; it changes
        the layout on these axes only. Without names the result is (0,), if the mesh has at most
        one axis. Raise `TypingMistakeError` (`attribute`) for an operation with another rule,
        and (`axis`) for an unknown or repeated axis, and for no names on a mesh of several
        axes.
        """
        if self.operation.rule not in (LayoutRule.TO_BLOCKS, LayoutRule.TO_LOCAL):
            message = f"axes are stated for the rule {self.operation.rule}"
            raise TypingMistakeError("attribute", message, "leave axes out")
        try:
            return find_axes(self.operation, self.mesh)
        except KeyError as error:
            self._refuse_axis(error.args[0])

    def derive_layout(
        self, shape: Shape, roles: Sequence[tuple[Role, ...]], result: tuple[Role, ...]
    ) -> Layout:
        """Derive the layout of the result from the table of rules, for each axis of the mesh.

        `shape`: of the result. `roles`: roles of the dimensions of each operand; numbers have none
        and count as replicated. `result`: roles of the dimensions of the result. With several axes
        the layout has one part per axis. A communication or Slice changes only the axes that it
        names; on the others its first operand keeps its layout.

        Raises `TypingMistakeError` for the first of these defects:

        1. The operation names an axis that the mesh lacks or one twice, or is a communication or
           Slice that names none of several axes (`axis`).
        2. The table does not permit the layouts of the operands (`root`, `partial`, `layout`), or
           slices of several axes do not nest (`axis`, `layout`).
        3. The result is sliced along a dimension that it lacks or that has size 1 (`dimension`).
        """
        layouts = [REPLICATED if tensor is None else tensor.layout for tensor in self.all]
        if len(self.mesh) < 2:
            axis = (self.mesh[0],) if self.mesh else ()
            if self.operation.axes is not None and self.operation.axes != axis:
                self._refuse_axis(self.operation.axes[0])
            found = self._find_layout(layouts, roles, result, "")
        else:
            found = self._derive_mesh_layout(layouts, roles, result)
        for layout in found.by_axis:
            if layout.is_sliced:
                kind = TensorType(ElementType.BOOL, shape, layout)
                # The name that the message gives to the tensor that would be sliced.
                check_sliceable(
                    kind,
                    layout.dimension,
                    self.name(0) if self.operation.kind in _OVER_AXES else self.operation.name,
                )
        return found

    def _derive_mesh_layout(
        self, layouts: list[Layout], roles: Sequence[tuple[Role, ...]], result: tuple[Role, ...]
    ) -> Layout:
        """Derive the layout of the result on a mesh of several axes, one part per axis in order.

        An operand with a single layout has it on every axis. A communication or Slice changes the
        axes that it names; on the others the result has the layout of the first operand. Any other
        operation changes all axes. The layout on a changed axis is that of `_find_layout`.

        Raises `TypingMistakeError` for the first of these defects. 1, 2, 3 and 5 concern only a
        communication or Slice.

        1. `axis`: it names an unknown axis, names an axis twice, or names none.
        2. `axis`: the layouts of the first operand do not permit its axes (`_check_innermost`).
        3. `axis`: it has a root and several axes.
        4. The layouts of the operands on a changed axis cannot be combined (`_find_layout`).
        5. `axis`: the layouts of the result do not permit its axes (`_check_innermost`).
        6. `layout`: an operand of a pointwise operation lacks a part of the result's block.
        """
        count = len(self.mesh)
        by_axis = [
            layout.axes if len(layout.axes) == count else (layout,) * count for layout in layouts
        ]
        active: Sequence[int] = range(count)
        found = list(by_axis[0])
        if self.operation.kind in _OVER_AXES:
            try:
                active = find_axes(self.operation, self.mesh)
            except KeyError as error:
                self._refuse_axis(error.args[0])
            self._check_innermost(found, active)
            if self.operation.root is not None and len(active) > 1:
                message = f"{self.operation.kind} has a root on one axis, not on several"
                raise TypingMistakeError("axis", message, "communicate over one axis at a time")
        for axis in active:
            on_axis = [axes[axis] for axes in by_axis]
            found[axis] = self._find_layout(on_axis, roles, result, f"on axis {self.mesh[axis]}: ")
        if self.operation.kind in _OVER_AXES:
            self._check_innermost(found, active)
        if self.operation.kind in POINTWISE:
            self._check_cuts(by_axis, roles, found, result)
        return on_mesh(*found)

    def _refuse_axis(self, name: str) -> NoReturn:
        """Raise `TypingMistakeError` (`axis`) for the axis `name`; never return.

        The message is that the operation names no axis if `name` is empty, that it names the axis
        twice if the mesh has an axis `name`, and that the mesh has no such axis otherwise. The cure
        lists the axes of the mesh.
        """
        axes = ", ".join(self.mesh) or "none"
        message = f"the mesh has no axis {name}" if name not in self.mesh else f"axis {name} twice"
        if not name:
            message = f"{self.operation.kind} names no axis of the mesh"
        raise TypingMistakeError("axis", message, f"axes of the mesh: {axes}")

    def _check_innermost(self, layouts: Sequence[Layout], active: Sequence[int]) -> None:
        """Raise `TypingMistakeError` (`axis`) unless a communication can use these mesh axes.

        `active`: positions of its axes, ascending, at least one; `layouts`: of the operand or of
        the result, by axis. The active axes must slice at most one dimension together. No other
        axis after the first active one may slice this dimension too: blocks nest in the order of
        the axes, so the communication must go over the later axis first.
        """
        dimensions = {layouts[axis].dimension for axis in active} - {-1}
        if len(dimensions) > 1:
            message = "the axes slice different dimensions"
            raise TypingMistakeError("axis", message, "communicate over one axis at a time")
        for axis, layout in enumerate(layouts):
            if axis not in active and axis > active[0] and layout.dimension in dimensions:
                message = f"axis {self.mesh[axis]} cuts the blocks of {self.mesh[active[0]]} again"
                cure = f"communicate over axis {self.mesh[axis]} first"
                raise TypingMistakeError("axis", message, cure)

    def _check_cuts(
        self,
        by_axis: Sequence[Sequence[Layout]],
        roles: Sequence[tuple[Role, ...]],
        found: Sequence[Layout],
        result: tuple[Role, ...],
    ) -> None:
        """Raise `TypingMistakeError` (`layout`) unless operands contain the block of the result.

        `by_axis`: layouts of each operand by axis of the mesh; `found`: those of the result.
        `roles`, `result`: roles of the dimensions; equal roles correspond. A later axis divides the
        blocks of an earlier axis that slices the same dimension.

        An operand is wrong if all of these hold:

        - An axis A slices dimension D of the result, and slices no dimension of the operand.
        - The operand has the dimension D.
        - An axis after A slices dimension D of the operand, so its blocks are divided without A.

        The first error is raised: by operand, then by axis A. It names the first such later axis.
        """
        needed = [
            (axis, result[layout.dimension])
            for axis, layout in enumerate(found)
            if layout.is_sliced
        ]
        for position, (layouts, dimensions) in enumerate(zip(by_axis, roles, strict=True)):
            for axis, role in needed:
                if layouts[axis].is_sliced or role not in dimensions:
                    continue
                later = [
                    other
                    for other in range(axis + 1, len(layouts))
                    if layouts[other].is_sliced and dimensions[layouts[other].dimension] == role
                ]
                if later:
                    message = f"{self.name(position)} is not sliced along axis {self.mesh[axis]}"
                    message += f", but along {self.mesh[later[0]]}, which cuts its blocks"
                    cure = f"AllGather it over axis {self.mesh[later[0]]} first"
                    raise TypingMistakeError("layout", message, cure)

    def _find_layout(
        self,
        layouts: Sequence[Layout],
        roles: Sequence[tuple[Role, ...]],
        result: tuple[Role, ...],
        where: str,
    ) -> Layout:
        """Look up the layout of the result on one axis of the mesh.

        `layouts`: of each operand. `roles`: per operand, the role of each of its dimensions;
        equal roles correspond. `result`: roles of the result's dimensions.

        - One or two operands: the rule of the table for kind, reduction, dimension and root.
        - More operands: the first two give a layout with the roles `result`. This and the third
          give the next one, and so on.

        Exception: without a mesh, a contraction whose result would be partial is LOCAL, unless
        an operand is partial. Raises `TypingMistakeError` if the table has no rule; the message
        begins with `where`.
        """
        operation = self.operation
        key = operation.kind, operation.reduction, operation.dimension, operation.root
        found: Layout | None
        if len(layouts) <= 2:
            found = find_axis_layout(key, tuple(layouts), tuple(roles), result)
        else:
            # Three and more operands are joined one after the other.
            found = layouts[0]
            joined = roles[0]
            for layout, dimensions in zip(layouts[1:], roles[1:], strict=True):
                pair = (found, layout)
                found = find_axis_layout(key, pair, (joined, dimensions), result)
                joined = result
                if found is None:
                    break
        if found is None:
            raise self._explain(layouts, where)
        is_sum = operation.kind in CONTRACTIONS and found.placement is Placement.PARTIAL
        has_partial = any(layout.placement is Placement.PARTIAL for layout in layouts)
        return LOCAL if is_sum and not self.mesh and not has_partial else found

    def _explain(self, layouts: Sequence[Layout], where: str) -> TypingMistakeError:
        """Return (do not raise) the error for operand layouts without a rule on one axis.

        Code and cure are those of the first case that applies:
        - `root`: an operand is valid on a root only.
        - `partial`: an operand is partial, and the operation is neither a collective nor a Slice.
        - The operation is a collective or a Slice: the error of `_explain_communication`.
        - `layout`: any other layouts, with a cure for the kind of the operation.

        `where` (the axis, or "") precedes the message.
        """
        kind = self.operation.kind
        for position, layout in enumerate(layouts):
            if layout.placement is Placement.ROOT:
                message = f"{where}{self.name(position)} is valid on root {layout.root} only"
                cure = f"Broadcast it from root {layout.root} first"
                return TypingMistakeError("root", message, cure)
        for position, layout in enumerate(layouts):
            if layout.placement is Placement.PARTIAL and kind not in _OVER_AXES:
                message = f"{where}{self.name(position)} is {layout}, a partial result, and "
                message += f"{kind} reads full values"
                return TypingMistakeError("partial", message, _CURES[Placement.PARTIAL])
        if kind in _OVER_AXES:
            return self._explain_communication(layouts[0], where)
        if kind in POINTWISE:
            if any(layout.is_local for layout in layouts):
                message, cure = "a local operand meets a sliced one", "ReduceScatter the local "
                return TypingMistakeError("layout", where + message, cure + "operand first")
            message = "operands are sliced along different dimensions"
            return TypingMistakeError("layout", where + message, "AllGather one of them")
        formatted = " and ".join(map(str, layouts))
        if kind in CONTRACTIONS:
            message = f"{where}layouts {formatted} have no product"
            cure = "slice a row of the first, the last of the second, or the contracted one of both"
            return TypingMistakeError("layout", message, cure)
        message = f"{where}{kind} has no rule for layout {formatted}"
        return TypingMistakeError("layout", message, "AllGather the sliced operand first")

    def _explain_communication(self, layout: Layout, where: str) -> TypingMistakeError:
        """Return (do not raise) the error for a communication with an unsuitable operand layout.

        `where` precedes the message. The first rule that applies gives the error:

        1. The operand is partial and the operation reduces: code `partial`. The message names the
           layout and the reduction of the operation. The cure names the reduction of the operand.
        2. Otherwise: code `layout`. The message names the expected layout and that of the operand.
           The cure depends on the operation: for an AllGather or AllToAll it also depends on
           whether the operand is replicated; for a Broadcast or Reduce it is an AllGather; for a
           Slice of slices, to use the operand; in other cases it depends on the layout (`_CURES`).
        """
        kind, name = self.operation.kind, self.name(0)
        if layout.placement is Placement.PARTIAL and self.operation.reduction is not None:
            message = f"{where}{name} is {layout}, which {self.operation.reduction} does not reduce"
            return TypingMistakeError("partial", message, f"reduce it with {layout.reduction}")
        expected = _EXPECTED[tuple(permitted_symbols(kind))]
        cure = _CURES[layout.placement]
        if kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL):
            unneeded = "leave AllGather out" if kind is Kind.ALL_GATHER else "Slice it instead"
            cure = unneeded if layout == REPLICATED else "ReduceScatter or Slice it first"
        elif kind in (Kind.BROADCAST, Kind.REDUCE):
            cure = "AllGather it first"
        elif kind is Kind.SLICE and layout.is_sliced:
            cure = "use it"
        message = f"{expected} operand is expected, {name} is {layout.placement} ({layout})"
        return TypingMistakeError("layout", where + message, cure)


def check_sliceable(tensor: TensorType, dimension: int, name: str) -> None:
    """Raise `TypingMistakeError` if a tensor cannot be sliced along a dimension.

    The dimension must be in 0..rank - 1, and its size must not be 1, which means broadcast. Other
    sizes, also symbols, need not be multiples of the ranks. `name`: for the message.
    """
    rank = len(tensor.shape)
    if 0 <= dimension < rank and tensor.shape[dimension] != 1:
        return
    sizes = ", ".join(map(str, tensor.shape))
    if not 0 <= dimension < rank:
        message = f"{name}[{sizes}] has no dimension {dimension}"
        cure = f"slice along 0..{rank - 1}" if rank else "a scalar stays replicated"
        raise TypingMistakeError("dimension", message, cure)
    message = f"{name}[{sizes}] is broadcast along dimension {dimension}, its size is 1"
    raise TypingMistakeError("dimension", message, "leave it replicated")
