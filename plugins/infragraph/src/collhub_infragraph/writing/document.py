"""The infrastructure document of a topology, and the annotations that make it exact."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from collhub_infragraph.graph import (
    BANDWIDTH,
    DIMENSIONS,
    EXACT,
    GROUP,
    LATENCY,
    MULTICAST,
    NAME,
    PLANE,
    POSITIONS,
    REDUCTION,
)
from collhub_infragraph.writing.strands import Strand, strands_of
from hub_core.model import format_ranks
from hub_core.network import Dimension, Topology

JsonObject = dict[str, object]

# How many digits a double always keeps.
_SURE_DIGITS = 15
_NO_NAME = re.compile(r"[^A-Za-z0-9 _()<>\[\]-]")


@dataclass(slots=True)
class InfragraphDocument:
    """A document in parts: `infrastructure`, and the annotations beside it."""

    infrastructure: JsonObject
    annotations: JsonObject = field(default_factory=dict)


def document_of_topology(topology: Topology) -> InfragraphDocument:
    """The document of a topology.

    Every NPU is an instance of the device `npu`, every switch of `switch`. Nodes that several
    cables join have a port for each: an InfraGraph is a simple graph.
    """
    return _Drawing(topology).document()


class _Drawing:
    """A topology on its way into a document: ports in use, and links by what they can do."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._strands = strands_of(topology)
        self._ports_of: Counter[int] = Counter()
        self._links: dict[tuple[float, float, int], str] = {}
        self._edges: list[JsonObject] = []
        self._marks: list[JsonObject] = []

    def document(self) -> InfragraphDocument:
        """Edges first, as they tell the ports and links that are needed."""
        for strand in self._strands:
            self._add(strand)
        npus = self._topology.num_npus
        switches = self._topology.num_nodes - npus
        parts = [("npu", "xpu", range(npus)), ("switch", "switch", range(npus, npus + switches))]
        present = [part for part in parts if len(part[2])]
        devices = [self._device(name, kind, nodes) for name, kind, nodes in present]
        instances = [
            {"name": name, "device": name, "count": len(nodes)} for name, _, nodes in present
        ]
        links = [_link(name, *values) for values, name in self._links.items()]
        # InfraGraph's schema takes no other characters in a name.
        title = _NO_NAME.sub("-", self._topology.name)
        infrastructure: JsonObject = {"name": title, "devices": devices}
        infrastructure |= {"links": links, "instances": instances, "edges": self._edges}
        return InfragraphDocument(infrastructure, self._annotations())

    def _add(self, strand: Strand) -> None:
        values = (strand.bandwidth_bytes_per_s, strand.latency_s, strand.plane)
        link = self._links.setdefault(values, f"link-{len(self._links)}")
        one, other = self._end(strand.one, strand), self._end(strand.other, strand)
        edge: JsonObject = {
            "ep1": _endpoint(*one),
            "ep2": _endpoint(*other),
            "scheme": "one2one",
            "link": link,
        }
        self._edges.append(edge)
        attribute = {"attribute": POSITIONS, "value": strand.positions}
        names = {"ep1": ".".join(map(str, one)), "ep2": ".".join(map(str, other))}
        self._marks.append({**names, "attributes": [attribute]})

    def _end(
        self,
        node: int,
        strand: Strand,
    ) -> tuple[str, int, str, int]:
        """Instance, number, component and number of where a strand ends."""
        instance, number = self._instance(node)
        if not strand.is_parallel:
            return instance, number, "xpu" if instance == "npu" else "asic", 0
        # A port for each cable: two edges between the same vertices would be one.
        port = self._ports_of[node]
        self._ports_of[node] += 1
        return instance, number, "port", port

    def _instance(self, node: int) -> tuple[str, int]:
        npus = self._topology.num_npus
        return ("npu", node) if node < npus else ("switch", node - npus)

    def _device(
        self,
        name: str,
        kind: str,
        nodes: Sequence[int],
    ) -> JsonObject:
        """A device with as many ports as the node that needs most."""
        core = "xpu" if kind == "xpu" else "asic"
        components: list[JsonObject] = [{"name": core, "count": 1, "choice": kind, kind: {}}]
        # InfraGraph's own classes ask for both lists, even for empty ones.
        links: list[JsonObject] = []
        edges: list[JsonObject] = []
        # Devices of one kind are alike: ports that a node does not use lead nowhere and vanish.
        ports = max(self._ports_of[node] for node in nodes)
        if ports:
            components.append({"name": "port", "count": ports, "choice": "port", "port": {}})
            ends = {"ep1": {"component": core}, "ep2": {"component": "port"}}
            links.append({"name": "ic"})
            edges.append({**ends, "scheme": "many2many", "link": "ic"})
        return {"name": name, "components": components, "links": links, "edges": edges}

    def _annotations(self) -> JsonObject:
        """What the infrastructure does not say: order and direction of links, names and groups."""
        nodes: list[JsonObject] = []
        for node, name in enumerate(self._topology.node_names):
            instance, number = self._instance(node)
            vertex = f"{instance}.{number}.{'xpu' if instance == 'npu' else 'asic'}.0"
            nodes.append({"name": vertex, "attributes": [{"attribute": NAME, "value": name}]})
        links: list[JsonObject] = []
        for values, name in self._links.items():
            links.append({"name": name, "attributes": list(_exact_values(*values))})
        # What reads these tells the documents of the hub by it.
        graph = [{"attribute": EXACT, "value": "1"}]
        if self._topology.dimensions:
            parts = [_dimension_text(one) for one in self._topology.dimensions]
            graph.append({"attribute": DIMENSIONS, "value": ", ".join(parts)})
        for group, members in self._topology.groups.items():
            graph.append({"attribute": GROUP + group, "value": format_ranks(members)})
        for attribute, switches in (
            (MULTICAST, self._topology.multicast),
            (REDUCTION, self._topology.reduction),
        ):
            if switches:
                graph.append({"attribute": attribute, "value": format_ranks(switches)})
        return {"nodes": nodes, "edges": self._marks, "links": links, "graph": graph}


def _endpoint(
    instance: str,
    number: int,
    component: str,
    index: int,
) -> JsonObject:
    return {"instance": f"{instance}[{number}]", "component": f"{component}[{index}]"}


def _link(
    name: str,
    bandwidth_bytes_per_s: float,
    latency_s: float,
    plane: int,
) -> JsonObject:
    """A link of the document; of several planes the description says which."""
    rate = float(_scaled(bandwidth_bytes_per_s, -9))
    delay = float(_scaled(latency_s, 9))
    bandwidth = {"choice": "gigabytes_per_second", "gigabytes_per_second": _number(rate)}
    latency = {"choice": "ns", "ns": _number(delay)}
    physical = {"bandwidth": bandwidth, "latency": latency}
    found: JsonObject = {"name": name, "physical": physical}
    return found | ({"description": f"plane {plane}"} if plane else {})


def _exact_values(
    bandwidth_bytes_per_s: float,
    latency_s: float,
    plane: int,
) -> list[dict[str, str]]:
    """Annotations of a link: what rounding to GB/s and ns would lose, and the plane."""
    stated = {}
    # Up to so many digits, a double comes back from its decimal text in any unit.
    if len(_scaled(bandwidth_bytes_per_s, 0).normalize().as_tuple().digits) > _SURE_DIGITS:
        stated[BANDWIDTH] = repr(bandwidth_bytes_per_s)
    if len(_scaled(latency_s, 0).normalize().as_tuple().digits) > _SURE_DIGITS:
        stated[LATENCY] = repr(latency_s)
    if plane:
        stated[PLANE] = str(plane)
    return [{"attribute": name, "value": value} for name, value in stated.items()]


def _dimension_text(dimension: Dimension) -> str:
    """Kind, size, bytes per second and seconds: `ring 8 50000000000.0 5e-07`."""
    values = (dimension.bandwidth_bytes_per_s, dimension.latency_s)
    return " ".join([dimension.kind, str(dimension.size), *map(repr, values)])


def _scaled(value: float, power: int) -> Decimal:
    """The value times ten to a power, exact in the digits that tell the double."""
    return Decimal(repr(value)).scaleb(power)


def _number(value: float) -> float | int:
    """Whole numbers without a fraction, as people write them."""
    return int(value) if value == int(value) and value < 2**53 else value
