"""Options of the writers of execution plans and of folders of plans."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional

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
