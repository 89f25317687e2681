"""List all legal applications of a pass to a workload, with their effects."""

from __future__ import annotations

from collhub_coconet.documents.from_workload import program_of
from collhub_coconet.passes.rewritten_workload import format_parameter
from collhub_coconet.transformations.moves import legal_moves
from hub_core.model import Workload
from hub_core.plugin_api import PassMove


def moves(workload: Workload, name: str) -> list[PassMove]:
    """List the legal applications of the pass `name`: its options and the effect on one rank.

    Programs have few legal moves, so all are built and those of other passes are dropped. Raises
    `InputError` for a workload whose nodes do not describe a program.
    """
    bound = program_of(workload)
    listed = []
    for move in legal_moves(bound.program, bound.binding):
        record = move.rewrite.record
        if record.transformation != name:
            continue
        options = {key: format_parameter(value) for key, value in record.parameters.items()}
        listed.append(PassMove(options, move.effect.as_fields()))
    return listed
