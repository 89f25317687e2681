"""Offers of this plugin: readers, writers and checks of MSCCL++ execution plans; their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hub_core.model import STANDARD_KINDS
from hub_core.plugin_api import (
    Check,
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    OptionType,
    RuleSet,
    Runtime,
    RuntimeLimits,
    RuntimeVersions,
    SelectionWriter,
    Subject,
    WarmOptions,
    choice,
    hookimpl,
    option,
    optional,
)
from hub_core.sandbox import SourceProgramOptions

PACKETS = "LL"
"""The protocol whose data carry flags: LL."""

ALIGNMENT = 16
"""Bytes: every share of a buffer is a multiple of it."""

MAX_BLOCK_OPERATIONS = 64
"""Maximum number of operations of a thread block: the length of the executor's table."""

MAX_PARTS = 16
"""Maximum number of thread blocks that share the work of one; more have too little work each."""


@dataclass(frozen=True, slots=True)
class PlanWriteOptions:
    """How a plan moves data, and the message sizes in bytes for which it is used."""

    protocol: str = choice(
        ("Simple", PACKETS), "Simple: puts and signals; LL: data with flags, for small sizes"
    )
    nodes: int = option(
        OptionType.INT,
        1,
        "nodes of consecutive ranks, joined by port channels, if no topology is given",
        minimum=1,
    )
    topology: str | None = optional(
        "the network, as dgx-h100:2 or a file: port channels connect its NVLink domains, "
        "switch channels use the switches that it declares to multicast or reduce"
    )
    tbg: int = option(
        OptionType.INT,
        1,
        "thread blocks that share the work of each",
        minimum=1,
        maximum=MAX_PARTS,
    )
    pull: bool = option(
        OptionType.BOOL,
        True,
        "add data of other ranks directly from their memory (rre, rres); Simple only",
    )
    slices: int | None = optional(
        "send messages by pipelines with slices of this many bytes; Simple, tbg=1",
        OptionType.SIZE,
        minimum=16,
    )
    min_size: int | None = optional("smallest message of the plan", OptionType.SIZE, minimum=0)
    max_size: int | None = optional("largest message of the plan", OptionType.SIZE, minimum=0)


@dataclass(frozen=True, slots=True)
class PlanSelectionOptions:
    """Options of a folder of tuned plans."""

    packets_below: int = option(
        OptionType.SIZE,
        1 << 16,
        "windows whose largest size is below it use the protocol LL",
        minimum=0,
    )
    tbg: int = option(
        OptionType.INT, 1, "thread blocks that share the work of each", minimum=1, maximum=16
    )


COLLHUB_PLUGIN_API = (1, 0)

# The list of ranks distinguishes a plan from other JSON documents. Its members are in any order;
# the text before the list is short.
_SIGNATURE = rb'\A\s*\{(?s:.){0,2000}?"gpus"\s*:\s*\['

_PLAN = Format(
    "mscclpp",
    "execution plans of MSCCL++, as its DSL writes them",
    (".json",),
    _SIGNATURE,
    members=("name", "collective", "protocol", "inplace", "gpus"),
)
# Other names that end in `.json` are written as documents of the hub.
_WRITTEN_PLAN = replace(_PLAN, suffixes=(".plan.json",))
_PROGRAM = Format(
    "mscclpp-program",
    "programs of mscclpp.language; reading one EXECUTES it, in a separate process",
    (".py",),
    rb"(?m)^\s*(from|import) mscclpp\b",
)
_FOLDER = Format(
    "mscclpp-plans",
    "plans for MSCCL++ by windows of sizes, and the program that registers them",
    (),
    layout=Layout.FOLDER,
)
# All thread blocks of a plan must be resident at once: one block of 1024 threads with up to 64
# registers fills a multiprocessor, of which an A100 has 108, fewer than newer GPUs.
_RUNTIME = Runtime(
    "mscclpp",
    "microsoft/mscclpp",
    RuntimeLimits(
        unit_bytes=ALIGNMENT,
        max_blocks=108,
        max_block_operations=MAX_BLOCK_OPERATIONS,
        preferred_blocks=24,
        preferred_operations=500,
    ),
    STANDARD_KINDS,
    "collhub_mscclpp.writing.write:fit",
    remainder="calls of other sizes use a second plan with the fewest chunks in folders of plans",
    kernel="direct",
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Return the readers of this plugin: of execution plans, and of programs that generate plans.

    The reader of programs executes the file in a sandbox. The plugin system calls this function.
    """
    plans = FormatReader(
        _PLAN,
        "collhub_mscclpp.reading.read:read",
        samples="collhub_mscclpp.reading.read:samples",
    )
    programs = FormatReader(
        _PROGRAM,
        "collhub_mscclpp.reading.read:read_program",
        SourceProgramOptions,
        samples="collhub_mscclpp.reading.read:list_program_samples",
        executes_source=True,
    )
    return [plans, programs]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | SelectionWriter]:
    """Return the writers of this plugin: of execution plans, and of folders of plans.

    The plugin system calls this function.
    """
    folder = SelectionWriter(
        _FOLDER,
        "collhub_mscclpp.selecting.write_plans:write",
        "collhub_mscclpp.selecting.read_plans:read",
        PlanSelectionOptions,
        ("MSCCL++ 0.9, whose programs register plans",),
        (_RUNTIME,),
    )
    write = "collhub_mscclpp.writing.write:write"
    return [FormatWriter(_WRITTEN_PLAN, write, PlanWriteOptions, (_RUNTIME,)), folder]


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Return two checks, and the rules of the findings in plans.

    `mscclpp` checks whether MSCCL++ executes a plan correctly. `mscclpp-kernels` compiles the
    kernels of this plugin in advance, for `doctor --warm`. The plugin system calls this function.
    """
    plans = Check(
        "mscclpp",
        Subject.RUNTIME,
        "whether microsoft/mscclpp runs an execution plan rightly, launch after launch",
        "collhub_mscclpp.checking.check_plan:check_mscclpp",
        versions=(
            # Older plans have another format. The rules are those of 0.9.0.
            RuntimeVersions(
                "0.8", "0.9", True, "https://github.com/microsoft/mscclpp (1f5f065d)", "2026-11"
            ),
        ),
        versioned_by="MSCCL++",
        reads=(_PLAN.name,),
    )
    kernels = Check(
        "mscclpp-kernels",
        Subject.INSTALLATION,
        "compiles the kernels in advance, for doctor --warm",
        "collhub_mscclpp.reading.read:check",
        WarmOptions,
    )
    return [
        plans,
        kernels,
        RuleSet(
            "mscclpp",
            "findings in plans of MSCCL++",
            "collhub_mscclpp.checking.declared_rules:list_rules",
        ),
    ]
