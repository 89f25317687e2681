"""Options of the passes."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional

_MEMBERS = "names of operations or stages, joined by +, such as a+b+c"


@dataclass(frozen=True, slots=True)
class StatedOptions:
    """Options of every pass: inference of programs from workloads that do not contain one."""

    element: str | None = choice(
        (None, "float16", "float32", "float64"),
        "element type of inferred tensors, which the names in a trace do not determine",
    )
    infer: bool = option(
        OptionType.BOOL,
        False,
        "infer missing operations from the table of operator names, and report them",
    )


@dataclass(frozen=True, slots=True)
class ScatterOptions(StatedOptions):
    """Options of `split`: the AllReduce, and the dimension along which it is split."""

    target: str | None = optional("name of the AllReduce (default: the only one)")
    dimension: int = option(
        OptionType.INT, 0, "dimension to scatter along, counted from 0", minimum=0
    )


@dataclass(frozen=True, slots=True)
class RootOptions(StatedOptions):
    """Options of `split-at-root`: the AllReduce, and the root as a rank of its group."""

    target: str | None = optional("name of the AllReduce (default: the only one)")
    root: int = option(OptionType.INT, 0, "rank of the group, counted from 0", minimum=0)


@dataclass(frozen=True, slots=True)
class ReorderOptions(StatedOptions):
    """Options of `reorder`: the AllGather, and the operations that move before it."""

    target: str | None = optional("name of the AllGather (default: the only one)")
    members: str | None = optional(f"{_MEMBERS} (default: all that can move)")


@dataclass(frozen=True, slots=True)
class StateOptions(StatedOptions):
    """Options of `as-slice`: the states to store as slices."""

    states: str | None = optional("names of states, joined by +, such as m+v")


@dataclass(frozen=True, slots=True)
class FuseOptions(StatedOptions):
    """Options of `fuse`: the operations of the kernel, and its name."""

    members: str | None = optional(_MEMBERS)
    name: str = option(OptionType.TEXT, "fused", "name of the stage")


@dataclass(frozen=True, slots=True)
class OverlapOptions(StatedOptions):
    """Options of `overlap`: the members of the chain."""

    members: str | None = optional(f"{_MEMBERS}, from producer to consumer")
