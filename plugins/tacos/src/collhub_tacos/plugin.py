"""Plugin declaration: the synthesizer `tacos`, its options and the check that compiles its kernels.

Heavy imports are inside functions because listing the plugins imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model import STANDARD_KINDS, CollectiveKind
from hub_core.plugin_api import (
    Check,
    CheckReport,
    CheckRequest,
    OptionType,
    Subject,
    Synthesizer,
    WarmOptions,
    choice,
    hookimpl,
    option,
)

COLLHUB_PLUGIN_API = (1, 0)


@dataclass(frozen=True, slots=True)
class TacosOptions:
    """Options of the synthesizer.

    `Setting.of` checks two values: `chunks`, a text because it may be `auto`, and the upper limit
    of `degree`, which depends on the topology.
    """

    chunks: str = option(
        OptionType.TEXT,
        "auto",
        "pieces of every rank's share: a number, or auto to choose by the time",
    )
    seeds: int = option(
        OptionType.INT,
        0,
        "number of random variants of which the best is kept (0: by size, up to 20)",
        minimum=0,
        maximum=10_000,
    )
    # Kernels mix seeds in 64 bits: this maximum leaves room for the seeds after the first.
    seed: int = option(
        OptionType.INT,
        0,
        "first seed; the same seed gives the same bytes",
        minimum=0,
        maximum=2**31 - 1,
    )
    method: str = choice(
        ("auto", "two-phase", "fused", "latency", "one-shot"),
        "form of an all-reduce: the fastest of the others, or the one that is named",
    )
    switches: str = choice(
        ("forward", "unwind"),
        "switches store and forward, or are unwound into links between their neighbours",
    )
    degree: int = option(
        OptionType.INT,
        0,
        "links that a port of an unwound switch is divided into (0: to all other ports)",
        minimum=0,
    )
    memory: int = option(
        OptionType.SIZE,
        8 << 30,
        "bytes that the schedule may take; more is refused beforehand",
        minimum=1,
        maximum=1 << 50,
    )
    threads: int = option(
        OptionType.INT,
        0,
        "seeds that are tried at once (0: as many as the machine has cores)",
        minimum=0,
        maximum=1024,
    )


# The function is named, not imported: numba takes a second to import.
TACOS = Synthesizer(
    "tacos",
    "topology-aware synthesis of every collective on any network, "
    "by matching on the time-expanded network",
    "collhub_tacos.synthesize:synthesize",
    TacosOptions,
    adapts=True,
    collectives=STANDARD_KINDS,
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Return the synthesizer."""
    return [TACOS]


KERNELS = Check(
    "tacos-kernels",
    Subject.INSTALLATION,
    "compiles the kernels beforehand, for doctor --warm",
    "collhub_tacos.plugin:check",
    WarmOptions,
)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Return the check that compiles the kernels in advance."""
    return [KERNELS]


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile all kernels of TACOS that are not cached, if `options.warm` is set.

    The report has the number of compiled kernels and the seconds; it fails if they could
    not be cached on disk. Without `warm` no kernel is compiled, and the report is a success
    without a text. `request` is not used.
    """
    from collhub_packing.warming import warm_check

    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    """Run small syntheses that together use every kernel, so that all of them are compiled.

    All-gathers on `ring:4`, `mesh:3x3` and `switch:4` and an all-reduce on `mesh:3x3`, each with a
    replay of its schedule; then, on the mesh of the all-gather, the kernels that a synthesis skips
    if a simpler schedule reaches the bound: matching, evacuation bound, and search with deadlines.
    Results are discarded.
    """
    # Imported here: numba takes a second.
    from collhub_packing.warming import small_request

    from collhub_tacos.search.fastest_candidate import find_fastest_candidate
    from collhub_tacos.search.seeds import ignore_fraction, ignore_progress
    from collhub_tacos.search.setting import Setting
    from collhub_tacos.spreading.heterogeneous import find_all_gather
    from collhub_tacos.spreading.matching import build_matched_all_gather, search_with_deadlines
    from collhub_tacos.synthesize import synthesize
    from collhub_tacos.time_cuts import evacuation_bound
    from hub_core.network import Occupancy

    # Rings, other networks of equal links, switches, and trees use different kernels.
    requests = [
        small_request(kind, topology, occupancy)
        for kind, topology, occupancy in (
            (CollectiveKind.ALL_GATHER, "ring:4", Occupancy.SERIALIZATION),
            (CollectiveKind.ALL_GATHER, "mesh:3x3", Occupancy.ALPHA_BETA),
            (CollectiveKind.ALL_GATHER, "switch:4", Occupancy.SERIALIZATION),
            (CollectiveKind.ALL_REDUCE, "mesh:3x3", Occupancy.SERIALIZATION),
        )
    ]
    options = TacosOptions()
    for request in requests:
        synthesize(request, options)
        # A separate kernel checks schedules that do not fit in memory.
        find_fastest_candidate(Setting.of(request, options), request).replay(ignore_progress)
    # `synthesize` skips these on small networks because simpler schedules reach the bound.
    mesh = Setting.of(requests[1], options)
    times = mesh.link_times(mesh.count_units(1))
    build_matched_all_gather(mesh.network, times, mesh.members)
    evacuation_bound(mesh.network, times, mesh.members)
    begin = find_all_gather(mesh.network, times, mesh.members)
    search_with_deadlines(
        mesh.network, times, mesh.members, begin, goal_ps=0, first_seed=0, report=ignore_fraction
    )
