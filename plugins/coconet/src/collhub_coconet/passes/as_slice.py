"""Pass `as-slice`: store replicated states as slices, one per rank."""

from __future__ import annotations

from collhub_coconet.passes.options import StateOptions
from collhub_coconet.passes.rewritten_workload import rewrite_workload, split_names
from collhub_coconet.transformations.as_slice import as_slice
from hub_core.model import Workload
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: StateOptions) -> tuple[Workload, PassReport]:
    """Store the states of the options as slices; return the new workload and a report.

    Raises `UsageError` without states, and all exceptions of `rewrite_workload`.
    """
    states = split_names(options.states, "states")
    return rewrite_workload(workload, options, lambda program: as_slice(program, states))
