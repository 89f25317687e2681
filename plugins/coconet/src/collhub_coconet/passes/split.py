"""Split an AllReduce into ReduceScatter and AllGather."""

from __future__ import annotations

from collhub_coconet.passes.options import ScatterOptions
from collhub_coconet.passes.rewritten_workload import rewritten_workload, target_of
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.legality import Rewrite
from collhub_coconet.transformations.split import split
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: ScatterOptions) -> tuple[Workload, PassReport]:
    """The workload with both collectives."""

    def transformation(program: Program) -> Rewrite:
        """The split program."""
        target = target_of(program, options.target, Kind.ALL_REDUCE)
        # The refusal names the condition.
        return split(program, target, options.dimension)

    return rewritten_workload(workload, options, transformation)
