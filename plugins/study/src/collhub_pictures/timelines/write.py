"""Write the timeline of a run as a Chrome trace."""

from __future__ import annotations

from collhub_pictures.timelines.subjects import AlgorithmSteps, JobNodes, Subject
from collhub_pictures.timelines.timeline import MAX_EVENTS, MAX_RANKS, timeline
from hub_core.model import UsageError
from hub_core.plugin_api import Artifact, NoOptions, ReportRequest, WriteResult


def write(request: ReportRequest, options: NoOptions) -> WriteResult:
    """One file of an algorithm's run, and a note where it tells sums instead of steps.

    Raises `UsageError` where the run has no times of steps.
    """
    assert request.algorithm is not None
    return _written(request, AlgorithmSteps(request.algorithm, request.collective_bytes))


def write_job(request: ReportRequest, options: NoOptions) -> WriteResult:
    """Likewise of a job and its nodes."""
    assert request.workload is not None
    return _written(request, JobNodes(request.workload))


def _written(request: ReportRequest, subject: Subject) -> WriteResult:
    start, end = request.step_start_ns, request.step_end_ns
    if start is None or end is None:
        raise UsageError(
            f"the times of {subject.noun}s are not told here",
            cure="leave out --timeline, or choose another program for the run",
        )
    made = timeline(subject, start, end)
    artifact = Artifact("", lambda: b"".join(made.content))
    notes = []
    if made.is_summary:
        rows = f"{subject.noun}s"
        told = f"tells how many {rows} run at a time in groups of ranks, not the {rows}"
        notes.append(f"{told}: more than {MAX_RANKS} ranks or {MAX_EVENTS} events")
    return WriteResult([artifact], notes=notes)
