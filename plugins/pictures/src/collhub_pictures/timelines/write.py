"""Write the timeline of a run as a Chrome trace."""

from __future__ import annotations

from collhub_pictures.timelines.timeline import MAX_EVENTS, MAX_RANKS, timeline
from hub_core.model import UsageError
from hub_core.plugin_api import Artifact, NoOptions, ReportRequest, WriteResult


def write(request: ReportRequest, options: NoOptions) -> WriteResult:
    """One file, and a note where it tells sums instead of steps.

    Raises `UsageError` where the run has no times of steps.
    """
    assert request.algorithm is not None
    start, end = request.step_start_ns, request.step_end_ns
    if start is None or end is None:
        raise UsageError(
            "the times of steps are not told here",
            cure="leave out --timeline, or choose another program for the run",
        )
    made = timeline(request.algorithm, request.collective_bytes, start, end)
    artifact = Artifact("", lambda: b"".join(made.content))
    notes = []
    if made.is_summary:
        told = "tells how many steps run at a time in groups of ranks, not the steps"
        notes.append(f"{told}: more than {MAX_RANKS} ranks or {MAX_EVENTS} events")
    return WriteResult([artifact], notes=notes)
