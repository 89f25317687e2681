"""Offers of this distribution: the command `compose`, and its functions as passes."""

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
    """Return the passes: the functions with a single input algorithm."""
    # `sequential` has several inputs, so it is a command.
    return [
        AlgorithmPass(
            "replicate",
            "parallel copies, each on its part of the data",
            "collhub_compose.passes:run_replicate",
            ReplicateOptions,
        ),
        AlgorithmPass(
            "relabel",
            "the same collective with renumbered ranks",
            "collhub_compose.passes:run_relabel",
            RelabelOptions,
        ),
        AlgorithmPass(
            "embed",
            "the same algorithm on some ranks of a larger number",
            "collhub_compose.passes:run_embed",
            EmbedOptions,
        ),
        AlgorithmPass(
            "rescale",
            "buffers divided into finer units",
            "collhub_compose.passes:run_rescale",
            RescaleOptions,
        ),
    ]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the command."""
    return [
        Command(
            "compose",
            "Join algorithms: in sequence, replicated, on other ranks.",
            "collhub_compose.command:compose",
        )
    ]
