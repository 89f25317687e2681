"""JSON reports of `collhub machines` and `collhub calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from hub_core.reports import AnyJson, Count, Meta, Record, Report

Error = Annotated[
    float | None,
    Meta(description="|predicted / measured - 1|, a fraction; null without points."),
]


class LibraryItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Communication library of the measurements."""

    name: str
    version: str


class MachineItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Summary of a machine profile."""

    name: str
    label: str
    gpu: str | None
    library: LibraryItem
    model: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["fit", "sibling", "prior", "none"]},
            description="Origin of the constants of the model of one node.",
        ),
    ]
    tables: Count
    network_nodes: Annotated[
        Sequence[Annotated[int, Meta(ge=2)]],
        Meta(description="Numbers of nodes whose all-reduce has a model."),
    ]
    errors: Annotated[
        Sequence[Mapping[str, AnyJson]],
        Meta(description="Held-out errors, as in the document collhub-machine/1."),
    ]
    sources: Sequence[Mapping[str, AnyJson]]


class MachinesReport(
    Report, tag="collhub/report-machines-1", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Report of `collhub machines list --json` and `collhub machines check NAME --json`."""

    machines: Sequence[MachineItem]


class HeldOutError(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors of a predictor on points that its fit did not use."""

    predictor: Annotated[str, Meta(extra_json_schema={"enum": ["table", "model"]})]
    collective: str
    ranks: Annotated[int, Meta(ge=1)]
    nodes: Annotated[int, Meta(ge=1)]
    library: str
    version: str
    points: Annotated[int, Meta(ge=1)]
    median: Annotated[float, Meta(description="|predicted / measured - 1|, a fraction.")]
    p90: float
    worst: float


class CalibratedItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Profile that was fitted."""

    name: str
    file: str
    gpu: str | None
    library: str
    points: Annotated[int, Meta(description="Knots of all tables.")]
    tables: int
    has_model: bool
    priors: Annotated[Sequence[str], Meta(description="Constants that no point determines.")]
    model_median_error: float | None
    errors: Annotated[
        Sequence[HeldOutError],
        Meta(
            description="Of the table at knots that are left out, of the model at sizes that are "
            "left out."
        ),
    ]
    notes: Sequence[str]


class SkippedInput(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of an input that was not used."""

    file: str | None
    line: int | None
    reason: str
    cure: str


class CalibrateReport(
    Report, tag="collhub/report-calibrate-1", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Report of `collhub calibrate --json`."""

    machines: Sequence[CalibratedItem]
    skipped: Sequence[SkippedInput]


class ChosenByLibrary(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choice of NCCL by its cost model; null without a model."""

    algorithm: str | None
    protocol: str | None
    channels: int | None


class CheckedPointItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured time with the predictions of the profile."""

    collective: str
    ranks: int
    nodes: int
    size_bytes: int
    measured_us: float
    table_us: float | None
    model_us: float | None
    chosen: ChosenByLibrary


class PredictorErrors(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Median and 90th percentile of the errors of a predictor."""

    median_error: Error
    p90_error: Error


class CalibrateCheckReport(
    Report,
    tag="collhub/report-calibrate-check-1",
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """Report of `collhub calibrate --check --json`, `collhub machines check NAME RESULT --json`."""

    machine: str
    points: Sequence[CheckedPointItem]
    table: PredictorErrors
    model: PredictorErrors
