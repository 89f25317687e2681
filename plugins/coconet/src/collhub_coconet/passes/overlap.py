"""Let a chain of producers and consumers work chunk by chunk."""

from __future__ import annotations

from collhub_coconet.passes.options import OverlapOptions
from collhub_coconet.passes.rewritten_workload import names_of, rewritten_workload
from collhub_coconet.transformations.overlap import overlap
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: OverlapOptions) -> tuple[Workload, PassReport]:
    """The workload whose program has the chain."""
    members = names_of(options.members, "members")
    return rewritten_workload(workload, options, lambda program: overlap(program, members))
