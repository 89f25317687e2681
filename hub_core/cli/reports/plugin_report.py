"""The JSON document `collhub/plugin-report-1` of the commands on plugins."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.cli.reports.installation_records import (
    OfferItem,
    OptionItem,
    PluginItem,
    PluginReport,
)
from hub_core.plugin_api import API_VERSION, Offer, Option, OptionType
from hub_core.plugin_api.offers import kind_of
from hub_core.registry.compatibility import options_of, reference_of
from hub_core.registry.plugins import Plugin, Registry
from hub_core.reports import UNSET
from hub_core.version import __version__


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
    """Return the description of an offer's format if it has one, else its own; "" if none."""
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
    """Format the default of an option as on the command line: `true`, `4GiB`.

    A size has the unit that `format_bytes` chooses, without a space, if that text is exact, else it
    is in bytes (`1234567B`); a bandwidth has a unit, too. Other defaults are formatted by `str`, so
    a missing one is `None`.
    """
    if isinstance(option.default, bool):
        return str(option.default).lower()
    if option.type is OptionType.SIZE and isinstance(option.default, int):
        # Imported here: most lists show no size.
        from hub_core.model import format_bytes, parse_size

        text = format_bytes(option.default).replace(" ", "")
        # `format_bytes` rounds sizes of many digits, but a default must be exact.
        return text if parse_size(text) == option.default else f"{option.default}B"
    if option.type is OptionType.BANDWIDTH and isinstance(option.default, float):
        from hub_core.model import format_bandwidth

        return format_bandwidth(option.default).replace(" ", "")
    return str(option.default)
