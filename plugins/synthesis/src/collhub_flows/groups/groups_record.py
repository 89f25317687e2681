"""JSON report of `collhub groups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from hub_core.reports import Artifacts, Cuts, Meta, Record, Report


class GroupItem(Record, frozen=True, kw_only=True):
    """Process group with its collective."""

    npus: Annotated[Sequence[int], Meta(description="NPU of every rank.")]
    collective: str
    size: Annotated[int, Meta(description="Bytes of the full buffer.")]
    counts: Annotated[
        str,
        Meta(description="Counts of an uneven collective: a file, or as `zipf:1.2`; else empty."),
    ]
    start_ns: Annotated[
        int, Meta(description="Start: no message of the group is sent before this time.")
    ]
    alone_ns: Annotated[
        int, Meta(description="Time of the group in isolation, with other NPUs as relays.")
    ]
    alone_maker: Annotated[
        str, Meta(description="Synthesizer of the fastest algorithm of the group in isolation.")
    ]


class UntriedGroup(Record, frozen=True, kw_only=True):
    """Group for which the named synthesizer did not run."""

    name: str
    reason: str


class GroupsReport(Report, tag="collhub/report-groups-1", frozen=True, kw_only=True):
    """Report of `collhub groups --json`."""

    topology: str
    occupancy: Annotated[str, Meta(extra_json_schema={"enum": ["serialization", "alpha-beta"]})]
    groups: Annotated[Sequence[GroupItem], Meta(min_length=1)]
    method: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["together", "at once", "one by one"]},
            description="One schedule; separate schedules started at once; or one after another.",
        ),
    ]
    time_ns: Annotated[int, Meta(description="Simulated time of all groups.")]
    one_by_one_ns: Annotated[int, Meta(description="Sum of the times of all groups in isolation.")]
    ratio: Annotated[float, Meta(description="`one_by_one_ns` divided by `time_ns`.")]
    bounds_ns: Annotated[Mapping[str, int], Meta(description="Lower bounds by name.")]
    bound_ns: Annotated[int, Meta(description="The largest bound, at least 1.")]
    ratio_to_bound: float
    synthesis_s: float
    synthesis_cpu_s: float
    verified: Annotated[int, Meta(description="Number of algorithms that were verified.")]
    is_partial: Annotated[
        bool, Meta(description="The search left something out (`not_tried` or `cut`).")
    ]
    not_tried: Sequence[UntriedGroup]
    cut: Cuts
    artifacts: Artifacts
