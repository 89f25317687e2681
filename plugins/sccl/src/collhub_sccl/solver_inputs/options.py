"""Options of readers and writers of TACCL's inputs; nothing here needs either."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option, optional


@dataclass(frozen=True, slots=True)
class TacclReadOptions:
    """What a profile leaves open: it states times of one chunk, in units that it does not name."""

    chunk: int = option(
        OptionType.SIZE, 1 << 20, "bytes of the chunk whose times are stated, unless the file says"
    )
    unit: float = option(
        OptionType.TIME, 1e-6, "unit of the times that are stated, unless the file says", minimum=0
    )
    nodes: int = option(
        OptionType.INT, 1, "nodes that are joined, each GPU with its own of every other", minimum=1
    )


@dataclass(frozen=True, slots=True)
class TacclTopologyOptions:
    """Options of the writer `taccl-topology`."""

    chunk: int = option(
        OptionType.SIZE, 1 << 20, "bytes of a chunk: the solver knows its times alone", minimum=1
    )
    nodes: int = option(
        OptionType.INT, 1, "nodes that the NPUs make up, each of as many that follow", minimum=1
    )


@dataclass(frozen=True, slots=True)
class TacclSketchOptions:
    """Options of the writer `taccl-sketch`."""

    nodes: int = option(
        OptionType.INT, 1, "nodes that the NPUs make up, each of as many that follow", minimum=1
    )
    hyperedges: str | None = optional(
        "uc-min or uc-max: few or many pairs of GPUs that use a switch (default: uc-min)"
    )
    chunks: int = option(OptionType.INT, 1, "chunks into which each input is cut", minimum=1)
