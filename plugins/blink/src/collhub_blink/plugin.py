"""What this distribution offers to the hub."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_blink.options import BlinkOptions
from hub_core.plugin_api import Check, Subject, Synthesizer, WarmOptions, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

BLINK = Synthesizer(
    "blink",
    "optimal packing of spanning trees, with a certificate of the rate",
    "collhub_blink.synthesize:synthesize",
    BlinkOptions,
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Describe the synthesizer."""
    return [BLINK]


KERNELS = Check(
    "blink-kernels",
    Subject.INSTALLATION,
    "compiles the kernels beforehand, for doctor --warm",
    "collhub_blink.warming:check",
    WarmOptions,
)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe what compiles the kernels beforehand."""
    return [KERNELS]
