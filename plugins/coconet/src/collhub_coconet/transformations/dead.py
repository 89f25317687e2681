"""Dead code: an operation without use, that is no output and has no effect, goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.legality import Conditions, Rewrite


def live(operations: Sequence[Operation], outputs: Iterable[str]) -> tuple[Operation, ...]:
    """Operations that an output or an Update needs, in their order."""
    needed = set(outputs)
    kept = []
    # From the end: whoever reads a value is judged before it.
    for operation in reversed(operations):
        if operation.name in needed or operation.kind is Kind.UPDATE:
            needed.update(operation.reads)
            kept.append(operation)
    return tuple(reversed(kept))


def remove_dead(program: Program) -> Rewrite:
    """The program without operations whose result nobody needs."""
    conditions = Conditions("dead", program, {})
    operations = live(program.operations, program.outputs)
    kept = {operation.name for operation in operations}
    for operation in program.operations:
        if operation.name not in kept:
            conditions.require(True, "no use, no output, no effect", operation.name, "", "")
    stages = tuple(
        replace(stage, members=tuple(name for name in stage.members if name in kept))
        for stage in program.stages
        if not kept.isdisjoint(stage.members)
    )
    return Rewrite(replace(program, operations=operations, stages=stages), conditions.record())
