"""Overlap: a chain of producers and consumers works chunk by chunk instead of one after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from collhub_coconet.program.graph import between, contracted_order
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Chain, Program
from collhub_coconet.transformations.legality import Conditions, Rewrite
from collhub_coconet.typing.contraction import axes_of


def overlap(program: Program, members: Sequence[str]) -> Rewrite:
    """Let each member, an operation or a stage, begin when its producer has done a chunk.

    The chain is in order of data, nothing outside orders it otherwise, and a dimension is left
    along which every member can be cut. Raises `RefusedMoveError`.
    """
    conditions = Conditions("overlap", program, {"members": tuple(members)})
    conditions.require(len(members) > 1, "several", " ".join(members), "no pair", "name two")
    parts = [_part(program, member, conditions) for member in members]
    # A chain is executed as one: its members belong to no other.
    taken = {name for chain in program.chains for name in chain.members}
    for member in members:
        message = "it is a member of a chain already"
        conditions.require(member not in taken, "one-chain", member, message, "name others")
    for member, part in zip(members, parts, strict=True):
        _check_no_whole(member, part, conditions)
    dimensions = tuple(
        _check_pair(program, one, other, conditions) for one, other in pairwise(parts)
    )
    _check_order(program, parts, conditions)
    # Members of different resources can be busy at once.
    kinds = [_resource(part) for part in parts]
    note = f"resources: {', '.join(kinds)}"
    chains = (*program.chains, Chain(tuple(members), dimensions))
    return Rewrite(program.with_stages(program.stages, chains), conditions.record((note,)))


Part = list[Operation]
"""The operations of one member of a chain."""


def _part(program: Program, member: str, conditions: Conditions) -> Part:
    """The operations of a member; part of a stage is none."""
    for stage in program.stages:
        if member in stage.members:
            message = f"it is one of several operations of stage {stage.name}"
            raise conditions.refusal("whole-stages", member, message, f"name {stage.name}")
        if member == stage.name:
            conditions.require(True, "whole-stages", member, "", "")
            return [program.by_name[name] for name in stage.members]
    operation = program.by_name.get(member)
    message = "no operation and no stage has this name"
    conditions.require(operation is not None, "target", member, message, "name one of them")
    return [operation] if operation else []


def _check_no_whole(member: str, part: Part, conditions: Conditions) -> None:
    """No member needs all chunks before it emits one."""
    for operation in part:
        # A norm is known when the last element is.
        is_chunkable = operation.kind not in REDUCTIONS_TO_SCALARS
        message = f"{operation.kind} in {member} needs all chunks before it gives one"
        cure = "end the chain before it"
        conditions.require(is_chunkable, "chunkable", operation.name, message, cure)


def _check_pair(program: Program, one: Part, other: Part, conditions: Conditions) -> int:
    """The dimension of the chunks that go from one member to the next, counted from the end."""
    made = {operation.name for operation in one}
    reads = [(reader, name) for reader in other for name in reader.reads if name in made]
    message = "it does not read the member before it"
    cure = "name producer and consumer in their order"
    conditions.require(bool(reads), "consumes", other[0].name, message, cure)
    common: set[int] | None = None
    for reader, name in reads:
        found = _emitted(program, one, name) & _accepted(program, reader, name)
        common = found if common is None else common & found
    message = f"no dimension of {reads[0][1]} is one along which both can be cut"
    cure = "end the chain before it"
    conditions.require(bool(common), "chunkable", reads[0][0].name, message, cure)
    return max(common or {0})


def _emitted(program: Program, part: Part, name: str) -> set[int]:
    """Dimensions, from the end, along which a member gives a value chunk by chunk."""
    if any(operation.kind is Kind.CONV for operation in part):
        # Positions are made of their neighbours.
        rank = len(program.types[name].shape)
        return {rank, rank - 1}
    found = _all_of(program, name)
    for operation in part:
        found -= _exchanged(program, operation)
    return found


def _exchanged(program: Program, operation: Operation) -> set[int]:
    """Dimensions, from the end, between which an AllToAll moves data: a chunk has all of them."""
    if operation.kind is not Kind.ALL_TO_ALL:
        return set()
    kinds = [program.types[name] for name in (operation.name, operation.reads[0])]
    return {len(kind.shape) - kind.layout.dimension for kind in kinds}


def _accepted(program: Program, reader: Operation, name: str) -> set[int]:
    """Dimensions, from the end, along which a reader takes a value chunk by chunk."""
    if reader.kind is Kind.TRANSPOSE:
        # Chunks of what it reads are none of what it gives.
        return set()
    if reader.kind not in CONTRACTIONS:
        return _all_of(program, name) - _exchanged(program, reader)
    # Terms of a sum have to be there together.
    rank = len(program.types[name].shape)
    axes = axes_of(reader.kind, len(program.types[reader.reads[0]].shape))
    rows = axes.rows if name == reader.reads[0] else (axes.w_free,)
    return {rank - row for row in rows}


def _all_of(program: Program, name: str) -> set[int]:
    """All dimensions of more than one element, from the end."""
    shape = program.types[name].shape
    return {len(shape) - place for place, size in enumerate(shape) if size != 1}


def _check_order(program: Program, parts: list[Part], conditions: Conditions) -> None:
    """No path from one member to another leads through an operation outside the chain."""
    # Stages count with all their operations.
    names = [[operation.name for operation in part] for part in parts]
    inside = [name for part in names for name in part]
    outside = between(program.operations, inside)
    who = outside[0].name if outside else inside[0]
    message = "it stands between members, so that it orders them as a whole"
    cure = "make it a member, or end the chain before it"
    conditions.require(not outside, "no-other-order", who, message, cure)
    groups = [stage.members for stage in program.stages if stage.members[0] not in inside]
    order = contracted_order(program.operations, [*groups, inside])
    message = "members and another stage would wait for one another"
    conditions.require(order is not None, "no-other-order", who, message, "fuse less")


def _resource(part: Part) -> str:
    """What a member keeps busy: the network between groups, links within one, or computation."""
    # The slowest of them decides.
    kinds = {operation.kind for operation in part}
    if Kind.SEND in kinds:
        return "network"
    is_talking = any(operation.is_communication for operation in part)
    return "intra-node link" if is_talking else "compute"
