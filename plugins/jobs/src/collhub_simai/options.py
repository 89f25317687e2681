"""Options of the readers of SimAI's inputs, and the names of the formats."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional

SIMAI, SIMCCL = "simai", "simccl"


@dataclass(frozen=True, slots=True)
class SimaiOptions:
    """Number of GPUs and of training steps, and the limit of the workload."""

    gpus: int | None = optional(
        "number of GPUs in place of all_gpus; groups of data parallelism change with it",
        OptionType.INT,
        minimum=1,
    )
    passes: int = option(OptionType.INT, 1, "training steps, one after the other", minimum=1)
    max_nodes: int = option(
        OptionType.INT, 1 << 21, "maximum number of nodes of the workload", minimum=1
    )


@dataclass(frozen=True, slots=True)
class SimcclOptions:
    """Collective of the flows."""

    collective: str | None = choice(
        (None, "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce"),
        "the collective of the file that is read (default: the only one)",
    )
    operation: int | None = optional(
        "the number of the operation (column op; default: the first)", OptionType.INT, minimum=0
    )
