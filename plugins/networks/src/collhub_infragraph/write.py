"""Write a topology as an InfraGraph document; losses are determined by reading it back."""

from __future__ import annotations

import json
from collections.abc import Iterator

from collhub_networks import NetworkFindings, Value

from collhub_infragraph.document_writer import (
    InfragraphDocument,
    JsonObject,
    build_document,
)
from collhub_infragraph.graph import CODE
from collhub_infragraph.plugin import InfragraphReadOptions, InfragraphWriteOptions
from collhub_infragraph.reading.network import build_topology
from collhub_infragraph.reading.read import parse_graph
from hub_core.model import InputError, Loss
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, WriteResult

_CONSEQUENCES = {
    "num_npus": "another number of NPUs is read back",
    "num_nodes": "switches that only forward become part of their links",
    "links": "links of other bandwidths, latencies or planes are read back",
    "link_order": "links are read back in another order, which changes routes of equal length",
    "node_names": "nodes are read back under the names of their vertices",
    "groups": "there are no groups of NPUs",
    "dimensions": "the network is not known to be regular",
    "multicast": "switches do not multicast messages",
    "reduction": "switches do not reduce messages",
}


def write(topology: Topology, options: InfragraphWriteOptions) -> WriteResult:
    """Write one JSON document, which is YAML as well (writer of the format `infragraph`).

    The bare document is written if it gives the same network back, otherwise annotations are added:
    the form of InfraGraph's `get_graph`, with attributes of the hub. With `annotations=false` the
    losses of the bare document are reported.
    """
    # The smallest document that gives the topology back: tools drop attributes that they do not
    # know.
    document = build_document(topology)
    losses: tuple[Loss, ...] = ()
    differences = _find_differences(topology, document.infrastructure)
    if not differences:
        content = _format_json(document.infrastructure)
    elif options.annotations:
        content = _format_json(_add_annotations(document))
        losses = tuple(_generate_losses(_find_differences(topology, _add_annotations(document))))
    else:
        content = _format_json(document.infrastructure)
        losses = tuple(_generate_losses(differences))
    return WriteResult([Artifact("", content)], losses)


def _add_annotations(document: InfragraphDocument) -> JsonObject:
    """Return an object with the infrastructure and the annotations of the document, which is
    InfraGraph's form for both.
    """
    return {"infrastructure": document.infrastructure, "annotations": document.annotations}


def _find_differences(topology: Topology, document: JsonObject) -> list[str]:
    """Read a document back; return the names of the topology's properties that differ.

    The names are those of `Topology.differences`; empty if nothing differs. If the reader refuses
    the document with `InputError`, the only entry is `readable: ` and the reason.
    """
    # The reader itself is used: a separate list of losses could be wrong.
    root = Value(topology.name, document, code=CODE)
    try:
        # The reader's findings are ignored.
        findings = NetworkFindings()
        graph = parse_graph(root, findings)
        options = InfragraphReadOptions()
        read_topology = build_topology(topology.name, graph, options, findings)
    except InputError as error:
        return [f"readable: {error.diagnostics[0].message}"]
    return topology.differences(read_topology)


def _generate_losses(differences: list[str]) -> Iterator[Loss]:
    """Yield a loss of the whole document for each entry of `_find_differences`.

    An entry `readable: REASON` becomes the loss that the document is refused when it is read.
    """
    # A refusal is followed by a colon and the reason.
    for name in differences:
        feature, _, reason = name.partition(": ")
        consequence = _CONSEQUENCES.get(feature, f"it is refused when it is read: {reason}")
        yield Loss(feature.replace("_", " "), "the whole document", consequence)


def _format_json(document: JsonObject) -> bytes:
    """Format JSON with one line per entry of a list, for readable diffs."""
    return (_format_lines(document, "") + "\n").encode("ascii")


def _format_lines(
    value: object,
    indent: str,
) -> str:
    """Format a value as JSON, with every member of objects that contain lists of objects on a line.

    A list of objects has one line per entry; all other values, including objects without such
    lists, are in one line. `indent`: of the value's closing bracket; each level indents by one
    blank more.
    """
    inner = indent + " "
    if isinstance(value, dict) and any(_has_object_lists(part) for part in value.values()):
        rows = [f"{json.dumps(key)}: {_format_lines(part, inner)}" for key, part in value.items()]
        return "{\n" + ",\n".join(inner + row for row in rows) + "\n" + indent + "}"
    if _has_object_lists(value) and isinstance(value, list):
        rows = [_format_lines(part, inner) for part in value]
        return "[\n" + ",\n".join(inner + row for row in rows) + "\n" + indent + "]"
    return json.dumps(value)


def _has_object_lists(value: object) -> bool:
    """Whether a value is a list with an object, or an object that has such a list at any depth.

    Lists within lists are not searched.
    """
    if isinstance(value, dict):
        return any(_has_object_lists(part) for part in value.values())
    return isinstance(value, list) and any(isinstance(part, dict) for part in value)
