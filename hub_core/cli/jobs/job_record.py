"""JSON report of `collhub simulate` on a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from hub_core.reports import (
    UNSET,
    AnyJson,
    Count,
    Finding,
    JobChangeItem,
    Machine,
    Meta,
    Record,
    Report,
    TimingNote,
    UnsetType,
)


class CommunicationItem(Record, frozen=True, kw_only=True):
    """Time of the calls of one kind, number of ranks and size."""

    kind: str
    ranks: Annotated[int, Meta(ge=0, description="Ranks of the groups; 2 for messages.")]
    bytes: Annotated[Count | None, Meta(description="Null for calls of several sizes.")]
    calls: Count
    time_ns: Annotated[int, Meta(ge=0, description="Time of all calls.")]
    exposed_ns: Annotated[int, Meta(ge=0, description="Part in which the rank does not compute.")]
    most_exposed_ns: Annotated[int, Meta(ge=0, description="Maximum exposed time of a rank.")]
    waiting_ns: Annotated[
        int,
        Meta(ge=0, description="Time until the last member began, or the message was sent."),
    ]


class GroupCommunicationItem(CommunicationItem, frozen=True, kw_only=True):
    """Time of the collectives of one process group and kind; an empty name means all ranks."""

    group: str


class PathNodeItem(Record, frozen=True, kw_only=True):
    """Node of the critical path."""

    rank: Count
    node: Count
    name: str
    kind: str
    start_ns: Count
    end_ns: Count


class CriticalPathItem(Record, frozen=True, kw_only=True):
    """Chain of nodes that determines the time of the job."""

    nodes: Count
    ranks: Count
    ns_by_kind: Mapping[str, Count]
    longest: Sequence[PathNodeItem]


class SimulateWorkloadReport(
    Report, tag="collhub/report-simulate-workload-1", frozen=True, kw_only=True
):
    """Report of `collhub simulate --json` on a workload."""

    source: str
    backend: str
    topology: Annotated[str | None, Meta(description="Null: the network that IN contains.")]
    time_ns: Annotated[
        Count | None,
        Meta(description="Time of the last rank's end; null if a rank never finishes."),
    ]
    rank_finish_ns: Sequence[Count | None]
    rank_exposed_ns: Annotated[
        Sequence[Count | None], Meta(description="Time of each rank in which it does not compute.")
    ]
    slots: Annotated[
        str, Meta(description="Rule that limits the nodes that a rank runs at the same time.")
    ]
    timing: TimingNote
    machine: Machine
    changes: Annotated[
        Sequence[JobChangeItem], Meta(description="The job with one change, simulated again.")
    ]
    details: Annotated[Mapping[str, AnyJson], Meta(description="Further results of the simulator.")]
    diagnostics: Sequence[Finding]
    rank_compute_ns: Annotated[
        Sequence[Count] | UnsetType, Meta(description="Time of each rank in which it computes.")
    ] = UNSET
    communication: Annotated[
        Sequence[CommunicationItem] | UnsetType,
        Meta(description="Collectives and messages, the longest exposed time first."),
    ] = UNSET
    groups: Sequence[GroupCommunicationItem] | UnsetType = UNSET
    critical_path: CriticalPathItem | UnsetType = UNSET
    unlimited_time_ns: Annotated[
        Count | UnsetType | None, Meta(description="With --overlap: time without limits of slots.")
    ] = UNSET
