"""Reports of the commands that time an algorithm: `simulate`, `synthesize` and `demo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from hub_core.plugin_api.runs import LinkLoad
from hub_core.reports import (
    UNSET,
    AnyJson,
    Artifacts,
    Count,
    Cuts,
    Finding,
    Losses,
    Machine,
    Meta,
    Record,
    Report,
    TimingNote,
    UnsetType,
)


class NamedLinkLoad(Record, frozen=True, kw_only=True):
    """Traffic of one link, with the ids and names of its nodes in the topology."""

    source: Count
    destination: Count
    source_name: str
    destination_name: str
    bytes: Count
    busy_ns: Count


class SimulatedSize(Record, frozen=True, kw_only=True):
    """Simulated run of one size."""

    collective_bytes: Count | UnsetType = UNSET
    time_ns: Annotated[
        Count | UnsetType | None,
        Meta(description="Time of the last rank's end; null if a rank never finishes."),
    ] = UNSET
    rank_finish_ns: Sequence[int | None] | UnsetType = UNSET
    rank_exposed_ns: Annotated[
        Sequence[int | None] | UnsetType,
        Meta(
            description="Time of each rank in which it does not compute. ASTRA-sim does not count "
            "computations inside an algorithm. Empty if the simulator does not report it."
        ),
    ] = UNSET
    unfinished_ranks: Sequence[Count] | UnsetType = UNSET
    time_ps: Annotated[
        Count | UnsetType | None, Meta(description="Time that is compared with the bound.")
    ] = UNSET
    bound_ns: Annotated[
        int | UnsetType | None,
        Meta(description="Proven lower bound of every algorithm; null if unknown."),
    ] = UNSET
    bound_ps: Count | UnsetType | None = UNSET
    bound_method: Annotated[
        str | UnsetType | None,
        Meta(description="Offer that proves the bound; `links`: the bound of the core."),
    ] = UNSET
    ratio_to_bound: float | UnsetType | None = UNSET
    algorithm_bandwidth_bytes_per_s: Annotated[
        float | UnsetType | None, Meta(description="Size divided by time.")
    ] = UNSET
    busiest_links: Annotated[
        Sequence[NamedLinkLoad] | UnsetType, Meta(description="At most ten, busiest first.")
    ] = UNSET
    link_loads: Annotated[
        Sequence[LinkLoad] | UnsetType,
        Meta(
            description="All links that carried traffic, busiest first; `collhub topology draw T "
            "--loads` draws them."
        ),
    ] = UNSET
    details: Annotated[
        Mapping[str, AnyJson] | UnsetType, Meta(description="Further results of the simulator.")
    ] = UNSET
    diagnostics: Sequence[Finding] | UnsetType = UNSET


class FailureItem(Record, frozen=True, kw_only=True):
    """Time of the algorithm without one link, both directions."""

    link: Annotated[str, Meta(description="As the value of `--without-link`.")]
    time_ns: Annotated[
        int | None, Meta(description="Null if the algorithm does not run without the link.")
    ]
    reason: Annotated[str, Meta(description="Why the algorithm does not run; else empty.")]
    is_used: Annotated[bool, Meta(description="Whether a message uses the link.")]


class SimulateReport(
    SimulatedSize, tag_field="schema", tag="collhub/report-simulate-1", frozen=True, kw_only=True
):
    """Report of `collhub simulate --json` on an algorithm.

    One size: the members of its run. A range of sizes: the runs under `results`.
    """

    source: str
    topology: str
    npus: Annotated[Sequence[Count], Meta(description="NPU of each rank.")]
    backend: str
    timing: TimingNote
    machine: Machine
    results: Sequence[SimulatedSize] | UnsetType = UNSET
    failures: Annotated[
        Sequence[FailureItem] | UnsetType, Meta(description="Only with --failures.")
    ] = UNSET


class UntriedVariant(Record, frozen=True, kw_only=True):
    """Variant that a search did not try."""

    name: str
    reason: str


class SynthesizeReport(Report, tag="collhub/report-synthesize-1", frozen=True, kw_only=True):
    """Report of `collhub synthesize --json`."""

    synthesizer: str
    collective: str
    collective_bytes: Annotated[int, Meta(description="Size of the full buffer.")]
    num_ranks: Annotated[int, Meta(description="Ranks of the algorithm, including relays.")]
    topology: str
    occupancy: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["serialization", "alpha-beta"]},
            description="Link model of all times.",
        ),
    ]
    timing: TimingNote
    machine: Machine
    time_ns: Annotated[
        int, Meta(description="Time of the algorithm, as the synthesizer counts it.")
    ]
    bounds_ns: Annotated[Mapping[str, int], Meta(description="Lower bounds by name.")]
    bound_ns: Annotated[
        int | None,
        Meta(
            description="The largest of the lower bounds that hold for messages of any size; null "
            "if there is none."
        ),
    ]
    ratio_to_bound: float | None
    algorithm_bandwidth_bytes_per_s: float
    synthesis_s: Annotated[float, Meta(description="Wall-clock time of the synthesis.")]
    synthesis_cpu_s: Annotated[float, Meta(description="CPU time of the synthesis, all threads.")]
    statistics: Annotated[
        Mapping[str, AnyJson],
        Meta(description="Further figures of the synthesizer, such as seed, chunks and method."),
    ]
    is_partial: Annotated[
        bool,
        Meta(
            description="The algorithm has the steps of some ranks only, or the search left "
            "something out (`not_tried` or `cut` is not empty)."
        ),
    ]
    not_tried: Annotated[
        Sequence[UntriedVariant],
        Meta(description="Variants that the search left out at a limit, in their order."),
    ]
    cut: Cuts
    is_replayed: Annotated[
        bool, Meta(description="The synthesizer checked the entire schedule on its own arrays.")
    ]
    is_verified: Annotated[bool, Meta(description="The algorithm was verified and is correct.")]
    diagnostics: Sequence[Finding]
    artifacts: Artifacts
    losses: Losses
    runtime: Annotated[
        str | UnsetType,
        Meta(
            description="Runtimes for which the algorithm was made, with the limits of --for; only "
            "if there are any."
        ),
    ] = UNSET


class DemoAlgorithm(Record, frozen=True, kw_only=True):
    """Algorithm of the demonstration."""

    name: str
    collective: str
    num_ranks: Count
    ok: bool
    traces: Annotated[
        str | None, Meta(description="Prefix of the written traces; null if none are kept.")
    ]


class DemoRun(Record, frozen=True, kw_only=True):
    """Simulated run of the demonstration."""

    algorithm: str
    topology: str
    collective_bytes: Count
    time_ns: Count | None
    bandwidth_bytes_per_s: float | None
    bound_ns: int | None
    ratio_to_bound: float | None


class DemoReport(Report, tag="collhub/report-demo-1", frozen=True, kw_only=True):
    """Report of `collhub demo --json`."""

    algorithms: Sequence[DemoAlgorithm]
    runs: Sequence[DemoRun]
