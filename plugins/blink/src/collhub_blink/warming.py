"""Compile every kernel beforehand, by small syntheses that together run all of them."""

from __future__ import annotations

from collhub_blink.options import BlinkOptions
from hub_core.plugin_api import CheckReport, CheckRequest, WarmOptions

_BYTES = 4096


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile what is not compiled yet where `options.warm` asks for it, else look at nothing."""
    if not options.warm:
        return CheckReport(True)
    # Imports numba, which takes a second.
    from collhub_packing.compiling.warming import warmed

    return warmed(_run_every_kernel)


def _run_every_kernel() -> None:
    # Imported here, as the work of this plugin is: for the kernels.
    from collhub_blink.synthesize import synthesize
    from hub_core import parse_topology
    from hub_core.model import Collective, CollectiveKind
    from hub_core.network import Occupancy
    from hub_core.plugin_api import SynthesisRequest

    # Switches, links both ways at once, and single trees: each takes other kernels.
    works = (
        (CollectiveKind.ALL_GATHER, "switch:4", None),
        (CollectiveKind.ALL_REDUCE, "ring:4", None),
        (CollectiveKind.BROADCAST, "ring:4", 0),
    )
    for kind, text, root in works:
        topology = parse_topology(text)
        npus = tuple(range(topology.num_npus))
        units = len(npus) if kind is CollectiveKind.ALL_GATHER else 1
        collective = Collective(kind, len(npus), units, root=root, in_place=True)
        request = SynthesisRequest(collective, topology, _BYTES, npus, Occupancy.SERIALIZATION)
        synthesize(request, BlinkOptions())
