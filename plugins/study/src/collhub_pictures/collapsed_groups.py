"""Collapse the groups of a large network into single nodes, and merge equal nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import UsageError, format_count, format_ranks
from hub_core.network import Links, Topology, group_of_nodes
from hub_core.plugin_api import LinkLoad


class Collapse(StrEnum):
    """Condition for drawing groups as single nodes: network too large, always, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, eq=False)
class CollapsedNetwork:
    """A network in which each node represents one or more nodes of a larger network.

    `topology`: NPUs and boxes (collapsed groups) come first, as its NPUs, then switches; several
    links between two nodes are parallel links. `node_of`: int64, for each node of the larger
    network the node of `topology` that represents it. `boxes`: NPU count of each box, by node.
    """

    topology: Topology
    node_of: Int64Array
    boxes: Mapping[int, int]

    def loads(self, loads: Sequence[LinkLoad]) -> list[LinkLoad]:
        """Return the loads of links between drawn nodes, with the numbers of the drawn nodes.

        The order is kept. Loads inside a collapsed node are omitted. Loads of parallel links are
        not added.
        """
        renumbered = (
            replace(
                load,
                source=int(self.node_of[load.source]),
                destination=int(self.node_of[load.destination]),
            )
            for load in loads
        )
        return [load for load in renumbered if load.source != load.destination]


def collapse_groups(topology: Topology, num_expanded: int = 0) -> CollapsedNetwork:
    """Draw each group of NPUs with its switches as one node (a box); return the smaller network.

    The first `num_expanded` groups are not collapsed. The nodes of the result are the single
    NPUs, then the boxes (as NPUs), labelled with name and size, then the switches that belong
    to no collapsed group, each in the given order. Links inside a box are dropped, parallel
    links kept; groups, dimensions and multicast are lost. `node_of` maps old to new nodes:
    int64; `boxes` maps the number of a box to its number of NPUs. Raises `UsageError`
    (`no-groups`) for a network without groups.
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
    ungrouped = np.flatnonzero(group < 0)
    single, switches = ungrouped[ungrouped < npus], ungrouped[ungrouped >= npus]
    node_of = group - num_expanded + len(single)
    node_of[single] = np.arange(len(single))
    num_npus = len(single) + len(names)
    node_of[switches] = num_npus + np.arange(len(switches))
    sizes = np.bincount(node_of[:npus], minlength=num_npus).tolist()
    boxes = {len(single) + number: sizes[len(single) + number] for number in range(len(names))}
    labels = [topology.node_name(node) for node in single.tolist()]
    labels += [
        _format_box_label(name, size) for name, size in zip(names, boxes.values(), strict=True)
    ]
    labels += [topology.node_name(node) for node in switches.tolist()]
    return CollapsedNetwork(_build_quotient(topology, node_of, num_npus, labels), node_of, boxes)


def fold_equal_nodes(network: CollapsedNetwork, *, switches: bool) -> CollapsedNetwork:
    """Merge each set of equal boxes (collapsed groups) into one node at the place of its first box.

    With `switches`, equal switches are merged instead. Nodes are equal if they have the same number
    of NPUs (boxes) and the same links (bandwidth, latency, direction, number) to the same nodes.
    Nodes that are linked with each other are therefore not merged. Labels of merged nodes have the
    number of nodes (`_format_folded_label`); single nodes keep their label.

    The result has `node_of` from the nodes of the original network to the new nodes. `boxes` gives
    the NPUs of one box of each set, not their sum. All links of merged nodes remain, as parallel
    links. Dimensions and groups are lost, also if no nodes are equal.
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
        for node, peer, is_out in ((source, destination, True), (destination, source, False)):
            if node in links:
                links[node].append((peer, bandwidth, latency, is_out))
    classes: dict[tuple[object, ...], list[int]] = {}
    for node, node_links in links.items():
        classes.setdefault((network.boxes.get(node), *sorted(node_links)), []).append(node)
    first_of = {node: members[0] for members in classes.values() for node in members}
    members_of = {members[0]: members for members in classes.values()}
    node_of = np.full(topology.num_nodes, -1, np.int64)
    labels: list[str] = []
    boxes: dict[int, int] = {}
    for node in range(topology.num_nodes):
        if first_of.get(node, node) != node:
            continue
        members = members_of.get(node, [node])
        node_of[members] = len(labels)
        if node in network.boxes:
            boxes[len(labels)] = network.boxes[node]
        labels.append(_format_folded_label(topology, members, network.boxes.get(node)))
    num_npus = int(node_of[: topology.num_npus].max()) + 1
    quotient = _build_quotient(topology, node_of, num_npus, labels)
    return CollapsedNetwork(quotient, node_of[network.node_of], boxes)


def _build_quotient(
    topology: Topology, node_of: Int64Array, num_npus: int, labels: Sequence[str]
) -> Topology:
    """Return the network of merged nodes, without links inside a merged node.

    `node_of`: new node of every node. `num_npus`: number of NPUs, which are the first new nodes.
    `labels`: one per new node; the N-th occurrence of a label, from 2 on, gets ` #N`, which can
    still equal another label. Other links keep their order, bandwidth and latency; parallel links
    are kept separately. Planes, dimensions, groups, multicast and reduction of the old network are
    lost.
    """
    source, destination = node_of[topology.source], node_of[topology.destination]
    is_external = source != destination
    links = Links(
        source[is_external],
        destination[is_external],
        topology.bandwidth_bytes_per_s[is_external],
        topology.latency_s[is_external],
    )
    seen: dict[str, int] = {}
    names = []
    for text in labels:
        seen[text] = seen.get(text, 0) + 1
        names.append(text if seen[text] == 1 else f"{text} #{seen[text]}")
    return links.topology(topology.name, num_npus, len(labels), node_names=tuple(names))


def _format_box_label(name: str, npus: int) -> str:
    return f"{name} ({format_count(npus, 'NPU')})"


def _format_folded_label(topology: Topology, members: Sequence[int], npus: int | None) -> str:
    """Return the label of a drawn node that represents the nodes `members` of a topology.

    `npus`: NPUs of each member if the members are boxes (collapsed groups), None for switches.
    From names of boxes, which end with a size such as ` (8 NPUs)`, this size is removed first.
    The first rule that applies, with n members:

    1. One member: its complete name, with the size.
    2. All names are equal before the last blank, and the last words are numbers. The numbers
       are a list in the order of the members, with ranges: `node 1-3 (3 x 8 NPUs)` for boxes,
       `rail 0,2 (2 switches)` for switches.
    3. Switches whose names are equal before the last blank, such as `leaf 0.3` and `leaf 0.4`:
       `2 x leaf`.
    4. Otherwise the first name, ` ..` and the size: `A .. (3 x 8 NPUs)` or `A .. (3 switches)`.
    """
    names = [topology.node_name(member) for member in members]
    if len(names) == 1:
        return names[0]
    heads = [name.rpartition(" (")[0] if npus is not None else name for name in names]
    parts = [head.rpartition(" ") for head in heads]
    is_of_one_kind = len({part[0] for part in parts}) == 1 and bool(parts[0][0])
    listed = f"{heads[0]} .."
    if is_of_one_kind and all(part[2].isdecimal() for part in parts):
        listed = f"{parts[0][0]} {format_ranks([int(part[2]) for part in parts])}"
    elif is_of_one_kind and npus is None:
        # Numbers such as 0.3 cannot be listed as a range.
        return f"{len(names)} x {parts[0][0]}"
    if npus is None:
        return f"{listed} ({len(names)} switches)"
    return _format_box_label(listed, npus).replace(" (", f" ({len(names)} x ")
