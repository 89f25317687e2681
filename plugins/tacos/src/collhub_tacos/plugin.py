"""Offer of this distribution to the hub: the synthesizer `tacos`, with its options."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_tacos.options import TacosOptions
from hub_core.plugin_api import Check, Subject, Synthesizer, WarmOptions, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

# The work is named, not imported: numba takes a second, and a listing needs none of it.
TACOS = Synthesizer(
    "tacos",
    "topology-aware synthesis of every collective on any network, "
    "by matching on the time-expanded network",
    "collhub_tacos.synthesize:synthesize",
    TacosOptions,
    adapts=True,
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Describe the synthesizer."""
    return [TACOS]


KERNELS = Check(
    "tacos-kernels",
    Subject.INSTALLATION,
    "compiles the kernels beforehand, for doctor --warm",
    "collhub_tacos.warming:check",
    WarmOptions,
)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe what compiles the kernels beforehand."""
    return [KERNELS]
