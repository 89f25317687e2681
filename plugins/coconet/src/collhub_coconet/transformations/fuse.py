"""Fuse: one kernel for a set of pointwise operations, with at most one communication."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_coconet.program.graph import contracted_order
from collhub_coconet.program.program import Program, Stage
from collhub_coconet.transformations.legality import Conditions, Rewrite
from collhub_coconet.transformations.rewriting import fresh, members_of
from collhub_coconet.transformations.stage_conditions import check_stage


def fuse(program: Program, members: Sequence[str], name: str = "fused") -> Rewrite:
    """Make one stage of `members`, names of operations or of stages. Raises `RefusedMoveError`.

    Pointwise: every outside operand is read once, every live-out written once. With ReduceScatter
    and AllGathers: a fused all-reduce, in which the computation stands between the last reduction
    of a chunk and its first send. With Send: a chunk is computed just before it leaves.
    """
    conditions = Conditions("fuse", program, {"members": tuple(members), "name": name})
    inner = {stage.name: stage.members for stage in program.stages}
    names = [one for member in members for one in inner.get(member, (member,))]
    chosen = members_of(program, names, conditions)
    inside = {operation.name for operation in chosen}
    first = chosen[0].name if chosen else name
    conditions.require(len(inside) > 1, "several", first, "one operation is a kernel", "add one")
    kept = [stage for stage in program.stages if inside.isdisjoint(stage.members)]
    torn = [
        stage
        for stage in program.stages
        if stage not in kept and not inside.issuperset(stage.members)
    ]
    who = torn[0].name if torn else first
    message = "the stage has members outside the set"
    conditions.require(not torn, "whole-stages", who, message, "name the stage itself")
    chain = next((one for one in program.chains), None)
    who = chain.members[0] if chain else first
    message = "a chain is overlapped already"
    conditions.require(chain is None, "order", who, message, "overlap is the last transformation")
    family = check_stage(program, sorted(inside), conditions)
    label = fresh(program, name, [stage.name for stage in kept])
    ordered = tuple(operation.name for operation in chosen)
    stages = (*kept, Stage(label, family, ordered))
    _check_other_stages(program, stages, conditions)
    return Rewrite(program.with_stages(stages, program.chains), conditions.record())


def _check_other_stages(
    program: Program, stages: tuple[Stage, ...], conditions: Conditions
) -> None:
    """Two stages, each without a cycle, may wait for one another."""
    # Each stage as one node: an order exists where they make no cycle.
    order = contracted_order(program.operations, [stage.members for stage in stages])
    message = "it and another stage would wait for one another"
    cure = "fuse both stages into one"
    conditions.require(order is not None, "no-cycle", stages[-1].members[0], message, cure)
