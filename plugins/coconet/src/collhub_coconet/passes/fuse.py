"""Pass `fuse`: combine operations into one kernel."""

from __future__ import annotations

from collhub_coconet.passes.options import FuseOptions
from collhub_coconet.passes.rewritten_workload import rewrite_workload, split_names
from collhub_coconet.transformations.fuse import fuse
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: FuseOptions) -> tuple[Workload, PassReport]:
    """Combine the operations `members` into a stage `name`; return the new workload and a report.

    Raises `UsageError` without members, and all exceptions of `rewrite_workload`.
    """
    members, name = split_names(options.members, "members"), options.name
    return rewrite_workload(workload, options, lambda program: fuse(program, members, name))
