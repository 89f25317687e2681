"""Read a network in InfraGraph's forms: the bare document, that with annotations, node-link."""

from __future__ import annotations

from collhub_networks import NetworkFindings, Value, document_of

from collhub_infragraph.graph import CODE, VertexGraph
from collhub_infragraph.options import InfragraphReadOptions
from collhub_infragraph.reading.annotations import annotations_of
from collhub_infragraph.reading.expansion import expanded
from collhub_infragraph.reading.network import topology_of_graph
from collhub_infragraph.reading.node_link import graph_of
from hub_core.network import Topology
from hub_core.plugin_api import Source

_OLD_KEYS = ("connections", "inventory")


def read(source: Source, options: InfragraphReadOptions) -> Topology:
    """The network of a document.

    Raises `InputError` with the path of what is wrong, and where bandwidths are missing;
    `UsageError` for options that name links that do not exist.
    """
    findings = NetworkFindings()
    graph = vertex_graph(document_of(source, CODE), findings)
    topology = topology_of_graph(source.name, graph, options, findings)
    findings.tell(source.report)
    return topology


def vertex_graph(root: Value, findings: NetworkFindings) -> VertexGraph:
    """The vertices and edges of a document, in whichever of the three forms it is."""
    _refuse_old(root)
    if root.get("nodes") is not None:
        return graph_of(root)
    annotations = annotations_of(root.get("annotations"))
    infrastructure = root.get("infrastructure")
    return expanded(infrastructure or root, annotations, findings)


def _refuse_old(root: Value) -> None:
    """Refuse the grammar before InfraGraph 2.0, which samples still have."""
    holders = [root, *root.items_of("devices")] if root.get("nodes") is None else [root]
    for holder in holders:
        for key in _OLD_KEYS:
            if holder.get(key) is not None:
                message = f"{key!r} is of the grammar before InfraGraph 2.0"
                holder.fail(message, "state edges with endpoints, as 2.0 and later do")
