"""Options of the passes, as given by `-O key=value`."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option, optional


@dataclass(frozen=True, slots=True)
class ReplicateOptions:
    """Options of the pass `replicate`."""

    instances: int = option(OptionType.INT, 2, "number of copies", minimum=1)
    interleaved: bool = option(
        OptionType.BOOL, False, "distribute the units round robin, not in one part per copy"
    )


@dataclass(frozen=True, slots=True)
class RelabelOptions:
    """Options of the pass `relabel`."""

    ranks: str | None = optional("rank i becomes the i-th of these, as 3,0-2 (default: unchanged)")


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """Options of the pass `embed`."""

    num_ranks: int | None = optional(
        "total number of ranks of the result (default: unchanged)", OptionType.INT, minimum=1
    )
    ranks: str | None = optional("rank i becomes the i-th of these (default: the first ones)")


@dataclass(frozen=True, slots=True)
class RescaleOptions:
    """Options of the pass `rescale`."""

    factor: int = option(OptionType.INT, 2, "number of units that replace each unit", minimum=1)
