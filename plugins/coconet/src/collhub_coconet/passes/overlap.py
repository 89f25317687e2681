"""Pass `overlap`: overlap a chain of producers and consumers chunk by chunk."""

from __future__ import annotations

from collhub_coconet.passes.options import OverlapOptions
from collhub_coconet.passes.rewritten_workload import rewrite_workload, split_names
from collhub_coconet.transformations.overlap import overlap
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: OverlapOptions) -> tuple[Workload, PassReport]:
    """Make a chain of the operations or stages `members`; return the new workload and a report.

    Raises `UsageError` without members, and all exceptions of `rewrite_workload`.
    """
    members = split_names(options.members, "members")
    return rewrite_workload(workload, options, lambda program: overlap(program, members))
