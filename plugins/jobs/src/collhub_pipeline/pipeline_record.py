"""JSON report of `collhub pipeline`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from hub_core.reports import Artifacts, Count, Cuts, IsPartial, Meta, Record, Report

ExactNs = Annotated[float, Meta(ge=0, description="Nanoseconds.")]


class PipelineBounds(Record, frozen=True, kw_only=True):
    """Proven lower bounds of the objective for the placement of the schedule, in ns."""

    critical_path_ns: Annotated[
        float, Meta(ge=0, description="One micro-batch alone; 0 for the steady state.")
    ]
    work_ns: Annotated[float, Meta(ge=0, description="Device with the most work.")]
    memory_ns: Annotated[
        float, Meta(ge=0, description="Activations times lifetimes by the limit; 0 without one.")
    ]


class PipelineDevice(Record, frozen=True, kw_only=True):
    """Device of a pipeline."""

    stages: Sequence[Count]
    work_ns: ExactNs
    idle_ns: Annotated[
        float, Meta(ge=0, description="Between its first start and its last end, in ns.")
    ]
    peak: Annotated[
        float,
        Meta(ge=0, description="Activations, in micro-batches of an equally divided model."),
    ]
    limit: Annotated[float | None, Meta(description="Memory limit; null without one.")]


class PipelineReport(Report, tag="collhub/report-pipeline-1", frozen=True, kw_only=True):
    """Report of `collhub pipeline --json`."""

    schedule: Annotated[str, Meta(description="Name of the schedule; `search` if it has none.")]
    placement: Annotated[
        str, Meta(extra_json_schema={"enum": ["chunk", "loops", "waves", "other"]})
    ]
    num_stages: Count
    micro_batches: Count
    slices: Annotated[int, Meta(ge=1, description="Token slices of a micro-batch.")]
    recomputed: Annotated[Sequence[Count], Meta(description="Stages that recompute.")]
    objective: Annotated[str, Meta(extra_json_schema={"enum": ["step", "steady"]})]
    step_ns: Annotated[float, Meta(ge=0, description="Time of one step.")]
    steady_ns: Annotated[
        float, Meta(ge=0, description="Time of each of many steps without a flush between them.")
    ]
    bubble: Annotated[
        float, Meta(ge=0, le=1, description="Part of the objective without work of the device.")
    ]
    bounds: Annotated[
        PipelineBounds | None, Meta(description="Null for schedules in two directions.")
    ]
    search_bound_ns: Annotated[
        float | None,
        Meta(description="Bound of all placements of a search; null without a search."),
    ]
    is_optimal: Annotated[bool, Meta(description="The objective is equal to a proven bound.")]
    devices: Annotated[Sequence[PipelineDevice], Meta(min_length=1)]
    is_partial: IsPartial
    cut: Cuts
    artifacts: Artifacts
