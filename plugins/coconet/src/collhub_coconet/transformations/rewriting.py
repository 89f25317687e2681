"""The end of every transformation: dead code goes, stages are held to their conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from collhub_coconet.program.operations import Argument, Kind, Operand, Operation
from collhub_coconet.program.program import Program, Stage
from collhub_coconet.transformations.dead import live
from collhub_coconet.transformations.legality import Conditions
from collhub_coconet.transformations.stage_conditions import check_stage


def rewritten(
    program: Program,
    operations: Iterable[Operation],
    conditions: Conditions,
    arguments: tuple[Argument, ...] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Program:
    """A program with other operations, typed anew; `renamed`: new names of members of stages.

    Raises `RefusedMoveError` where a fused stage would no longer be one kernel.
    """
    kept = live(tuple(operations), program.outputs)
    stages = _stages(program, {operation.name for operation in kept}, renamed or {})
    result = replace(
        program,
        arguments=program.arguments if arguments is None else arguments,
        operations=kept,
        stages=(),
        chains=(),
    )
    for stage in stages:
        check_stage(result, stage.members, conditions)
    if program.chains:
        first = program.chains[0].members[0]
        cure = "overlap is the last transformation"
        raise conditions.refusal("order", first, "a chain is overlapped already", cure)
    # A program is typed whenever it is built.
    return replace(result, stages=stages) if stages else result


def _stages(program: Program, kept: set[str], renamed: Mapping[str, str]) -> tuple[Stage, ...]:
    """Stages with their members under new names, without those that went."""
    found = []
    for stage in program.stages:
        members = [renamed.get(name, name) for name in stage.members]
        alive = tuple(name for name in members if name in kept)
        if alive:
            found.append(replace(stage, members=alive))
    return tuple(found)


def fresh(program: Program, wanted: str, taken: Iterable[str] = ()) -> str:
    """A name that no value has: `wanted`, or the same with a number."""
    names = {*program.types, *taken}
    if wanted not in names:
        return wanted
    number = 2
    while f"{wanted}_{number}" in names:
        number += 1
    return f"{wanted}_{number}"


def with_operands(operation: Operation, names: Mapping[str, str]) -> Operation:
    """The operation with other values where `names` has one for an operand."""
    if names.keys().isdisjoint(operation.reads):
        return operation
    # Numbers stay as they are.
    operands: list[Operand] = [
        names.get(operand, operand) if isinstance(operand, str) else operand
        for operand in operation.operands
    ]
    return replace(operation, operands=tuple(operands))


def operation_of(program: Program, name: str, kind: Kind, conditions: Conditions) -> Operation:
    """The operation with this name, which must be of this kind."""
    found = program.by_name.get(name)
    if found is None or found.kind is not kind:
        what = f"it is {found.kind}" if found else "no operation has this name"
        raise conditions.refusal("target", name, f"{kind} is expected, {what}", f"name a {kind}")
    return found


def members_of(program: Program, names: Sequence[str], conditions: Conditions) -> list[Operation]:
    """The named operations in program order. Raises `RefusedMoveError` for other names."""
    for name in names:
        if name not in program.by_name:
            raise conditions.refusal("target", name, "no operation has this name", "name one")
    chosen = set(names)
    return [operation for operation in program.operations if operation.name in chosen]
