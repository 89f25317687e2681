"""Reports of the commands on the installation: `doctor`, `formats` and `plugins`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from hub_core.plugin_api import API_VERSION, OFFER_KINDS, Offer, Option, OptionType
from hub_core.plugin_api.offers import kind_of
from hub_core.plugin_api.subjects import RuntimeVersions
from hub_core.registry.compatibility import options_of, reference_of
from hub_core.registry.plugins import Plugin, Registry
from hub_core.reports import UNSET, Meta, Record, Report, UnsetType
from hub_core.version import __version__

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


def create_plugin_report(
    registry: Registry, plugins: Sequence[PluginItem], ok: bool | None = None
) -> PluginReport:
    """Create the report; `ok` is None if no checks were run."""
    return PluginReport(
        core_version=__version__,
        api_version=API_VERSION,
        plugins=plugins,
        clashes=registry.clashes(),
        ok=UNSET if ok is None else ok,
    )


def create_plugin_item(plugin: Plugin) -> PluginItem:
    """Describe a plugin, its status and its offers."""
    return PluginItem(
        name=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
        module=plugin.module,
        status=str(plugin.status.state),
        reason=plugin.status.reason,
        provides=[
            OfferItem(
                kind=kind_of(offer).noun,
                name=offer.name,
                description=description_of(offer),
                reference=reference_of(offer),
                options=[create_option_item(option) for option in options_of(offer)],
            )
            for offer in plugin.offers
        ],
    )


def description_of(offer: Offer) -> str:
    """Return the description of an offer; "" if it has none.

    For an offer with a format it is the description of the format, otherwise that of the offer.
    """
    described = getattr(offer, "format", offer)
    return str(getattr(described, "description", ""))


def create_option_item(option: Option) -> OptionItem:
    """Describe a declared option."""
    return OptionItem(
        name=option.name,
        type=str(option.type),
        default=option.default,
        help=option.help,
        choices=option.choices,
        minimum=option.minimum,
        maximum=option.maximum,
        environment=option.environment,
    )


def default_text(option: Option) -> str:
    """Format the default of an option as it is written on the command line: `true`, `4GiB`.

    - A boolean is `true` or `false`.
    - A size that is an integer has the unit that `format_bytes` chooses, if that text is exact;
      otherwise it is in bytes, such as `1234567B`.
    - A bandwidth that is a float has the unit that `format_bandwidth` chooses, such as `50GB/s`,
      with four significant digits. It may be rounded.
    - Any other default is formatted by `str`, so a missing default is `None`.
    """
    if isinstance(option.default, bool):
        return str(option.default).lower()
    if option.type is OptionType.SIZE and isinstance(option.default, int):
        # Imported here: most lists show no size.
        from hub_core.model import UsageError, format_bytes, parse_size

        text = format_bytes(option.default).replace(" ", "")
        # `format_bytes` rounds sizes of many digits, but a default must be exact. The rounded text
        # need not be a whole number of bytes.
        with suppress(UsageError):
            if parse_size(text) == option.default:
                return text
        return f"{option.default}B"
    if option.type is OptionType.BANDWIDTH and isinstance(option.default, float):
        from hub_core.model import format_bandwidth

        return format_bandwidth(option.default).replace(" ", "")
    return str(option.default)
