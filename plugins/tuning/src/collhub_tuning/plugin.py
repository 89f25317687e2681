"""Offer of this distribution to the hub: the command `compare`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Command, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "compare",
            "Compare algorithms on a topology over a range of sizes.",
            "collhub_tuning.compare_command:compare",
        )
    ]
