"""Offers of this distribution to the hub: a synthesizer, and the command `groups`."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_flows.options import FlowOptions
from hub_core.plugin_api import Command, Synthesizer, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

FLOWS = Synthesizer(
    "flows",
    "all-to-all, scatter and gather by the optimal flow, with a proven bound",
    "collhub_flows.synthesize:synthesize",
    FlowOptions,
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Describe the synthesizer."""
    return [FLOWS]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "groups",
            "Make algorithms for process groups that run at the same time.",
            "collhub_flows.groups.command:groups",
        )
    ]
