"""Offers of this distribution to the hub: the command `expand`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Command, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

EXPAND = Command(
    "expand",
    "Give the collectives of a workload algorithms; write one flat graph.",
    "collhub_expansion.command:expand",
)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [EXPAND]
