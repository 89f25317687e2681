"""Reports of `collhub inspect`: an algorithm, a workload, or traces that are neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from hub_core.model.algorithm import Provenance
from hub_core.reports import AnyJson, Count, Meta, Record, Report

_COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce"),
    *("gather", "scatter", "all-to-all-v", "all-gather-v", "reduce-scatter-v", "custom"),
)
CountsByName = Mapping[str, Count]
LinkFigures = Annotated[
    Mapping[str, Count] | None,
    Meta(extra_json_schema={"propertyNames": {"pattern": "^[0-9]+->[0-9]+$"}}),
]


class ModeFlags(Record, frozen=True, kw_only=True):
    """One truth value for each mode of a call."""

    in_place: bool
    out_of_place: bool


class DependencyCounts(Record, frozen=True, kw_only=True):
    """Numbers of data and control dependencies."""

    data: Count
    control: Count


class ChainLengths(Record, frozen=True, kw_only=True):
    """Length of the longest chain of steps, and of messages."""

    steps: Count
    messages: Count


class Origin(Record, frozen=True, kw_only=True):
    """Producer of a file and the source file that it read."""

    producer: str
    producer_version: str
    source_name: str
    source_sha256: str
    options: Mapping[str, str]


class InspectReport(Report, tag="collhub/report-inspect-1", frozen=True, kw_only=True):
    """Report of `collhub inspect --json` on an algorithm."""

    source: str
    format: str
    collective: Annotated[str, Meta(extra_json_schema={"enum": [*_COLLECTIVES]})]
    root: Count | None
    reduce_op: Annotated[
        str | None, Meta(extra_json_schema={"enum": ["sum", "prod", "min", "max", "avg", None]})
    ]
    claims: ModeFlags
    has_contents: Annotated[bool, Meta(description="False for timing-only traces.")]
    num_ranks: Count
    npus: Annotated[Sequence[Count], Meta(description="NPU of each rank.")]
    topology: Annotated[str | None, Meta(description="Name of the network that IN contains.")]
    unit_count: Count
    scratch_units: Annotated[Sequence[Count], Meta(description="By rank.")]
    collective_bytes: Annotated[Count | None, Meta(description="Size that IN states.")]
    steps: Count
    steps_by_kind: CountsByName
    channels: Annotated[int, Meta(ge=0, description="Number of different channels.")]
    lanes: Annotated[
        int, Meta(ge=0, description="Maximum number of lanes of a rank; 0 if IN states none.")
    ]
    longest_lane: Annotated[
        int,
        Meta(
            ge=0,
            description="Steps of the longest lane; a receive and the send fused with it are one.",
        ),
    ]
    fused_steps: Annotated[
        int,
        Meta(
            ge=0,
            description="Sends of all ranks that form one instruction with the receive before.",
        ),
    ]
    dependencies: DependencyCounts
    units_by_link: Annotated[LinkFigures, Meta(description="Units sent from rank to rank.")]
    bytes_by_link: Annotated[
        LinkFigures,
        Meta(
            description="Bytes sent from rank to rank; null if the size is unknown (--size gives "
            "one)."
        ),
    ]
    critical_path: Annotated[
        ChainLengths | None, Meta(description="Null if the dependencies have a cycle.")
    ]
    provenance: Origin
    extensions: Annotated[Sequence[str], Meta(description="Names of the kept vendor data.")]
    stated: Annotated[
        Mapping[str, Mapping[str, AnyJson]],
        Meta(
            description="Scalar values of the vendor data by its name, such as a time that a "
            "solver claims."
        ),
    ]


class CollectiveCalls(Record, frozen=True, kw_only=True):
    """Collectives of one kind, size and number of ranks; `calls`: sum over all ranks."""

    collective: str
    ranks: Count
    bytes: Annotated[Count, Meta(description="Size; also 0 if IN does not state it.")]
    groups: Count
    calls: Count


class InspectWorkloadReport(
    Report, tag="collhub/report-inspect-workload-1", frozen=True, kw_only=True
):
    """Report of `collhub inspect --json` on a workload."""

    source: str
    format: str
    num_ranks: Count
    nodes: Count
    nodes_by_kind: CountsByName
    dependencies: DependencyCounts
    process_groups: Annotated[
        Mapping[str, Sequence[Count]],
        Meta(description="Ranks by name of the group, in the order of their positions."),
    ]
    stated_compute_ns: Annotated[
        int, Meta(ge=0, description="Sum of the stated durations of all ranks.")
    ]
    collectives: Annotated[Sequence[CollectiveCalls], Meta(description="Most traffic first.")]
    provenance: Origin
    extensions: Sequence[str]
    lines: Annotated[
        Sequence[str], Meta(description="Lines that the reader adds, such as the program's text.")
    ]


class ReferenceCounts(DependencyCounts, frozen=True, kw_only=True):
    """Dependencies; `forward`: on later nodes of the file; `dangling`: on missing nodes."""

    forward: Count
    dangling: Count


class AttributeUse(Record, frozen=True):
    """Number of nodes of one type with an attribute of one kind (empty: without a value)."""

    node_type: str
    name: str
    kind: str
    count: Count


class SurveyReport(Report, tag="collhub/report-survey-1", frozen=True, kw_only=True):
    """Report of `collhub inspect --json` on traces that are not algorithms."""

    source: str
    format: str
    dialect: str
    num_ranks: Count
    nodes_by_rank: Sequence[Count]
    nodes_by_type: CountsByName
    dependencies: ReferenceCounts
    metadata: Mapping[str, str]
    attributes: Sequence[AttributeUse]


def describe_origin(provenance: Provenance) -> Origin:
    """Return the provenance as part of a report."""
    return Origin(
        producer=provenance.producer,
        producer_version=provenance.producer_version,
        source_name=provenance.source_name,
        source_sha256=provenance.source_sha256,
        options=provenance.options,
    )
