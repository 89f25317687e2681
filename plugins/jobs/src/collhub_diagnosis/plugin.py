"""Offers of this plugin to the hub: the command `diagnose`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import (
    Command,
    RuleSet,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "diagnose",
            "Name the ranks that make a job hang, by Flight Recorder dumps.",
            "collhub_diagnosis.command:diagnose",
        )
    ]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Describe the rules of the dumps."""
    return [
        RuleSet(
            "diagnosis", "findings in dumps of jobs that hang", "collhub_diagnosis.rules:list_rules"
        )
    ]
