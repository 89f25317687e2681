"""Split an AllReduce into Reduce and Broadcast."""

from __future__ import annotations

from collhub_coconet.passes.options import RootOptions
from collhub_coconet.passes.rewritten_workload import rewritten_workload, target_of
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.legality import Rewrite
from collhub_coconet.transformations.split import split_at_root
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: RootOptions) -> tuple[Workload, PassReport]:
    """The workload with both collectives."""

    def transformation(program: Program) -> Rewrite:
        """The split program."""
        target = target_of(program, options.target, Kind.ALL_REDUCE)
        # The refusal names the condition.
        return split_at_root(program, target, options.root)

    return rewritten_workload(workload, options, transformation)
