"""Offers of this distribution: the command `compose`, and its functions as passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import AlgorithmPass, Command, OptionType, hookimpl, option, optional


@dataclass(frozen=True, slots=True)
class ReplicateOptions:
    """Options of the pass `replicate`."""

    instances: int = option(OptionType.INT, 2, "number of copies", minimum=1)
    interleaved: bool = option(
        OptionType.BOOL, False, "distribute the units round robin, not in one part per copy"
    )


@dataclass(frozen=True, slots=True)
class PipelineTransformOptions:
    """Options of the pass `pipeline`."""

    pieces: int = option(
        OptionType.INT, 2, "parts of the data, which are processed one after another", minimum=1
    )


@dataclass(frozen=True, slots=True)
class RelabelOptions:
    """Options of the pass `relabel`."""

    ranks: str | None = optional("rank i becomes the i-th of these, as 3,0-2 (default: unchanged)")


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """Options of the pass `embed`."""

    num_ranks: int | None = optional(
        "total number of ranks of the result (default: unchanged)", OptionType.INT, minimum=1
    )
    ranks: str | None = optional("rank i becomes the i-th of these (default: the first ones)")


@dataclass(frozen=True, slots=True)
class RescaleOptions:
    """Options of the pass `rescale`."""

    factor: int = option(OptionType.INT, 2, "number of units that replace each unit", minimum=1)


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Options of the pass `repair`."""

    topology: str | None = optional("network, as ring:8?without=0-1 or a file (default: unchanged)")
    without: str | None = optional("failed links, as 0-1,3->4, in addition to those of the network")
    size: str | None = optional("size of the full buffer (default: that of the algorithm)")


COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_passes() -> Sequence[AlgorithmPass]:
    """Return the passes `replicate`, `pipeline`, `relabel`, `embed`, `rescale` and `repair`.

    Each has a single input algorithm and an options class.
    """
    # `sequential` has several inputs, so it is a command.
    return [
        AlgorithmPass(
            "replicate",
            "parallel copies, each on its part of the data",
            "collhub_compose.passes:run_replicate",
            ReplicateOptions,
        ),
        AlgorithmPass(
            "pipeline",
            "pieces of the data one after another, with phases that overlap",
            "collhub_compose.passes:run_pipeline",
            PipelineTransformOptions,
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
        AlgorithmPass(
            "repair",
            "relays for the messages that failed links cannot carry, and no other change",
            "collhub_compose.passes:run_repair",
            RepairOptions,
        ),
    ]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the plugin's only command, `collhub compose`."""
    return [
        Command(
            "compose",
            "Join algorithms: in sequence, replicated, on other ranks.",
            "collhub_compose.command:compose",
        )
    ]
