"""Pass `split-at-root`: split an AllReduce into Reduce and Broadcast."""

from __future__ import annotations

from collhub_coconet.passes.options import RootOptions
from collhub_coconet.passes.rewritten_workload import rewrite_workload, select_target
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.legality import Rewrite
from collhub_coconet.transformations.split import split_at_root
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: RootOptions) -> tuple[Workload, PassReport]:
    """Split the AllReduce `target` at rank `root` of its group.

    Returns the new workload and a report. Raises `UsageError` if no target is given and the program
    does not have exactly one AllReduce, and all exceptions of `rewrite_workload`.
    """

    def transformation(program: Program) -> Rewrite:
        target = select_target(program, options.target, Kind.ALL_REDUCE)
        return split_at_root(program, target, options.root)

    return rewrite_workload(workload, options, transformation)
