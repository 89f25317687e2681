"""Offers of this plugin: the synthesizer `flows`, its bound, and the command `groups`."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_flows.options import FlowOptions
from hub_core.model import CollectiveKind
from hub_core.plugin_api import (
    Check,
    Command,
    LowerBound,
    Subject,
    Synthesizer,
    WarmOptions,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

FLOWS = Synthesizer(
    "flows",
    "all-to-all, scatter and gather by the optimal flow, with a proven bound",
    "collhub_flows.synthesize:synthesize",
    FlowOptions,
    adapts=True,
    collectives=(CollectiveKind.ALL_TO_ALL, CollectiveKind.SCATTER, CollectiveKind.GATHER),
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Offer the synthesizer."""
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
    """Offer the check that compiles the kernels in advance."""
    return [
        Check(
            "flows-kernels",
            Subject.INSTALLATION,
            "compiles the kernels in advance, for doctor --warm",
            "collhub_flows.warming:check",
            WarmOptions,
        )
    ]


@hookimpl
def collhub_bounds() -> Sequence[LowerBound]:
    """Offer the lower bound; the import of SciPy takes about half a second."""
    return [
        LowerBound(
            "flows",
            "all-to-all, scatter and gather: the optimal flow, by linear programming",
            "collhub_flows.certificate:prove",
            (CollectiveKind.ALL_TO_ALL, CollectiveKind.SCATTER, CollectiveKind.GATHER),
            loading_work=600_000_000,
        )
    ]
