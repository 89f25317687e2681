"""Readers and writers of step schedules of SCCL and its successors as JSON; options and rules.

This module imports no reader or writer, so that offers are listed quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hub_core.plugin_api import (
    Format,
    FormatReader,
    FormatWriter,
    OptionType,
    Rule,
    RuleSet,
    TopologyReader,
    TopologyWriter,
    declare_rules,
    hookimpl,
    option,
    optional,
)

COLLHUB_PLUGIN_API = (1, 0)


@dataclass(frozen=True, slots=True)
class TacclReadOptions:
    """Facts that a profile omits: the chunk size and the unit of its times."""

    chunk: int | None = optional(
        "bytes of the chunk whose times are given, unless in the file (default: the size at the "
        "end of the name, else 1 MiB)",
        OptionType.SIZE,
        minimum=1,
    )
    unit: float | None = optional(
        "unit of the times in the file, unless the file gives it (default: that of TACCL's own "
        "profiles of this chunk, 10 ns for 1 KiB and 100 ns for 32 KiB, else 1 us)",
        OptionType.TIME,
        minimum=0,
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
    rb'"(?:gpus_per_node|intranode_sketch)"\s*+:',
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
    """Return the rules of this plugin: the findings of its readers and writers.

    The plugin system calls this function.
    """
    rules = "collhub_sccl.plugin:list_rules"
    return [RuleSet("sccl", "findings in algorithms of SCCL and profiles of TACCL", rules)]


_ALGORITHMS = (
    (
        "sccl-schema",
        "The JSON document does not have the structure of an algorithm.",
        "The file belongs to another tool, was changed by hand, or is cut off.",
        "Write the file again with the solver; the message names the member and the expected "
        "value.",
        '`"steps": 3`',
    ),
    (
        "sccl-algorithm",
        "The steps contradict the collective.",
        "A send moves an address that the collective does not have, or a rank sends an address "
        "and reduces into it in one step.",
        "Correct the named step, or the input and output maps.",
        "a send of address 9 of 4 addresses",
    ),
    (
        "sccl-inexpressible",
        "The algorithm cannot be written as steps of sends.",
        "SCCL has no such collective, or a rank sends other data than its value of the address.",
        "Write the algorithm as MSCCL XML.",
        "an all-to-all with unequal parts",
    ),
)

_PROFILES = (
    (
        "invalid-taccl-topology",
        "The profile is no description of a node for TACCL.",
        "A member is missing, a matrix is not square, or a time is out of range.",
        "Correct the named member; times are per chunk, in the unit of the options.",
        '`"links": [[0, 1]]` for 2 GPUs',
    ),
    (
        "assumed-units",
        "The profile lacks the chunk size or the unit of its times, which are assumed.",
        "TACCL's format has neither; the hub's own profiles have both.",
        "Give them: `FILE?chunk=1KiB&unit=10ns`.",
        "`topo-ndv2-1KB.json` of TACCL",
    ),
    (
        "inexpressible-topology",
        "The network has a property that a profile of TACCL does not represent.",
        "Nodes differ, or links of a node have several speeds.",
        "Write the topology in another format, such as the JSON document of the hub.",
        "a network of two unequal nodes",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules(
            "algorithms of SCCL, msccl-tools and TACCL, when they are read or written", _ALGORITHMS
        ),
        *declare_rules("profiles of nodes for TACCL's solver, when they are read", _PROFILES),
    ]
