"""Write a topology as an InfraGraph document; losses are determined by reading it back.

The module builds the infrastructure document of the topology, and the annotations that make it
exact.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from collhub_networks import DocumentValue, NetworkFindings, find_reverse_links

from collhub_infragraph.graph import (
    BANDWIDTH,
    CODE,
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
from collhub_infragraph.network import build_topology
from collhub_infragraph.plugin import InfragraphReadOptions, InfragraphWriteOptions
from collhub_infragraph.read import parse_graph
from hub_core.model import InputError, Loss, format_ranks
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, WriteResult

_JsonObject = dict[str, object]
# Number of decimal digits that a double always preserves.
_MAX_EXACT_DIGITS = 15
_INVALID_CHARACTER = re.compile(r"[^A-Za-z0-9 _()<>\[\]-]")
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
    """Write a topology as one JSON document, which is also YAML (writer of `infragraph`).

    Returns one artifact without a file name, and the losses. First the document is built
    without annotations and read back. If that gives the same network, it is written, without
    losses. Otherwise the option `annotations` decides:

    - true: annotations are added, in the form of InfraGraph's `get_graph` with attributes of
      the hub. Properties that are lost even so are reported.
    - false: the document without annotations is written, and every property that it loses is
      reported.

    There is one loss per property (`_CONSEQUENCES`). If the reader refuses the document, the
    only loss is `readable`, with the reason; the document is written nevertheless.
    """
    # The smallest document that gives the topology back: tools drop attributes that they do not
    # know.
    document = _DocumentBuilder(topology).build()
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


def _add_annotations(document: _InfragraphDocument) -> _JsonObject:
    """Return an object with the infrastructure and the annotations of the document, which is
    InfraGraph's form for both.
    """
    return {"infrastructure": document.infrastructure, "annotations": document.annotations}


def _find_differences(topology: Topology, document: _JsonObject) -> list[str]:
    """Read a document back; return the names of the topology properties that it loses.

    The names are those of `Topology.differences`; the list is empty if nothing differs. If the
    reader refuses the document with `InputError`, the only entry is `readable: ` and the reason.
    """
    # The reader itself is used: a separate list of losses could be wrong.
    root = DocumentValue(topology.name, document, code=CODE)
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


def _format_json(document: _JsonObject) -> bytes:
    """Format JSON with one line per entry of a list, for readable diffs."""
    return (_format_lines(document, "") + "\n").encode("ascii")


def _format_lines(
    value: object,
    indent: str,
) -> str:
    """Format a value as JSON with line breaks only around lists of objects.

    A value is broken over lines if it is a list with an object, or an object that contains such a
    list at any depth: each entry or member is then on its own line. Every other value is on one
    line. `indent`: blanks before the closing bracket; entries have one blank more.
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
    """Whether a value is a list with an object in it, or an object with such a list at any depth.

    Objects within objects are searched, but lists within lists are not.
    """
    if isinstance(value, dict):
        return any(_has_object_lists(part) for part in value.values())
    return isinstance(value, list) and any(isinstance(part, dict) for part in value)


@dataclass(frozen=True, slots=True)
class _Strand:
    """One undirected edge between two nodes, for a pair of equal links or a single link.

    `forward_row`, `reverse_row`: rows of the links from `first_node` to `second_node` and back,
    None if there is none. `is_parallel`: whether other strands join the same nodes; an InfraGraph
    needs ports for these.
    """

    first_node: int
    second_node: int
    bandwidth_bytes_per_s: float
    latency_s: float
    plane: int
    forward_row: int | None
    reverse_row: int | None
    is_parallel: bool = False

    @property
    def positions(self) -> str:
        """Return the rows of the edge's forward and reverse link, as in the annotation: `12,40`.

        The text of a missing link is empty, as in `12,`.
        """
        texts = ["" if row is None else str(row) for row in (self.forward_row, self.reverse_row)]
        return ",".join(texts)


def _build_strands(topology: Topology) -> list[_Strand]:
    """Return the undirected edges that represent all links, in the order of their first links.

    Two links become one edge (strand) if each is the reverse of the other, with equal
    bandwidth, latency and plane. Equal parallel links are paired by index, but only if both
    directions have equally many, otherwise none of them is paired. A link without a partner
    becomes its own edge, with `reverse_row` None. `is_parallel` is True if several edges
    connect the same two nodes.
    """
    # An undirected edge represents two links only if they are equal.
    reverse_links = find_reverse_links(topology).tolist()
    planes = topology.plane.tolist()
    pairs = Counter[tuple[int, int]]()
    rows = []
    for row, link in enumerate(topology.links()):
        reverse_link = reverse_links[row]
        # The second link of a pair belongs to the strand of the first.
        if 0 <= reverse_link < row:
            continue
        pairs[_sort_pair(link.source, link.destination)] += 1
        # A link without a reverse link is a separate edge, marked in the annotations.
        rows.append((row, link, None if reverse_link < 0 else reverse_link))
    return [
        _Strand(
            link.source,
            link.destination,
            link.bandwidth_bytes_per_s,
            link.latency_s,
            planes[row],
            row,
            reverse_link,
            pairs[_sort_pair(link.source, link.destination)] > 1,
        )
        for row, link, reverse_link in rows
    ]


def _sort_pair(first_node: int, second_node: int) -> tuple[int, int]:
    """Return the two node numbers, the smaller one first."""
    return min(first_node, second_node), max(first_node, second_node)


@dataclass(slots=True)
class _InfragraphDocument:
    """A document in parts: `infrastructure`, and its annotations."""

    infrastructure: _JsonObject
    annotations: _JsonObject = field(default_factory=dict)


class _DocumentBuilder:
    """Builder of a document: used ports per node, and links by their properties."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._strands = _build_strands(topology)
        self._ports_of: Counter[int] = Counter()
        self._links: dict[tuple[float, float, int], str] = {}
        self._edges: list[_JsonObject] = []
        self._edge_annotations: list[_JsonObject] = []

    def build(self) -> _InfragraphDocument:
        """Build the document: its infrastructure, and annotations for further properties.

        The edges of the topology are added without direction. Each NPU is an instance of the device
        `npu`, each switch of `switch`. A device without nodes is omitted. Nodes that are joined by
        several cables have a port for each, since an InfraGraph is a simple graph. Characters of
        the name that the schema does not allow become `-`. Annotations: see `_build_annotations`.

        The method changes the builder and must be called only once.
        """
        for strand in self._strands:
            self._add_strand(strand)
        npus = self._topology.num_npus
        switches = self._topology.num_nodes - npus
        parts = [("npu", "xpu", range(npus)), ("switch", "switch", range(npus, npus + switches))]
        present = [part for part in parts if len(part[2])]
        devices = [self._build_device(name, kind, nodes) for name, kind, nodes in present]
        instances = [
            {"name": name, "device": name, "count": len(nodes)} for name, _, nodes in present
        ]
        links = [_build_link(name, *values) for values, name in self._links.items()]
        # InfraGraph's schema allows no other characters in a name.
        title = _INVALID_CHARACTER.sub("-", self._topology.name)
        infrastructure: _JsonObject = {"name": title, "devices": devices}
        infrastructure |= {"links": links, "instances": instances, "edges": self._edges}
        return _InfragraphDocument(infrastructure, self._build_annotations())

    def _add_strand(self, strand: _Strand) -> None:
        """Append an edge of the network to the document, with its annotation and its link.

        The edge leads from the strand's first node (`ep1`) to its second one (`ep2`). It ends
        at the cores of both nodes; if it is parallel to other edges, at the next unused port of
        each. Edges with equal bandwidth, latency and plane share a link, which is added at its
        first use. Links are named `link-0`, `link-1` and so on. The annotation of the edge has
        the rows of its forward and reverse link in the network: `12,40`, or `12,` without a
        reverse link.
        """
        values = (strand.bandwidth_bytes_per_s, strand.latency_s, strand.plane)
        link = self._links.setdefault(values, f"link-{len(self._links)}")
        first, second = (
            self._assign_end(strand.first_node, strand),
            self._assign_end(strand.second_node, strand),
        )
        edge: _JsonObject = {
            "ep1": _build_endpoint(*first),
            "ep2": _build_endpoint(*second),
            "scheme": "one2one",
            "link": link,
        }
        self._edges.append(edge)
        attribute = {"attribute": POSITIONS, "value": strand.positions}
        names = {"ep1": ".".join(map(str, first)), "ep2": ".".join(map(str, second))}
        self._edge_annotations.append({**names, "attributes": [attribute]})

    def _assign_end(
        self,
        node: int,
        strand: _Strand,
    ) -> tuple[str, int, str, int]:
        """Return the vertex at which an edge is connected to a node: (instance, number, component,
        index).

        The instance is `npu` or `switch`, and the number is that of the node among the NPUs or
        the switches. The component is the node's core (`xpu` of an NPU, `asic` of a switch) with
        index 0.

        If `strand.is_parallel` (further edges join the same two nodes), it is a `port` instead,
        because two edges between the same vertices would count as one. Each call then uses the
        next index of the node, from 0, even for the same strand.
        """
        instance, number = self._find_instance(node)
        if not strand.is_parallel:
            return instance, number, "xpu" if instance == "npu" else "asic", 0
        # A port for each cable: two edges between the same vertices would count as one.
        port = self._ports_of[node]
        self._ports_of[node] += 1
        return instance, number, "port", port

    def _find_instance(self, node: int) -> tuple[str, int]:
        """Return the instance of a node (`npu` or `switch`), and its number in it, from 0.

        NPUs are the nodes below the number of NPUs, all further nodes are switches. Whether the
        node exists is not checked.
        """
        npus = self._topology.num_npus
        return ("npu", node) if node < npus else ("switch", node - npus)

    def _build_device(
        self,
        name: str,
        kind: str,
        nodes: Sequence[int],
    ) -> _JsonObject:
        """Build a device of the document: its core, and the largest number of ports of its nodes.

        `nodes`: at least one node of the device, else `ValueError`. `kind`: `xpu` or `switch`; the
        core is named `xpu` or `asic` accordingly. With ports, the device has one link `ic`, and one
        edge that connects the core to all ports. Without ports, the component `port` is left out,
        and the lists of links and edges are empty.
        """
        core = "xpu" if kind == "xpu" else "asic"
        components: list[_JsonObject] = [{"name": core, "count": 1, "choice": kind, kind: {}}]
        # InfraGraph's classes require both lists, even if empty.
        links: list[_JsonObject] = []
        edges: list[_JsonObject] = []
        # Instances of a device are equal: unused ports have no edge, and readers remove them.
        ports = max(self._ports_of[node] for node in nodes)
        if ports:
            components.append({"name": "port", "count": ports, "choice": "port", "port": {}})
            endpoints = {"ep1": {"component": core}, "ep2": {"component": "port"}}
            links.append({"name": "ic"})
            edges.append({**endpoints, "scheme": "many2many", "link": "ic"})
        return {"name": name, "components": components, "links": links, "edges": edges}

    def _build_annotations(self) -> _JsonObject:
        """Build the annotations of the document: properties that its infrastructure cannot express.

        The result always has these four lists. Call this after the edges and links have been
        added. Entries of the first three have a name (of `edges`: two ends `ep1`, `ep2`) and
        `attributes`.

        - `nodes`: the name of each node; [] if the topology has no names
        - `edges`: for each edge, the rows of its links in the topology
        - `links`: for each kind of link, the attributes of `_build_exact_values`, perhaps none:
          the bandwidth and latency that rounding would change, and a plane other than 0
        - `graph`: attributes. The first one is the mark by which readers recognize documents of
          the hub. Then follow dimensions, groups (one attribute each), multicasting switches and
          reducing switches, each only if the topology has any.
        """
        nodes: list[_JsonObject] = []
        for node, name in enumerate(self._topology.node_names):
            instance, number = self._find_instance(node)
            vertex = f"{instance}.{number}.{'xpu' if instance == 'npu' else 'asic'}.0"
            nodes.append({"name": vertex, "attributes": [{"attribute": NAME, "value": name}]})
        links: list[_JsonObject] = []
        for values, name in self._links.items():
            links.append({"name": name, "attributes": list(_build_exact_values(*values))})
        # Readers recognize documents of the hub by this attribute.
        graph = [{"attribute": EXACT, "value": "1"}]
        if self._topology.dimensions:
            parts = []
            for dimension in self._topology.dimensions:
                # In bytes/s and s; `repr` gives the shortest text of the same float.
                rates = (dimension.bandwidth_bytes_per_s, dimension.latency_s)
                parts.append(" ".join([dimension.kind, str(dimension.size), *map(repr, rates)]))
            graph.append({"attribute": DIMENSIONS, "value": ", ".join(parts)})
        for group, members in self._topology.groups.items():
            graph.append({"attribute": GROUP + group, "value": format_ranks(members)})
        for attribute, switches in (
            (MULTICAST, self._topology.multicast),
            (REDUCTION, self._topology.reduction),
        ):
            if switches:
                graph.append({"attribute": attribute, "value": format_ranks(switches)})
        return {"nodes": nodes, "edges": self._edge_annotations, "links": links, "graph": graph}


def _build_endpoint(
    instance: str,
    number: int,
    component: str,
    index: int,
) -> _JsonObject:
    """Build an endpoint of an edge as a JSON object: `instance[number]` and `component[index]`."""
    return {"instance": f"{instance}[{number}]", "component": f"{component}[{index}]"}


def _build_link(
    name: str,
    bandwidth_bytes_per_s: float,
    latency_s: float,
    plane: int,
) -> _JsonObject:
    """Build a link of the document, with bandwidth in GB/s (10^9 bytes/s) and latency in ns.

    Integral values below 2^53 are integers, all other values floats. The description is
    `plane N` for a plane other than 0. A link of plane 0 has no description.
    """
    rate = float(_scale(bandwidth_bytes_per_s, -9))
    delay = float(_scale(latency_s, 9))
    bandwidth = {"choice": "gigabytes_per_second", "gigabytes_per_second": _to_json_number(rate)}
    latency = {"choice": "ns", "ns": _to_json_number(delay)}
    physical = {"bandwidth": bandwidth, "latency": latency}
    link: _JsonObject = {"name": name, "physical": physical}
    return link | ({"description": f"plane {plane}"} if plane else {})


def _build_exact_values(
    bandwidth_bytes_per_s: float,
    latency_s: float,
    plane: int,
) -> list[dict[str, str]]:
    """Return the annotations of a link: its exact bandwidth and latency, and its plane.

    Each is an object with `attribute` and `value`, both texts. They are in this order:

    - `collhub-bandwidth-bytes-per-s` and `collhub-latency-s`: the shortest text that gives
      the same float. Each is omitted if its number has at most 15 significant digits, because
      conversion to GB/s and ns then does not change it.
    - `collhub-plane`: omitted for plane 0.

    The list may be empty.
    """
    values = {}
    # Up to this number of digits, a double survives the conversion to decimal text in any unit.
    if len(_scale(bandwidth_bytes_per_s, 0).normalize().as_tuple().digits) > _MAX_EXACT_DIGITS:
        values[BANDWIDTH] = repr(bandwidth_bytes_per_s)
    if len(_scale(latency_s, 0).normalize().as_tuple().digits) > _MAX_EXACT_DIGITS:
        values[LATENCY] = repr(latency_s)
    if plane:
        values[PLANE] = str(plane)
    return [{"attribute": name, "value": value} for name, value in values.items()]


def _scale(value: float, power: int) -> Decimal:
    """Multiply a value by a power of ten, exact in the digits that identify the double."""
    return Decimal(repr(value)).scaleb(power)


def _to_json_number(value: float) -> float | int:
    """Convert integral values below 2^53 to integers, which are written without a fraction; others
    stay floats.
    """
    return int(value) if value == int(value) and value < 2**53 else value
