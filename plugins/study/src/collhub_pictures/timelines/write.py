"""Write the timeline of a run as a Chrome trace for Perfetto and chrome://tracing."""

from __future__ import annotations

from collhub_drawing.subjects import AlgorithmSteps, JobNodes, Subject

from collhub_pictures.timelines.events import MAX_EVENTS, MAX_RANKS, build_timeline
from hub_core.model import UsageError
from hub_core.plugin_api import Artifact, JobTimeline, NoOptions, RunTimeline, WriteResult


def write(timeline: RunTimeline, options: NoOptions) -> WriteResult:
    """Write the timeline of an algorithm's run, with a note if it is only a summary.

    Raises `UsageError` if the run has no times of steps.
    """
    steps = AlgorithmSteps(timeline.algorithm, timeline.collective_bytes)
    return _write_timeline(timeline, steps)


def write_job(timeline: JobTimeline, options: NoOptions) -> WriteResult:
    """Write the timeline of a job's nodes, with a note if it is only a summary.

    Raises `UsageError` if the run has no times of nodes.
    """
    return _write_timeline(timeline, JobNodes(timeline.workload))


def _write_timeline(timeline: RunTimeline | JobTimeline, subject: Subject) -> WriteResult:
    start, end = timeline.step_start_ns, timeline.step_end_ns
    if start is None or end is None:
        raise UsageError(
            f"the times of {subject.noun}s are not told here",
            cure="leave out --timeline, or choose another program for the run",
        )
    trace = build_timeline(subject, start, end, timeline.excerpt)
    artifact = Artifact("", lambda: b"".join(trace.content))
    notes = []
    if trace.is_summary:
        rows = f"{subject.noun}s"
        summary = f"tells how many {rows} run at a time in groups of ranks, not the {rows}"
        notes.append(f"{summary}: more than {MAX_RANKS} ranks or {MAX_EVENTS} events")
    return WriteResult([artifact], notes=notes)
