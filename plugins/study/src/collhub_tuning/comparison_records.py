"""JSON reports of `collhub compare` on a collective and on a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from hub_core.reports import (
    UNSET,
    Count,
    Cuts,
    IsPartial,
    Machine,
    Meta,
    Record,
    Report,
    TimingNote,
    UnsetType,
)

Root = Annotated[Count | None, Meta(description="Root of a rooted collective.")]
Positive = Annotated[int, Meta(ge=1)]
Sizes = Annotated[
    Sequence[Positive], Meta(description="Sizes of the full buffer in bytes, ascending.")
]
BoundsNs = Annotated[
    Sequence[int | None],
    Meta(description="By size: lower bound of the time of every algorithm; null if unknown."),
]
Winners = Annotated[
    Sequence[str | None],
    Meta(description="By size: the fastest algorithm; null if no algorithm has a time."),
]


class BaselineItem(Record, frozen=True, kw_only=True):
    """Choice and time of NCCL at a size."""

    size: int
    library: str
    machine: str | None
    algorithm: str | None
    protocol: str | None
    channels: int | None
    time_ns: int
    method: str
    median_error: float | None
    gain: Annotated[
        float | None,
        Meta(
            description="NCCL's time divided by the time of the chosen algorithm, minus 1; null "
            "without a time and on nominal links."
        ),
    ]
    within_errors: Annotated[
        bool | None,
        Meta(description="The gain is at most the sum of the errors of both times."),
    ]


Baselines = Annotated[
    Sequence[BaselineItem | None],
    Meta(description="By size: choice and time of NCCL; null on unknown machines."),
]


class CurveItem(Record, frozen=True, kw_only=True):
    """Measured times of a library."""

    library: str
    version: str
    variant: str
    times_ns: Annotated[
        Sequence[int | None],
        Meta(description="Median measured time by size; null without a measurement."),
    ]


class DecisionItem(Record, frozen=True, kw_only=True):
    """Decision between measured and simulated times at a size."""

    size: Positive
    decision: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["simulated", "measured", "undecided"]},
            description="Kind of the time that wins; undecided: the measured time is within the "
            "held-out error of the simulated one, or that error is unknown.",
        ),
    ]
    winner: Annotated[
        str | None, Meta(description="The algorithm or the library; null if undecided.")
    ]
    library: Annotated[str, Meta(description="The fastest measured library.")]
    measured_ns: Count
    held_out_error: Annotated[float, Meta(ge=0)] | None


class MeasuredItem(Record, frozen=True, kw_only=True):
    """Measured curves and the decisions with them."""

    curves: Sequence[CurveItem]
    decisions: Annotated[
        Sequence[DecisionItem | None], Meta(description="By size; null without a measurement.")
    ]
    ignored: Annotated[
        Mapping[str, Positive],
        Meta(description="Numbers of measurements that were not used, by the reason."),
    ]


Measured = Annotated[
    MeasuredItem | None,
    Meta(
        description="Measured curves of --measured, and the decisions between them and simulated "
        "times; null without measurements."
    ),
]


class ComparedResult(Record, frozen=True, kw_only=True):
    """One algorithm at one size; bandwidths as nccl-tests defines them."""

    algorithm: str
    size: Positive
    time_ns: Positive | None
    algorithm_bandwidth_bytes_per_s: float | None
    bus_bandwidth_bytes_per_s: float | None
    ratio_to_bound: float | None
    made_for: Annotated[
        Positive | None,
        Meta(
            description="Size in bytes for which the algorithm was synthesized; null for files and "
            "failures."
        ),
    ]
    instances: Annotated[
        int, Meta(ge=1, description="Copies of the algorithm, each with a part of the data.")
    ]
    protocol: Annotated[
        str | None, Meta(description="Protocol of the fastest variant on a machine.")
    ]
    pieces: Annotated[
        int,
        Meta(
            ge=1,
            description="Parts into which each copy divides its data, which overlap like a "
            "pipeline.",
        ),
    ]
    messages: Annotated[
        int,
        Meta(
            ge=0,
            description="Messages of the algorithm; within 1 % of the best time, fewer ones win.",
        ),
    ]
    failure: Annotated[str | None, Meta(description="Reason why there is no time.")]


class VariationItem(Record, frozen=True, kw_only=True):
    """Comparison on a network that differs from the given one in one parameter."""

    name: str
    bounds_ns: BoundsNs
    winners: Winners
    results: Sequence[ComparedResult]


class RobustnessItem(Record, frozen=True, kw_only=True):
    """Winner of a size on the given network, compared on all variations."""

    size: Positive
    winner: str
    wins: Annotated[
        int, Meta(ge=0, description="Variations in which no other algorithm is faster.")
    ]
    worst_ratio: Annotated[
        float,
        Meta(ge=1, description="Maximum over the variations of its time divided by the best time."),
    ]
    worst_variation: Annotated[
        str | None, Meta(description="Variation of that maximum; null if it always wins.")
    ]
    missing: Annotated[
        Sequence[str], Meta(description="Variations in which the winner has no time.")
    ]


Runtime = Annotated[
    str | UnsetType,
    Meta(
        description="With --for: runtimes for which the algorithms are built, separated by commas."
    ),
]


class CompareReport(Report, tag="collhub/report-compare-1", frozen=True, kw_only=True):
    """Report of `collhub compare --json`: every algorithm at every size, and the winners."""

    collective: str
    root: Root
    num_ranks: Positive
    topology: str
    backend: str
    timing: TimingNote
    machine: Machine
    sizes: Sizes
    bounds_ns: BoundsNs
    bound_methods: Annotated[
        Sequence[str | None],
        Meta(
            description="By size: the offer that proves the bound; `links`: the bound of the core."
        ),
    ]
    winners: Winners
    baselines: Baselines
    measured: Measured
    results: Sequence[ComparedResult]
    is_partial: IsPartial
    cut: Cuts
    runtime: Runtime = UNSET
    variations: Annotated[
        Sequence[VariationItem] | UnsetType,
        Meta(description="With --vary or --without-link: one entry per variation."),
    ] = UNSET
    robustness: Annotated[
        Sequence[RobustnessItem | None] | UnsetType,
        Meta(description="With variations, by size; null without a winner."),
    ] = UNSET


class ComparedPlace(Record, frozen=True, kw_only=True):
    """Algorithms and network of a job."""

    algorithms: Annotated[
        str, Meta(description="native, a synthesizer or file, or rules joined by ;")
    ]
    topology: str


class JobResult(ComparedPlace, frozen=True, kw_only=True):
    """Times of the job with some algorithms on a network."""

    time_ns: Annotated[
        Count | None, Meta(description="Time of the last rank's end; null without a time.")
    ]
    exposed_ns: Annotated[
        int | None,
        Meta(description="Maximum over the ranks of the time in which a rank does not compute."),
    ]
    rank_finish_ns: Sequence[int | None]
    speedup: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Time of the baseline divided by this time."),
    ]
    failure: Annotated[str | None, Meta(description="Reason why there is no time.")]


class CompareJobReport(Report, tag="collhub/report-compare-job-1", frozen=True, kw_only=True):
    """Report of `collhub compare JOB --json`: a job with every candidate on every network."""

    source: str
    num_ranks: Positive
    backend: str
    baseline: ComparedPlace
    fastest: ComparedPlace | None
    results: Sequence[JobResult]
