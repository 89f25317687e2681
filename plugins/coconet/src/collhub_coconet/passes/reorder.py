"""Pass `reorder`: move computations before an AllGather, so that each rank computes a slice."""

from __future__ import annotations

from collhub_coconet.passes.options import ReorderOptions
from collhub_coconet.passes.rewritten_workload import (
    rewrite_workload,
    select_target,
    split_names,
)
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.legality import Rewrite
from collhub_coconet.transformations.reorder import movable, reorder
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: ReorderOptions) -> tuple[Workload, PassReport]:
    """Move `members` (default: all that can move) before the AllGather `target`.

    Returns the new workload and a report. Raises `UsageError` if no target is given and the program
    does not have exactly one AllGather, and all exceptions of `rewrite_workload`.
    """

    def transformation(program: Program) -> Rewrite:
        target = select_target(program, options.target, Kind.ALL_GATHER)
        is_gather = target in program.by_name and program.by_name[target].kind is Kind.ALL_GATHER
        # `reorder` explains in its refusal that the target is not an AllGather.
        if options.members or not is_gather:
            return reorder(program, target, split_names(options.members or target, "members"))
        return reorder(program, target, movable(program, target))

    return rewrite_workload(workload, options, transformation)
