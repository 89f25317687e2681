"""Offers of the core, which use the same hooks as offers of plugins."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api.formats import (
    Format,
    FormatReader,
    FormatWriter,
    TopologyBuilder,
    TopologyReader,
    TopologyWriter,
)
from hub_core.plugin_api.offers import API_VERSION, Command, hookimpl
from hub_core.plugin_api.options import RuleSet
from hub_core.trace_profile.formats import CHAKRA_JSON_READER, CHAKRA_READER, CHAKRA_WRITER

COLLHUB_PLUGIN_API = API_VERSION

_JSON = Format(
    "json",
    "canonical JSON document of an algorithm",
    (".json",),
    rb'"collhub/algorithm-\d+"',
    members=("schema", "collective", "collective_bytes", "scratch_units", "steps"),
)
_TOPOLOGY_JSON = Format(
    "topology-json",
    "JSON document of a topology",
    (".json",),
    # In documents of the hub, the schema follows all links, so other keys identify the format as
    # well.
    rb'"(?:collhub/topology-\d+|bandwidth_bytes_per_s|from|npus)"|\A\s*\{\s*"(?:groups|dimensions)"',
    members=("schema", "name", "npus", "switches", "links", "groups"),
)
# Description and example by name.
_REGULAR = {
    "line": ("NPUs in a row", "line:8"),
    "ring": ("NPUs in a ring", "ring:8"),
    "mesh": ("a product of lines", "mesh:4x4"),
    "torus": ("a product of rings", "torus:4x4x4"),
    "fully-connected": ("a link in each direction between any two NPUs", "fully-connected:8"),
    "fc": ("short for fully-connected", "fc:8"),
    "switch": ("NPUs at one switch", "switch:8"),
}
_BUILDERS = tuple(
    TopologyBuilder(name, description, "hub_core.network.texts:regular", example)
    for name, (description, example) in _REGULAR.items()
)

# In the order of the help; commands of plugins follow.
_COMMANDS = {
    "demo": "Verify, convert and simulate three shipped algorithms.",
    "formats": "List formats, synthesizers, simulators, executors and more.",
    "inspect": "Describe a file: collective, steps, links, critical path.",
    "diff": "Compare two algorithms: contents, steps, channels, traffic.",
    "verify": "Check matching, deadlock, races and contents.",
    "explain": "Explain findings by their rules.",
    "convert": "Read one format, write another, list the losses.",
    "transform": "Change an algorithm or a workload by passes.",
    "generate": "Generate a workload from model parameters.",
    "synthesize": "Synthesize an algorithm for a collective on a topology.",
    "simulate": "Time an algorithm on a topology for a size.",
    "plugins": "List, show, check, enable, create and install plugins.",
    "doctor": "Report on the installation and its plugins.",
}
OWN_COMMANDS = tuple(
    Command(name, description, f"hub_core.cli.commands.{name}:{name}")
    for name, description in _COMMANDS.items()
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Return the readers of canonical traces, binary and JSON, and of algorithm documents."""
    documents = FormatReader(_JSON, "hub_core.documents.algorithms:read")
    return [CHAKRA_READER, CHAKRA_JSON_READER, documents]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter]:
    """Return the writers of the canonical forms."""
    return [CHAKRA_WRITER, FormatWriter(_JSON, "hub_core.documents.algorithms:write")]


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader | TopologyWriter | TopologyBuilder]:
    """Return the reader and the writer of topology documents in JSON, then the builders.

    A builder creates a regular network from a text such as `ring:8`. There is one for each
    key of `_REGULAR`, in that order. The list is new at each call, the builders are not.
    """
    reader = TopologyReader(
        _TOPOLOGY_JSON,
        "hub_core.documents.topologies:read",
        samples="hub_core.testing.workloads:topology_samples",
    )
    writer = TopologyWriter(_TOPOLOGY_JSON, "hub_core.documents.topologies:write")
    return [reader, writer, *_BUILDERS]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Return the rules of verification, formats and versions of runtimes."""
    return [RuleSet("core", "findings of the core", "hub_core.pipeline.core_rules:list_rules")]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the commands of the program itself."""
    return OWN_COMMANDS
