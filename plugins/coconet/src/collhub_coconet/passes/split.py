"""Pass `split`: split an AllReduce into ReduceScatter and AllGather."""

from __future__ import annotations

from collhub_coconet.passes.options import ScatterOptions
from collhub_coconet.passes.rewritten_workload import rewrite_workload, select_target
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.legality import Rewrite
from collhub_coconet.transformations.split import split
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: ScatterOptions) -> tuple[Workload, PassReport]:
    """Split the AllReduce `target` along `dimension`; return the new workload and a report.

    Raises `UsageError` if no target is given and the program does not have exactly one AllReduce,
    and all exceptions of `rewrite_workload`.
    """

    def transformation(program: Program) -> Rewrite:
        target = select_target(program, options.target, Kind.ALL_REDUCE)
        return split(program, target, options.dimension)

    return rewrite_workload(workload, options, transformation)
