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


def all_reduce(operands: Operands) -> TensorType:
    """L -> R. A replicated operand would be multiplied by p, which nobody means."""
    found = _reduced(operands)
    return replace(found, layout=REPLICATED)


def reduce_scatter(operands: Operands) -> TensorType:
    """L -> S_d; the shape stays the global one."""
    found = _reduced(operands)
    dimension = operands.operation.dimension or 0
    # A scalar has no dimension to slice.
    check_sliceable(found, dimension, operands.name(0))
    return replace(found, layout=sliced(dimension))


def all_gather(operands: Operands) -> TensorType:
    """S_d -> R."""
    found = operands.tensor(0)
    if not found.layout.is_sliced:
        cure = "ReduceScatter or Slice it first" if found.layout == LOCAL else "leave AllGather out"
        raise _wrong_layout(operands, "a sliced", cure)
    return replace(found, layout=REPLICATED)


def broadcast(operands: Operands) -> TensorType:
    """L or R -> R."""
    return replace(_unsliced(operands), layout=REPLICATED)


def reduce(operands: Operands) -> TensorType:
    """L or R -> L, valid on the root only."""
    found = _unsliced(operands)
    _check_arithmetic(operands, found)
    return replace(found, layout=LOCAL)


def send(operands: Operands) -> TensorType:
    """Any layout -> the same layout on another group of the row."""
    found = operands.tensor(0)
    offset = operands.operation.offset or 0
    group = found.group + offset
    # Rank i of one group talks to rank i of the other.
    if offset == 0 or group < 0:
        message = f"group {found.group} with offset {offset} is no other group of the row"
        raise TypingMistakeError("group", message, "an offset leads to another group, from 0 on")
    return replace(found, group=group)


def all_to_all(operands: Operands) -> TensorType:
    """S_d -> S_e, e another dimension: rank i gives every rank its part of block i.

    The tensor stays the same, it is cut another way.
    """
    found = operands.tensor(0)
    if not found.layout.is_sliced:
        cure = "ReduceScatter or Slice it first" if found.layout == LOCAL else "Slice it instead"
        raise _wrong_layout(operands, "a sliced", cure)
    dimension = operands.operation.dimension or 0
    check_sliceable(found, dimension, operands.name(0))
    if dimension == found.layout.dimension:
        message = f"{operands.name(0)} is sliced along dimension {dimension} already"
        raise TypingMistakeError("dimension", message, "name another dimension, or leave it out")
    return replace(found, layout=sliced(dimension))


def slice_of(operands: Operands) -> TensorType:
    """R -> S_d, without traffic."""
    found = operands.tensor(0)
    if found.layout != REPLICATED:
        cure = _CURES[found.layout.placement]
        raise _wrong_layout(operands, "a replicated", cure if found.layout == LOCAL else "use it")
    dimension = operands.operation.dimension or 0
    check_sliceable(found, dimension, operands.name(0))
    return replace(found, layout=sliced(dimension))


COMMUNICATION = {
    Kind.ALL_REDUCE: all_reduce,
    Kind.REDUCE_SCATTER: reduce_scatter,
    Kind.ALL_GATHER: all_gather,
    Kind.BROADCAST: broadcast,
    Kind.REDUCE: reduce,
    Kind.SEND: send,
    Kind.ALL_TO_ALL: all_to_all,
    Kind.SLICE: slice_of,
}


def _reduced(operands: Operands) -> TensorType:
    """The operand of a reduction whose result all ranks share: a local one."""
    found = operands.tensor(0)
    if found.layout != LOCAL:
        raise _wrong_layout(operands, "a local", _CURES[found.layout.placement])
    _check_arithmetic(operands, found)
    return found


def _unsliced(operands: Operands) -> TensorType:
    """An operand that is whole on every rank."""
    found = operands.tensor(0)
    if found.layout.is_sliced:
        raise _wrong_layout(operands, "a local or replicated", "AllGather it first")
    return found


def _check_arithmetic(operands: Operands, found: TensorType) -> None:
    """Refuse truth values."""
    if found.element is ElementType.BOOL:
        message = f"{operands.name(0)} is bool, which is not reduced"
        raise TypingMistakeError("element-type", message, "insert a Cast")


def _wrong_layout(operands: Operands, expected: str, cure: str) -> TypingMistakeError:
    """The error for an operand of another layout."""
    layout: Layout = operands.tensor(0).layout
    message = f"{expected} operand is expected, {operands.name(0)} is {_words(layout)}"
    return TypingMistakeError("layout", message, cure)


def _words(layout: Layout) -> str:
    """A layout in words and as a sign."""
    return f"{layout.placement} ({layout})"
