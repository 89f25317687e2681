"""Make one kernel of several operations."""

from __future__ import annotations

from collhub_coconet.passes.options import FuseOptions
from collhub_coconet.passes.rewritten_workload import names_of, rewritten_workload
from collhub_coconet.transformations.fuse import fuse
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: FuseOptions) -> tuple[Workload, PassReport]:
    """The workload with the fused stage."""
    members, name = names_of(options.members, "members"), options.name
    return rewritten_workload(workload, options, lambda program: fuse(program, members, name))
