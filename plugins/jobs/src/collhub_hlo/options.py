"""Options of the readers of HLO and StableHLO text, and the names of the formats."""

from __future__ import annotations

from dataclasses import dataclass

from collhub_templates.roofline import MachineOptions

from hub_core.plugin_api import OptionType, option, optional

HLO = "hlo"
STABLEHLO = "stablehlo"
MAX_NODES = 1 << 20


@dataclass(frozen=True, slots=True)
class HloOptions(MachineOptions):
    """Loops, dependencies, and peak rates from which the roofline estimates durations."""

    trip_count: int | None = optional(
        "iterations of loops whose count the module does not contain", OptionType.INT, minimum=0
    )
    iterations: int = option(
        OptionType.INT, 4096, "maximum number of iterations per loop that are read", minimum=1
    )
    order: str = option(
        OptionType.TEXT,
        "schedule",
        "dependencies: the sequence of a scheduled module, or only the data flow",
        choices=("schedule", "data"),
    )
    merge_compute: bool = option(
        OptionType.BOOL, False, "merge computations that follow each other in the schedule"
    )
    max_nodes: int = option(
        OptionType.INT, MAX_NODES, "maximum number of nodes of the workload", minimum=1
    )
