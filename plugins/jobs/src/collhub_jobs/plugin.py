"""Offers of this distribution to the hub: whole jobs as Chakra execution traces."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_job_traces.options import JobReadOptions

from hub_core.plugin_api import (
    Check,
    Format,
    Layout,
    Subject,
    WorkloadReader,
    WorkloadWriter,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

CHAKRA_WORKLOAD = Format(
    "chakra-workload",
    "Chakra execution traces of whole jobs, one file a rank",
    (".et",),
    layout=Layout.PREFIX,
)


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Describe the reader."""
    return [
        WorkloadReader(
            CHAKRA_WORKLOAD,
            "collhub_job_traces.reading:read",
            JobReadOptions,
            samples="collhub_jobs.samples:samples",
            claims="collhub_job_traces.claiming:claims",
        )
    ]


@hookimpl
def collhub_consumers() -> Sequence[WorkloadWriter]:
    """Describe the writer."""
    return [WorkloadWriter(CHAKRA_WORKLOAD, "collhub_job_traces.writing:write")]


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe the check of workloads."""
    return [
        Check(
            "workload",
            Subject.WORKLOAD,
            "dependencies, messages and collectives of whole jobs",
            "collhub_jobs.check:run",
        )
    ]
