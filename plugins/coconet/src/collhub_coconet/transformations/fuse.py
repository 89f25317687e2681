"""Fuse pointwise operations and at most one communication into one kernel."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_coconet.program.graph import contracted_order
from collhub_coconet.program.program import Program, Stage
from collhub_coconet.transformations.legality import Conditions, Rewrite
from collhub_coconet.transformations.rewriting import choose_name, find_members
from collhub_coconet.transformations.stage_conditions import check_stage


def fuse(program: Program, members: Sequence[str], name: str = "fused") -> Rewrite:
    """Combine `members`, names of operations or of complete stages, into one stage called `name`.

    If the name is in use, a number is appended. The kernel reads every operand from outside once
    and writes every value that is used outside once. With a ReduceScatter and AllGathers it is a
    fused all-reduce, which computes on a chunk between its last reduction and its first send. With
    a Send it computes a chunk directly before sending it. Raises `RefusedMoveError` if there is
    only one member, if the members are not one kernel (`check_stage`), if two stages would wait for
    each other, or if the program has a chain.
    """
    conditions = Conditions("fuse", program, {"members": tuple(members), "name": name})
    stage_members = {stage.name: stage.members for stage in program.stages}
    names = [name for member in members for name in stage_members.get(member, (member,))]
    chosen = find_members(program, names, conditions)
    inside = {operation.name for operation in chosen}
    first = chosen[0].name if chosen else name
    conditions.require(len(inside) > 1, "several", first, "one operation is a kernel", "add one")
    remaining = [stage for stage in program.stages if inside.isdisjoint(stage.members)]
    divided = [
        stage
        for stage in program.stages
        if stage not in remaining and not inside.issuperset(stage.members)
    ]
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
    _check_stage_order(program, stages, conditions)
    return Rewrite(program.with_stages(stages, program.chains), conditions.to_record())


def _check_stage_order(program: Program, stages: tuple[Stage, ...], conditions: Conditions) -> None:
    """Refuse stages that have no common order of execution; the last one is the new stage.

    Two stages without a cycle inside can still wait for each other.
    """
    order = contracted_order(program.operations, [stage.members for stage in stages])
    message = "it and another stage would wait for one another"
    cure = "fuse both stages into one"
    conditions.require(order is not None, "no-cycle", stages[-1].members[0], message, cure)
