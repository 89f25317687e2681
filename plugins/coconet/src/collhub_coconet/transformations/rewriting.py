"""Last steps of transformations: remove dead operations, check stages, build the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from collhub_coconet.program.operations import Argument, Kind, Operand, Operation
from collhub_coconet.program.program import Program, Stage
from collhub_coconet.transformations.legality import Conditions, Rewrite, check_stage


def select_live(operations: Sequence[Operation], outputs: Iterable[str]) -> tuple[Operation, ...]:
    """Select the operations that an output or an Update needs, in their order.

    `operations` are in an order in which values are defined before they are read.
    """
    needed = set(outputs)
    live = []
    # In reverse, all readers of a value are visited before the value.
    for operation in reversed(operations):
        if operation.name in needed or operation.kind is Kind.UPDATE:
            needed.update(operation.reads)
            live.append(operation)
    return tuple(reversed(live))


def remove_dead(program: Program) -> Rewrite:
    """Remove operations that no output and no Update needs, and stages that become empty.

    The record has one condition per removed operation.
    """
    conditions = Conditions("dead", program, {})
    operations = select_live(program.operations, program.outputs)
    live_names = {operation.name for operation in operations}
    for operation in program.operations:
        if operation.name not in live_names:
            conditions.require(True, "no use, no output, no effect", operation.name, "", "")
    stages = tuple(
        replace(stage, members=tuple(name for name in stage.members if name in live_names))
        for stage in program.stages
        if not live_names.isdisjoint(stage.members)
    )
    return Rewrite(replace(program, operations=operations, stages=stages), conditions.to_record())


def build_program(
    program: Program,
    operations: Iterable[Operation],
    conditions: Conditions,
    arguments: tuple[Argument, ...] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Program:
    """Build a program with new operations, and check its types and stages.

    Dead operations are removed. `arguments`: the new arguments, or None for those of `program`.
    `renamed`: new names of stage members by old name. Stages remain, without members that no longer
    exist. Raises `RefusedMoveError` if a stage is no longer one kernel, or if `program` has chains.
    """
    live = select_live(tuple(operations), program.outputs)
    stages = _update_stages(program, {operation.name for operation in live}, renamed or {})
    result = replace(
        program,
        arguments=program.arguments if arguments is None else arguments,
        operations=live,
        stages=(),
        chains=(),
    )
    for stage in stages:
        check_stage(result, stage.members, conditions)
    if program.chains:
        first = program.chains[0].members[0]
        cure = "overlap is the last transformation"
        raise conditions.build_refusal("order", first, "a chain is overlapped already", cure)
    return replace(result, stages=stages) if stages else result


def _update_stages(
    program: Program, live_names: set[str], renamed: Mapping[str, str]
) -> tuple[Stage, ...]:
    """Return the stages with renamed members, without dead members and without empty stages.

    `renamed`: new names by old name; other members keep theirs. `live_names` are new names.
    """
    stages = []
    for stage in program.stages:
        members = [renamed.get(name, name) for name in stage.members]
        live_members = tuple(name for name in members if name in live_names)
        if live_members:
            stages.append(replace(stage, members=live_members))
    return tuple(stages)


def choose_name(program: Program, proposal: str, taken: Iterable[str] = ()) -> str:
    """Choose an unused name: `proposal`, or the first free one of `proposal_2`, `proposal_3`, ...

    `taken`: names that are in use in addition to the values of the program.
    """
    names = {*program.types, *taken}
    if proposal not in names:
        return proposal
    number = 2
    while f"{proposal}_{number}" in names:
        number += 1
    return f"{proposal}_{number}"


def replace_operands(operation: Operation, names: Mapping[str, str]) -> Operation:
    """Copy an operation with renamed operands; `names`: new names by old name.

    Operands that are numbers or not in `names` stay.
    """
    if names.keys().isdisjoint(operation.reads):
        return operation
    operands: list[Operand] = [
        names.get(operand, operand) if isinstance(operand, str) else operand
        for operand in operation.operands
    ]
    return replace(operation, operands=tuple(operands))


def find_operation(program: Program, name: str, kind: Kind, conditions: Conditions) -> Operation:
    """Find the operation with this name. Raises `RefusedMoveError` unless it has this kind."""
    operation = program.by_name.get(name)
    if operation is None or operation.kind is not kind:
        actual = f"it is {operation.kind}" if operation else "no operation has this name"
        message = f"{kind} is expected, {actual}"
        raise conditions.build_refusal("target", name, message, f"name a {kind}")
    return operation


def find_members(program: Program, names: Sequence[str], conditions: Conditions) -> list[Operation]:
    """Find operations by name, in program order. Raises `RefusedMoveError` for unknown names."""
    for name in names:
        if name not in program.by_name:
            raise conditions.build_refusal("target", name, "no operation has this name", "name one")
    chosen = set(names)
    return [operation for operation in program.operations if operation.name in chosen]
