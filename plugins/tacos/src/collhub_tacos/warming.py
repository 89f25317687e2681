"""Compile every kernel beforehand, by small syntheses that together run all of them."""

from __future__ import annotations

from collhub_packing.warming import small_request, warm_check

from collhub_tacos.options import TacosOptions
from hub_core.model import CollectiveKind
from hub_core.network import Occupancy
from hub_core.plugin_api import CheckReport, CheckRequest, WarmOptions


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile what is not compiled yet where `options.warm` asks for it, else look at nothing."""
    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    # Imported here, as the work of this plugin is: for the kernels.
    from collhub_tacos.bounds.evacuation import evacuation_bound
    from collhub_tacos.progress import silent, unreported
    from collhub_tacos.search import fastest_candidate
    from collhub_tacos.setting import Setting
    from collhub_tacos.spreading.deadlines import before_deadlines
    from collhub_tacos.spreading.heterogeneous import find_all_gather
    from collhub_tacos.spreading.matching import matched_all_gather
    from collhub_tacos.synthesize import synthesize

    # Rings, other networks of like links, switches, and trees: each takes other kernels.
    works = (
        (CollectiveKind.ALL_GATHER, "ring:4", Occupancy.SERIALIZATION),
        (CollectiveKind.ALL_GATHER, "mesh:3x3", Occupancy.ALPHA_BETA),
        (CollectiveKind.ALL_GATHER, "switch:4", Occupancy.SERIALIZATION),
        (CollectiveKind.ALL_REDUCE, "mesh:3x3", Occupancy.SERIALIZATION),
    )
    options = TacosOptions()
    for kind, text, occupancy in works:
        request = small_request(kind, text, occupancy)
        synthesize(request, options)
        # Schedules that do not fit in memory are checked by a kernel of their own.
        fastest_candidate(Setting.of(request, options), request).replay(silent)
    # Of networks this small, plainer steps are at the bound.
    mesh = Setting.of(small_request(*works[1]), options)
    times = mesh.link_times(mesh.units(1))
    matched_all_gather(mesh.network, times, mesh.members)
    evacuation_bound(mesh.network, times, mesh.members)
    begin = find_all_gather(mesh.network, times, mesh.members)
    before_deadlines(
        mesh.network, times, mesh.members, begin, goal_ps=0, first_seed=0, report=unreported
    )
