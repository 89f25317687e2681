"""The facts of a network as JSON, for `collhub topology show --json`."""

from __future__ import annotations

from collections.abc import Mapping

from collhub_topologies.facts.summary import Facts, HalfCut, LinkClass, Span
from hub_core.model import JsonValue
from hub_core.network import Dimension, Link, Topology


def facts_object(network: Topology, facts: Facts, *, with_links: bool) -> dict[str, JsonValue]:
    """The report of `show`; all links stand in it where they are asked for."""
    document: dict[str, JsonValue] = {
        "schema": "collhub/report-topology-show-1",
        "topology": network.name,
        "npus": network.num_npus,
        "switches": network.num_nodes - network.num_npus,
        "num_links": network.num_links,
        "dimensions": [_dimension_object(one) for one in network.dimensions],
        "link_classes": [_class_object(one) for one in facts.classes],
        "nodes": {kind: _spans_object(spans) for kind, spans in facts.spans.items()},
        "diameter_links": facts.diameter,
        "half_cuts": [_cut_object(cut) for cut in facts.half_cuts],
        "node_names": list(network.node_names),
        "groups": {name: list(members) for name, members in network.groups.items()},
        "multicast": list(network.multicast),
        "reduce": list(network.reduction),
    }
    if with_links:
        document["links"] = [_link_object(link) for link in network.links()]
    return document


def _dimension_object(dimension: Dimension) -> JsonValue:
    return {
        "kind": str(dimension.kind),
        "size": dimension.size,
        "bandwidth_bytes_per_s": dimension.bandwidth_bytes_per_s,
        "latency_s": dimension.latency_s,
    }


def _class_object(one: LinkClass) -> JsonValue:
    return {
        "from": one.source,
        "to": one.destination,
        "bandwidth_bytes_per_s": one.bandwidth_bytes_per_s,
        "latency_s": one.latency_s,
        "count": one.count,
    }


def _spans_object(spans: Mapping[str, Span]) -> JsonValue:
    found: dict[str, JsonValue] = {}
    for name, span in spans.items():
        found[name] = [span.least, span.largest]
    return found


def _cut_object(cut: HalfCut) -> JsonValue:
    rates: list[JsonValue] = [cut.bandwidth_up_bytes_per_s, cut.bandwidth_down_bytes_per_s]
    return {
        "dimension": cut.dimension,
        "links": [cut.links_up, cut.links_down],
        "bandwidth_bytes_per_s": rates,
    }


def _link_object(link: Link) -> JsonValue:
    return {
        "from": link.source,
        "to": link.destination,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        "latency_s": link.latency_s,
    }
