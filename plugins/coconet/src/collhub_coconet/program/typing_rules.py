"""Typing rules of operations: element type and shape, and the roles of the dimensions.

The layout of the result follows from the roles by the table of `layout_rules`. A rule computes the
type of the result from the operands, or raises the error of a violated rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from collhub_coconet.program.layout_rules import number_roles
from collhub_coconet.program.operands import Operands, TypingMistakeError, check_sliceable
from collhub_coconet.program.operations import (
    ARITHMETIC,
    COMPARISONS,
    LOCAL,
    REDUCTIONS_TO_SCALARS,
    REPLICATED,
    UNEVEN_COLLECTIVES,
    ElementType,
    Kind,
    Layout,
    LayoutRule,
    Placement,
    Shape,
    Size,
    TensorType,
    has_dimension,
    on_mesh,
    sliced,
)
from collhub_coconet.program.shape_rules import SHAPE_RULES
from collhub_coconet.program.uneven_rows import count_rows, read_counts
from hub_core.model import InputError

TypingRule = Callable[[Operands], TensorType]


def type_reducing_communication(operands: Operands) -> TensorType:
    """Return the type of an AllReduce, ReduceScatter or Reduce.

    Element type, complete shape and group are those of the operand; only the layout changes, by
    the table of rules. For example, a ReduceScatter gives a layout that is sliced along its
    dimension. Permitted are a local operand, a partial one with the reduction of the operation,
    and for a Reduce also a replicated one. Raise `TypingMistakeError` for any other layout, for
    an operand that is a number or bool, for axes that do not fit the mesh, and for a dimension
    that does not exist or has size 1.
    """
    result = operands.type_like()
    operands.check_not_bool(0)
    return result


def type_moving_communication(operands: Operands) -> TensorType:
    """Return the type of an AllGather, AllToAll, Broadcast or Slice: only the layout changes.

    The layout follows from the table of rules. Raise `TypingMistakeError` for an operand that is
    a number, for a layout without a rule, for axes that do not fit the mesh, for a dimension to
    slice that does not exist or has size 1, and for an AllToAll to the dimension that is already
    sliced.
    """
    result = operands.type_like("any")
    if operands.operation.kind is Kind.ALL_TO_ALL and result.layout == operands.tensor(0).layout:
        message = f"{operands.name(0)} is sliced along dimension {operands.operation.dimension}"
        cure = "name another dimension, or leave it out"
        raise TypingMistakeError("dimension", f"{message} already", cure)
    return result


def type_uneven_communication(operands: Operands) -> TensorType:
    """Return the type of an AllToAllV, AllGatherV or ReduceScatterV, which move rows by counts.

    A row is a position of dimension 0. Dimension 0 of the result is the largest number of rows that
    a rank receives, for an AllGatherV the sum of all counts. Other dimensions, element type and
    group are those of the operand. On the axes of the operation it is replicated for an AllGatherV,
    else local.

    Raises `TypingMistakeError`, in this order:

    1. `operand`: the operand is a number. `counts`: they are missing, negative, all 0, or not one
       per rank or pair of ranks.
    2. `element-type`: the elements of a ReduceScatterV are bool.
    3. `counts`: dimension 0 is a symbol, or has fewer rows than a rank sends (a scalar has 0 rows).
       A ReduceScatterV needs exactly the sum of the counts.
    4. `axis`: the axes do not fit the mesh. `layout`, `partial` or `root`: no rule for the layout
       of the operand. Local is permitted, and for a ReduceScatterV partial with its reduction.
    """
    operation, operand = operands.operation, operands.tensor(0)
    try:
        counts = read_counts(operation)
    except InputError as error:
        found = error.diagnostics[0]
        raise TypingMistakeError("counts", found.message, found.cure) from None
    if operation.kind is Kind.REDUCE_SCATTER_V:
        operands.check_not_bool(0)
    rows = operand.shape[0] if operand.shape else 0
    name = operands.name(0)
    if not isinstance(rows, int):
        message = f"the first dimension of {name} is {rows}, counts need a number of rows"
        raise TypingMistakeError("counts", message, "state the size of the dimension as a number")
    sent, received = count_rows(operation, counts)
    if rows < sent or (operation.kind is Kind.REDUCE_SCATTER_V and rows != sent):
        message = f"{name} has {rows} rows, the counts need {sent}"
        cure = "state other counts, or another first dimension"
        raise TypingMistakeError("counts", message, cure)
    result = operands.type_like()
    return replace(result, shape=(received, *operand.shape[1:]))


def type_send(operands: Operands) -> TensorType:
    """Return the type of a Send: that of its operand, with the group number increased by `offset`.

    The layout may be any and is unchanged. Raise `TypingMistakeError` (`group`) if the
    offset is missing or 0, and if the new group is below 0; there is no upper limit. Raise
    it (`operand`) if the operand is a number.
    """
    operand = operands.tensor(0)
    offset = operands.operation.offset or 0
    group = operand.group + offset
    # Rank i of one group sends to rank i of the other.
    if offset == 0 or group < 0:
        message = f"group {operand.group} with offset {offset} is no other group of the row"
        raise TypingMistakeError("group", message, "an offset leads to another group, from 0 on")
    return replace(operand, group=group)


def type_arithmetic(operands: Operands) -> TensorType:
    """Return the type of an arithmetic operation on two operands, of which one may be a number.

    The shape is the broadcast one, and the element type that of the tensors, which must be
    equal. A number fits any type. Raise `TypingMistakeError` for two numbers, for bool, for
    a Divide of integers, for different element types, and for shapes, layouts or groups
    that do not fit (`_join_types`).
    """
    result = _join_types(operands, [0, 1])
    is_quotient = operands.operation.kind is Kind.DIVIDE
    if result.element is ElementType.BOOL or (is_quotient and not result.element.is_float):
        message = f"operands are {result.element}"
        raise TypingMistakeError("element-type", message, "insert a Cast")
    return result


def type_comparison(operands: Operands) -> TensorType:
    """Return the type of a comparison: as for arithmetic on both operands, with the element type
    bool.

    Raises `TypingMistakeError` for operands that do not fit.
    """
    return replace(_join_types(operands, [0, 1]), element=ElementType.BOOL)


def type_select(operands: Operands) -> TensorType:
    """Return the type of `Select(c, a, b)`, which is a where c is true, else b.

    It has the common element type of a and b, one of which may be a number, and the
    broadcast shape and joined layout of all three. Raise `TypingMistakeError` if c is a
    number or not bool, if a and b differ in their element types or are both numbers, and
    for shapes, layouts or groups that do not fit (`_join_types`).
    """
    if operands.tensor(0).element is not ElementType.BOOL:
        message = f"the condition {operands.name(0)} is {operands.tensor(0).element}, not bool"
        raise TypingMistakeError("element-type", message, "compare it with something")
    return _join_types(operands, [1, 2])


def type_float_function(operands: Operands) -> TensorType:
    """Return the type of a function of floats such as Sqrt or Exp: that of its operand.

    Raises `TypingMistakeError` for elements that are not floats, a number as operand, and a layout
    without a rule, such as a partial one.
    """
    operands.check_float(0)
    return operands.type_like()


def type_cast(operands: Operands) -> TensorType:
    """Return the type of the operand with the element type of the Cast.

    Without an element type in the Cast it is unchanged. Shape, layout and group remain.
    Raise `TypingMistakeError` for a number, for a value on a root only, and for a partial
    operand (the tensor is the sum or another reduction of the ranks' values) unless both
    element types are floats.
    """
    result = operands.type_like()
    element = operands.operation.element or result.element
    is_partial = any(
        layout.placement is Placement.PARTIAL for layout in operands.tensor(0).layout.by_axis
    )
    if is_partial and not (element.is_float and result.element.is_float):
        message = f"{operands.name(0)} is partial, and a cast to {element} does not add up"
        raise TypingMistakeError("partial", message, "AllReduce or ReduceScatter it first")
    return replace(result, element=element)


def type_dropout(operands: Operands) -> TensorType:
    """Return the type of a Dropout, which is that of its operand.

    Raises `TypingMistakeError` for a rate that is missing or outside of [0, 1), for an operand that
    is no tensor of floats, and for a layout without a rule, such as a partial one.
    """
    rate = operands.operation.rate
    if rate is None or not 0 <= rate < 1:
        raise TypingMistakeError("rate", f"the rate is {rate}", "a rate is at least 0, less than 1")
    return type_float_function(operands)


def type_scalar_reduction(operands: Operands) -> TensorType:
    """Return the type of a reduction to a scalar: shape (), same element type.

    The operations are Norm, Sum and Max. The layout of the result, on each axis of the
    mesh:

    - A replicated or local operand keeps its layout.
    - A sliced operand gives a replicated scalar: the reduction includes the all-reduce of
      the ranks' results.
    - A partial sum remains a partial sum, for Sum only; a partial maximum remains one,
      for Max only.

    Raises `TypingMistakeError` for all other layouts, for a number, for bool, and for a
    Norm of elements that are no floats.
    """
    operand = operands.tensor(0)
    if operands.operation.kind is Kind.NORM:
        operands.check_float(0)
    if operand.element is ElementType.BOOL:
        message = f"{operands.name(0)} is bool"
        raise TypingMistakeError("element-type", message, "insert a Cast")
    roles = number_roles("dim", len(operand.shape))
    return TensorType(operand.element, (), operands.derive_layout((), (roles,), ()), operand.group)


def type_update(operands: Operands) -> TensorType:
    """Return the type of an Update, which is that of both operands: the state and its new value.

    Element type, shape, layout and group must be equal. Raise `TypingMistakeError` for the
    first of these faults: an operand is a number (`operand`), the layouts differ
    (`layout`), anything else differs (`shape`). For example, a sliced value of a replicated
    state needs an AllGather. Whether the first operand is a state is not checked.
    """
    state, value = operands.tensor(0), operands.tensor(1)
    if value == state:
        return state
    cure = "state and value have one shape and element type"
    if value.layout != state.layout:
        is_gathered = value.layout.is_sliced and not state.layout.is_sliced
        cure = "AllGather the value" if is_gathered else "bring the value to the state's layout"
    message = f"the state is {state}, the value is {value}"
    code = "layout" if value.layout != state.layout else "shape"
    raise TypingMistakeError(code, message, cure)


_OPAQUE_LAYOUTS = {
    LayoutRule.PER_RANK: ({Placement.LOCAL}, LOCAL),
    LayoutRule.RANDOM: ({Placement.LOCAL}, LOCAL),
    LayoutRule.ROWS: ({Placement.LOCAL, Placement.SLICED}, sliced(0)),
    LayoutRule.PARTS: ({Placement.LOCAL, Placement.SLICED}, LOCAL),
    LayoutRule.TO_BLOCKS: ({Placement.LOCAL}, sliced(0)),
    LayoutRule.TO_LOCAL: (set(Placement), LOCAL),
}
"""Placements of operands that a rule of opaque operations permits in addition to replicated ones,
and the layout of the result."""

_OPAQUE_VIEWS = (LayoutRule.TO_BLOCKS, LayoutRule.TO_LOCAL)


def type_opaque(operands: Operands) -> TensorType:
    """Return the type of an opaque operation: declared element type and shape, derived layout.

    `_type_opaque_axis` derives the layout on each axis of the mesh. With `axes`, only these axes
    follow the rule; on the other axes the first operand keeps its layout. The group is that of the
    first tensor among the operands, 0 without one. `AssertionError` without a rule, shape or
    element type. Raises `TypingMistakeError` for the first of these that applies:

    1. `group`: operands are on different groups.
    2. `attribute`: there is a `dimension`, and the rule is not TO_BLOCKS.
    3. `count`: there is a `count`, and the rule is not ROWS or the count is not in 1..dimensions
       of the result.
    4. `attribute`: there are `axes`, and the rule is neither TO_BLOCKS nor TO_LOCAL.
    5. `axis`: an entry of `axes` is unknown or repeated.
    6. `operand`, `layout`: on an axis (checked in order), an operand is a number, or has a layout
       that the rule does not permit.
    7. `dimension`: the result is sliced along a dimension that it lacks or whose size is 1.
    """
    operation = operands.operation
    assert operation.rule is not None
    assert operation.shape is not None
    assert operation.element is not None
    operands.check_same_group()
    if operation.dimension is not None and operation.rule is not LayoutRule.TO_BLOCKS:
        message = f"a dimension is stated for the rule {operation.rule}"
        raise TypingMistakeError("attribute", message, "leave dimension out")
    if operation.count is not None:
        is_rank = 1 <= operation.count <= len(operation.shape)
        if operation.rule is not LayoutRule.ROWS or not is_rank:
            message = f"{operation.count} dimensions of rows are stated for the rule"
            cure = "state count for the rule rows only, at most the dimensions of the result"
            raise TypingMistakeError("count", f"{message} {operation.rule}", cure)
    count = max(1, len(operands.mesh))
    active = operands.find_view_axes() if operation.axes is not None else range(count)
    by_axis = [_type_opaque_axis(operands, axis, axis in active) for axis in range(count)]
    group = operands.tensors[0].group if operands.tensors else 0
    result = TensorType(operation.element, operation.shape, on_mesh(*by_axis), group)
    for layout in by_axis:
        if layout.is_sliced:
            check_sliceable(result, layout.dimension, operation.name)
    return result


def _type_opaque_axis(operands: Operands, axis: int, is_active: bool) -> Layout:
    """Return the layout of the result of an opaque operation on one axis of the mesh.

    `axis`: position in the mesh. If `is_active` is False, the result has the layout of the first
    operand, which must exist (`IndexError`). Otherwise `operation.rule` decides. Replicated
    operands are always permitted. Permitted besides, and the result:

    - PER_RANK, RANDOM: local operands; local
    - PARTS: local, or sliced along any dimension; local
    - TO_LOCAL: every layout; local
    - TO_BLOCKS: local; sliced along `operation.dimension` (0 if None)
    - ROWS: local, or sliced along one common dimension below `operation.count` (1 if None). The
      result is sliced along `operation.dimension`, if None along the common one, else along 0.
    - ROWS without sliced operands on a mesh of several axes: as PER_RANK

    The result is instead replicated if all operands are, and the rule is PER_RANK, ROWS or PARTS.
    The same holds for TO_BLOCKS and TO_LOCAL if the mesh has several axes and `operation.axes` is
    None. Raises `TypingMistakeError` (`operand`) if any operand is a number, then (`layout`) for
    the first operand that is not permitted.
    """
    operation = operands.operation
    assert operation.rule is not None
    found = [
        operands.tensor(position).layout.by_axis[axis] for position in range(len(operands.all))
    ]
    if not is_active:
        return found[0]
    permitted, layout = _OPAQUE_LAYOUTS[operation.rule]
    has_slices = any(operand.is_sliced for operand in found)
    if operation.rule is LayoutRule.ROWS and len(operands.mesh) > 1 and not has_slices:
        permitted, layout = _OPAQUE_LAYOUTS[LayoutRule.PER_RANK]
    takes_all_slices = operation.rule in (LayoutRule.TO_LOCAL, LayoutRule.PARTS)
    slices = [operand for operand in found if operand.is_sliced]
    dimension = slices[0].dimension if slices and operation.rule is LayoutRule.ROWS else 0
    for position, operand in enumerate(found):
        is_other_slice = operand.is_sliced and (
            operand.dimension != dimension or operand.dimension >= (operation.count or 1)
        )
        is_other_slice &= not takes_all_slices
        if operand.placement not in permitted | {Placement.REPLICATED} or is_other_slice:
            message = f"{operands.name(position)} is {operand}, which the rule {operation.rule}"
            cure = "AllGather it first" if operand.is_sliced else "state another rule"
            raise TypingMistakeError("layout", f"{message} does not permit", cure)
    is_view = operation.rule in _OPAQUE_VIEWS
    keeps_replicated = operation.rule in (LayoutRule.PER_RANK, LayoutRule.ROWS, LayoutRule.PARTS)
    keeps_replicated |= is_view and len(operands.mesh) > 1 and operation.axes is None
    is_replicated = all(operand == REPLICATED for operand in found)
    if layout.is_sliced:
        layout = sliced(dimension if operation.dimension is None else operation.dimension)
    return REPLICATED if keeps_replicated and is_replicated else layout


TYPING_RULES: dict[Kind, TypingRule] = {
    Kind.ALL_REDUCE: type_reducing_communication,
    Kind.REDUCE_SCATTER: type_reducing_communication,
    Kind.REDUCE: type_reducing_communication,
    Kind.ALL_GATHER: type_moving_communication,
    Kind.BROADCAST: type_moving_communication,
    Kind.ALL_TO_ALL: type_moving_communication,
    **dict.fromkeys(UNEVEN_COLLECTIVES, type_uneven_communication),
    Kind.SLICE: type_moving_communication,
    Kind.SEND: type_send,
    **dict.fromkeys(ARITHMETIC, type_arithmetic),
    **dict.fromkeys(COMPARISONS, type_comparison),
    Kind.SELECT: type_select,
    Kind.SQRT: type_float_function,
    Kind.TANH: type_float_function,
    Kind.EXP: type_float_function,
    Kind.LOG: type_float_function,
    Kind.ERF: type_float_function,
    Kind.CAST: type_cast,
    Kind.DROPOUT: type_dropout,
    **dict.fromkeys(REDUCTIONS_TO_SCALARS, type_scalar_reduction),
    **SHAPE_RULES,
    Kind.UPDATE: type_update,
    Kind.OPAQUE: type_opaque,
}


def compute_broadcast_shape(shapes: list[Shape]) -> Shape:
    """Compute the shape of a result from those of its operands, by the rules of numpy.

    Dimensions are aligned at the end; missing ones count as 1. Sizes that are not 1 must be
    equal and determine the size of the result, which is 1 if there are none. A symbol is
    equal only to itself. Raise `TypingMistakeError` (`shape`) for different sizes, and
    `ValueError` without shapes.
    """
    first, *remaining_shapes = shapes
    if all(shape == first for shape in remaining_shapes):
        return first
    joined: list[Size] = []
    for distance in range(max(map(len, shapes)), 0, -1):
        # Sizes of 1 and missing dimensions do not count.
        sizes = {shape[-distance] for shape in shapes if has_dimension(shape, distance)}
        if len(sizes) > 1:
            message = f"sizes {' and '.join(sorted(map(str, sizes)))} do not fit"
            cure = "equal sizes or 1, compared from the last one"
            raise TypingMistakeError("shape", message, cure)
        joined.append(sizes.pop() if sizes else 1)
    return tuple(joined)


def _join_types(operands: Operands, positions: list[int]) -> TensorType:
    """Return the type of a pointwise operation: element type, broadcast shape, layout and group.

    The element type is that of the tensors at `positions`, which must agree. Numbers are ignored,
    except that they count as replicated in the layout. The shape is numpy's broadcast of all
    tensors. The layout has one part per axis of the mesh, joined from the first operand to the last
    by the table of `layout_rules`: equal layouts stay, replicated and sliced give sliced,
    replicated and local give local. Sliced dimensions are counted from the end of the shape.

    Raises `TypingMistakeError` for the first of these defects: all operands are numbers
    (`operand`); different groups (`group`); different element types at `positions`
    (`element-type`); only numbers there (`operand`); sizes that do not broadcast (`shape`); layouts
    that the table does not join (`layout`, `partial`, `root`) or whose slices on several axes do
    not fit (`layout`, `axis`); a slice along a dimension of size 1 (`dimension`).
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
    roles = [
        () if tensor is None else number_roles("dim", len(tensor.shape)) for tensor in operands.all
    ]
    layout = operands.derive_layout(shape, roles, number_roles("dim", len(shape)))
    return TensorType(elements[0], shape, layout, operands.tensors[0].group)
