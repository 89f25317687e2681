"""Compile all kernels in advance, by small flows that together use every kernel."""

from __future__ import annotations

from collhub_packing.warming import small_request, warm_check

from collhub_flows.options import FlowOptions
from hub_core.model import CollectiveKind
from hub_core.plugin_api import CheckReport, CheckRequest, WarmOptions


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile the missing kernels if `options.warm` is set; else report success."""
    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    # Imported here, because these modules import numba.
    from collhub_flows.groups.schedules import GroupNetwork, find_fastest_schedule
    from collhub_flows.groups.shares import GroupWish
    from collhub_flows.network import FlowNetwork
    from collhub_flows.synthesize import synthesize

    work = small_request(CollectiveKind.ALL_TO_ALL, "ring:4")
    for method in ("exact", "approximate"):
        synthesize(work, FlowOptions(method=method, phases=10))
    network = GroupNetwork(FlowNetwork.of(work.topology), work.occupancy)
    groups = [
        GroupWish(npus, CollectiveKind.ALL_GATHER, work.collective_bytes)
        for npus in ((0, 2), (1, 3))
    ]
    find_fastest_schedule(network, groups)
