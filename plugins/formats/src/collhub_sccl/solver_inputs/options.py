"""Options of the readers and writers of TACCL's inputs; imports no reader or writer."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option, optional


@dataclass(frozen=True, slots=True)
class TacclReadOptions:
    """Facts that a profile omits: the chunk size and the unit of its times."""

    chunk: int = option(
        OptionType.SIZE, 1 << 20, "bytes of the chunk whose times are given, unless in the file"
    )
    unit: float = option(
        OptionType.TIME, 1e-6, "unit of the times in the file, unless the file gives it", minimum=0
    )
    nodes: int = option(
        OptionType.INT,
        1,
        "number of joined nodes; each GPU is linked to the same GPU of every other node",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class TacclTopologyOptions:
    """Options of the writer `taccl-topology`."""

    chunk: int = option(
        OptionType.SIZE, 1 << 20, "bytes of a chunk: the solver knows only its times", minimum=1
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
