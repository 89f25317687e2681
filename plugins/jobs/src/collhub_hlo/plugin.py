"""Offers of this plugin to the hub: the readers of HLO and StableHLO text, with their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collhub_templates.roofline import MachineOptions

from hub_core.plugin_api import (
    Format,
    OptionType,
    RuleSet,
    WorkloadReader,
    hookimpl,
    option,
    optional,
)

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


COLLHUB_PLUGIN_API = (1, 0)

_HLO_TEXT = Format(
    HLO,
    "compiled programs of XLA (HLO text of JAX and others), one module for all devices",
    (".hlo", ".hlo.txt", ".hlo.gz", ".hlo.txt.gz"),
    rb"\A(?:\s|//[^\n]*\n)*HloModule\s",
)

# Bytecode is recognised, so that the reader can refuse it with a cure. Definitions of locations may
# fill the first bytes of a file.
_STABLEHLO_TEXT = Format(
    STABLEHLO,
    "programs of JAX and others before compilation (StableHLO text), one module for all devices",
    (".mlir", ".stablehlo", ".mlir.gz"),
    rb"\AML\xefR|\A(?:\s|//[^\n]*\n)*#loc\d* = loc\(|\A(?:\s|//[^\n]*\n|[#!][\w.]+ = [^\n]*\n)*"
    rb"(?:\"?builtin\.module\b|module\b|\"?func\.func\b|\"?sdy\.mesh\b)[^\x00]*?"
    rb"(?:stablehlo|mhlo|chlo|sdy)\.",
)


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Describe the readers."""
    return [
        WorkloadReader(
            _HLO_TEXT,
            "collhub_hlo.read:read",
            HloOptions,
            lines="collhub_hlo.read:lines",
            samples="collhub_hlo.samples:modules",
        ),
        WorkloadReader(
            _STABLEHLO_TEXT,
            "collhub_hlo.read:read_mlir",
            HloOptions,
            lines="collhub_hlo.read:lines",
            samples="collhub_hlo.samples:stablehlo_modules",
        ),
    ]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Describe the rules of the readers."""
    return [RuleSet("hlo", "findings in HLO and StableHLO modules", "collhub_hlo.rules:list_rules")]
