"""Offers of this distribution to the hub: the command `reshard` and the check of its proofs."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Check, Command, RuleSet, Subject, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the plugin's only command, `collhub reshard`."""
    return [
        Command(
            "reshard",
            "Move sharded tensors between device meshes in minimum time.",
            "collhub_reshard.command:reshard",
        )
    ]


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Return the check `reshard`, which recomputes the bound and the schedule in a certificate of a
    resharding, and the rules of the plugin.
    """
    return [
        Check(
            "reshard",
            Subject.CERTIFICATE,
            "bound and schedule of a resharding, recomputed only from its tasks",
            "collhub_reshard.recheck:check_schedule",
        ),
        RuleSet("reshard", "findings in reshardings", "collhub_reshard.rules:list_rules"),
    ]
