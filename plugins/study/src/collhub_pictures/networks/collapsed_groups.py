"""A large network with its groups as single nodes, and with nodes that are equal as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import UsageError, format_ranks
from hub_core.network import Links, Topology, group_of_nodes
from hub_core.plugin_api import LinkLoad


class Collapse(StrEnum):
    """Whether groups are drawn as single nodes: if the network is too large, always, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, eq=False)
class CollapsedNetwork:
    """A network whose nodes stand for nodes of a larger one.

    `topology`: NPUs and boxes for groups come first, as its NPUs, then switches; several links
    between two nodes are parallel links. `place`: int64, for each node of the larger network the
    node here. `boxes`: the nodes that stand for groups, by node, with the NPUs of each.
    """

    topology: Topology
    place: Int64Array
    boxes: Mapping[int, int]

    def loads(self, loads: Sequence[LinkLoad]) -> list[LinkLoad]:
        """Loads of the links that are drawn; those within a node are left out."""
        placed = (
            replace(
                load,
                source=int(self.place[load.source]),
                destination=int(self.place[load.destination]),
            )
            for load in loads
        )
        return [load for load in placed if load.source != load.destination]


def collapsed(topology: Topology, num_expanded: int = 0) -> CollapsedNetwork:
    """The network with a node for each group and its own switches, but for the first ones.

    Raises `UsageError` for a network without groups.
    """
    if not topology.groups:
        raise UsageError(
            f"topology {topology.name} names no groups that could be collapsed",
            cure="leave out --collapse, or name groups in a topology document",
            code="no-groups",
        )
    group = group_of_nodes(topology)
    group[group < num_expanded] = -1
    npus, names = topology.num_npus, list(topology.groups)[num_expanded:]
    alone = np.flatnonzero(group < 0)
    single, switches = alone[alone < npus], alone[alone >= npus]
    place = group - num_expanded + len(single)
    place[single] = np.arange(len(single))
    num_npus = len(single) + len(names)
    place[switches] = num_npus + np.arange(len(switches))
    sizes = np.bincount(place[:npus], minlength=num_npus).tolist()
    boxes = {len(single) + number: sizes[len(single) + number] for number in range(len(names))}
    labels = [topology.node_name(node) for node in single.tolist()]
    labels += [_box_label(name, size) for name, size in zip(names, boxes.values(), strict=True)]
    labels += [topology.node_name(node) for node in switches.tolist()]
    return CollapsedNetwork(_quotient(topology, place, num_npus, labels), place, boxes)


def folded(network: CollapsedNetwork, *, switches: bool) -> CollapsedNetwork:
    """The network with equal boxes, or equal switches, as one node with their number.

    Equal are those of one size with the same links to the same nodes.
    """
    topology = network.topology
    foldable = range(topology.num_npus, topology.num_nodes) if switches else network.boxes
    links: dict[int, list[tuple[int, float, float, bool]]] = {node: [] for node in foldable}
    columns = (
        topology.source.tolist(),
        topology.destination.tolist(),
        topology.bandwidth_bytes_per_s.tolist(),
        topology.latency_s.tolist(),
    )
    for source, destination, bandwidth, latency in zip(*columns, strict=True):
        for node, other, is_out in ((source, destination, True), (destination, source, False)):
            if node in links:
                links[node].append((other, bandwidth, latency, is_out))
    alike: dict[tuple[object, ...], list[int]] = {}
    for node, found in links.items():
        alike.setdefault((network.boxes.get(node), *sorted(found)), []).append(node)
    first_of = {node: members[0] for members in alike.values() for node in members}
    members_of = {members[0]: members for members in alike.values()}
    place = np.full(topology.num_nodes, -1, np.int64)
    labels: list[str] = []
    boxes: dict[int, int] = {}
    for node in range(topology.num_nodes):
        if first_of.get(node, node) != node:
            continue
        members = members_of.get(node, [node])
        place[members] = len(labels)
        if node in network.boxes:
            boxes[len(labels)] = network.boxes[node]
        labels.append(_folded_label(topology, members, network.boxes.get(node)))
    num_npus = int(place[: topology.num_npus].max()) + 1
    quotient = _quotient(topology, place, num_npus, labels)
    return CollapsedNetwork(quotient, place[network.place], boxes)


def _quotient(
    topology: Topology, place: Int64Array, num_npus: int, labels: Sequence[str]
) -> Topology:
    """The network of the places, without links within one."""
    source, destination = place[topology.source], place[topology.destination]
    kept = source != destination
    links = Links(
        source[kept],
        destination[kept],
        topology.bandwidth_bytes_per_s[kept],
        topology.latency_s[kept],
    )
    return links.topology(topology.name, num_npus, len(labels), node_names=_distinct(labels))


def _box_label(name: str, npus: int) -> str:
    return f"{name} ({npus} NPU{'' if npus == 1 else 's'})"


def _folded_label(topology: Topology, members: Sequence[int], npus: int | None) -> str:
    """`node 1-3 (3 x 8 NPUs)`, `rail 0-7 (8 switches)`; the name of a node that is alone."""
    names = [topology.node_name(member) for member in members]
    if len(names) == 1:
        return names[0]
    heads = [name.rpartition(" (")[0] if npus is not None else name for name in names]
    ends = [head.rpartition(" ") for head in heads]
    is_of_one_kind = len({end[0] for end in ends}) == 1 and bool(ends[0][0])
    listed = f"{heads[0]} .."
    if is_of_one_kind and all(end[2].isdecimal() for end in ends):
        listed = f"{ends[0][0]} {format_ranks([int(end[2]) for end in ends])}"
    elif is_of_one_kind and npus is None:
        # Numbers such as 0.3 make no list.
        return f"{len(names)} x {ends[0][0]}"
    if npus is None:
        return f"{listed} ({len(names)} switches)"
    return _box_label(listed, npus).replace(" (", f" ({len(names)} x ")


def _distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels, with a number where two are the same."""
    seen: dict[str, int] = {}
    found = []
    for text in labels:
        seen[text] = seen.get(text, 0) + 1
        found.append(text if seen[text] == 1 else f"{text} #{seen[text]}")
    return tuple(found)
