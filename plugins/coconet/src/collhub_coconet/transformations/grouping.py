"""Group operations: fuse them into one kernel, or overlap them in a chain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REARRANGING,
    REDUCTIONS_TO_SCALARS,
    UNEVEN_COLLECTIVES,
    Kind,
    Operation,
)
from collhub_coconet.program.program import (
    Chain,
    Program,
    Stage,
    find_axis_positions,
    find_between,
    order_groups,
)
from collhub_coconet.program.shape_rules import find_axes
from collhub_coconet.program.uneven_rows import list_row_blocks
from collhub_coconet.transformations.legality import (
    Conditions,
    Rewrite,
    check_stage,
    choose_name,
    find_members,
)
from hub_core.model import InputError


def fuse(program: Program, members: Sequence[str], name: str = "fused") -> Rewrite:
    """Combine operations into one stage (one kernel); return the new program with a record.

    `members`: names of operations, or of stages for all of their operations. `name`: of the
    new stage; a number is added if it is in use. Stages inside the set are dissolved, the
    other ones remain. The kernel reads each operand from outside once, and writes each
    value that is used outside once. `program` is not changed.

    Raises `RefusedMoveError` for the first violated condition:

    1. All names exist, and there are at least two operations.
    2. No stage has operations both inside and outside the set.
    3. The program has no chain (overlapped stages).
    4. The operations can be one kernel (`check_stage`).
    5. The new stage and another one do not wait for each other.
    """
    conditions = Conditions("fuse", program, {"members": tuple(members), "name": name})
    stage_members = {stage.name: stage.members for stage in program.stages}
    names = [name for member in members for name in stage_members.get(member, (member,))]
    chosen = find_members(program, names, conditions)
    inside = {operation.name for operation in chosen}
    first = chosen[0].name if chosen else name
    conditions.require(len(inside) > 1, "several", first, "one operation is a kernel", "add one")
    remaining, divided = [], []
    for stage in program.stages:
        if inside.isdisjoint(stage.members):
            remaining.append(stage)
        elif not inside.issuperset(stage.members):
            divided.append(stage)
    culprit = divided[0].name if divided else first
    message = "the stage has members outside the set"
    conditions.require(not divided, "whole-stages", culprit, message, "name the stage itself")
    chain = next(iter(program.chains), None)
    culprit = chain.members[0] if chain else first
    message = "a chain is overlapped already"
    conditions.require(
        chain is None, "order", culprit, message, "overlap is the last transformation"
    )
    family = check_stage(program, sorted(inside), conditions)
    label = choose_name(program, name, [stage.name for stage in remaining])
    ordered = tuple(operation.name for operation in chosen)
    stages = (*remaining, Stage(label, family, ordered))
    try:
        # Stages that have no common order of execution are the only mistake that is left.
        result = program.with_stages(stages, program.chains)
    except InputError:
        message = "it and another stage would wait for one another"
        cure = "fuse both stages into one"
        raise conditions.build_refusal("no-cycle", ordered[0], message, cure) from None
    conditions.require(True, "no-cycle", ordered[0], "", "")
    return Rewrite(result, conditions.to_record())


def overlap(program: Program, members: Sequence[str]) -> Rewrite:
    """Make a chain of `members`: each starts when the one before has completed a chunk.

    `members`: operations or stages (fused operations), from producer to consumer. The result has
    the new program and the record of the checked conditions; `program` is not changed. Raises
    `RefusedMoveError` for the first violated condition:

    1. There are two or more members.
    2. All exist, and none is an operation inside a stage (name the stage instead).
    3. None is in a chain already.
    4. None contains a reduction to a scalar.
    5. None is in a bucket of collectives.
    6. Each member reads a value of the member before it. Both can work in chunks along a common
       dimension.
    7. If one of two successive collectives is uneven, both are, and the later one reads the blocks
       of rows that the earlier one delivers (`row-blocks`).
    8. No other operation is on a path between members.
    9. The chain and a stage do not wait for each other.
    """
    conditions = Conditions("overlap", program, {"members": tuple(members)})
    conditions.require(len(members) > 1, "several", " ".join(members), "no pair", "name two")
    parts = [_find_operations(program, member, conditions) for member in members]
    taken = {name for chain in program.chains for name in chain.members}
    for member in members:
        message = "it is a member of a chain already"
        conditions.require(member not in taken, "one-chain", member, message, "name others")
    for member, part in zip(members, parts, strict=True):
        for operation in part:
            is_chunkable = operation.kind not in REDUCTIONS_TO_SCALARS
            message = f"{operation.kind} in {member} needs all chunks before it gives one"
            cure = "end the chain before it"
            conditions.require(is_chunkable, "chunkable", operation.name, message, cure)
    for part in parts:
        is_apart = part[0].name not in program.buckets
        message = "a bucket starts when the operands of all members are complete"
        cure = "overlap a collective that is not in a bucket"
        conditions.require(is_apart, "chunkable", part[0].name, message, cure)
    dimensions = tuple(
        _check_pair(program, producer, consumer, conditions)
        for producer, consumer in pairwise(parts)
    )
    _check_row_blocks([operation for part in parts for operation in part], conditions)
    # Refuse a chain that has no common order of execution with the rest of the program.
    names = [[operation.name for operation in part] for part in parts]
    inside = [name for part in names for name in part]
    outside = find_between(program, inside)
    culprit = outside[0].name if outside else inside[0]
    message = "it stands between members, so that it orders them as a whole"
    cure = "make it a member, or end the chain before it"
    conditions.require(not outside, "no-other-order", culprit, message, cure)
    groups = [stage.members for stage in program.stages if stage.members[0] not in inside]
    order = order_groups(program.operations, [*groups, inside])
    message = "members and another stage would wait for one another"
    conditions.require(order is not None, "no-other-order", culprit, message, "fuse less")
    resources = [_find_resource(part) for part in parts]
    note = f"resources: {', '.join(resources)}"
    chains = (*program.chains, Chain(tuple(members), dimensions))
    return Rewrite(program.with_stages(program.stages, chains), conditions.to_record((note,)))


Part = list[Operation]
"""The operations of one member of a chain."""


def _find_operations(program: Program, member: str, conditions: Conditions) -> Part:
    """Return the operations that a member names: one operation, or all of a stage in order.

    The met condition is recorded in `conditions`. Raises `RefusedMoveError` for an unknown name,
    and for an operation inside a stage (the name of the stage is required instead).
    """
    for stage in program.stages:
        if member in stage.members:
            message = f"it is one of several operations of stage {stage.name}"
            raise conditions.build_refusal("whole-stages", member, message, f"name {stage.name}")
        if member == stage.name:
            conditions.require(True, "whole-stages", member, "", "")
            return [program.by_name[name] for name in stage.members]
    operation = program.by_name.get(member)
    message = "no operation and no stage has this name"
    conditions.require(operation is not None, "target", member, message, "name one of them")
    return [operation] if operation else []


def _check_row_blocks(operations: Sequence[Operation], conditions: Conditions) -> None:
    """Require that every uneven collective reads the rows of a chunk from one chunk before it.

    `operations`: of all members of a chain, in order. A chunk of an uneven collective has a part of
    the rows of every block, i.e. of the rows from one rank to another. Each pair of successive
    communications of which at least one is uneven is checked. Three conditions are required in this
    order (`Conditions.require`, code `row-blocks`, at the later one):

    1. Both are uneven.
    2. Both use the same axes of the mesh.
    3. The blocks of rows that the earlier one delivers on every rank are those that the later one
       reads. For example, an AllToAllV needs the transposed counts of the one before; an AllGatherV
       and a ReduceScatterV need equal counts.

    Raises `RefusedMoveError` (`row-blocks`) for the first condition that does not hold.
    """
    communications = [operation for operation in operations if operation.is_communication]
    for before, after in pairwise(communications):
        if UNEVEN_COLLECTIVES.isdisjoint((before.kind, after.kind)):
            continue
        is_uneven = UNEVEN_COLLECTIVES.issuperset((before.kind, after.kind))
        message = f"its chunks or those of {before.name} are no chunks of rows by counts"
        cure = "end the chain before it"
        conditions.require(is_uneven, "row-blocks", after.name, message, cure)
        message = f"it exchanges rows along other axes than {before.name}"
        conditions.require(before.axes == after.axes, "row-blocks", after.name, message, cure)
        is_equal = list_row_blocks(before)[1] == list_row_blocks(after)[0]
        message = f"its counts need other blocks of rows than {before.name} delivers"
        cure = f"state counts that return the rows of {before.name}, or end the chain before it"
        conditions.require(is_equal, "row-blocks", after.name, message, cure)


def _check_pair(program: Program, producer: Part, consumer: Part, conditions: Conditions) -> int:
    """Check that two neighbours in a chain can work chunk by chunk; return the dimension of chunks.

    The dimension is counted from the end of the tensor, where 1 is the last. For every value of
    `producer` that `consumer` reads, the producer must be able to deliver it in chunks along this
    dimension (`_find_emitted_dimensions`), and the consumer to read it so
    (`_find_accepted_dimensions`). Of several dimensions, the first one of the tensor is chosen.

    Raises `RefusedMoveError` if the consumer reads none of these values (`consumes`), or if no
    dimension is suitable (`chunkable`). Fulfilled conditions are recorded in `conditions`.
    """
    produced = {operation.name for operation in producer}
    reads = [(reader, name) for reader in consumer for name in reader.reads if name in produced]
    message = "it does not read the member before it"
    cure = "name producer and consumer in their order"
    conditions.require(bool(reads), "consumes", consumer[0].name, message, cure)
    common: set[int] | None = None
    for reader, name in reads:
        emitted = _find_emitted_dimensions(program, producer, name)
        possible = emitted & _find_accepted_dimensions(program, reader, name)
        common = possible if common is None else common & possible
    message = f"no dimension of {reads[0][1]} is one along which both can be cut"
    cure = "end the chain before it"
    conditions.require(bool(common), "chunkable", reads[0][0].name, message, cure)
    return max(common or {0})


def _find_emitted_dimensions(program: Program, part: Part, name: str) -> set[int]:
    """Return the dimensions along which a member of a chain can deliver its value in chunks.

    `part`: the operations of the member; `name`: the value. Dimensions are counted from the
    end of the tensor, where 1 is the last. The first rule that applies:

    1. With a convolution: the first two (batch and channels).
    2. With a rearranging or opaque operation: none.
    3. The dimensions whose size is not 1, except those that an AllToAll exchanges. With an
       uneven collective only its rows, the first dimension.
    """
    if any(operation.kind is Kind.CONV for operation in part):
        # An output position needs neighbouring positions of the input: no chunks along these.
        rank = len(program.types[name].shape)
        return {rank, rank - 1}
    if any(operation.kind in REARRANGING | {Kind.OPAQUE} for operation in part):
        return set()
    dimensions = _find_dimensions(program, name)
    for operation in part:
        dimensions -= _find_exchanged_dimensions(program, operation)
    return dimensions


def _find_exchanged_dimensions(program: Program, operation: Operation) -> set[int]:
    """Return the dimensions along which an operation that exchanges data cannot be chunked.

    Dimensions are counted from the end of the tensor; 1 is the last. The kind decides:

    - AllToAll: the dimension that the first mesh axis of the operation slices in the result,
      and the one that it slices in the operand. The set has one entry if they are equal.
    - Uneven collectives, whose kind ends with V: all dimensions except the first (the rows).
    - Other kinds: the empty set.
    """
    if operation.kind in UNEVEN_COLLECTIVES:
        return set(range(1, len(program.types[operation.name].shape)))
    if operation.kind is not Kind.ALL_TO_ALL:
        return set()
    tensors = [program.types[name] for name in (operation.name, operation.reads[0])]
    axis = find_axis_positions(program, operation)[0]
    return {len(tensor.shape) - tensor.layout.by_axis[axis].dimension for tensor in tensors}


def _find_accepted_dimensions(program: Program, reader: Operation, name: str) -> set[int]:
    """Return the dimensions along which `reader` can read the value `name` in chunks.

    They are counted from the end of the tensor, where 1 is the last.

    - A contraction accepts the row dimensions of its first operand (`find_axes`: for a
      MatMul all but the last, for a BatchMatMul the last but one, for a Conv the batch),
      and of its second operand the one that becomes a dimension of the result. A value that
      is both operands counts as the first.
    - Transposing, opaque and `REARRANGING` operations (such as RowReduce or Gather) accept
      none.
    - Other operations accept the dimensions whose size is not 1, except those of
      `_find_exchanged_dimensions`.
    """
    if reader.kind in REARRANGING | {Kind.TRANSPOSE, Kind.OPAQUE}:
        # A chunk of the operand is not a contiguous chunk of the result, or may not be one.
        return set()
    if reader.kind not in CONTRACTIONS:
        return _find_dimensions(program, name) - _find_exchanged_dimensions(program, reader)
    rank = len(program.types[name].shape)
    axes = find_axes(reader.kind, len(program.types[reader.reads[0]].shape))
    rows = axes.rows if name == reader.reads[0] else (axes.w_free,)
    return {rank - row for row in rows}


def _find_dimensions(program: Program, name: str) -> set[int]:
    """Return the dimensions of the tensor `name` whose size is not 1; empty for a scalar.

    They are counted from the end, where 1 is the last. Dimensions of symbolic size count.
    """
    shape = program.types[name].shape
    return {len(shape) - index for index, size in enumerate(shape) if size != 1}


def _find_resource(part: Part) -> str:
    """Return the name of the resource that a member of a chain occupies.

    It is `network` if the member has a Send (between groups), otherwise `intra-node link` if it has
    another communication, otherwise `compute`.
    """
    kinds = {operation.kind for operation in part}
    if Kind.SEND in kinds:
        return "network"
    communicates = any(operation.is_communication for operation in part)
    return "intra-node link" if communicates else "compute"
