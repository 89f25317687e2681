"""Offers of this distribution to the hub: generators of jobs, and their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collhub_templates.roofline import RooflineOptions

from hub_core.plugin_api import OptionType, WorkloadGenerator, choice, hookimpl, option, optional


@dataclass(frozen=True, slots=True)
class TransformerOptions(RooflineOptions):
    """A decoder-only transformer, its batch, and how both are cut.

    Sizes are those of the papers that `costs` names; `batch` and `microbatch` count sequences.
    """

    layers: int = option(OptionType.INT, 4, "layers", minimum=1)
    hidden: int = option(OptionType.INT, 1024, "hidden size", minimum=1)
    heads: int = option(OptionType.INT, 16, "attention heads", minimum=1)
    kv_heads: int | None = optional(
        "heads of keys and values (default: as many)", OptionType.INT, minimum=1
    )
    feed_forward: int | None = optional(
        "width of the MLP (default: 4 times hidden)", OptionType.INT, minimum=1
    )
    gated: bool = option(OptionType.BOOL, False, "the MLP has three matrices instead of two")
    vocabulary: int = option(OptionType.INT, 32000, "tokens of the vocabulary", minimum=1)
    sequence: int = option(OptionType.INT, 1024, "tokens of a sequence", minimum=1)
    batch: int = option(OptionType.INT, 16, "sequences of a step, of all ranks", minimum=1)
    microbatch: int = option(
        OptionType.INT, 1, "sequences that go through the pipeline at once", minimum=1
    )
    element_bytes: int = option(
        OptionType.INT, 2, "bytes of a weight, activation or gradient", minimum=1
    )
    data: int = option(OptionType.INT, 2, "data-parallel degree", minimum=1)
    tensor: int = option(OptionType.INT, 1, "tensor-parallel degree", minimum=1)
    pipeline: int = option(OptionType.INT, 1, "stages of the pipeline", minimum=1)
    sequence_parallel: bool = option(
        OptionType.BOOL, False, "activations between the tensor-parallel parts are cut, too"
    )
    experts: int = option(OptionType.INT, 1, "MLPs of a layer; a token goes to some", minimum=1)
    top_k: int = option(OptionType.INT, 1, "experts to which a token goes", minimum=1)
    expert: int = option(
        OptionType.INT, 1, "expert-parallel degree, within the data-parallel ranks", minimum=1
    )
    fsdp: bool = option(
        OptionType.BOOL, False, "weights and gradients of layers are cut among data-parallel ranks"
    )
    overlap: bool = option(
        OptionType.BOOL, True, "gradients are reduced layer by layer while others are computed"
    )


@dataclass(frozen=True, slots=True)
class DlrmOptions(RooflineOptions):
    """A recommendation model: tables are cut among the ranks, its MLPs are data-parallel."""

    ranks: int = option(OptionType.INT, 8, "ranks", minimum=2, maximum=1 << 17)
    tables: int = option(OptionType.INT, 32, "embedding tables", minimum=1)
    dimension: int = option(OptionType.INT, 64, "elements of an embedding", minimum=1)
    pooling: int = option(OptionType.INT, 32, "look-ups of a sample in a table", minimum=1)
    batch: int = option(OptionType.INT, 2048, "samples of a step, of all ranks", minimum=1)
    bottom: str = option(
        OptionType.TEXT, "13-512-256", "widths of the bottom MLP, before that of an embedding"
    )
    top: str = option(
        OptionType.TEXT, "1024-1024-512-256-1", "widths of the top MLP, behind the interactions"
    )
    element_bytes: int = option(
        OptionType.INT, 4, "bytes of a weight, activation or gradient", minimum=1
    )


@dataclass(frozen=True, slots=True)
class MoeOptions(RooflineOptions):
    """A mixture of experts with expert parallelism over all ranks, and the skew of its tokens."""

    ranks: int = option(OptionType.INT, 16, "ranks", minimum=2, maximum=1 << 12)
    node_ranks: int = option(OptionType.INT, 8, "consecutive ranks of a node", minimum=1)
    layers: int = option(OptionType.INT, 1, "layers with experts", minimum=1, maximum=128)
    experts: int = option(OptionType.INT, 64, "experts of a layer", minimum=1, maximum=1 << 12)
    top_k: int = option(OptionType.INT, 8, "experts to which a token goes", minimum=1)
    tokens: int = option(OptionType.INT, 4096, "tokens of a rank", minimum=1, maximum=1 << 16)
    skew: float = option(
        OptionType.FLOAT, 0.5, "exponent of Zipf's law of the experts' popularity", minimum=0
    )
    seed: int = option(OptionType.INT, 0, "seed of the routing of tokens", minimum=0)
    replicas: int = option(
        OptionType.INT, 0, "most popular experts that every rank has a copy of", minimum=0
    )
    exchange: str = choice(
        ("direct", "two-level"),
        "tokens go to the ranks of their experts, or once per node and then within it",
    )
    nodes: str = choice(
        ("collectives", "messages"),
        "an exchange is one all-to-all-v, for any algorithm, or its messages, sent directly",
    )
    parts: int = option(
        OptionType.INT,
        1,
        "parts of the tokens; exchange and experts overlap",
        minimum=1,
        maximum=64,
    )
    hidden: int = option(OptionType.INT, 7168, "hidden size", minimum=1)
    expert_hidden: int = option(OptionType.INT, 2048, "width of an expert's MLP", minimum=1)
    element_bytes: int = option(OptionType.INT, 2, "bytes of a weight or activation", minimum=1)


COLLHUB_PLUGIN_API = (1, 0)

TRANSFORMER = WorkloadGenerator(
    "transformer",
    "a training step of a transformer, cut in every usual way",
    "collhub_models.transformer:generate",
    TransformerOptions,
)
DLRM = WorkloadGenerator(
    "dlrm", "a training step of a recommendation model", "collhub_models.dlrm:generate", DlrmOptions
)

MOE = WorkloadGenerator(
    "moe",
    "the forward step of a mixture of experts with uneven tokens",
    "collhub_models.moe:generate",
    MoeOptions,
)


@hookimpl
def collhub_producers() -> Sequence[WorkloadGenerator]:
    """Describe the generators."""
    return [TRANSFORMER, DLRM, MOE]
