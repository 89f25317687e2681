"""Convert vertices and edges to a topology: NPUs, switches and directed links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
from collhub_networks import NetworkFindings

from collhub_infragraph.bandwidths import (
    Contraction,
    Hop,
    apply_bandwidths,
    parse_bandwidths,
    supply_missing_values,
)
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
    parse_number,
)
from collhub_infragraph.plugin import InfragraphReadOptions
from hub_core.columns import connected_parts
from hub_core.model import HubError, InputError, Location, UsageError, parse_ranks
from hub_core.network import Dimension, DimensionKind, Links, Topology, grid

_MAX_SHOWN = 4


def build_topology(
    name: str,
    graph: VertexGraph,
    options: InfragraphReadOptions,
    findings: NetworkFindings,
) -> Topology:
    """Build the topology of a graph: NPUs are numbered first, then the switches.

    Order of the steps: bandwidths of options are applied, NPUs chosen, forwarding vertices removed
    (unless `options.detail` is `full`), missing bandwidths and latencies supplied, and every hop
    becomes two directed links. Groups, multicast, reduction and dimensions come from the hub's
    annotations of the graph. `name`: of the file, also the name of the topology. Assumptions and
    supplied values are recorded in `findings`. Raises `InputError` with the file if no vertex is an
    NPU, a bandwidth is missing, the NPUs are not connected, or annotations are invalid;
    `UsageError` for options that name unknown links.
    """
    bandwidths = parse_bandwidths(options.bandwidth)
    graph = replace(graph, links=apply_bandwidths(name, graph.links, bandwidths, findings))
    npus = _find_npus(name, graph, options, findings)
    hops, switches = _find_hops_and_switches(graph, npus, options)
    hops = supply_missing_values(name, graph, hops, options, findings)
    nodes = [*npus, *switches]
    _check_connected(name, graph, hops, npus)
    number = {vertex: node for node, vertex in enumerate(nodes)}
    columns = _build_links(hops, number, _find_planes(graph, hops, options))
    try:
        topology = columns.topology(
            name,
            len(npus),
            len(nodes),
            node_names=_find_node_names(graph, nodes),
            groups=_parse_groups(graph),
        )
        topology = replace(
            topology,
            multicast=_parse_switches(graph, MULTICAST),
            reduction=_parse_switches(graph, REDUCTION),
        )
    # Add the file to the error: a topology does not know the source of its names and groups.
    except HubError as error:
        _fail(name, error.diagnostics[0].message, "annotations may have been changed by hand")
    return _add_dimensions(name, graph, topology)


def _find_npus(
    name: str,
    graph: VertexGraph,
    options: InfragraphReadOptions,
    findings: NetworkFindings,
) -> list[int]:
    """Return the vertices that are NPUs, in the order of their ranks.

    NPUs are the vertices whose kind is listed in `options.npu_types` (separated by commas). If
    their annotations `rank` are exactly 0..count-1, each once, they are sorted by rank; otherwise
    they are in the order of the document, with the warning `ranks` if any of them has a rank that
    is not empty. Raises `InputError` (code `no-npu`) if there is none.
    """
    npu_kinds = {kind.strip() for kind in options.npu_types.split(",")}
    npus = [vertex for vertex, kind in enumerate(graph.kinds) if kind in npu_kinds]
    if not npus:
        kinds = ", ".join(sorted(set(graph.kinds)))
        cure = f"name the kinds that are NPUs with FILE?npu-types=; the kinds are: {kinds}"
        message = f"no component is of the kind {options.npu_types}"
        _fail(
            name,
            message,
            cure,
            "no-npu",
        )
    ranks = [graph.annotations.of_vertex.get(graph.names[vertex], {}).get(RANK) for vertex in npus]
    # Values of annotations are texts; None, for no number, equals no rank.
    numbers = [parse_number(rank or "") for rank in ranks]
    if set(numbers) == set(range(len(npus))):
        by_rank = dict(zip(numbers, npus, strict=True))
        return [by_rank[rank] for rank in range(len(npus))]
    if any(ranks):
        message = (
            f"the annotations rank are not 0..{len(npus) - 1}, each once: NPUs in document order"
        )
        findings.warn("ranks", Location(name), message, "give every NPU a different rank")
    return npus


def _find_hops_and_switches(
    graph: VertexGraph,
    npus: Sequence[int],
    options: InfragraphReadOptions,
) -> tuple[list[Hop], list[int]]:
    """Return (hops that remain, switches: the vertices that are neither NPU nor removed).

    With `options.detail` equal to `full` nothing is removed. In a document of the hub, only
    vertices of the kind `port` may be removed, and parallel cables remain. In other documents every
    vertex that only forwards may be removed, unless its two neighbours are already joined by a hop
    (`Contraction`). Switches are in ascending order.
    """
    hops = build_hops(graph)
    is_npu = [False] * len(graph.names)
    for vertex in npus:
        is_npu[vertex] = True
    switches = [vertex for vertex in range(len(is_npu)) if not is_npu[vertex]]
    if options.detail == "full":
        return hops, switches
    is_exact = graph.annotations.is_exact
    is_kept = is_npu
    if is_exact:
        # Switches of the hub stay; only the ports of parallel cables are removed.
        is_kept = [npu or kind != "port" for npu, kind in zip(is_npu, graph.kinds, strict=True)]
    contraction = Contraction(hops, is_kept, is_exact)
    remaining_hops = contraction.run()
    return remaining_hops, [vertex for vertex in switches if not contraction.is_removed[vertex]]


def build_hops(graph: VertexGraph) -> list[Hop]:
    """Return a hop for every edge of the graph, in the order of the edges.

    A hop has the one link of its edge, and the bandwidth and latency of this link; the tuple of a
    value that the link lacks is empty. Its positions are those of the hub's annotation, None
    without one.
    """
    positions = _find_positions(graph)
    hops = []
    rows = zip(
        graph.first_vertex.tolist(),
        graph.second_vertex.tolist(),
        graph.link.tolist(),
        strict=True,
    )
    for first_vertex, second_vertex, row in rows:
        link = graph.links[row]
        rate, delay = link.bandwidth_bytes_per_s, link.latency_s
        rates = () if rate is None else (rate,)
        delays = () if delay is None else (delay,)
        hops.append(
            Hop(
                first_vertex,
                second_vertex,
                (row,),
                rates,
                delays,
                positions.get((first_vertex, second_vertex)),
            )
        )
    return hops


Positions = tuple[int | None, int | None]


def _find_positions(graph: VertexGraph) -> dict[tuple[int, int], Positions]:
    """Parse the hub's annotations of edges: rows of the two links, `12,40`, `12,` or `,40`.

    Returns (row from the first vertex to the second, row back) by both orders of the edge's
    vertices; a row is None if there is no link in this direction. Annotations of unknown vertices,
    and empty ones, are skipped. Empty for documents of other origin.
    """
    if not graph.annotations.is_exact:
        return {}
    number = {name: vertex for vertex, name in enumerate(graph.names)}
    positions: dict[tuple[int, int], Positions] = {}
    for (first, second), attributes in graph.annotations.of_edge.items():
        forward, _, reverse = attributes.get(POSITIONS, "").partition(",")
        if first in number and second in number and (forward or reverse):
            source, destination = number[first], number[second]
            # The edge itself may name its endpoints in the opposite order.
            positions[source, destination] = parse_number(forward), parse_number(reverse)
            positions[destination, source] = parse_number(reverse), parse_number(forward)
    return positions


def _build_links(
    hops: Sequence[Hop],
    number: Mapping[int, int],
    planes: Sequence[int],
) -> Links:
    """Build the directed links of all hops: two for each, or those that its annotation lists.

    Links are sorted by their annotated rows. A hop without annotation gets the rows n and n+1 if n
    links were built before it, so that its two directions are adjacent, forward first. A direction
    whose row is None in the annotation has no link. `number`: node of every vertex; `planes`: plane
    of every hop. Missing bandwidths and latencies become 0.
    """
    rows: list[tuple[int, int, int, float, float, int]] = []
    for hop, plane in zip(hops, planes, strict=True):
        first, second = number[hop.first_vertex], number[hop.second_vertex]
        # Without an annotation, the two links of an edge are adjacent.
        forward, reverse = hop.positions or (len(rows), len(rows) + 1)
        rate, delay = hop.bandwidth_bytes_per_s or 0.0, hop.latency_s or 0.0
        if forward is not None:
            rows.append((forward, first, second, rate, delay, plane))
        if reverse is not None:
            rows.append((reverse, second, first, rate, delay, plane))
    # Numbers of nodes and planes are exact in a double.
    table = np.asarray(sorted(rows), np.float64).reshape(-1, 6).T.copy()
    _, source, destination, rates, delays, plane_of = table
    return Links(
        source.astype(np.int64),
        destination.astype(np.int64),
        rates,
        delays,
        plane_of.astype(np.int64),
    )


def _find_planes(
    graph: VertexGraph,
    hops: Sequence[Hop],
    options: InfragraphReadOptions,
) -> list[int]:
    """Return the plane of every hop, in the order of the hops.

    With the option `planes`, a list of names separated by commas: the position of the first listed
    name that is a link on the hop (as `link` or `device/link`), and one plane after all of them for
    hops without a listed link. Planes are then renumbered from 0 without gaps. `UsageError` for a
    name of no link. Without the option: the plane of the hop's middle link, 0 if it states none.
    """
    if options.planes is None:
        # On a path over ports the middle link is the cable, whose link has the plane.
        return [graph.links[hop.links[len(hop.links) // 2]].plane or 0 for hop in hops]
    names = [part.strip() for part in options.planes.split(",")]
    known = {name for link in graph.links for name in (link.name, link.title)}
    for name in names:
        if name not in known:
            cure = f"links are: {', '.join(sorted(known))}"
            raise UsageError(f"option planes: no link is named {name!r}", cure=cure)
    planes = []
    for hop in hops:
        links = [graph.links[row] for row in hop.links]
        hop_names = {name for link in links for name in (link.name, link.title)}
        numbers = [number for number, name in enumerate(names) if name in hop_names]
        planes.append(min(numbers, default=len(names)))
    # Renumber, since all links of a name may have been removed.
    return [sorted(set(planes)).index(plane) for plane in planes]


def _find_node_names(
    graph: VertexGraph,
    nodes: Sequence[int],
) -> tuple[str, ...]:
    """Return the names of all nodes: those of their vertices.

    In documents of the hub, only the annotated names; the tuple is empty if there are none.
    """
    vertices = [graph.names[vertex] for vertex in nodes]
    if not graph.annotations.is_exact:
        return tuple(vertices)
    annotated_names = [graph.annotations.of_vertex.get(name, {}).get(NAME) for name in vertices]
    return tuple(name for name in annotated_names if name is not None)


def _parse_groups(graph: VertexGraph) -> dict[str, tuple[int, ...]]:
    """Return the groups of NPUs by name, which the hub annotates as `0,2,4-7`.

    An empty annotation is an empty group. Raises `UsageError` for any other text.
    """
    groups: dict[str, tuple[int, ...]] = {}
    for attribute, value in graph.annotations.of_graph.items():
        if attribute.startswith(GROUP):
            groups[attribute.removeprefix(GROUP)] = parse_ranks(value, "NPU") if value else ()
    return groups


def _parse_switches(
    graph: VertexGraph,
    attribute: str,
) -> tuple[int, ...]:
    """Return the numbers of the switches that a graph annotation of the hub lists; empty without
    it. Raises `UsageError` for another text.
    """
    value = graph.annotations.of_graph.get(attribute)
    return parse_ranks(value, "switch") if value else ()


def _add_dimensions(
    name: str,
    graph: VertexGraph,
    topology: Topology,
) -> Topology:
    """Return the topology with the dimensions that the hub annotates, unchanged without annotation.

    Raises `InputError` if the annotation cannot be parsed, or if the regular network of these
    dimensions has other numbers of NPUs and nodes or other links than `topology`.
    """
    text = graph.annotations.of_graph.get(DIMENSIONS)
    if text is None:
        return topology
    try:
        dimensions = tuple(_parse_dimension(*part.split()) for part in text.split(","))
        regular = grid(name, dimensions)
        differs = bool({"num_npus", "num_nodes", "links"} & set(regular.differences(topology)))
    except (TypeError, ValueError, UsageError):
        differs = True
    if differs:
        message = f"the annotation {DIMENSIONS} does not match this network"
        _fail(name, message, "leave the annotation out")
    return replace(topology, dimensions=dimensions)


def _parse_dimension(
    kind: str,
    size: str,
    bandwidth: str,
    latency: str,
) -> Dimension:
    """Build a dimension from the texts of kind, size, bytes per second and seconds.

    Raises `ValueError` for an unknown kind, texts that are no numbers, and sizes below 1.
    """
    number = int(size)
    # Sizes below 1 are invalid.
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
    """Raise `InputError` (code `unconnected-npus`) unless all NPUs are in one connected part.

    Hops count in both directions. The message names the first NPU of at most 4 parts with the
    number of the other NPUs in it, and the number of further parts. Documents of the hub are not
    checked.
    """
    # The hub's own networks may have several parts, and are read back unchanged.
    if graph.annotations.is_exact:
        return
    first = np.asarray([hop.first_vertex for hop in hops], np.int64)
    second = np.asarray([hop.second_vertex for hop in hops], np.int64)
    part = connected_parts(first, second, len(graph.names))[np.asarray(npus)]
    parts = np.unique(part)
    if len(parts) == 1:
        return
    shown = []
    for number in parts[:_MAX_SHOWN].tolist():
        members = np.flatnonzero(part == number)
        shown.append(f"{graph.names[npus[int(members[0])]]} and {len(members) - 1} more")
    more = f", and {len(parts) - len(shown)} more parts" if len(parts) > len(shown) else ""
    message = f"the NPUs form {len(parts)} parts without a link between them"
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
    """Raise `InputError` with this message, cure and code; its location is the file `name` without
    a line.
    """
    raise InputError(
        message,
        location=Location(name),
        cure=cure,
        code=code,
    )
