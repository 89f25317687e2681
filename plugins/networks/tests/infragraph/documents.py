"""Documents for the tests, and how they are read."""

from __future__ import annotations

import json

from collhub_infragraph.graph import CODE, VertexGraph
from collhub_infragraph.plugin import InfragraphReadOptions
from collhub_infragraph.read import parse_graph, read
from collhub_networks import NetworkFindings, document_of

from hub_core.model import Diagnostic
from hub_core.network import Topology
from hub_core.plugin_api import Source

RATE = {"bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": 50}}


def document(edges, links=None, components=None, instances=None, **more):
    """A device `host` of four NPUs and a switch, instances of it, edges within it."""
    parts = components or [
        {"name": "xpu", "count": 4, "choice": "xpu"},
        {"name": "sw", "count": 1, "choice": "switch"},
    ]
    device = {
        "name": "host",
        "components": parts,
        "links": links or [{"name": "l", "physical": RATE}],
        "edges": edges,
    }
    found = {
        "devices": [device],
        "instances": instances or [{"name": "h", "device": "host", "count": 1}],
    }
    return found | more


def edge(one, other, scheme="many2many", link="l"):
    return {"ep1": {"component": one}, "ep2": {"component": other}, "scheme": scheme, "link": link}


def source_of(value, report=lambda finding: None) -> Source:
    content = json.dumps(value).encode()
    plain = Source.of_bytes("net.yaml", content)
    return Source("net.yaml", plain.parts, report)


def graph(value) -> VertexGraph:
    return parse_graph(document_of(source_of(value), CODE), NetworkFindings())


def ends(found: VertexGraph) -> list[tuple[str, str]]:
    pairs = zip(found.first_vertex.tolist(), found.second_vertex.tolist(), strict=True)
    return [(found.names[one], found.names[other]) for one, other in pairs]


def network(value, **options) -> tuple[Topology, list[Diagnostic]]:
    findings: list[Diagnostic] = []
    topology = read(source_of(value, findings.append), InfragraphReadOptions(**options))
    return topology, findings
