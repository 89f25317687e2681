"""Offers of this plugin: the synthesizer `flows` with its options, its bound, the command `groups`,
and the check that compiles all kernels in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model import CollectiveKind
from hub_core.plugin_api import (
    Check,
    CheckReport,
    CheckRequest,
    Command,
    LowerBound,
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
class FlowOptions:
    """Options of the synthesizer `flows`."""

    pieces: int = option(
        OptionType.INT,
        0,
        "pieces of a path's share (0: the fastest of 1 to 8; far from the bound up to 64)",
        minimum=0,
        maximum=240,
    )
    method: str = choice(
        ("auto", "exact", "approximate"),
        "flow by a linear program, or by multiplicative weights; auto: exact where that is small",
    )
    phases: int = option(
        OptionType.INT,
        0,
        "phases of the approximate flow (0: by size, 60 to 400)",
        minimum=0,
        maximum=100_000,
    )


_KINDS = (
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SCATTER,
    CollectiveKind.GATHER,
    CollectiveKind.ALL_TO_ALL_V,
)
FLOWS = Synthesizer(
    "flows",
    "all-to-all (also uneven), scatter and gather by the optimal flow, with a proven bound",
    "collhub_flows.synthesize:synthesize",
    FlowOptions,
    adapts=True,
    collectives=_KINDS,
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Offer one synthesizer, `FLOWS`."""
    return [FLOWS]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Offer the command `groups`."""
    return [
        Command(
            "groups",
            "Make algorithms for process groups that run at the same time.",
            "collhub_flows.groups.command:groups",
        )
    ]


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Offer one check, `flows-kernels`, which compiles the kernels in advance if requested."""
    return [
        Check(
            "flows-kernels",
            Subject.INSTALLATION,
            "compiles the kernels in advance, for doctor --warm",
            "collhub_flows.plugin:check",
            WarmOptions,
        )
    ]


@hookimpl
def collhub_bounds() -> Sequence[LowerBound]:
    """Offer the lower bound `flows` for the collectives of `_KINDS`.

    Its function is imported at the first use; the import of HiGHS takes about 0.05 s.
    """
    return [
        LowerBound(
            "flows",
            "all-to-all (also uneven), scatter and gather: the optimal flow, by linear programming",
            "collhub_flows.optimal_flow:prove",
            _KINDS,
            loading_work=50_000_000,
        )
    ]


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile the missing kernels if the option `warm` is set, and report them.

    The kernels are called with small problems, and the report is that of `compile_kernels`.
    Without the option no kernel is compiled, and the report is a success without a text.
    """
    # Imported here, because the package imports numpy.
    from collhub_packing.warming import warm_check

    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    """Call every kernel once with small problems, so that all are compiled.

    The problems are an all-to-all on a ring of 4 NPUs, exact and approximate, and two all-gathers
    of two NPUs each, with their bounds. The results are dropped.
    """
    # Imported here, because these modules import numba.
    from collhub_packing.warming import small_request

    from collhub_flows.groups.schedules import (
        OccupiedNetwork,
        compute_joint_bounds,
        find_fastest_schedule,
    )
    from collhub_flows.groups.shares import GroupWish, Shares
    from collhub_flows.optimal_flow import FlowArcs
    from collhub_flows.synthesize import synthesize

    work = small_request(CollectiveKind.ALL_TO_ALL, "ring:4")
    for method in ("exact", "approximate"):
        synthesize(work, FlowOptions(method=method, phases=10))
    network = OccupiedNetwork(FlowArcs.of(work.topology), work.occupancy)
    groups = [
        GroupWish(npus, CollectiveKind.ALL_GATHER, work.collective_bytes)
        for npus in ((0, 2), (1, 3))
    ]
    find_fastest_schedule(network, groups)
    compute_joint_bounds(network.flows, groups, Shares.of(groups))
