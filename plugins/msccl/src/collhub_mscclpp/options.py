"""The options of the writer `mscclpp`."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional

PACKETS = "LL"
"""The protocol whose data carry flags."""

ALIGNMENT = 16
"""Bytes of which all shares of a buffer are multiples."""

MOST_PARTS = 16
"""Thread blocks that share the work of one: more than that have too little to do."""


@dataclass(frozen=True, slots=True)
class PlanWriteOptions:
    """How a plan moves data, and for which sizes it is used; sizes in bytes."""

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
        "the network, as dgx-h100:2 or a file: port channels lead between its NVLink domains, "
        "switch channels go through switches that it declares to multicast or reduce"
    )
    tbg: int = option(
        OptionType.INT,
        1,
        "thread blocks that share the work of each",
        minimum=1,
        maximum=MOST_PARTS,
    )
    pull: bool = option(
        OptionType.BOOL,
        True,
        "add what others send straight from their memory, where it stays (rre, rres); Simple only",
    )
    slices: int | None = optional(
        "bytes of a slice of the pipelines by which messages go; Simple, tbg=1",
        OptionType.SIZE,
        minimum=16,
    )
    min_size: int | None = optional("smallest message of the plan", OptionType.SIZE, minimum=0)
    max_size: int | None = optional("largest message of the plan", OptionType.SIZE, minimum=0)


@dataclass(frozen=True, slots=True)
class PlanSelectionOptions:
    """Options of tuned folders of plans."""

    packets_below: int = option(
        OptionType.SIZE, 1 << 16, "windows that end below take the protocol LL", minimum=0
    )
    tbg: int = option(
        OptionType.INT, 1, "thread blocks that share the work of each", minimum=1, maximum=16
    )
