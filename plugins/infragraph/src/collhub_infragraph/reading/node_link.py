"""Graphs in networkx's node-link form, which InfraGraph's service gives as well."""

from __future__ import annotations

import numpy as np
from collhub_networks import Value

from collhub_infragraph.graph import RANK, Annotations, LinkKind, VertexGraph
from collhub_infragraph.reading.links import link_of_words
from hub_core.network import MAX_LINKS, MAX_NODES


def graph_of(root: Value) -> VertexGraph:
    """The graph that a node-link document states. Raises `InputError` with the path.

    Every edge states its own bandwidth and latency: edges with the same words have one link.
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
    # networkx called the list `links` before its release 3.4.
    for edge in root["edges" if root.get("edges") is not None else "links"].items():
        one, other = _end(edge, "source", numbers), _end(edge, "target", numbers)
        # A loop joins nothing; networkx writes those it was given.
        if one != other:
            link = links.setdefault(link_of_words(edge), len(links))
            # A pair that is stated twice is one edge, and the last one wins.
            rows[min(one, other), max(one, other)] = link
    if len(rows) > MAX_LINKS:
        root["edges"].fail(f"{len(rows)} edges are more than {MAX_LINKS}")
    ends = np.asarray(list(rows), np.int64).reshape(-1, 2)
    return VertexGraph(
        tuple(kinds),
        tuple(kinds.values()),
        ends[:, 0],
        ends[:, 1],
        np.asarray(list(rows.values()), np.int64),
        tuple(links),
        Annotations(of_vertex=ranks),
    )


def _end(
    edge: Value,
    key: str,
    numbers: dict[str, int],
) -> int:
    """The vertex at one end of an edge. Raises `InputError` for an edge that dangles."""
    name = edge[key].text()
    if name not in numbers:
        cure = "list every node below nodes"
        edge[key].fail(f"there is no node {name[:80]!r}", cure)
    return numbers[name]
