"""Conditions of a fused stage: one kernel computes all members, element by element."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_coconet.program.graph import between, descendants
from collhub_coconet.program.operations import (
    POINTWISE,
    REDUCTIONS_TO_SCALARS,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import LOCAL, REPLICATED, TensorType, from_end, has_dimension
from collhub_coconet.transformations.legality import Conditions

_COMPUTED = POINTWISE | REDUCTIONS_TO_SCALARS | {Kind.UPDATE, Kind.SLICE}
_FAMILIES = {
    (): "pointwise",
    (Kind.ALL_REDUCE,): "AllReduce",
    (Kind.REDUCE_SCATTER,): "ReduceScatter",
    (Kind.REDUCE_SCATTER, Kind.ALL_GATHER): "RS-C-AG",
    (Kind.SEND,): "Send",
}


def check_stage(program: Program, members: Sequence[str], conditions: Conditions) -> str:
    """The family of a stage. Raises `RefusedMoveError` where the members are no single kernel."""
    inside = set(members)
    found = [operation for operation in program.operations if operation.name in inside]
    outside = between(program.operations, inside)
    who = outside[0].name if outside else found[0].name
    message = "it reads a member and a member reads it"
    cure = "take it into the set, or leave its readers out"
    conditions.require(not outside, "no-cycle", who, message, cure)
    family = _family(found, conditions)
    for operation in found:
        is_member = operation.kind in _COMPUTED or operation.is_communication
        message = f"{operation.kind} is not pointwise"
        cure = "fuse pointwise operations, norms, sums and one communication"
        conditions.require(is_member, "pointwise", operation.name, message, cure)
    _check_space(program, found, conditions)
    if family == "RS-C-AG":
        _check_slices(program, found, conditions)
    return family


def _family(found: list[Operation], conditions: Conditions) -> str:
    """None, one AllReduce, one ReduceScatter with its AllGathers, or one Send."""
    talking = [operation for operation in found if operation.is_communication]
    gathers = [one for one in talking if one.kind is Kind.ALL_GATHER]
    others = [one for one in talking if one.kind is not Kind.ALL_GATHER]
    kinds = [one.kind for one in others] + ([Kind.ALL_GATHER] if gathers else [])
    family = _FAMILIES.get(tuple(kinds))
    last = talking[-1].name if talking else found[0].name
    message = f"{' and '.join(kinds)} are no one communication" if kinds else ""
    cure = "fuse one AllReduce, one ReduceScatter with its AllGathers, or one Send"
    conditions.require(family is not None, "one-communication", last, message, cure)
    return family or ""


def _check_space(program: Program, found: list[Operation], conditions: Conditions) -> None:
    """All members walk over one shape, in one layout, on one group."""
    spaces = [_space(program, operation) for operation in found]
    largest = max(spaces, key=lambda space: len(space.shape))
    for operation, space in zip(found, spaces, strict=True):
        fits = _fits(space, largest)
        message = f"it runs over {space}, others over {largest}"
        cure = "fuse operations of one shape, layout and group"
        conditions.require(fits, "one-space", operation.name, message, cure)


def _space(program: Program, operation: Operation) -> TensorType:
    """The elements over which an operation runs.

    A reduction to a scalar and collectives that begin a kernel or end one run over what they read;
    ReduceScatter and AllReduce deliver, chunk by chunk, what they have reduced.
    """
    is_of_operand = operation.kind in REDUCTIONS_TO_SCALARS | {Kind.ALL_GATHER, Kind.SEND}
    name = operation.reads[0] if is_of_operand else operation.name
    return program.types[name]


def _fits(space: TensorType, largest: TensorType) -> bool:
    """Whether a space is the largest one, or broadcast to it; scalars are replicated."""
    if space.group != largest.group or len(space.shape) > len(largest.shape):
        return False
    pairs = zip(reversed(space.shape), reversed(largest.shape), strict=False)
    if not all(size in (1, other) for size, other in pairs):
        return False
    return _layouts_agree(space, largest)


def _layouts_agree(space: TensorType, largest: TensorType) -> bool:
    """Whether a space has the layout of the largest, as far as it has its dimensions."""
    if not largest.layout.is_sliced:
        return space.layout == largest.layout
    distance = from_end(largest.layout.dimension, len(largest.shape))
    if space.layout.is_sliced:
        return from_end(space.layout.dimension, len(space.shape)) == distance
    # What has not the dimension is the same for every slice.
    return space.layout == REPLICATED and not has_dimension(space.shape, distance)


def _check_slices(program: Program, found: list[Operation], conditions: Conditions) -> None:
    """Between ReduceScatter and AllGather: slices, scalars and what has not the dimension."""
    scatter = next(one for one in found if one.kind is Kind.REDUCE_SCATTER)
    kind = program.types[scatter.name]
    distance = from_end(kind.layout.dimension, len(kind.shape))
    behind = descendants(found, [scatter.name])
    for operation in found:
        if operation.kind in (Kind.REDUCE_SCATTER, Kind.SLICE):
            continue
        is_own = operation.kind is not Kind.ALL_GATHER or operation.name in behind
        message = f"it gathers nothing that {scatter.name} scatters"
        cure = "leave it out"
        conditions.require(is_own, "slices-only", operation.name, message, cure)
        for name in operation.reads:
            read = program.types[name]
            is_whole = read.layout == REPLICATED and has_dimension(read.shape, distance)
            is_slice = not is_whole and read.layout != LOCAL
            message = f"it reads all of {name}, not a slice"
            cure = f"Slice {name} along the dimension of {scatter.name}"
            conditions.require(is_slice, "slices-only", operation.name, message, cure)
