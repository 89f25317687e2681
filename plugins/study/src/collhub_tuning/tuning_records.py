"""JSON reports of `collhub tune` and of its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from collhub_tuning.comparison_records import Baselines, Measured, Positive, Root, Runtime, Sizes
from hub_core.reports import (
    UNSET,
    Count,
    Cuts,
    Finding,
    IsPartial,
    LossItem,
    Machine,
    Meta,
    Record,
    Report,
    TimingNote,
)

Runtimes = Annotated[
    Sequence[str],
    Meta(description="Products and versions that read the files; empty if unknown."),
]
MaxBytes = Annotated[Count | None, Meta(description="Included; null: no limit.")]
Mode = Annotated[str, Meta(extra_json_schema={"enum": ["in-place", "out-of-place", "both"]})]


class WindowSize(Record, frozen=True, kw_only=True):
    """Time of a window's algorithm at a measured size."""

    size: Positive
    time_ns: Count
    ratio_to_bound: float | None
    slowdown: Annotated[
        float, Meta(ge=1, description="Time divided by that of the fastest algorithm.")
    ]


class WindowItem(Record, frozen=True, kw_only=True):
    """Sizes for which an algorithm is chosen."""

    min_bytes: Count
    max_bytes: MaxBytes
    algorithm: str
    measured: Annotated[Sequence[WindowSize], Meta(min_length=1)]


class DefaultWindowItem(Record, frozen=True, kw_only=True):
    """Sizes that keep the runtime's default."""

    min_bytes: Count
    max_bytes: MaxBytes
    sizes: Annotated[Sequence[Positive], Meta(min_length=1)]


Band = Annotated[
    tuple[int, int | None, int | None] | None,
    Meta(
        description="Time in ns, then its lower and upper limit; null limits if the error is not "
        "known."
    ),
]


class DefaultDecision(Record, frozen=True, kw_only=True):
    """Decision between the runtime's default and the algorithms at a size."""

    size: int
    decision: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["measured", "simulated", "predicted", "undecided"]},
            description="Kind of the winner's time.",
        ),
    ]
    winner: Annotated[str | None, Meta(description="An algorithm or `default`; null if undecided.")]
    default: Annotated[
        str | None, Meta(description="Origin of the default's time; null if it is not known.")
    ]
    default_ns: Band
    fastest: Annotated[str | None, Meta(description="The algorithm of the shortest time.")]
    fastest_ns: Band


class TunedItem(Record, frozen=True, kw_only=True):
    """Chosen algorithms of a collective."""

    collective: str
    root: Root
    mode: Mode
    windows: Annotated[
        Sequence[WindowItem],
        Meta(
            description="From 0 bytes on, without overlap, and without gap except for "
            "default_windows; empty: no algorithm fits."
        ),
    ]
    baselines: Baselines
    measured: Measured
    decisions: Annotated[
        Sequence[DefaultDecision], Meta(description="Sizes with the time of at least one side.")
    ]
    default_windows: Annotated[
        Sequence[DefaultWindowItem],
        Meta(
            description="Sizes that keep the runtime's default, because no algorithm certainly "
            "beats a measurement, or because both measured neighbours keep it."
        ),
    ]
    left_out: Annotated[
        Sequence[str], Meta(description="Algorithms without a time at some size, and the reason.")
    ]
    runtime: Runtime = UNSET


class PlannedRunItem(Record, frozen=True, kw_only=True):
    """Measurement that is needed for undecided sizes."""

    collective: str
    subject: Annotated[
        str, Meta(description="An algorithm, or `default`: the runtime's own choice.")
    ]
    sizes: Sequence[int]
    environment: Annotated[
        Mapping[str, str],
        Meta(
            description="Variables of the commands; on several nodes they are arguments of mpirun."
        ),
    ]
    prepare: Sequence[str]
    commands: Sequence[str]
    output: Annotated[str, Meta(description="File that the commands write.")]
    measured: Annotated[str, Meta(description="Value of `tune --measured` for that file.")]


class ServedCallsItem(Record, frozen=True, kw_only=True):
    """Calls that a runtime serves with an algorithm."""

    collective: str
    in_place: bool
    out_of_place: bool
    min_bytes: Count
    max_bytes: MaxBytes
    by: str
    element_multiple: Annotated[
        int,
        Meta(
            ge=1,
            description="Calls whose number of elements it does not divide are left to the "
            "runtime.",
        ),
    ]
    byte_multiple: Annotated[
        int,
        Meta(
            ge=1,
            description="Calls whose bytes in the full buffer it does not divide are left to the "
            "runtime.",
        ),
    ]


class WrittenFormatItem(Record, frozen=True, kw_only=True):
    """Files of a format, and the calls that they serve."""

    name: str
    files: Annotated[Sequence[str], Meta(description="In the folder of the format.")]
    runtimes: Runtimes
    losses: Sequence[LossItem]
    notes: Sequence[str]
    served: Sequence[ServedCallsItem]


class TuneReport(Report, tag="collhub/report-tune-1", frozen=True, kw_only=True):
    """Report of `collhub tune --json`, also the file report.json of the folder.

    It has the best algorithms by window of sizes of the full buffer.
    """

    topology: str
    num_ranks: Positive
    num_nodes: Positive
    backend: str
    timing: TimingNote
    machine: Machine
    mode: Mode
    tolerance: Annotated[float, Meta(ge=0, le=1)]
    sizes: Sizes
    collectives: Sequence[TunedItem]
    plan: Annotated[
        Sequence[PlannedRunItem],
        Meta(description="Measurements that decide the undecided sizes; empty if there are none."),
    ]
    formats: Sequence[WrittenFormatItem]
    is_partial: IsPartial
    cut: Cuts


class CheckedCalls(Record, frozen=True, kw_only=True):
    """Sizes of one kind of call with the same declared and actual servers."""

    collective: str
    in_place: bool
    min_bytes: Count
    max_bytes: MaxBytes
    served_by: Annotated[
        Sequence[str],
        Meta(description="Empty: the runtime's own choice; several: an overlap."),
    ]
    stated: Annotated[
        str | None,
        Meta(description="Server according to the report of the folder; null: the runtime."),
    ]


class CheckedFormatItem(Record, frozen=True, kw_only=True):
    """Served calls and findings of a format."""

    name: str
    ok: bool
    calls: Annotated[
        Sequence[CheckedCalls], Meta(description="All sizes of every kind of call, in order.")
    ]
    findings: Annotated[
        Sequence[Finding],
        Meta(
            description="Codes: gap, overlap, changed, missing-file, falls-back, and those of the "
            "reader of the format."
        ),
    ]


class TuneCheckReport(Report, tag="collhub/report-tune-check-1", frozen=True, kw_only=True):
    """Report of `collhub tune --check FOLDER --json`: servers by size, as the runtimes read."""

    folder: str
    ok: Annotated[bool, Meta(description="No gap, no overlap, no change of a server: exit code 0.")]
    formats: Sequence[CheckedFormatItem]


class CheckedFileItem(Record, frozen=True, kw_only=True):
    """Served calls and faults of a tuner file."""

    file: str
    format: Annotated[
        str, Meta(description="Name of the selection format as which the file was read.")
    ]
    ok: bool
    runtimes: Runtimes
    served: Annotated[
        Sequence[ServedCallsItem],
        Meta(
            description="Calls of the first communicator that the file states, else of any "
            "communicator."
        ),
    ]
    findings: Sequence[Finding]


class TuneFilesReport(Report, tag="collhub/report-tune-files-1", frozen=True, kw_only=True):
    """Report of `collhub tune --check FILE... --json`: served calls and faults of tuner files."""

    ok: Annotated[
        bool, Meta(description="No finding of any file is an error or a warning: exit code 0.")
    ]
    files: Sequence[CheckedFileItem]
