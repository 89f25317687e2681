"""Offers of this distribution to the hub: whole jobs as Chakra traces and as documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collhub_job_traces.options import JobReadOptions

from hub_core.plugin_api import (
    AlgorithmPass,
    Check,
    Format,
    Layout,
    NoOptions,
    OptionType,
    RuleSet,
    Subject,
    WorkloadReader,
    WorkloadWriter,
    hookimpl,
    option,
    optional,
)


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """Factor of the durations, and the ranks to which it applies."""

    factor: float = option(
        OptionType.FLOAT, 1.5, "by which computations take longer", minimum=1e-6, maximum=1e6
    )
    ranks: str | None = optional("of these ranks alone, as 0,4-7: stragglers (default: all)")


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """Number of pieces per collective."""

    pieces: int = option(
        OptionType.INT, 2, "collectives in place of one", minimum=2, maximum=1 << 16
    )


@dataclass(frozen=True, slots=True)
class FuseOptions:
    """Maximum size of a bucket."""

    size: int = option(OptionType.SIZE, 25 << 20, "bytes of a bucket at most", minimum=1)


COLLHUB_PLUGIN_API = (1, 0)

# Name -> description and options of a pass.
_PASSES = {
    "scale-compute": ("computations of some ranks take longer or shorter", ScaleOptions),
    "drop-markers": ("leaves out markers, which take no time", NoOptions),
    "split-collectives": ("cuts collectives into several", SplitOptions),
    "fuse-collectives": ("joins small all-reduces into buckets", FuseOptions),
}

CHAKRA_WORKLOAD = Format(
    "chakra-workload",
    "Chakra execution traces of whole jobs, one file per rank",
    (".et",),
    layout=Layout.PREFIX,
)

CHAKRA_JSON_WORKLOAD = Format(
    "chakra-json-workload",
    "Chakra execution traces of whole jobs in JSON (chakra_jsonizer, feeder), one file per rank",
    (".json", ".json.gz"),
    layout=Layout.PREFIX,
)

DOCUMENT = Format(
    "workload-json",
    "JSON document of a whole job",
    (".json",),
    rb'"collhub/workload-\d+"',
    members=("schema", "num_ranks", "groups", "names", "nodes"),
)


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Describe the readers."""
    return [
        WorkloadReader(
            DOCUMENT,
            "collhub_jobs.documents:read",
            samples="collhub_jobs.documents:documents",
        ),
        WorkloadReader(
            CHAKRA_WORKLOAD,
            "collhub_job_traces.reading:read",
            JobReadOptions,
            samples="collhub_jobs.documents:samples",
            claims="collhub_job_traces.reading:claims",
        ),
        WorkloadReader(
            CHAKRA_JSON_WORKLOAD,
            "collhub_job_traces.reading:read",
            JobReadOptions,
            samples="collhub_jobs.documents:json_samples",
            claims="collhub_job_traces.reading:claims",
        ),
    ]


@hookimpl
def collhub_consumers() -> Sequence[WorkloadWriter]:
    """Describe the writers."""
    return [
        WorkloadWriter(DOCUMENT, "collhub_jobs.documents:write"),
        WorkloadWriter(CHAKRA_WORKLOAD, "collhub_job_traces.writing:write"),
    ]


@hookimpl
def collhub_passes() -> Sequence[AlgorithmPass]:
    """Describe the passes."""
    return [
        AlgorithmPass(
            name,
            description,
            f"collhub_jobs.passes:{name.replace('-', '_')}",
            options,
            Subject.WORKLOAD,
        )
        for name, (description, options) in _PASSES.items()
    ]


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Describe the check of workloads."""
    return [
        Check(
            "workload",
            Subject.WORKLOAD,
            "dependencies, messages and collectives of whole jobs",
            "collhub_jobs.check:run",
        ),
        RuleSet("jobs", "findings in workloads", "collhub_jobs.rules:list_rules"),
    ]
