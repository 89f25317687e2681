"""All legal applications of a pass to a workload, with their effect."""

from __future__ import annotations

from collhub_coconet.documents.from_workload import program_of
from collhub_coconet.passes.rewritten_workload import parameter_text
from collhub_coconet.transformations.moves import legal_moves
from hub_core.model import Workload
from hub_core.plugin_api import PassMove


def moves(workload: Workload, name: str) -> list[PassMove]:
    """The legal moves of the transformation of a name; effects are those on one rank.

    Raises `InputError` for a workload whose nodes do not state a program.
    """
    bound = program_of(workload)
    found = []
    # All are made to list those of one pass: there are few.
    for move in legal_moves(bound.program, bound.binding):
        record = move.rewrite.record
        if record.transformation != name:
            continue
        options = {key: parameter_text(value) for key, value in record.parameters.items()}
        found.append(PassMove(options, move.effect.as_fields()))
    return found
