"""Remove dead code: operations that are unused, are not outputs and update no state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.legality import Conditions, Rewrite


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
