"""Offers of this plugin: the readers of HLO and StableHLO text, with their options and rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collhub_templates.roofline import RooflineOptions

from hub_core.plugin_api import (
    Format,
    OptionType,
    Rule,
    RuleSet,
    WorkloadReader,
    declare_rules,
    hookimpl,
    option,
    optional,
)

HLO = "hlo"

STABLEHLO = "stablehlo"

MAX_NODES = 1 << 20


@dataclass(frozen=True, slots=True)
class HloOptions(RooflineOptions):
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
    return [
        RuleSet("hlo", "findings in HLO and StableHLO modules", "collhub_hlo.plugin:list_rules")
    ]


_MODULES = (
    (
        "hlo",
        "A statement is no HLO or StableHLO text of a form that is read.",
        "The file was changed by hand, or a newer version writes another form.",
        "Dump the module again as text; the message names the line.",
        "`%a = f32[2 add(%b)`",
    ),
    (
        "cut",
        "The file ends within a statement, computation or module.",
        "The copy is incomplete.",
        "Copy or dump the file again.",
        "a module without its ENTRY computation",
    ),
    (
        "format",
        "The file does not begin with a module.",
        "It is another dump of XLA.",
        "Give the file whose name ends with `after_optimizations.txt`.",
        "a file that begins with `ENTRY`",
    ),
    (
        "bytecode",
        "The file is MLIR bytecode.",
        "It was written with `serialize_portable_artifact` or similar.",
        "Write text: `stablehlo-translate --deserialize`, or `lowered.as_text()`.",
        "a file that begins with `ML` and the bytes ef 52",
    ),
    (
        "dangling",
        "An operand, computation or function is not defined before its use.",
        "Lines were removed from the dump.",
        "Dump the module again.",
        "`add(%a, %missing)`",
    ),
    (
        "recursion",
        "A function calls itself.",
        "The module is not compiled.",
        "Dump the module after optimization.",
        "`func @f` with `call @f`",
    ),
    (
        "group",
        "Groups of a collective are invalid.",
        "Ids are out of range, occur twice, or are missing.",
        "Correct replica_groups, source_target_pairs or device_ids.",
        "`replica_groups={{0,1},{1,2}}` for 3 replicas",
    ),
    (
        "size",
        "Operand, result and groups of a collective contradict each other.",
        "The shape or the groups were changed.",
        "Correct its shape or its groups.",
        "an all-gather of 2 devices from f32[4] to f32[4]",
    ),
    (
        "rank-range",
        "The module is for no device or for more devices than are read.",
        "num_partitions or replica_count is wrong.",
        "Correct the number of devices.",
        "`num_partitions=0`",
    ),
    (
        "trip-count",
        "The number of iterations of a loop is unknown or exceeds the limit.",
        "The loop depends on data.",
        "Give it: `-O trip_count=N`.",
        "a while loop whose condition compares data",
    ),
    (
        "too-large",
        "The module has more nodes than the limit.",
        "Loops are unrolled for all devices.",
        "Raise `-O max_nodes`, or read fewer iterations.",
        "a loop of 100 collectives that runs 4096 times on 1024 devices",
    ),
    (
        "hlo-loss",
        "The workload lacks operations of the module.",
        "Their work or peers cannot be derived from the text.",
        "No action is needed unless these operations matter; the message counts them.",
        "a custom call of unknown work",
    ),
    (
        "hlo-devices",
        "The ranks of the devices, or their number, are assumed.",
        "The text does not contain the devices, or states no number of them.",
        "No action is needed; the message states the assumption.",
        "a module with replicas and partitions",
    ),
    (
        "hlo-unpartitioned",
        "The module has shapes of all devices together, and lacks collectives.",
        "It was dumped before partitioning.",
        "Read the HLO text of the compiled program, or the dump after optimizations.",
        "a module with shardings but no collectives",
    ),
    (
        "hlo-unfused",
        "Operations are not fused; each one reads and writes memory in the durations.",
        "StableHLO is the program before compilation.",
        "Read the HLO text of the compiled program for better durations.",
        "a StableHLO module with `-O tflops`",
    ),
    (
        "hlo-roofline",
        "Durations are estimated from the peak rates of the options.",
        "An HLO module has no measured times.",
        "No action is needed; give the rates of your device with `-O`.",
        "a matrix product at the assumed peak rate",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return declare_rules("compiled programs of XLA as HLO text, and StableHLO modules", _MODULES)
