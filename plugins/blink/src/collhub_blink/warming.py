"""Compile every kernel in advance, by small syntheses that together use all kernels."""

from __future__ import annotations

from collhub_packing.warming import small_request, warm_check

from collhub_blink.plugin import BlinkOptions
from hub_core.model import CollectiveKind
from hub_core.plugin_api import CheckReport, CheckRequest, WarmOptions


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile the missing kernels if `options.warm` is set; otherwise do not check anything."""
    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    """Run a synthesis of each kind of network and collective that needs its own kernels."""
    # Imported here because it loads the kernels.
    from collhub_blink.synthesize import synthesize

    # Switches, links in both directions at once, and single trees use different kernels.
    cases = (
        (CollectiveKind.ALL_GATHER, "switch:4"),
        (CollectiveKind.ALL_REDUCE, "ring:4"),
        (CollectiveKind.BROADCAST, "ring:4"),
    )
    for kind, text in cases:
        synthesize(small_request(kind, text), BlinkOptions())
