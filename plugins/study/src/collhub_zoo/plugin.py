"""Register the command `zoo`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Command, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the plugin's only command, the group `collhub zoo`."""
    return [
        Command(
            "zoo",
            "List, show, get and build a catalogue of algorithms.",
            "collhub_zoo.zoo_command:zoo",
        )
    ]
