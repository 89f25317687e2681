"""Options of the passes."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional

_MEMBERS = "names of operations or stages, as a+b+c"


@dataclass(frozen=True, slots=True)
class StatedOptions:
    """How a workload that does not state its program is understood."""

    element: str | None = choice(
        (None, "float16", "float32", "float64"),
        "element type of what is filled in, which no trace of names tells",
    )
    infer: bool = option(
        OptionType.BOOL,
        False,
        "fill in what nodes do not state from the table of operator names, and say what",
    )


@dataclass(frozen=True, slots=True)
class ScatterOptions(StatedOptions):
    """Which AllReduce is split, and along which dimension."""

    target: str | None = optional("name of the AllReduce (default: the only one)")
    dimension: int = option(
        OptionType.INT, 0, "dimension to scatter along, counted from 0", minimum=0
    )


@dataclass(frozen=True, slots=True)
class RootOptions(StatedOptions):
    """Which AllReduce is split, and at which rank of its group."""

    target: str | None = optional("name of the AllReduce (default: the only one)")
    root: int = option(OptionType.INT, 0, "rank of the group, counted from 0", minimum=0)


@dataclass(frozen=True, slots=True)
class ReorderOptions(StatedOptions):
    """What moves before which AllGather."""

    target: str | None = optional("name of the AllGather (default: the only one)")
    members: str | None = optional(f"{_MEMBERS} (default: all that can move)")


@dataclass(frozen=True, slots=True)
class StateOptions(StatedOptions):
    """Which states are stored as slices."""

    states: str | None = optional("names of states, as m+v")


@dataclass(frozen=True, slots=True)
class FuseOptions(StatedOptions):
    """What becomes one kernel."""

    members: str | None = optional(_MEMBERS)
    name: str = option(OptionType.TEXT, "fused", "name of the stage")


@dataclass(frozen=True, slots=True)
class OverlapOptions(StatedOptions):
    """What works chunk by chunk."""

    members: str | None = optional(f"{_MEMBERS}, from producer to consumer")
