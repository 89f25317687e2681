"""Reports of the commands on the installation: `doctor`, `formats` and `plugins`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from hub_core.plugin_api import OFFER_KINDS
from hub_core.plugin_api.subjects import RuntimeVersions
from hub_core.reports import UNSET, Meta, Record, Report, UnsetType

_ROLES = (
    "read",
    "write",
    "read topology",
    "write topology",
    "draw topology",
    "draw timeline",
    "tune",
    "draw comparison",
    "draw waits",
    "draw page",
    "draw timeline of job",
    "synthesize",
    "transform",
    "simulate",
    "run",
    "sweep",
    "bound",
    "check algorithm",
    "check certificate",
    "check runtime",
    "read workload",
    "read measurements",
    "write workload",
    "simulate workload",
    "generate",
    "transform workload",
    "check workload",
)


class OptionItem(Record, frozen=True, kw_only=True):
    """Declared option of an offer."""

    name: str
    type: Annotated[
        str,
        Meta(
            extra_json_schema={
                "enum": [
                    *("text", "int", "float", "bool", "size", "time", "bandwidth", "path", "pairs"),
                ]
            }
        ),
    ]
    default: str | int | float | bool | None
    help: str
    choices: Sequence[str]
    minimum: Annotated[float | None, Meta(description="Smallest value; null for none.")]
    maximum: Annotated[float | None, Meta(description="Largest value; null for none.")]
    environment: Annotated[
        str, Meta(description="Environment variable that gives the default; empty for none.")
    ]


class FormatItem(Record, frozen=True, kw_only=True):
    """Offer of a plugin."""

    name: str
    does: Annotated[str, Meta(extra_json_schema={"enum": [*_ROLES]}, description="Role.")]
    plugin: str
    description: str
    suffixes: Sequence[str]
    layout: Annotated[
        str | None, Meta(extra_json_schema={"enum": ["file", "prefix", "folder", None]})
    ]
    options: Sequence[OptionItem]
    versioned_by: Annotated[
        str, Meta(description="Product that the versions of a runtime belong to, or empty.")
    ]
    versions: Annotated[
        Sequence[RuntimeVersions], Meta(description="Checks of runtimes: versions, ascending.")
    ]


class FormatsReport(Report, tag="collhub/report-formats-1", frozen=True, kw_only=True):
    """Report of `collhub formats --json`."""

    formats: Sequence[FormatItem]


class RulePage(Record, frozen=True, kw_only=True):
    """Rule of findings, as one plugin declares it."""

    rule: Annotated[str, Meta(description="Identifier: `code` of findings.")]
    subject: Annotated[str, Meta(description="Checked files or check.")]
    meaning: str
    cause: str
    cure: str
    example: str


class ExplainReport(Report, tag="collhub/report-explain-1", frozen=True, kw_only=True):
    """Report of `collhub explain --json`: one rule, or all rules by identifier."""

    rules: Sequence[RulePage]


class HealthLine(Record, frozen=True, kw_only=True):
    """Result of one check of the installation."""

    plugin: Annotated[str, Meta(description="Plugin that the line concerns; `core` for the core.")]
    subject: str
    is_healthy: bool
    details: str
    cure: str


class DoctorReport(Report, tag="collhub/report-doctor-1", frozen=True, kw_only=True):
    """Report of `collhub doctor --json`."""

    ok: bool
    lines: Sequence[HealthLine]


class OfferItem(Record, frozen=True, kw_only=True):
    """Offer of a plugin with its options."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": [kind.noun for kind in OFFER_KINDS]})]
    name: str
    description: str
    reference: Annotated[str, Meta(description="module:function that implements the offer.")]
    options: Sequence[OptionItem]


class RuleItem(Record, frozen=True, kw_only=True):
    """Verdict of one conformance rule."""

    check: str
    rule: str
    verdict: Annotated[str, Meta(extra_json_schema={"enum": ["passed", "failed", "skipped"]})]
    details: Annotated[
        Sequence[str], Meta(description="Problems, and reasons why something was not checked.")
    ]


class PluginItem(Record, frozen=True, kw_only=True):
    """Plugin with its status and offers."""

    name: str
    distribution: str
    version: str
    module: str
    status: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["loaded", "disabled", "incompatible", "broken", "absent"]}
        ),
    ]
    reason: Annotated[
        str, Meta(description="Reason why it is not loaded, or a warning; empty without one.")
    ]
    provides: Sequence[OfferItem]
    checks: Annotated[
        Sequence[RuleItem] | UnsetType, Meta(description="Only with `plugins check`.")
    ] = UNSET


class PluginReport(Report, tag="collhub/plugin-report-1", frozen=True, kw_only=True):
    """Report of `collhub plugins list|show|check|install --json`."""

    core_version: str
    api_version: Annotated[
        Sequence[int], Meta(min_length=2, max_length=2, description="Major and minor version.")
    ]
    plugins: Sequence[PluginItem]
    clashes: Annotated[
        Sequence[str], Meta(description="Names that two plugins use for one kind of offer.")
    ]
    ok: Annotated[
        bool | UnsetType, Meta(description="Whether no check failed; only with `plugins check`.")
    ] = UNSET
