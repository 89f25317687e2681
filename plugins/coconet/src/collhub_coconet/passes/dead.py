"""Pass `dead`: remove operations whose results are unused."""

from __future__ import annotations

from collhub_coconet.passes.options import StatedOptions
from collhub_coconet.passes.rewritten_workload import rewrite_workload
from collhub_coconet.transformations.dead import remove_dead
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: StatedOptions) -> tuple[Workload, PassReport]:
    """Keep only operations that an output or an Update needs; return the new workload and a report.

    The remaining passes remove such operations, too. Raises the exceptions of `rewrite_workload`.
    """
    return rewrite_workload(workload, options, remove_dead)
