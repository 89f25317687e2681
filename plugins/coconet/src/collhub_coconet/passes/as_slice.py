"""Store states as slices."""

from __future__ import annotations

from collhub_coconet.passes.options import StateOptions
from collhub_coconet.passes.rewritten_workload import names_of, rewritten_workload
from collhub_coconet.transformations.as_slice import as_slice
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: StateOptions) -> tuple[Workload, PassReport]:
    """The workload with smaller states."""
    states = names_of(options.states, "states")
    return rewritten_workload(workload, options, lambda program: as_slice(program, states))
