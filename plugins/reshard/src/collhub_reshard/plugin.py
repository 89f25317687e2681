"""Offers of this distribution to the hub: the command `reshard` and the check of its proofs."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Check, Command, Subject, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "reshard",
            "Move sharded tensors between device meshes in minimum time.",
            "collhub_reshard.command:reshard",
        )
    ]


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe the check."""
    return [
        Check(
            "reshard",
            Subject.CERTIFICATE,
            "bound and schedule of a resharding, recomputed only from its tasks",
            "collhub_reshard.recheck:check_schedule",
        )
    ]
