"""Read a network in InfraGraph's forms: the bare document, with annotations, or node-link.

The node-link form is networkx's, which InfraGraph's service provides as well. Small documents are
samples for the conformance kit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from collhub_networks import DocumentValue, NetworkFindings, document_of

from collhub_infragraph.expansion import expand_infrastructure
from collhub_infragraph.graph import (
    CODE,
    RANK,
    Annotations,
    Attributes,
    LinkKind,
    VertexGraph,
    parse_node_link_edge,
)
from collhub_infragraph.network import build_topology
from collhub_infragraph.plugin import InfragraphReadOptions
from hub_core.network import MAX_LINKS, MAX_NODES, Topology
from hub_core.plugin_api import Source


def parse_annotations(value: DocumentValue | None) -> Annotations:
    """Parse the part `annotations` of a document, which has the form of InfraGraph's `get_graph`.

    The keys of the part are lists of objects, all optional:

    - `nodes` and `links`: `name` and `attributes` of a vertex or link
    - `edges`: the endpoints `ep1` and `ep2`, which in this order are the key of the result, and
      `attributes`
    - `graph`: attributes of the graph

    An attribute is an object with `attribute` (its name) and `value`, which becomes a text; a
    missing or null one becomes "". If an entry is repeated, the last one counts; attributes of
    repeated entries are not merged. `value` None gives empty annotations. Raises `InputError` for
    values that are no lists or objects, and for missing or empty names and endpoints.
    """
    if value is None:
        return Annotations()
    return Annotations(
        {entry["name"].text(): _parse_attributes(entry) for entry in value.items_of("nodes")},
        {
            (entry["ep1"].text(), entry["ep2"].text()): _parse_attributes(entry)
            for entry in value.items_of("edges")
        },
        {entry["name"].text(): _parse_attributes(entry) for entry in value.items_of("links")},
        dict(_generate_pairs(value, "graph")),
    )


def _parse_attributes(entry: DocumentValue) -> Attributes:
    """Return the attributes of an entry by name, as texts; of repeated ones the last."""
    return dict(_generate_pairs(entry, "attributes"))


def _generate_pairs(
    value: DocumentValue,
    key: str,
) -> Iterator[tuple[str, str]]:
    """Yield (attribute, value) of every entry of the list `key`, in order; values as texts, empty
    for missing values.
    """
    for entry in value.items_of(key):
        text = entry.get("value")
        yield entry["attribute"].text(), "" if text is None else str(text.raw)


def parse_node_link_graph(root: DocumentValue) -> VertexGraph:
    """Parse a node-link document of networkx to a graph.

    Each entry of `nodes` is a vertex with name `id` and kind `type`, in their order. A node's
    `rank`, if present, becomes its annotation, as text. Edges are in the list `edges`, or in
    `links` if `edges` is absent. An edge has `source` and `target`, and the optional values of
    `parse_node_link_edge`. Edges with equal values share one entry of the graph's `links`.

    Edges from a node to itself are dropped. Of several edges between two nodes, in either
    direction, the last one counts, at the position of the first. Each pair of vertices ascends.

    Raises `InputError` with the path in these cases: `directed` is neither absent, null nor false;
    a required value is missing; two nodes have one name; an edge has an unknown node or an invalid
    quantity; there are more than `MAX_NODES` nodes or `MAX_LINKS` pairs of vertices.
    """
    directed = root.get("directed")
    if directed is not None and directed.raw is not False:
        directed.fail("an undirected graph was expected", "write InfraGraph's own graph")
    kinds: dict[str, str] = {}
    ranks: dict[str, dict[str, str]] = {}
    for node in root["nodes"].items():
        name = node["id"].text()
        if name in kinds:
            node.fail(f"two nodes are named {name[:80]!r}")
        kinds[name] = node["type"].text()
        rank = node.get(RANK)
        if rank is not None:
            ranks[name] = {RANK: str(rank.raw)}
    if len(kinds) > MAX_NODES:
        root["nodes"].fail(f"{len(kinds)} nodes are more than {MAX_NODES}")
    numbers = {name: number for number, name in enumerate(kinds)}
    rows: dict[tuple[int, int], int] = {}
    links: dict[LinkKind, int] = {}
    # Before its release 3.4, networkx named the list `links`.
    edges = root["edges" if root.get("edges") is not None else "links"]
    for edge in edges.items():
        first, second = _find_end(edge, "source", numbers), _find_end(edge, "target", numbers)
        # Loops have no effect; networkx writes them.
        if first != second:
            link = links.setdefault(parse_node_link_edge(edge), len(links))
            # The last edge of a pair counts.
            rows[min(first, second), max(first, second)] = link
    if len(rows) > MAX_LINKS:
        edges.fail(f"{len(rows)} edges are more than {MAX_LINKS}")
    pairs = np.asarray(list(rows), np.int64).reshape(-1, 2)
    return VertexGraph(
        tuple(kinds),
        tuple(kinds.values()),
        pairs[:, 0],
        pairs[:, 1],
        np.asarray(list(rows.values()), np.int64),
        tuple(links),
        Annotations(of_vertex=ranks),
    )


def _find_end(
    edge: DocumentValue,
    key: str,
    numbers: dict[str, int],
) -> int:
    """Return the vertex number of one end of an edge.

    `key`: `source` or `target`. `numbers`: vertices by node name. Raises `InputError` if
    the key is missing, if its value is neither text nor integer, or if no node has this
    name.
    """
    name = edge[key].text()
    if name not in numbers:
        cure = "list every node below nodes"
        edge[key].fail(f"there is no node {name[:80]!r}", cure)
    return numbers[name]


_OLD_KEYS = ("connections", "inventory")


def read(source: Source, options: InfragraphReadOptions) -> Topology:
    """Read the network of an InfraGraph document (reader of the format `infragraph`).

    The document is YAML or JSON, an infrastructure or a node-link graph (`parse_graph`).
    `build_topology` chooses NPUs and switches. After success, warnings and notes about values
    that options supply are reported to `source`, each kind once.

    Raises `InputError` with the path of the value for invalid content. It has only the file
    if

    - there are no NPUs,
    - the NPUs are not connected (not checked for documents that the hub wrote with
      annotations),
    - a link has no bandwidth, and no option (`bandwidth`, `missing=unlimited`) supplies one.

    Raises `UsageError` for an invalid bandwidth or an unknown link in the options.
    """
    findings = NetworkFindings()
    graph = parse_graph(document_of(source, CODE), findings)
    topology = build_topology(source.name, graph, options, findings)
    findings.tell(source.report)
    return topology


def parse_graph(root: DocumentValue, findings: NetworkFindings) -> VertexGraph:
    """Parse the vertices and edges of a document in any of its three forms.

    1. With the key `nodes`: a node-link graph of networkx. `infrastructure` is ignored.
    2. Otherwise, with the key `infrastructure`: its value is the infrastructure.
    3. Otherwise, the document itself is the infrastructure.

    In the forms 2 and 3, the optional key `annotations` of the document is read too, and warnings
    are added to `findings`. A key whose value is null counts as missing. Raises `InputError` for
    the grammar before InfraGraph 0.3, i.e. for a key `connections` or `inventory` of the document
    or, in the forms 2 and 3, of an entry of `devices`; then for invalid content.
    """
    is_node_link_graph = root.get("nodes") is not None
    # Some samples of InfraGraph still use the grammar before 0.3.
    holders = [root] if is_node_link_graph else [root, *root.items_of("devices")]
    for holder, key in itertools.product(holders, _OLD_KEYS):
        if holder.get(key) is not None:
            message = f"{key!r} belongs to the grammar before InfraGraph 0.3"
            holder.fail(message, "use edges with endpoints, as in 0.3 and later")
    if is_node_link_graph:
        return parse_node_link_graph(root)
    annotations = parse_annotations(root.get("annotations"))
    infrastructure = root.get("infrastructure")
    return expand_infrastructure(infrastructure or root, annotations, findings)


# Two hosts of two NPUs each, with cards as nested devices, at one leaf switch.
_HOSTS = """\
name: two-hosts
devices:
- name: card
  components:
  - {name: slot, count: 1, choice: custom, custom: {type: pcie_slot}}
  - {name: port, count: 1, choice: port}
  links: [{name: inner}]
  edges:
  - {ep1: {component: slot}, ep2: {component: port}, scheme: one2one, link: inner}
- name: host
  components:
  - {name: xpu, count: 2, choice: xpu}
  - {name: nvswitch, count: 1, choice: switch}
  - {name: card, count: 2, choice: device}
  links:
  - name: nvlink
    physical:
      bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 450}
      latency: {choice: ns, ns: 250}
  - name: pcie
    physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 64}}
  edges:
  - {ep1: {component: xpu}, ep2: {component: nvswitch}, scheme: many2many, link: nvlink}
  - {ep1: {component: "xpu[0:2]"}, ep2: {component: "card[0:2].slot"}, scheme: one2one, link: pcie}
- name: leaf
  components:
  - {name: asic, count: 1, choice: cpu}
  - {name: port, count: 4, choice: port}
  links: [{name: ic}]
  edges:
  - {ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: ic}
links:
- name: eth
  physical:
    bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}
    latency: {choice: ns, ns: 600}
instances:
- {name: host, device: host, count: 2}
- {name: leaf, device: leaf, count: 1}
edges:
- ep1: {instance: "host[0:2]", component: "card[0:2].port[0]"}
  ep2: {instance: leaf, component: "port[0:4]"}
  scheme: one2one
  link: eth
"""
_NODE_LINK = """\
directed: false
nodes:
- {id: npu.0.xpu.0, type: xpu, rank: 1}
- {id: npu.1.xpu.0, type: xpu, rank: 0}
edges:
- {source: npu.0.xpu.0, target: npu.1.xpu.0, link: cable, bandwidth: 400 Gbps, latency: 250 ns}
"""


def build_samples() -> Sequence[Source]:
    """Return two sample documents for tests, as YAML.

    `two-hosts.yaml` is an infrastructure of two hosts at a leaf switch; `two-npus.yaml` is a
    node-link graph of two NPUs.
    """
    texts = {"two-hosts.yaml": _HOSTS, "two-npus.yaml": _NODE_LINK}
    return [Source.of_bytes(name, text.encode("ascii")) for name, text in texts.items()]
