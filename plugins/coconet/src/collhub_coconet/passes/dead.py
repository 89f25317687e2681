"""Leave out operations that nobody needs."""

from __future__ import annotations

from collhub_coconet.passes.options import StatedOptions
from collhub_coconet.passes.rewritten_workload import rewritten_workload
from collhub_coconet.transformations.dead import remove_dead
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: StatedOptions) -> tuple[Workload, PassReport]:
    """The workload of what an output or an Update needs."""
    # Every other pass ends with it, too.
    return rewritten_workload(workload, options, remove_dead)
