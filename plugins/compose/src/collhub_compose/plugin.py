"""What this distribution offers to the hub: the command `compose`, and its functions as passes."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_compose.options import (
    EmbedOptions,
    RelabelOptions,
    ReplicateOptions,
    RescaleOptions,
)
from hub_core.plugin_api import AlgorithmPass, Command, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_passes() -> Sequence[AlgorithmPass]:
    """Describe the passes: what has one algorithm as its input."""
    # A sequence has several, so it is a command.
    return [
        AlgorithmPass(
            "replicate",
            "copies side by side, on as many times the units",
            "collhub_compose.passes:replicated",
            ReplicateOptions,
        ),
        AlgorithmPass(
            "relabel",
            "the same collective on ranks of other numbers",
            "collhub_compose.passes:relabelled",
            RelabelOptions,
        ),
        AlgorithmPass(
            "embed",
            "the same among some of more ranks",
            "collhub_compose.passes:embedded",
            EmbedOptions,
        ),
        AlgorithmPass(
            "rescale",
            "buffers cut in finer units",
            "collhub_compose.passes:rescaled",
            RescaleOptions,
        ),
    ]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "compose",
            "Join algorithms: in sequence, replicated, on other ranks.",
            "collhub_compose.command:compose",
        )
    ]
