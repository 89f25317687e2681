"""JSON reports of `collhub topology show`, `check`, `draw` and `convert`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from hub_core.reports import UNSET, Artifacts, Count, Finding, Meta, Record, Report, UnsetType

NodeKind = Annotated[str, Meta(extra_json_schema={"enum": ["NPU", "switch"]})]
Bandwidth = Annotated[float, Meta(gt=0)]
Latency = Annotated[float, Meta(ge=0)]
NumNpus = Annotated[int, Meta(ge=1)]
NumLinks = Annotated[int, Meta(ge=0, description="Number of directed links.")]
BothWays = Annotated[Sequence[Latency], Meta(min_length=2, max_length=2)]


class DimensionItem(Record, frozen=True, kw_only=True):
    """Dimension of a regular network."""

    kind: Annotated[
        str, Meta(extra_json_schema={"enum": ["line", "ring", "fully-connected", "switch"]})
    ]
    size: NumNpus
    bandwidth_bytes_per_s: Bandwidth
    latency_s: Latency


class LinkClassItem(Record, frozen=True, kw_only=True):
    """Directed links with equal kinds of ends, bandwidth and latency."""

    source: NodeKind = msgspec.field(name="from")
    destination: NodeKind = msgspec.field(name="to")
    bandwidth_bytes_per_s: Bandwidth
    latency_s: Latency
    count: NumNpus


class HalfCutItem(Record, frozen=True, kw_only=True):
    """Links between the lower and the upper half of a dimension: [upwards, downwards]."""

    dimension: Count
    links: BothWays
    bandwidth_bytes_per_s: BothWays


class LinkItem(Record, frozen=True, kw_only=True):
    """Directed link between two nodes."""

    source: Count = msgspec.field(name="from")
    destination: Count = msgspec.field(name="to")
    bandwidth_bytes_per_s: Bandwidth
    latency_s: Latency


class TopologyShowReport(Report, tag="collhub/report-topology-show-1", frozen=True, kw_only=True):
    """Report of `collhub topology show --json`; ids of nodes: NPUs from 0, then switches."""

    topology: str
    npus: NumNpus
    switches: Count
    num_links: NumLinks
    dimensions: Annotated[
        Sequence[DimensionItem],
        Meta(description="Of a regular network, the fastest first; otherwise empty."),
    ]
    link_classes: Annotated[
        Sequence[LinkClassItem], Meta(description="The class with most links first.")
    ]
    nodes: Annotated[
        Mapping[str, Mapping[str, BothWays]],
        Meta(
            description="By kind of node (NPU, switch): [smallest, largest] number of links and sum"
            " of their bandwidths, `links_out`, `links_in`, `bandwidth_out_bytes_per_s` and "
            "`bandwidth_in_bytes_per_s`."
        ),
    ]
    diameter_links: Annotated[
        int | None,
        Meta(
            description="Links of the longest shortest path between two NPUs; null if a path is "
            "missing or the search would take too long."
        ),
    ]
    half_cuts: Sequence[HalfCutItem]
    node_names: Annotated[Sequence[str], Meta(description="One name per node, or empty.")]
    groups: Mapping[str, Sequence[Count]]
    multicast: Annotated[
        Sequence[int], Meta(description="Switches that forward copies of a message.")
    ]
    reduce: Annotated[Sequence[int], Meta(description="Switches that reduce messages.")]
    switch_bytes_per_s: Annotated[
        float | None,
        Meta(
            description="Measured bytes per second of an all-reduce in these switches; null without"
            " such switches, and if they work at the rate of their links."
        ),
    ]
    links: Annotated[Sequence[LinkItem] | UnsetType, Meta(description="Only with --links.")] = UNSET


class TopologyCheckReport(Report, tag="collhub/report-topology-check-1", frozen=True, kw_only=True):
    """Report of `collhub topology check --json`."""

    topology: str
    ok: Annotated[bool, Meta(description="Every NPU reaches every other.")]
    npus: NumNpus
    switches: Count
    num_links: NumLinks
    collective_bytes: Annotated[
        int | None, Meta(description="Size of the bounds; null if no size was given.")
    ]
    bounds_ns: Annotated[
        Mapping[str, Count],
        Meta(
            description="Proven lower bound of the time by collective, with NPU 0 as root. Empty "
            "without a size, or if `ok` is false."
        ),
    ]
    bounds_ps: Mapping[str, Count]
    bound_methods: Annotated[
        Mapping[str, str],
        Meta(description="Offer that proves each bound; `links`: the bound of the core."),
    ]
    diagnostics: Sequence[Finding]


class TopologyWriteReport(Report, tag="collhub/report-topology-write-1", frozen=True, kw_only=True):
    """Report of `collhub topology draw --json` and `collhub topology convert --json`."""

    topology: str
    artifacts: Artifacts
