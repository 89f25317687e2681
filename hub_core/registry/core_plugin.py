"""The core's own formats: they go through the same hooks as everybody else's."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.chakra.formats import CHAKRA_READER, CHAKRA_WRITER
from hub_core.plugin_api.contract import (
    API_VERSION,
    Executor,
    Format,
    FormatReader,
    FormatWriter,
    Source,
    TopologyReader,
)
from hub_core.plugin_api.hooks import hookimpl

COLLHUB_PLUGIN_API = API_VERSION

_JSON = Format(
    "json", "canonical JSON document of an algorithm", (".json",), rb'"collhub/algorithm-\d+"'
)
_TOPOLOGY_JSON = Format(
    "topology-json", "JSON document of a topology", (".json",), rb'"collhub/topology-\d+"'
)
_NUMPY = Executor(
    "numpy",
    "all ranks in one process, on numpy arrays",
    "hub_core.execution.numpy_executor:execute",
)
_SHARED_MEMORY = Executor(
    "shared-memory",
    "one process a rank, on shared memory of this machine",
    "hub_core.execution.shared_memory:execute",
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Readers of the canonical forms."""
    return [CHAKRA_READER, FormatReader(_JSON, "hub_core.documents.algorithms:read")]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | Executor]:
    """Writers of the canonical forms, and executors on this machine's memory."""
    return [
        CHAKRA_WRITER,
        FormatWriter(_JSON, "hub_core.documents.algorithms:write"),
        _NUMPY,
        _SHARED_MEMORY,
    ]


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader]:
    """Readers of topology files."""
    return [
        TopologyReader(
            _TOPOLOGY_JSON,
            "hub_core.documents.topologies:read",
            samples=f"{__name__}:topology_samples",
        )
    ]


def topology_samples() -> Sequence[Source]:
    """Topology files for the conformance kit."""
    # Imported here: listing formats needs no numpy.
    from hub_core.documents.topologies import topology_to_json
    from hub_core.network.builders import parse_topology

    return [
        Source.of_bytes(f"{text}.json", topology_to_json(parse_topology(text)))
        for text in ("ring:4", "fat-tree:2", "dgx1v")
    ]
