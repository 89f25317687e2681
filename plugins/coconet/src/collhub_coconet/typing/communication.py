"""Typing rules of communication: collectives, Send and Slice."""

from __future__ import annotations

from dataclasses import replace

from collhub_coconet.program.operations import Kind
from collhub_coconet.program.tensors import (
    LOCAL,
    REPLICATED,
    ElementType,
    Layout,
    Placement,
    TensorType,
    sliced,
)
from collhub_coconet.typing.operands import Operands, TypingMistakeError, check_sliceable

_CURES = {
    Placement.REPLICATED: "every rank has the same values already: use the operand itself",
    Placement.SLICED: "AllGather the slices instead",
    Placement.LOCAL: "AllReduce or ReduceScatter the local values first",
}


def type_all_reduce(operands: Operands) -> TensorType:
    """L -> R. A replicated operand is refused: its values would be multiplied by p."""
    operand = _require_local(operands)
    return replace(operand, layout=REPLICATED)


def type_reduce_scatter(operands: Operands) -> TensorType:
    """L -> S_d; the shape remains that of the complete tensor."""
    operand = _require_local(operands)
    dimension = operands.operation.dimension or 0
    check_sliceable(operand, dimension, operands.name(0))
    return replace(operand, layout=sliced(dimension))


def type_all_gather(operands: Operands) -> TensorType:
    """S_d -> R."""
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
    """L or R -> L, valid on the root only."""
    operand = _require_unsliced(operands)
    _check_arithmetic(operands, operand)
    return replace(operand, layout=LOCAL)


def type_send(operands: Operands) -> TensorType:
    """Any layout -> the same layout on another group of the row."""
    operand = operands.tensor(0)
    offset = operands.operation.offset or 0
    group = operand.group + offset
    # Rank i of one group sends to rank i of the other.
    if offset == 0 or group < 0:
        message = f"group {operand.group} with offset {offset} is no other group of the row"
        raise TypingMistakeError("group", message, "an offset leads to another group, from 0 on")
    return replace(operand, group=group)


def type_all_to_all(operands: Operands) -> TensorType:
    """S_d -> S_e with e unequal to d: rank i sends each rank one part of its block i.

    The tensor is the same, sliced along another dimension.
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
    """R -> S_d, without communication."""
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


def _require_local(operands: Operands) -> TensorType:
    """Return the operand of a reduction with a common result, which must be local."""
    operand = operands.tensor(0)
    if operand.layout != LOCAL:
        raise _create_layout_error(operands, "a local", _CURES[operand.layout.placement])
    _check_arithmetic(operands, operand)
    return operand


def _require_unsliced(operands: Operands) -> TensorType:
    """Return an operand that must be complete on every rank."""
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
