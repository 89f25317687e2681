"""Offers of this plugin to the hub: the generator of pipelines, and the command `pipeline`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Command,
    OptionType,
    WorkloadGenerator,
    choice,
    hookimpl,
    option,
    optional,
)

SEARCHED = "search"
NAMES = (
    "1f1b",
    "eager-1f1b",
    "gpipe",
    "interleaved",
    "zb-h1",
    "zb-h2",
    "two-directions",
    SEARCHED,
    "interleaved-zb",
    "looped-bfs",
    "zbv",
    "dualpipe-v",
    "v-half",
    "v-min",
    "hanayo",
)
"""Names of schedules, defined here so that listing options imports no schedules."""

HAND_OVERS = ("all-gather", "broadcast", "send-recv")


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """A pipeline, its passes and its messages. Times are those of one micro-batch on one stage."""

    schedule: str = choice(NAMES, "order of the passes; search: the fastest within the memory")
    stages: int = option(OptionType.INT, 4, "stages, each on devices of its own", minimum=1)
    micro_batches: int = option(OptionType.INT, 8, "micro-batches of a step", minimum=1)
    chunks: int | None = optional(
        "chunks of the model on each device (default: 2 in V shapes and waves, else 1); of a "
        "search, the most (default: 2)",
        OptionType.INT,
        minimum=1,
    )
    csv: str | None = optional("schedule of PyTorch as CSV, in place of a name", OptionType.PATH)
    objective: str = choice(
        ("step", "steady"), "of a search: time of one step, or of each of many steps without flush"
    )
    forward: float = option(OptionType.TIME, 1e-3, "a forward pass", minimum=1e-9)
    input_gradient: float = option(OptionType.TIME, 1e-3, "gradient of the input", minimum=1e-9)
    weight_gradient: float = option(OptionType.TIME, 1e-3, "gradient of the weights", minimum=1e-9)
    delay_weights: bool = option(
        OptionType.BOOL, False, "gradients leave before those of the weights are computed"
    )
    activation: int = option(OptionType.SIZE, 1 << 20, "of a micro-batch between stages", minimum=1)
    transfer: float = option(
        OptionType.TIME, 0.0, "what one transfer takes, by which a search judges", minimum=0
    )
    transport: str = choice(
        ("async", "blocking"), "whether the sender computes while it sends, or waits"
    )
    memory: str | None = optional(
        "micro-batches whose activations a device may hold (default: any), one number or one a "
        "device: 8,8,6,6"
    )
    stage_times: str | None = optional(
        "times of equal parts of the model, in place of those of a pass: forward/input/weight with "
        "; between, such as 1ms/1ms/0.5ms; 2ms/2ms/1ms"
    )
    stage_sizes: str | None = optional(
        "activations of equal parts of the model, relative to a model of equal parts: 2,1,1"
    )
    embedding: str | None = optional("additional times of the first stage, such as 1ms/0s/1ms")
    head: str | None = optional("additional times of the last stage, such as 1ms/1ms/1ms")
    recompute: str = choice(
        ("none", "all", "auto"), "stages that repeat the forward pass before the backward pass"
    )
    kept: float = option(
        OptionType.FLOAT,
        0.0,
        "part of an activation that recomputation keeps",
        minimum=0,
        maximum=1,
    )
    slices: int = option(OptionType.INT, 1, "token slices of a micro-batch", minimum=1)
    attention: float = option(
        OptionType.FLOAT, 0.0, "part of the work in causal attention", minimum=0, maximum=1
    )
    warmups: str | None = optional(
        "forward passes ahead on each stage, such as 5,4,2,1, of 1f1b, eager-1f1b and gpipe"
    )
    tensor: str = option(
        OptionType.TEXT, "1", "ranks that share a stage, of all stages or one number a stage: 4,2"
    )
    activation_tensor: str | None = optional(
        "shape and dtype of a micro-batch between stages, such as 8x1024x4096:bfloat16, for meshes"
    )
    meshes: str | None = optional(
        "mesh and spec of its activations, of all stages or one a stage with ; between, such as "
        "mesh(2,2): S0 R S1; between other ones they are resharded"
    )
    hand_over: str = choice(
        HAND_OVERS, "how a box gets to the ranks of a host that need it, with meshes"
    )
    data: int = option(OptionType.INT, 1, "replicas of the pipeline", minimum=1)
    gradients: int = option(
        OptionType.SIZE, 1 << 20, "of the gradients of a stage, reduced among replicas", minimum=1
    )


COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_producers() -> Sequence[WorkloadGenerator]:
    """Describe the generator."""
    return [
        WorkloadGenerator(
            "pipeline",
            "a training step on a pipeline, by every usual schedule",
            "collhub_pipeline.job:generate",
            PipelineOptions,
            searches=True,
        )
    ]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "pipeline",
            "Time, search, check and write schedules of pipelines.",
            "collhub_pipeline.command:pipeline",
        )
    ]
