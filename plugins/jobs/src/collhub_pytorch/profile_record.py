"""JSON report of `collhub profile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from hub_core.reports import (
    UNSET,
    JobChangeItem,
    Machine,
    Meta,
    Record,
    Report,
    TimedMachine,
    TimingNote,
    UnsetType,
)


class KindTimes(Record, frozen=True, kw_only=True):
    """Communications of one kind; times are sums over calls and ranks."""

    kind: str
    calls: int
    transferring_ns: int
    waiting_ns: Annotated[
        int | None,
        Meta(description="Of ranks with files; null if no call has two of them."),
    ]


class WaitedRank(Record, frozen=True, kw_only=True):
    """Rank that started last."""

    rank: int
    calls: Annotated[int, Meta(description="Calls in which the rank started last.")]
    waiting_ns: Annotated[int, Meta(description="Time that the other ranks waited for it.")]


class GroupTimes(KindTimes, frozen=True, kw_only=True):
    """Communications of one kind, size and group; times are sums over calls and ranks."""

    bytes: Annotated[
        int | None, Meta(description="Null where the profile does not state the size.")
    ]
    group: Annotated[str, Meta(description="Empty for all ranks.")]
    rank_count: int
    bus_bandwidth_bytes_per_s: Annotated[
        float | None, Meta(description="As nccl-tests defines it.")
    ]
    stragglers: Sequence[WaitedRank]


class IdleStream(Record, frozen=True, kw_only=True):
    """Gaps between consecutive work of a stream."""

    device: int
    stream: int
    host_wait_ns: Annotated[int, Meta(description="With nothing queued.")]
    kernel_wait_ns: Annotated[
        int, Meta(description="Queued, below the usual delay between kernels.")
    ]
    other_ns: int


class RankTimes(Record, frozen=True, kw_only=True):
    """Times of a rank."""

    rank: int
    span_ns: int
    replayed_span_ns: int
    transferring_ns: int
    waiting_ns: int | None
    overlap_percent: Annotated[float | None, Meta(description="See overlap_definition.")]
    last_count: Annotated[int, Meta(description="Communications that waited for this rank only.")]
    caused_waiting_ns: Annotated[
        int, Meta(description="Time that the other ranks of these communications waited.")
    ]
    computation_ns: Annotated[int, Meta(description="Time in which computations run.")]
    communication_ns: Annotated[int, Meta(description="Time in which communications run.")]
    memory_ns: Annotated[
        int | None,
        Meta(description="Time in which copies and sets of memory run; null without a device."),
    ]
    idle_ns: Annotated[
        int | None, Meta(description="Time in which no work runs; null without a device.")
    ]
    idle_by_stream: Annotated[
        Sequence[IdleStream] | None, Meta(description="Null without a device or a file.")
    ]


class SimulatedCollective(Record, frozen=True, kw_only=True):
    """Simulated time of a collective."""

    kind: str
    bytes: int
    ranks: Sequence[int]
    algorithm: str
    time_ns: int


class ReplayItem(Record, frozen=True, kw_only=True):
    """The job with simulated times of collectives."""

    topology: str
    timing: TimingNote
    machine: Machine
    job_ns: int
    saved_ns: int
    rank_span_ns: Sequence[int]
    simulated: Sequence[SimulatedCollective]


class ComparedSizeClass(Record, frozen=True, kw_only=True):
    """Collectives of one size class: sizes above one power of two up to the next."""

    kind: str
    min_bytes: Annotated[
        int | None,
        Meta(
            description="Input bytes of a rank that occur; null where the profile does not state "
            "them."
        ),
    ]
    max_bytes: int | None
    rank_count: int
    node_count: int | None
    calls: int
    transferring_ns: Annotated[int, Meta(description="Mean over the ranks, summed over the calls.")]
    includes_waiting: Annotated[
        bool, Meta(description="Too few ranks have files to separate waiting from the time.")
    ]
    bus_bandwidth_bytes_per_s: float | None
    machine_bus_bandwidth_bytes_per_s: Annotated[
        float | None,
        Meta(
            description="Of the machine for the same calls; null where its profile does not "
            "predict them."
        ),
    ]
    reached_percent: float | None
    methods: Annotated[
        Sequence[str], Meta(description="measured (at this size), interpolated, model, nominal.")
    ]
    held_out_error: Annotated[
        float | None,
        Meta(
            description="Largest median relative error of the predictions, 0 for measured sizes; "
            "null where not measured."
        ),
    ]
    not_predicted: Annotated[str | None, Meta(description="Reason without a prediction.")]


class MachineSavingItem(Record, frozen=True, kw_only=True):
    """The job replayed with measured times, and with predicted times of slower collectives."""

    replayed_ns: int
    job_ns: int
    saved_ns: int
    min_saved_ns: Annotated[
        int | None,
        Meta(
            description="Saving at the lower limit of the held-out error; null where an error is "
            "not measured."
        ),
    ]
    max_saved_ns: Annotated[int | None, Meta(description="Saving at the upper limit.")]


class MachineComparisonItem(Record, frozen=True, kw_only=True):
    """The collectives compared with those of a measured machine."""

    machine: TimedMachine
    ranks_per_node: int | None
    collectives: Sequence[ComparedSizeClass]
    saving: Annotated[
        MachineSavingItem | None, Meta(description="Null where nothing is predicted.")
    ]


class ProfileReport(Report, tag="collhub/report-profile-1", frozen=True, kw_only=True):
    """Report of `collhub profile --json`."""

    num_ranks: int
    job_ns: Annotated[
        int | None,
        Meta(description="From the first start of a rank to the last end; null without times."),
    ]
    instant_job_ns: Annotated[
        int | None,
        Meta(
            description="job_ns if communication took no time: upper limit of a network's saving."
        ),
    ]
    collectives: Sequence[GroupTimes]
    kinds: Sequence[KindTimes]
    ranks: Sequence[RankTimes]
    overlap_definition: Annotated[
        str | UnsetType, Meta(description="Definition of overlap_percent; absent without times.")
    ] = UNSET
    notes: Sequence[str]
    replay: Annotated[
        ReplayItem | None,
        Meta(description="The job with simulated times of collectives; null without --topology."),
    ]
    machine_comparison: Annotated[
        MachineComparisonItem | None,
        Meta(
            description="The collectives compared with the machine of --machine; null without it."
        ),
    ]
    changes: Annotated[
        Sequence[JobChangeItem],
        Meta(description="The job with one change, simulated or replayed again."),
    ]
