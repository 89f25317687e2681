"""From vertices and edges to a topology: NPUs, switches and directed links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
from collhub_columns import connected_parts
from collhub_networks import NetworkFindings

from collhub_infragraph.graph import (
    CODE,
    DIMENSIONS,
    GROUP,
    MULTICAST,
    NAME,
    POSITIONS,
    RANK,
    REDUCTION,
    VertexGraph,
    number_of,
)
from collhub_infragraph.options import InfragraphReadOptions
from collhub_infragraph.reading.bandwidths import filled, stated_bandwidths, with_stated
from collhub_infragraph.reading.hops import Contraction, Hop
from hub_core.model import HubError, InputError, Location, UsageError, parse_ranks
from hub_core.network import Dimension, DimensionKind, Links, Topology, grid

_MOST_SHOWN = 4


def topology_of_graph(
    name: str,
    graph: VertexGraph,
    options: InfragraphReadOptions,
    findings: NetworkFindings,
) -> Topology:
    """The topology of a graph. Raises `InputError` and `UsageError` as `read` does."""
    stated = stated_bandwidths(options.bandwidth)
    links = with_stated(
        name,
        graph.links,
        stated,
        findings,
    )
    graph = replace(graph, links=links)
    npus = _npus(
        name,
        graph,
        options,
        findings,
    )
    hops, switches = _network(graph, npus, options)
    hops = filled(
        name,
        graph,
        hops,
        options,
        findings,
    )
    nodes = [*npus, *switches]
    _check_connected(
        name,
        graph,
        hops,
        npus,
    )
    number = {vertex: node for node, vertex in enumerate(nodes)}
    columns = _links(hops, number, _planes(graph, hops, options))
    try:
        found = columns.topology(
            name,
            len(npus),
            len(nodes),
            node_names=_node_names(graph, nodes),
            groups=_groups(graph),
        )
        found = replace(
            found, multicast=_switches(graph, MULTICAST), reduction=_switches(graph, REDUCTION)
        )
    # A topology does not know the file that its names and groups come from.
    except HubError as error:
        _fail(name, error.diagnostics[0].message, "annotations may have been changed by hand")
    return _with_dimensions(name, graph, found)


def _npus(
    name: str,
    graph: VertexGraph,
    options: InfragraphReadOptions,
    findings: NetworkFindings,
) -> list[int]:
    """The vertices that are NPUs, by their ranks where all state one, else as they stand."""
    wanted = {kind.strip() for kind in options.npu_types.split(",")}
    found = [vertex for vertex, kind in enumerate(graph.kinds) if kind in wanted]
    if not found:
        kinds = ", ".join(sorted(set(graph.kinds)))
        cure = f"name the kinds that are NPUs with FILE?npu-types=; there are: {kinds}"
        message = f"no component is of the kind {options.npu_types}"
        _fail(
            name,
            message,
            cure,
            "no-npu",
        )
    ranks = [graph.annotations.of_vertex.get(graph.names[vertex], {}).get(RANK) for vertex in found]
    # Ranks are texts, as all values of annotations are.
    numbers = [int(rank) if rank and rank.isdecimal() else -1 for rank in ranks]
    if sorted(numbers) == list(range(len(found))):
        by_rank = dict(zip(numbers, found, strict=True))
        return [by_rank[rank] for rank in range(len(found))]
    if any(ranks):
        message = f"the annotations rank are not 0..{len(found) - 1}, each once: NPUs as they stand"
        findings.warn(
            "ranks",
            Location(name),
            message,
            "give every NPU a rank of its own",
        )
    return found


def _network(
    graph: VertexGraph,
    npus: Sequence[int],
    options: InfragraphReadOptions,
) -> tuple[list[Hop], list[int]]:
    """The hops between NPUs and switches, and the switches: all vertices that remain."""
    hops = hops_of(graph)
    is_npu = [False] * len(graph.names)
    for vertex in npus:
        is_npu[vertex] = True
    others = [vertex for vertex in range(len(is_npu)) if not is_npu[vertex]]
    if options.detail == "full":
        return hops, others
    is_exact = graph.annotations.is_exact
    kept = is_npu
    if is_exact:
        # Switches of the hub stay where they are; only the ports of parallel cables vanish.
        kept = [npu or kind != "port" for npu, kind in zip(is_npu, graph.kinds, strict=True)]
    contraction = Contraction(hops, kept, is_exact)
    left = contraction.run()
    return left, [vertex for vertex in others if not contraction.is_gone[vertex]]


def hops_of(graph: VertexGraph) -> list[Hop]:
    """Every edge as a hop."""
    marked = _marked_positions(graph)
    found = []
    rows = zip(
        graph.one.tolist(),
        graph.other.tolist(),
        graph.link.tolist(),
        strict=True,
    )
    for one, other, row in rows:
        link = graph.links[row]
        rate, delay = link.bandwidth_bytes_per_s, link.latency_s
        rates = () if rate is None else (rate,)
        delays = () if delay is None else (delay,)
        found.append(
            Hop(
                one,
                other,
                (row,),
                rates,
                delays,
                marked.get((one, other)),
            )
        )
    return found


Positions = tuple[int | None, int | None]


def _marked_positions(graph: VertexGraph) -> dict[tuple[int, int], Positions]:
    """Which links there and back an edge is, as the hub annotates it: `12,40`, `12,` or `,40`."""
    if not graph.annotations.is_exact:
        return {}
    number = {name: vertex for vertex, name in enumerate(graph.names)}
    found: dict[tuple[int, int], Positions] = {}
    for (first, second), attributes in graph.annotations.of_edge.items():
        there, _, back = attributes.get(POSITIONS, "").partition(",")
        if first in number and second in number and (there or back):
            one, other = number[first], number[second]
            # Either end may be named first where the edge is stated.
            found[one, other] = number_of(there), number_of(back)
            found[other, one] = number_of(back), number_of(there)
    return found


def _links(
    hops: Sequence[Hop],
    number: Mapping[int, int],
    planes: Sequence[int],
) -> Links:
    """Two directed links of every hop, or those that its annotation names, in their order."""
    rows: list[tuple[int, int, int, float, float, int]] = []
    for hop, plane in zip(hops, planes, strict=True):
        one, other = number[hop.one], number[hop.other]
        # Without an annotation, the two links of an edge stand side by side.
        there, back = hop.positions or (len(rows), len(rows) + 1)
        rate, delay = hop.bandwidth_bytes_per_s or 0.0, hop.latency_s or 0.0
        if there is not None:
            rows.append((there, one, other, rate, delay, plane))
        if back is not None:
            rows.append((back, other, one, rate, delay, plane))
    # Numbers of nodes and planes are exact in a double.
    table = np.asarray(sorted(rows), np.float64).reshape(-1, 6).T.copy()
    _, source, destination, rates, delays, plane_of = table
    ends = source.astype(np.int64), destination.astype(np.int64)
    return Links(
        *ends,
        rates,
        delays,
        plane_of.astype(np.int64),
    )


def _planes(
    graph: VertexGraph,
    hops: Sequence[Hop],
    options: InfragraphReadOptions,
) -> list[int]:
    """The plane of every hop: that of the first listed link on it, the last for all others."""
    if options.planes is None:
        # Of a path over ports, the cable is in the middle, and its link states the plane.
        stated = [graph.links[hop.links[len(hop.links) // 2]].plane for hop in hops]
        return [plane or 0 for plane in stated]
    names = [part.strip() for part in options.planes.split(",")]
    known = {name for link in graph.links for name in (link.name, link.title)}
    for name in names:
        if name not in known:
            cure = f"links are: {', '.join(sorted(known))}"
            raise UsageError(f"option planes: no link is named {name!r}", cure=cure)
    found = []
    for hop in hops:
        links = [graph.links[row] for row in hop.links]
        of_hop = {name for link in links for name in (link.name, link.title)}
        numbers = [number for number, name in enumerate(names) if name in of_hop]
        found.append(min(numbers, default=len(names)))
    # A name whose links all vanished would leave a gap.
    return [sorted(set(found)).index(plane) for plane in found]


def _node_names(
    graph: VertexGraph,
    nodes: Sequence[int],
) -> tuple[str, ...]:
    """Names of all nodes: of its own documents the hub knows whether they had any."""
    vertices = [graph.names[vertex] for vertex in nodes]
    if not graph.annotations.is_exact:
        return tuple(vertices)
    stated = [graph.annotations.of_vertex.get(name, {}).get(NAME) for name in vertices]
    return tuple(name for name in stated if name is not None)


def _groups(graph: VertexGraph) -> dict[str, tuple[int, ...]]:
    """Groups of NPUs, which the hub annotates: `0,2,4-7`."""
    found: dict[str, tuple[int, ...]] = {}
    for attribute, value in graph.annotations.of_graph.items():
        if attribute.startswith(GROUP):
            found[attribute.removeprefix(GROUP)] = parse_ranks(value, "NPU") if value else ()
    return found


def _switches(
    graph: VertexGraph,
    attribute: str,
) -> tuple[int, ...]:
    """Switches by their numbers among all nodes, which the hub annotates."""
    value = graph.annotations.of_graph.get(attribute)
    return parse_ranks(value, "switch") if value else ()


def _with_dimensions(
    name: str,
    graph: VertexGraph,
    topology: Topology,
) -> Topology:
    """The topology with the dimensions that the hub annotates, where they are its own."""
    text = graph.annotations.of_graph.get(DIMENSIONS)
    if text is None:
        return topology
    try:
        found = tuple(_dimension(*part.split()) for part in text.split(","))
        regular = grid(name, found)
        is_other = bool({"num_npus", "num_nodes", "links"} & set(regular.differences(topology)))
    except (TypeError, ValueError, UsageError):
        is_other = True
    if is_other:
        message = f"the annotation {DIMENSIONS} is not of this network"
        _fail(name, message, "leave the annotation out")
    return replace(topology, dimensions=found)


def _dimension(
    kind: str,
    size: str,
    bandwidth: str,
    latency: str,
) -> Dimension:
    number = int(size)
    # A grid of nothing, or of less, is not asked for by any text of the hub.
    if number < 1:
        raise ValueError(size)
    return Dimension(
        DimensionKind(kind),
        number,
        float(bandwidth),
        float(latency),
    )


def _check_connected(
    name: str,
    graph: VertexGraph,
    hops: Sequence[Hop],
    npus: Sequence[int],
) -> None:
    """Raise `InputError` where some NPUs do not reach others."""
    # The hub has networks of several parts, and gives back what it was given.
    if graph.annotations.is_exact:
        return
    one = np.asarray([hop.one for hop in hops], np.int64)
    other = np.asarray([hop.other for hop in hops], np.int64)
    part = connected_parts(one, other, len(graph.names))[np.asarray(npus)]
    parts = np.unique(part)
    if len(parts) == 1:
        return
    shown = []
    for number in parts[:_MOST_SHOWN].tolist():
        members = np.flatnonzero(part == number)
        shown.append(f"{graph.names[npus[int(members[0])]]} and {len(members) - 1} more")
    more = f", and {len(parts) - len(shown)} more parts" if len(parts) > len(shown) else ""
    message = f"the NPUs fall into {len(parts)} parts without a link between them"
    cure = "join the instances by edges of the document"
    _fail(
        name,
        f"{message}: {'; '.join(shown)}{more}",
        cure,
        "unconnected-npus",
    )


def _fail(
    name: str,
    message: str,
    cure: str,
    code: str = CODE,
) -> NoReturn:
    raise InputError(
        message,
        location=Location(name),
        cure=cure,
        code=code,
    )
