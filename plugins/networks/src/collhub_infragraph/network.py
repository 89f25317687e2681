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
    MAX_NUMBER,
    MULTICAST,
    NAME,
    POSITIONS,
    RANK,
    REDUCTION,
    VertexGraph,
)
from collhub_infragraph.plugin import InfragraphReadOptions
from hub_core.columns import connected_parts
from hub_core.model import HubError, InputError, Location, UsageError, parse_ranks, parse_whole
from hub_core.network import Dimension, DimensionKind, Links, Topology, grid

_MAX_SHOWN = 4


def build_topology(
    name: str,
    graph: VertexGraph,
    options: InfragraphReadOptions,
    findings: NetworkFindings,
) -> Topology:
    """Build the topology of a graph; NPUs are numbered first, then the switches.

    `name`: the file, which is also the name of the topology. The steps are, with their errors:

    1. Apply the bandwidths of the options: `UsageError` for invalid ones and unknown links.
    2. Choose the NPUs (`_find_npus`), in the order of their ranks: `InputError` (`no-npu`).
    3. Remove vertices that only forward (`_find_hops_and_switches`). The remaining vertices are
       switches, in the order of the document.
    4. Supply missing bandwidths and latencies from the options: `InputError` (`no-bandwidth`) for a
       hop without a bandwidth.
    5. Raise `InputError` (`unconnected-npus`) if the NPUs are not connected, except for documents
       that the hub wrote with annotations.
    6. Convert every hop to two directed links, the one from its first vertex first, in the order of
       the hops. Annotations of the hub can omit a direction and give another order. The option
       `planes` assigns planes: `UsageError` for an unknown link.
    7. Add groups, multicast, reduction and dimensions of the hub's annotations: `InputError` if
       these are invalid.

    Assumptions and supplied values are recorded in `findings`. The graph is not changed.
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
    node_names = [graph.names[vertex] for vertex in nodes]
    if graph.annotations.is_exact:
        # If only some nodes have an annotated name, `Topology` refuses the names.
        annotated = [graph.annotations.of_vertex.get(vertex, {}).get(NAME) for vertex in node_names]
        node_names = [title for title in annotated if title is not None]
    try:
        # An empty text is an empty group.
        groups = {
            attribute.removeprefix(GROUP): parse_ranks(value, "NPU") if value else ()
            for attribute, value in graph.annotations.of_graph.items()
            if attribute.startswith(GROUP)
        }
        topology = columns.topology(
            name,
            len(npus),
            len(nodes),
            node_names=tuple(node_names),
            groups=groups,
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

    NPUs are the vertices whose kind is listed in `options.npu_types` (separated by commas,
    blanks ignored). If their annotations `rank` are exactly 0..count-1, each once, they are
    sorted by rank; otherwise they are in the order of the document, with the warning `ranks` in
    `findings` if any of them has a rank that is not empty. Raises `InputError` (code `no-npu`)
    if there is none. `name`: of the file.
    """
    npu_kinds = {kind.strip() for kind in options.npu_types.split(",")}
    npus = [vertex for vertex, kind in enumerate(graph.kinds) if kind in npu_kinds]
    if not npus:
        kinds = ", ".join(sorted(set(graph.kinds)))
        cure = f"name the kinds that are NPUs with FILE?npu-types=; the kinds are: {kinds}"
        message = f"no component is of a kind that is an NPU ({options.npu_types})"
        _fail(
            name,
            message,
            cure,
            "no-npu",
        )
    ranks = [graph.annotations.of_vertex.get(graph.names[vertex], {}).get(RANK) for vertex in npus]
    # Values of annotations are texts; None, for no number, equals no rank.
    numbers = [parse_whole(rank or "", MAX_NUMBER) for rank in ranks]
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
    """Remove the vertices that only forward; return the remaining hops and the switches.

    A hop is a path of edges between two vertices. With `options.detail` `full`, no vertex is
    removed and every edge is a hop. Otherwise vertices that are no NPUs are tried in ascending
    order, in rounds, until none can be removed:

    - A vertex with at most one hop is removed with its hop.
    - A vertex with two hops to different neighbours is removed, and the hops are joined, unless
      another hop connects these neighbours.
    - A vertex with two hops to one neighbour is removed with both hops.

    In a document that the hub wrote with annotations, only vertices of the kind `port` may be
    removed, and hops are joined even if another one connects the neighbours, so that parallel
    cables remain. Hops are in the order of their first edges in the document. Switches are the
    vertices that are neither NPUs nor removed, in ascending order.
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

    A hop has the two vertices of its edge, and the row of its link. `bandwidths` (bytes/s) and
    `latencies` (s) have one value each, or none if the link has no value.

    `positions` are the rows of the two directed links in the hub's network: first to second vertex,
    then back. They are None if the hub did not write the document or has not annotated the edge.
    One of them is None if the annotation has no valid number for this direction.
    """
    positions = _find_positions(graph)
    # All hops of a link share these values, which halves the memory of large networks.
    values_of_link: list[tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]] = []
    for row, link in enumerate(graph.links):
        rate, delay = link.bandwidth_bytes_per_s, link.latency_s
        rates = () if rate is None else (rate,)
        delays = () if delay is None else (delay,)
        values_of_link.append(((row,), rates, delays))
    ends = zip(graph.first_vertex.tolist(), graph.second_vertex.tolist(), strict=True)
    hops = []
    for (first, second), row in zip(ends, graph.link.tolist(), strict=True):
        links, bandwidths, latencies = values_of_link[row]
        position = positions.get((first, second))
        hops.append(Hop(first, second, links, bandwidths, latencies, position))
    return hops


Positions = tuple[int | None, int | None]


def _find_positions(graph: VertexGraph) -> dict[tuple[int, int], Positions]:
    """Return for each edge the numbers of its two links in the network, from the hub's annotations.

    The result is {} for documents that the hub did not write (`is_exact`). An annotation `12,40` of
    the edge (a, b) gives {(a, b): (12, 40), (b, a): (40, 12)}: the number of the link from the
    first to the second vertex, then of the link back. A text that is missing, as in `12,`, is no
    integer, or exceeds `MAX_NUMBER` gives None, which means no link. An annotation without both
    texts, and one of an unknown vertex, is skipped. Of several annotations of two vertices, the
    last counts.
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
            there, back = parse_whole(forward, MAX_NUMBER), parse_whole(reverse, MAX_NUMBER)
            positions[source, destination] = there, back
            positions[destination, source] = back, there
    return positions


def _build_links(
    hops: Sequence[Hop],
    number: Mapping[int, int],
    planes: Sequence[int],
) -> Links:
    """Build the directed links of all hops: two per hop, or those that its annotation lists.

    `number`: node of every vertex. `planes`: plane of every hop. Each link has a number, and links
    are sorted by it, then by source, destination, bandwidth, latency and plane:

    - A hop with an annotation has the numbers of `positions`: first from its first vertex to its
      second one, then back. A direction with the number None has no link.
    - A hop without an annotation gets n and n + 1, if the hops before it have n links. Its first
      link is the one from its first vertex.

    Both links have the bandwidth (bytes/s), latency (s) and plane of the hop; a missing bandwidth
    or latency becomes 0.
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
    """Return the plane number of every hop, in the order of the hops.

    - Without the option `planes`: the plane of link n // 2 (from 0) of the n links of the hop, 0 if
      this link declares none.
    - With it: the option lists names of links, as `link` or `device/link`, separated by commas. The
      plane of a hop is the lowest position in the list of a name of one of its links. All hops
      without a listed link share one plane with the highest number. The planes in use are then
      renumbered from 0 without gaps.

    Raises `UsageError` for the first listed name that no link has.
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


def _parse_switches(
    graph: VertexGraph,
    attribute: str,
) -> tuple[int, ...]:
    """Return the node numbers that an annotation of the hub at the graph lists, in its order.

    `attribute`: the name of the annotation, whose value is a text such as `8-11`. The tuple
    is empty if the annotation is absent or empty. Whether the nodes are switches is not
    checked here. Raises `UsageError` for a text that is no list of numbers, or that repeats
    one.
    """
    value = graph.annotations.of_graph.get(attribute)
    return parse_ranks(value, "switch") if value else ()


def _add_dimensions(
    name: str,
    graph: VertexGraph,
    topology: Topology,
) -> Topology:
    """Return the topology with the dimensions of a regular network that the hub annotated.

    Without this annotation, the topology is returned unchanged. Otherwise the regular network with
    these dimensions is built for comparison. A dimension is its kind, its size of at least 1, bytes
    per second and latency in seconds. Raises `InputError` if the annotation cannot be parsed, or if
    the number of NPUs, the number of nodes or the links differ. The order of the links, names and
    groups may differ.
    """
    text = graph.annotations.of_graph.get(DIMENSIONS)
    if text is None:
        return topology
    try:
        dimensions = []
        for part in text.split(","):
            kind, size, bandwidth, latency = part.split()
            if int(size) < 1:
                raise ValueError(size)
            rates = float(bandwidth), float(latency)
            dimensions.append(Dimension(DimensionKind(kind), int(size), *rates))
        regular = grid(name, dimensions)
        differs = bool({"num_npus", "num_nodes", "links"} & set(regular.differences(topology)))
    except (ValueError, UsageError):
        differs = True
    if differs:
        message = f"the annotation {DIMENSIONS} does not match this network"
        _fail(name, message, "leave the annotation out")
    return replace(topology, dimensions=tuple(dimensions))


def _check_connected(
    name: str,
    graph: VertexGraph,
    hops: Sequence[Hop],
    npus: Sequence[int],
) -> None:
    """Raise `InputError` (`unconnected-npus`) unless the hops connect all NPUs, in any direction.

    Connections through other vertices count. Documents that the hub wrote with annotations
    (`is_exact`) are not checked. The message counts the separate parts that contain NPUs. It
    describes the first 4 of them, in the order of their lowest vertex: the name of the first NPU of
    the part in the order of `npus`, and the number of its other NPUs.
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
