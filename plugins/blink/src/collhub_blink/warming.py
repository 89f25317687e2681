"""Compile every kernel beforehand, by small syntheses that together run all of them."""

from __future__ import annotations

from collhub_packing.warming import small_request, warm_check

from collhub_blink.options import BlinkOptions
from hub_core.model import CollectiveKind
from hub_core.plugin_api import CheckReport, CheckRequest, WarmOptions


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile what is not compiled yet where `options.warm` asks for it, else look at nothing."""
    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    # Imported here, as the work of this plugin is: for the kernels.
    from collhub_blink.synthesize import synthesize

    # Switches, links both ways at once, and single trees: each takes other kernels.
    works = (
        (CollectiveKind.ALL_GATHER, "switch:4"),
        (CollectiveKind.ALL_REDUCE, "ring:4"),
        (CollectiveKind.BROADCAST, "ring:4"),
    )
    for kind, text in works:
        synthesize(small_request(kind, text), BlinkOptions())
