"""Move computations before an AllGather, onto slices."""

from __future__ import annotations

from collhub_coconet.passes.options import ReorderOptions
from collhub_coconet.passes.rewritten_workload import (
    names_of,
    rewritten_workload,
    target_of,
)
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.legality import Rewrite
from collhub_coconet.transformations.reorder import movable, reorder
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: ReorderOptions) -> tuple[Workload, PassReport]:
    """The workload after the move."""

    def transformation(program: Program) -> Rewrite:
        """The program after the move of the stated members, or of all that can move."""
        target = target_of(program, options.target, Kind.ALL_GATHER)
        # Of another operation nothing moves, and `reorder` says why.
        is_gather = target in program.by_name and program.by_name[target].kind is Kind.ALL_GATHER
        if options.members or not is_gather:
            return reorder(program, target, names_of(options.members or target, "members"))
        return reorder(program, target, movable(program, target))

    return rewritten_workload(workload, options, transformation)
