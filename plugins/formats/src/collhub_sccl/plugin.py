"""Readers and writers of step schedules of SCCL and its successors, as JSON, and their options.

SCCL synthesizes them (Cai et al., PPoPP 2021), msccl-tools continues it, and TACCL (Shah et al.,
NSDI 2023) writes the same objects with start times. The plugin also reads and writes the inputs of
TACCL's solver. This module imports no reader or writer, so that offers are listed quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hub_core.plugin_api import (
    Format,
    FormatReader,
    FormatWriter,
    OptionType,
    RuleSet,
    TopologyReader,
    TopologyWriter,
    hookimpl,
    option,
    optional,
)

COLLHUB_PLUGIN_API = (1, 0)


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


# The tag may be anywhere in the first object; only a preceding name is recognised. Possessive
# groups prevent backtracking for any text.
_SIGNATURE = (
    rb'\A\s*+\{\s*+(?:"name"\s*+:\s*+"[^"]*+"\s*+,\s*+)?+'
    rb'"(?:(?:ms|s)ccl_type"\s*+:\s*+"algorithm"|instance"\s*+:)'
)
_SCCL = Format(
    "sccl",
    "algorithms of SCCL, msccl-tools and TACCL (JSON): steps of sends",
    (".json",),
    _SIGNATURE,
    members=("name", "instance", "input_map", "output_map", "steps", "collective", "topology"),
)
# File names that end only in `.json` are written as the hub's own documents.
_WRITTEN_SCCL = replace(_SCCL, suffixes=(".sccl.json",))
_PROFILE = Format(
    "taccl-topology",
    "profiles of nodes for TACCL's solver (JSON)",
    (".json",),
    rb'"gpus_per_node"\s*+:',
    members=("name", "gpus_per_node", "alpha", "links", "betas", "invbws"),
)
# As above: only `.json` means the hub's own documents.
_WRITTEN_PROFILE = replace(_PROFILE, suffixes=(".taccl.json",))
_SKETCH = Format(
    "taccl-sketch",
    "sketches that tell TACCL's solver how to search on a network (JSON)",
    (".sketch.json",),
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Reader of algorithms."""
    return [
        FormatReader(
            _SCCL, "collhub_sccl.algorithms:read", samples="collhub_sccl.algorithms:samples"
        )
    ]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter]:
    """Writer of algorithms."""
    return [FormatWriter(_WRITTEN_SCCL, "collhub_sccl.algorithms:write")]


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader | TopologyWriter]:
    """Reader and writers of the inputs of TACCL's solver."""
    return [
        TopologyReader(
            _PROFILE,
            "collhub_sccl.solver_files:read",
            TacclReadOptions,
            samples="collhub_sccl.algorithms:profiles",
        ),
        TopologyWriter(
            _WRITTEN_PROFILE,
            "collhub_sccl.solver_files:write_topology",
            TacclTopologyOptions,
        ),
        TopologyWriter(
            _SKETCH,
            "collhub_sccl.solver_files:write_sketch",
            TacclSketchOptions,
        ),
    ]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Rules of the readers and writers."""
    rules = "collhub_sccl.rules:list_rules"
    return [RuleSet("sccl", "findings in algorithms of SCCL and profiles of TACCL", rules)]
