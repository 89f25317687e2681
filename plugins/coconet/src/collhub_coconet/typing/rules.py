"""All typing rules by kind of operation."""

from __future__ import annotations

from collections.abc import Callable

from collhub_coconet.program.operations import (
    ATTRIBUTES,
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    TRAITS,
    Kind,
    Operation,
)
from collhub_coconet.program.tensors import ElementType, TensorType, sliced
from collhub_coconet.typing.communication import COMMUNICATION
from collhub_coconet.typing.contraction import contraction
from collhub_coconet.typing.mistakes import Operands, TypingMistakeError, scalar_of
from collhub_coconet.typing.pointwise import POINTWISE_RULES

Rule = Callable[[Operands], TensorType]


def to_scalar(operands: Operands) -> TensorType:
    """R -> R; L -> L; S_d -> R with an all-reduce of one scalar. A 2-norm is of floats."""
    element = operands.tensor(0).element
    if operands.operation.kind is Kind.NORM:
        operands.check_float(0)
    if element is ElementType.BOOL:
        message = f"{operands.name(0)} is bool"
        raise TypingMistakeError("element-type", message, "insert a Cast")
    return scalar_of(operands.tensor(0))


def transpose(operands: Operands) -> TensorType:
    """The last two dimensions change places, and a layout along one goes with it."""
    found = operands.tensor(0)
    rank = len(found.shape)
    if rank < 2:
        message = f"{operands.name(0)} has {rank} dimensions"
        raise TypingMistakeError("shape", message, "Transpose takes a matrix, or a batch of them")
    *batch, rows, columns = found.shape
    moved = {rank - 1: rank - 2, rank - 2: rank - 1}
    layout = found.layout
    if layout.is_sliced:
        layout = sliced(moved.get(layout.dimension, layout.dimension))
    return TensorType(found.element, (*batch, columns, rows), layout, found.group)


def update(operands: Operands) -> TensorType:
    """State and value have one type; a sliced value reaches a replicated state by AllGather."""
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


RULES: dict[Kind, Rule] = {
    **COMMUNICATION,
    **POINTWISE_RULES,
    **dict.fromkeys(CONTRACTIONS, contraction),
    **dict.fromkeys(REDUCTIONS_TO_SCALARS, to_scalar),
    Kind.TRANSPOSE: transpose,
    Kind.UPDATE: update,
}


def type_of(operation: Operation, types: list[TensorType | None]) -> TensorType:
    """The type of a value from those of its operands, None for numbers.

    Raises `TypingMistakeError` with the condition that does not hold.
    """
    traits = TRAITS[operation.kind]
    if len(types) != traits.operands:
        message = f"{len(types)} operands are given, {traits.operands} expected"
        raise TypingMistakeError("operands", message, f"{operation.kind} takes {traits.operands}")
    for attribute in ATTRIBUTES:
        is_stated = getattr(operation, attribute) is not None
        if is_stated != (attribute in traits.attributes):
            message = f"{attribute} is {'no attribute here' if is_stated else 'not stated'}"
            cure = f"leave {attribute} out" if is_stated else f"state {attribute}"
            raise TypingMistakeError("attribute", message, cure)
    return RULES[operation.kind](Operands(operation, types))
