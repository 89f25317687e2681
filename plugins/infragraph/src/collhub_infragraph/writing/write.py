"""Write a topology as an InfraGraph document; losses are what reading it back shows."""

from __future__ import annotations

import json
from collections.abc import Iterator

from collhub_networks import NetworkFindings, Value

from collhub_infragraph.graph import CODE
from collhub_infragraph.options import InfragraphReadOptions, InfragraphWriteOptions
from collhub_infragraph.reading.network import topology_of_graph
from collhub_infragraph.reading.read import vertex_graph
from collhub_infragraph.writing.document import (
    InfragraphDocument,
    JsonObject,
    document_of_topology,
)
from hub_core.model import InputError, Loss
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, WriteResult

_CONSEQUENCES = {
    "num_npus": "another number of NPUs is read back",
    "num_nodes": "switches that only pass data on become part of their links",
    "links": "links of other bandwidths, latencies or planes are read back",
    "link_order": "links are read back in another order, by which routes of equal length differ",
    "node_names": "nodes are read back under the names of their vertices",
    "groups": "there are no groups of NPUs",
    "dimensions": "the network is not known to be regular",
    "multicast": "switches send no copies of a message on",
    "reduction": "switches add up no messages",
}


def write(topology: Topology, options: InfragraphWriteOptions) -> WriteResult:
    """Writer of the format `infragraph`: one JSON document, which is YAML as well.

    The bare document is written where it gives the same network back, else annotations are added:
    what InfraGraph's `get_graph` gives, with attributes of the hub. With `annotations=false` what
    the bare document loses is listed.
    """
    # The smallest document that gives the topology back: what a tool does not know it drops.
    document = document_of_topology(topology)
    losses: tuple[Loss, ...] = ()
    differences = _differences(topology, document.infrastructure)
    if not differences:
        content = _text(document.infrastructure)
    elif options.annotations:
        content = _text(_envelope(document))
        losses = tuple(_losses(_differences(topology, _envelope(document))))
    else:
        content = _text(document.infrastructure)
        losses = tuple(_losses(differences))
    return WriteResult([Artifact("", content)], losses)


def _envelope(document: InfragraphDocument) -> JsonObject:
    """What InfraGraph itself hands over: the document with its annotations."""
    return {"infrastructure": document.infrastructure, "annotations": document.annotations}


def _differences(topology: Topology, document: JsonObject) -> list[str]:
    """What is another when the document is read, or the reason why it is refused."""
    # The reader itself judges: no list of what is lost could be as true.
    root = Value(topology.name, document, code=CODE)
    try:
        # Findings of a reader are not of interest to who writes.
        findings = NetworkFindings()
        graph = vertex_graph(root, findings)
        options = InfragraphReadOptions()
        back = topology_of_graph(topology.name, graph, options, findings)
    except InputError as error:
        return [f"readable: {error.diagnostics[0].message}"]
    return topology.differences(back)


def _losses(differences: list[str]) -> Iterator[Loss]:
    # A refusal stands before its reason, separated by a colon.
    for name in differences:
        feature, _, reason = name.partition(": ")
        consequence = _CONSEQUENCES.get(feature, f"it is refused when it is read: {reason}")
        yield Loss(feature.replace("_", " "), "the whole document", consequence)


def _text(document: JsonObject) -> bytes:
    """JSON with a line for every entry of a list, so that changes are seen."""
    return (_lines(document, "") + "\n").encode("ascii")


def _lines(
    value: object,
    indent: str,
) -> str:
    """Objects and lists of objects over several lines, all else on one."""
    inner = indent + " "
    if isinstance(value, dict) and any(_is_long(part) for part in value.values()):
        rows = [f"{json.dumps(key)}: {_lines(part, inner)}" for key, part in value.items()]
        return "{\n" + ",\n".join(inner + row for row in rows) + "\n" + indent + "}"
    if _is_long(value) and isinstance(value, list):
        rows = [_lines(part, inner) for part in value]
        return "[\n" + ",\n".join(inner + row for row in rows) + "\n" + indent + "]"
    return json.dumps(value)


def _is_long(value: object) -> bool:
    """Whether a value holds lists of objects."""
    if isinstance(value, dict):
        return any(_is_long(part) for part in value.values())
    return isinstance(value, list) and any(isinstance(part, dict) for part in value)
