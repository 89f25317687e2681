"""Leave out markers, which take no time; what waited for them waits for their parents."""

from __future__ import annotations

from collhub_job_traces import bridge_markers

from hub_core.model import Workload
from hub_core.plugin_api import NoOptions, PassReport


def run(workload: Workload, options: NoOptions) -> tuple[Workload, PassReport]:
    """Drop all markers; a dependency through a marker becomes a control dependency."""
    bridged, kept = bridge_markers(workload)
    count = len(workload.nodes) - len(kept)
    return bridged, PassReport((f"{count} markers are left out",) if count else ())
