"""Reports of the commands that read, compare, transform and write one algorithm or workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from hub_core.cli.reports.comparison import Difference, PairDifference, StepDifference
from hub_core.cli.reports.inspection_records import ModeFlags
from hub_core.reports import (
    UNSET,
    AnyJson,
    Artifacts,
    Count,
    Cuts,
    Finding,
    IsPartial,
    Losses,
    Meta,
    Record,
    Report,
    UnsetType,
)

VerdictWord = Annotated[
    str, Meta(extra_json_schema={"enum": ["ok", "wrong", "race", "wrong+race"]})
]


class ConvertReport(Report, tag="collhub/report-convert-1", frozen=True, kw_only=True):
    """Report of `collhub convert --json`."""

    source: str
    source_format: str = msgspec.field(name="from")
    target_format: str = msgspec.field(name="to")
    artifacts: Artifacts
    losses: Losses
    notes: Annotated[
        Sequence[str], Meta(description="Notes of the writer on the files, one sentence each.")
    ]


class GenerateReport(Report, tag="collhub/report-generate-1", frozen=True, kw_only=True):
    """Report of `collhub generate --json`."""

    generator: str
    target_format: str = msgspec.field(name="to")
    num_ranks: Count
    nodes: Annotated[int, Meta(ge=0, description="Nodes of all ranks.")]
    is_partial: IsPartial
    cut: Cuts
    artifacts: Artifacts
    losses: Losses


class PassChange(Record, frozen=True, kw_only=True):
    """One change that a pass made, as a sentence."""

    pass_name: str = msgspec.field(name="pass")
    change: str


class MeasuredRun(Record, frozen=True, kw_only=True):
    """Run of the written program and of the original on the same data."""

    method: Annotated[str, Meta(description="How the programs were run.")]
    before_ns: Annotated[int, Meta(ge=0, description="Time of a step of the original.")]
    after_ns: Annotated[int, Meta(ge=0, description="Time of a step of the result.")]
    max_relative_error: Annotated[
        float, Meta(ge=0, description="Largest difference of an output, by its largest value.")
    ]


class TransformReport(Report, tag="collhub/report-transform-1", frozen=True, kw_only=True):
    """Report of `collhub transform --json`."""

    source: str
    source_format: str = msgspec.field(name="from")
    target_format: Annotated[
        str | None, Meta(description="Format of the output; null if nothing was written.")
    ] = msgspec.field(name="to")
    passes: Annotated[Sequence[str], Meta(description="Passes in the order of their application.")]
    changes: Sequence[PassChange]
    is_partial: IsPartial
    cut: Cuts
    artifacts: Artifacts
    losses: Losses
    measured: Annotated[MeasuredRun | None, Meta(description="With --run; null without.")] = None


class MoveItem(Record, frozen=True, kw_only=True):
    """Legal application of a pass."""

    pass_name: str = msgspec.field(name="pass")
    options: Annotated[Mapping[str, str], Meta(description="Options of the pass, as for -O.")]
    effect: Annotated[
        Mapping[str, int],
        Meta(description="Changes of figures by name, such as the bytes that a rank sends."),
    ]


class MovesReport(Report, tag="collhub/report-moves-1", frozen=True, kw_only=True):
    """Report of `collhub transform --list --json`: legal applications of passes that list them."""

    source: str
    moves: Sequence[MoveItem]


class DiffReport(Report, tag="collhub/report-diff-1", frozen=True, kw_only=True):
    """Report of `collhub diff A B --json`: only differences; provenance is not compared."""

    a: str
    b: str
    equal: Annotated[bool, Meta(description="No compared property differs: exit code 0.")]
    facts: Sequence[Difference]
    traffic: Annotated[
        Sequence[PairDifference],
        Meta(description="Pairs of ranks with different messages or fractions of the buffer."),
    ]
    pairs: Annotated[int, Meta(ge=0, description="Pairs of ranks with messages in A or B.")]
    first_different_step: StepDifference | None


class ModeVerdicts(Record, frozen=True, kw_only=True):
    """Verdict for each mode of a call."""

    in_place: VerdictWord
    out_of_place: VerdictWord


class WorkloadSize(Record, frozen=True, kw_only=True):
    """Size of a workload."""

    num_ranks: Count
    nodes: Count


class VerifiedInput(Record, frozen=True, kw_only=True):
    """Verdict on one input.

    An algorithm has `modes`, `claims`, `verdicts`, `method` and `error_probability`, a workload has
    `workload` and `checks`, a file of a runtime's tuner `tuner_format`; an input that could not be
    read has only findings.
    """

    source: str | UnsetType = UNSET
    ok: Annotated[
        bool,
        Meta(
            description="Algorithm: every claimed mode is correct. Workload: every check passes. "
            "Several inputs: all pass."
        ),
    ]
    modes: Annotated[
        ModeFlags | UnsetType, Meta(description="Correct in this mode, claimed or not.")
    ] = UNSET
    claims: Annotated[
        ModeFlags | UnsetType, Meta(description="Modes that the algorithm claims.")
    ] = UNSET
    verdicts: ModeVerdicts | UnsetType = UNSET
    method: Annotated[str | UnsetType, Meta(description="Method of comparing contents.")] = UNSET
    error_probability: Annotated[
        Annotated[float, Meta(ge=0)] | UnsetType,
        Meta(description="Upper bound of the probability that a wrong output passed."),
    ] = UNSET
    workload: WorkloadSize | UnsetType = UNSET
    tuner_format: Annotated[
        str | UnsetType, Meta(description="Format of a file that tells a runtime what to use.")
    ] = UNSET
    certificate: Annotated[
        Mapping[str, AnyJson] | UnsetType,
        Meta(
            description="With --certificate: `ok`; `is_optimal`; `rate` and `bound`, fractions of "
            "bytes per second or null; `diagnostics`."
        ),
    ] = UNSET
    checks: Annotated[
        Mapping[str, Mapping[str, AnyJson]] | UnsetType,
        Meta(description="Report of each check by its name: `ok`, its facts, `diagnostics`."),
    ] = UNSET
    diagnostics: Annotated[
        Sequence[Finding] | UnsetType, Meta(description="First causes first.")
    ] = UNSET


class VerdictsReport(
    VerifiedInput, tag_field="schema", tag="collhub/report-verify-1", frozen=True, kw_only=True
):
    """Report of `collhub verify --json`.

    One input: its verdict. Several inputs: only `ok` and `results`.
    """

    results: Annotated[
        Annotated[Sequence[VerifiedInput], Meta(min_length=2)] | UnsetType,
        Meta(description="In the order of the inputs."),
    ] = UNSET


class UsedCall(Record, frozen=True, kw_only=True):
    """Calls of one collective for which a runtime uses the file."""

    collective: Annotated[str, Meta(description="Name in the runtime.")]
    num_ranks: int
    in_place: bool
    min_bytes: Annotated[int, Meta(ge=0, description="Smallest size that uses the file.")]
    max_bytes: Annotated[int | None, Meta(description="Largest size; null for no limit.")]
    conditions: Annotated[Sequence[str], Meta(description="Further conditions.")]


class VersionItem(Record, frozen=True, kw_only=True):
    """Verdict of one range of versions of a runtime on one file."""

    runtime: Annotated[str, Meta(description="Name of the check.")]
    versions: Annotated[str, Meta(description="Product and range; empty without a table.")]
    ok: Annotated[bool, Meta(description="The runtime accepts the file and uses it for a call.")]
    is_accepted: Annotated[bool, Meta(description="The runtime accepts the file.")]
    is_applicable: Annotated[bool, Meta(description="The runtime reads files of this format.")]
    rule: Annotated[str | None, Meta(description="Rule of the first error; null if used.")]


class AllRuntimesInput(Record, frozen=True, kw_only=True):
    """Verdicts of all runtimes on one file; a file that could not be read has only findings."""

    source: str | UnsetType = UNSET
    ok: Annotated[bool, Meta(description="Some version of a runtime uses the file.")]
    runtimes: Annotated[
        Sequence[VersionItem] | UnsetType, Meta(description="By runtime and version.")
    ] = UNSET
    diagnostics: Annotated[
        Sequence[Finding] | UnsetType,
        Meta(description="The first error of every runtime if no runtime uses the file."),
    ] = UNSET


class AllRuntimesReport(
    AllRuntimesInput, tag_field="schema", tag="collhub/report-load-all-1", frozen=True, kw_only=True
):
    """Report of `collhub verify --runtime all --json`.

    One file: its verdicts. Several files: only `ok` and `results`.
    """

    results: Annotated[
        Annotated[Sequence[AllRuntimesInput], Meta(min_length=2)] | UnsetType,
        Meta(description="In the order of the inputs."),
    ] = UNSET


class RuntimeInput(Record, frozen=True, kw_only=True):
    """Verdict of a runtime on one file; a file that could not be read has only findings."""

    source: str | UnsetType = UNSET
    runtime: Annotated[
        str | UnsetType, Meta(description="Name of the check, without a version.")
    ] = UNSET
    version: Annotated[
        str | UnsetType | None,
        Meta(description="Version in --runtime NAME@VERSION; null without one."),
    ] = UNSET
    ok: Annotated[bool, Meta(description="The runtime accepts the file and uses it for a call.")]
    is_accepted: Annotated[bool | UnsetType, Meta(description="The runtime accepts the file.")] = (
        UNSET
    )
    is_applicable: Annotated[
        bool | UnsetType, Meta(description="The runtime reads files of this format.")
    ] = UNSET
    calls: Sequence[UsedCall] | UnsetType = UNSET
    diagnostics: Annotated[
        Sequence[Finding] | UnsetType,
        Meta(description="Reasons why it is refused or not used, and warnings."),
    ] = UNSET


class RuntimeVerdictsReport(
    RuntimeInput, tag_field="schema", tag="collhub/report-load-1", frozen=True, kw_only=True
):
    """Report of `collhub verify --runtime NAME --json`.

    One file: its verdict. Several files: only `ok` and `results`.
    """

    results: Annotated[
        Annotated[Sequence[RuntimeInput], Meta(min_length=2)] | UnsetType,
        Meta(description="In the order of the inputs."),
    ] = UNSET
