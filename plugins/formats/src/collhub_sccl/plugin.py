"""Readers and writers of step schedules of SCCL and its successors, as JSON.

SCCL synthesizes them (Cai et al., PPoPP 2021), msccl-tools continues it, and TACCL (Shah et al.,
NSDI 2023) writes the same objects with start times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collhub_sccl.solver_inputs.options import (
    TacclReadOptions,
    TacclSketchOptions,
    TacclTopologyOptions,
)
from hub_core.plugin_api import (
    Format,
    FormatReader,
    FormatWriter,
    TopologyReader,
    TopologyWriter,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

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
    return [FormatReader(_SCCL, "collhub_sccl.read:read", samples="collhub_sccl.read:samples")]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter]:
    """Writer of algorithms."""
    return [FormatWriter(_WRITTEN_SCCL, "collhub_sccl.write:write")]


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader | TopologyWriter]:
    """Reader and writers of the inputs of TACCL's solver."""
    return [
        TopologyReader(
            _PROFILE,
            "collhub_sccl.solver_inputs.read:read",
            TacclReadOptions,
            samples="collhub_sccl.read:profiles",
        ),
        TopologyWriter(
            _WRITTEN_PROFILE,
            "collhub_sccl.solver_inputs.write:write_topology",
            TacclTopologyOptions,
        ),
        TopologyWriter(
            _SKETCH,
            "collhub_sccl.solver_inputs.write:write_sketch",
            TacclSketchOptions,
        ),
    ]
