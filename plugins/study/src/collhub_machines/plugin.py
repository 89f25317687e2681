"""Offers of this package: the command `calibrate`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Command, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "calibrate",
            "Fit a machine to measured times, or check its predictions.",
            "collhub_machines.calibrate_command:calibrate",
        )
    ]
