"""The core's own offers: they go through the same hooks as everybody else's."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.chakra.formats import CHAKRA_READER, CHAKRA_WRITER
from hub_core.plugin_api.command import Command
from hub_core.plugin_api.formats import Format
from hub_core.plugin_api.hooks import API_VERSION, hookimpl
from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.sources import Source
from hub_core.plugin_api.topology_builder import TopologyBuilder
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.writer import FormatWriter

COLLHUB_PLUGIN_API = API_VERSION

_JSON = Format(
    "json", "canonical JSON document of an algorithm", (".json",), rb'"collhub/algorithm-\d+"'
)
_TOPOLOGY_JSON = Format(
    "topology-json", "JSON document of a topology", (".json",), rb'"collhub/topology-\d+"'
)
_REGULAR = "hub_core.network.regular"
_BUILDERS = (
    TopologyBuilder("line", "NPUs in a row", f"{_REGULAR}:line", "line:8"),
    TopologyBuilder("ring", "NPUs in a ring", f"{_REGULAR}:ring", "ring:8"),
    TopologyBuilder("mesh", "a product of lines", f"{_REGULAR}:mesh", "mesh:4x4"),
    TopologyBuilder("torus", "a product of rings", f"{_REGULAR}:torus", "torus:4x4x4"),
    TopologyBuilder(
        "fully-connected",
        "a link each way between any two NPUs",
        f"{_REGULAR}:fully_connected",
        "fully-connected:8",
    ),
    TopologyBuilder("fc", "short for fully-connected", f"{_REGULAR}:fully_connected", "fc:8"),
    TopologyBuilder("switch", "NPUs at one switch", f"{_REGULAR}:switch", "switch:8"),
    TopologyBuilder(
        "hypercube", "2^n NPUs in n dimensions", f"{_REGULAR}:hypercube", "hypercube:3"
    ),
)

# In the order in which the help lists them; a plugin's commands follow.
_COMMANDS = {
    "demo": "Verify, convert and simulate three shipped algorithms.",
    "formats": "List formats, synthesizers, simulators, executors and more.",
    "inspect": "Say what a file is: collective, steps, links, critical path.",
    "diff": "Compare two algorithms: contents, steps, channels, traffic.",
    "verify": "Check matching, deadlock, races and contents.",
    "convert": "Read one format, write another, list what is lost.",
    "transform": "Change an algorithm by passes.",
    "synthesize": "Make an algorithm for a collective on a topology.",
    "simulate": "Time an algorithm on a topology for a size.",
    "plugins": "List, show, check, make and install plugins.",
    "doctor": "Report on the installation and its plugins.",
}
OWN_COMMANDS = tuple(
    Command(name, description, f"hub_core.cli.{name}:{name}")
    for name, description in _COMMANDS.items()
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Readers of the canonical forms."""
    return [CHAKRA_READER, FormatReader(_JSON, "hub_core.documents.algorithms:read")]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter]:
    """Writers of the canonical forms."""
    return [CHAKRA_WRITER, FormatWriter(_JSON, "hub_core.documents.algorithms:write")]


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader | TopologyBuilder]:
    """The topology document, and the builders behind texts such as `ring:8`."""
    reader = TopologyReader(
        _TOPOLOGY_JSON,
        "hub_core.documents.topologies:read",
        samples=f"{__name__}:topology_samples",
    )
    return [reader, *_BUILDERS]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """The commands of the program itself."""
    return OWN_COMMANDS


def topology_samples() -> Sequence[Source]:
    """Topology files for the conformance kit."""
    # Imported here: listing formats needs no numpy.
    from hub_core.documents.topologies import topology_to_json
    from hub_core.network.regular import ring, switch
    from hub_core.network.texts import build_topology

    builders = {"ring": ring, "switch": switch}
    found = []
    for text in ("ring:4", "switch:3", "ring:2*switch:2"):
        content = topology_to_json(build_topology(text, builders.__getitem__))
        found.append(Source.of_bytes(f"{text}.json", content))
    return found
