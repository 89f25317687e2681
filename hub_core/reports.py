"""Reports of commands as records: one class defines the members of a JSON report.

The JSON object (`to_json`) and the published JSON Schema (`build_schema`) are derived from the
class; the text output of a command reads the same record. msgspec derives the schema from the type
hints, so every member is declared once.

    class CountReport(Report, tag="collhub/report-count-1", frozen=True, kw_only=True):
        \"\"\"Report of `collhub count --json`.\"\"\"

        source: Annotated[str, Meta(description="Name of the input.")]
        steps: Annotated[int, Meta(ge=0)]
        note: str | UnsetType = UNSET  # absent unless set

`tag` is the name of the schema, the first member `schema` of the JSON object. The schemas of this
repository's reports are in the folder `schemas`, written by
`python -m hub_core.testing.generated_pages schemas FOLDER`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

if TYPE_CHECKING:
    from hub_core.model import Diagnostic, JsonValue, Loss
    from hub_core.plugin_api import CheckReport, JobChange, SearchCut

__all__ = [
    "UNSET",
    "AnyJson",
    "Artifacts",
    "Count",
    "Cuts",
    "Finding",
    "IsPartial",
    "JobChangeItem",
    "LossItem",
    "Losses",
    "Machine",
    "Meta",
    "Record",
    "Report",
    "SearchCutItem",
    "TimeNs",
    "TimedMachine",
    "TimingNote",
    "UnsetType",
    "build_schema",
    "describe_check",
    "get_schema_name",
    "list_changes",
    "list_cuts",
    "list_findings",
    "list_losses",
    "to_json",
]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/"

# A value that a plugin or a file supplies: any JSON value.
AnyJson = Annotated[object, Meta(extra_json_schema={"title": "any JSON value"})]
Count = Annotated[int, Meta(ge=0)]
TimeNs = Annotated[int, Meta(ge=0, description="Nanoseconds.")]


class Record(msgspec.Struct, frozen=True):
    """Part of a report: a JSON object without a name of a schema."""


class Report(msgspec.Struct, frozen=True, tag_field="schema"):
    """JSON report of a command; the class argument `tag` of a subclass names its schema."""


class Finding(Record, frozen=True, kw_only=True):
    """Finding with its location; unknown parts of the location are null."""

    code: Annotated[str, Meta(description="Stable kebab-case name of the kind of finding.")]
    severity: Annotated[str, Meta(extra_json_schema={"enum": ["error", "warning", "note"]})]
    message: str
    cure: Annotated[str, Meta(description="Action that removes the problem; empty if unknown.")]
    file: str | None
    line: Annotated[int | None, Meta(description="Line of the file, from 1.")]
    byte: Annotated[int | None, Meta(description="Offset in the file.")]
    rank: int | None
    step: Annotated[int | None, Meta(description="Position among the steps of the rank, from 0.")]


class LossItem(Record, frozen=True):
    """Information of the input that the output format cannot express."""

    feature: Annotated[str, Meta(description="Name of the lost information.")]
    where: Annotated[str, Meta(description="Part of the input that had it.")]
    consequence: Annotated[str, Meta(description="Effect on users of the output.")]


class SearchCutItem(Record, frozen=True):
    """Part of a search that a limit ended early."""

    name: Annotated[str, Meta(description="Name of the search, such as a synthesizer.")]
    work: Annotated[int, Meta(description="Counted steps of work until then.")]
    reason: Annotated[str, Meta(description="Limit that was reached.")]
    not_tried: Annotated[str, Meta(description="Remaining work; empty if unknown.")]


class TimedMachine(Record, frozen=True, kw_only=True):
    """Machine whose profile gave the times of a report."""

    name: str
    library: Annotated[str, Meta(description="Communication library and its version.")]
    held_out_error: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Median relative error on held-out measurements; null if not measured."),
    ]


class JobChangeItem(Record, frozen=True, kw_only=True):
    """Job with one change, simulated or replayed again with the remaining dependencies."""

    name: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["bucket-size", "overlap", "instant"]},
            description="bucket-size: consecutive collectives joined; overlap: communication "
            "starts when its data is ready; instant: collectives take no time.",
        ),
    ]
    description: str
    job_ns: Annotated[int, Meta(ge=0, description="Time of the changed job.")]
    saved_ns: Annotated[int, Meta(description="Negative if the changed job takes longer.")]
    min_saved_ns: Annotated[
        int | None,
        Meta(
            description="Saving at the lower limit of the held-out error of predicted times; null "
            "if an error is not measured."
        ),
    ]
    max_saved_ns: Annotated[int | None, Meta(description="Saving at the upper limit.")]
    assumptions: Sequence[str]


# Members that several reports share.
Artifacts = Annotated[Sequence[str], Meta(description="Paths of the written files, in order.")]
Losses = Annotated[
    Sequence[LossItem], Meta(description="Information that the output format cannot express.")
]
IsPartial = Annotated[
    bool, Meta(description="A limit ended a part of the search (`cut` is not empty).")
]
Cuts = Annotated[
    Sequence[SearchCutItem],
    Meta(
        description="Parts of the search that a limit ended (--timeout, -O work=); empty if none."
    ),
]
TimingNote = Annotated[
    str,
    Meta(
        description="What the times describe: a machine with its library and the median error on "
        "held-out measurements, or nominal links."
    ),
]
Machine = Annotated[
    TimedMachine | None, Meta(description="The measured machine; null for nominal links.")
]


def to_json(report: msgspec.Struct) -> dict[str, JsonValue]:
    """Convert a record to a JSON object: members in order of declaration, without unset ones.

    Sequences remain lists or tuples, as the record has them; `json` writes both as arrays.
    Subclasses of float, such as numpy's 64-bit type, become floats. Raises `TypeError` if a member
    contains a value without a JSON form, such as a numpy integer.
    """
    return cast("dict[str, JsonValue]", msgspec.to_builtins(report, enc_hook=_convert_float))


def _convert_float(value: object) -> float:
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a report contains a value of {type(value)}, which has no JSON form")


def build_schema(report: type[msgspec.Struct]) -> dict[str, JsonValue]:
    """Build the JSON Schema (draft 2020-12) of a report from its type hints.

    `title` is the tag of the class, such as `collhub/report-diff-1`; `$id` is then
    `urn:collhub:schema:report-diff-1`. `description` is the docstring of the class, without
    indentation. `$defs` has the other record classes of the members, by name; it is omitted if
    there are none. `null` is the last of its alternatives. Further members are allowed, because a
    later version may add some. Raises `TypeError` if a member has a type without a JSON form.
    """
    _, definitions = msgspec.json.schema_components([report], ref_template=_REFERENCE + "{name}")
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
    root = {**definitions.pop(report.__name__), "title": get_schema_name(report)}
    identifier = "urn:collhub:schema:" + get_schema_name(report).removeprefix("collhub/")
    schema = {"$schema": _DIALECT, "$id": identifier, **root}
    if definitions:
        schema["$defs"] = dict(sorted(definitions.items()))
    _put_null_last(schema)
    return cast("dict[str, JsonValue]", schema)


def _put_null_last(part: object) -> None:
    """Put `null` last in all alternatives of a schema, in place: versions of msgspec differ."""
    if isinstance(part, list):
        for item in part:
            _put_null_last(item)
    elif isinstance(part, dict):
        if isinstance(alternatives := part.get("anyOf"), list):
            alternatives.sort(key=lambda alternative: alternative == {"type": "null"})
        for item in part.values():
            _put_null_last(item)


def get_schema_name(report: type[msgspec.Struct]) -> str:
    """Return the name of the schema of a report, such as `collhub/report-diff-1`."""
    return str(report.__struct_config__.tag)


def list_findings(diagnostics: Sequence[Diagnostic]) -> list[Finding]:
    """Convert findings to records, in the same order."""
    return [
        Finding(
            code=finding.code,
            severity=str(finding.severity),
            message=finding.message,
            cure=finding.cure,
            file=finding.location.file,
            line=finding.location.line,
            byte=finding.location.byte,
            rank=finding.location.rank,
            step=finding.location.step,
        )
        for finding in diagnostics
    ]


def list_losses(losses: Sequence[Loss]) -> list[LossItem]:
    """Convert losses to records, in the same order."""
    return [LossItem(loss.feature, loss.where, loss.consequence) for loss in losses]


def list_cuts(cuts: Sequence[SearchCut]) -> list[SearchCutItem]:
    """Convert the parts of a search that a limit ended to records, in the same order."""
    return [SearchCutItem(cut.name, cut.work, cut.reason, cut.not_tried) for cut in cuts]


def list_changes(changes: Sequence[JobChange]) -> list[JobChangeItem]:
    """Convert the changes of a job to records, in the same order."""
    return [
        JobChangeItem(
            name=change.name,
            description=change.description,
            job_ns=change.job_ns,
            saved_ns=change.saved_ns,
            min_saved_ns=change.min_saved_ns,
            max_saved_ns=change.max_saved_ns,
            assumptions=change.assumptions,
        )
        for change in changes
    ]


def describe_check(report: CheckReport) -> Mapping[str, object]:
    """Return the JSON object of a check's report: `ok`, its facts as members, `diagnostics`.

    Diagnostics are objects, in their order. A fact named `ok` replaces the value of `ok`. A
    fact named `diagnostics` is lost.
    """
    findings = [msgspec.to_builtins(finding) for finding in list_findings(report.diagnostics)]
    return {"ok": report.ok, **report.facts, "diagnostics": findings}
