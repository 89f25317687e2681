"""Planes of a network, and the networks of groups of NPUs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hub_core.model import InputError
from hub_core.model.diagnostics import UsageError
from hub_core.network.links import Links
from hub_core.network.topology import Topology


def side_by_side(name: str, parts: Sequence[Topology]) -> Topology:
    """Join networks of one plane on the same NPUs: the i-th part with links becomes plane i.

    The switches of a part are numbered after those of the previous parts. Names of NPUs and groups
    come from the first part that has them. Raises `UsageError` for parts with different numbers of
    NPUs.
    """
    first, npus = parts[0], parts[0].num_npus
    for part in parts:
        if part.num_npus != npus:
            sizes = f"{first.name} has {npus} NPUs, {part.name} has {part.num_npus}"
            cure = "join networks of as many NPUs by +, with npus=... for each of them"
            message = f"topology {name!r}: {sizes}"
            raise UsageError(message, cure=cure, code="invalid-topology-text")
    # Planes must be numbered without gaps, and only links have planes.
    with_links = [part for part in parts if part.num_links] or parts[:1]
    nodes = npus
    links: list[Links] = []
    names = [first.node_name(npu) for npu in range(npus)]
    multicast: list[int] = []
    reduction: list[int] = []
    for plane, part in enumerate(with_links):
        multicast += [switch + nodes - npus for switch in part.multicast]
        reduction += [switch + nodes - npus for switch in part.reduction]
        links.append(_moved_links(part, plane, nodes - npus))
        nodes += part.num_nodes - npus
        names += _switch_names(part, plane, names)
    # Reversed, so that the group of the first part overwrites the others.
    groups = {group: members for part in reversed(parts) for group, members in part.groups.items()}
    stated = tuple(names) if any(part.node_names for part in parts) else ()
    joined = Links.joined(links).topology(name, npus, nodes, node_names=stated, groups=groups)
    return replace(joined, multicast=tuple(multicast), reduction=tuple(reduction))


def _moved_links(part: Topology, plane: int, switches_before: int) -> Links:
    """Return the links of a part on `plane`, with its switch numbers increased."""
    number = np.arange(part.num_nodes, dtype=np.int64)
    number[part.num_npus :] += switches_before
    return Links(
        number[part.source],
        number[part.destination],
        part.bandwidth_bytes_per_s,
        part.latency_s,
        np.full(part.num_links, plane, np.int64),
    )


def _switch_names(part: Topology, plane: int, taken: Sequence[str]) -> list[str]:
    """Return unique names for the switches of a part.

    Unnamed switches are numbered over all planes; the plane is appended to names in `taken`.
    """
    names: list[str] = []
    for switch in range(part.num_npus, part.num_nodes):
        count = len(taken) + len(names) - part.num_npus
        stated = part.node_names[switch] if part.node_names else f"switch {count}"
        is_taken = stated in taken or stated in names
        names.append(f"{stated} of plane {plane}" if is_taken else stated)
    return names


@dataclass(frozen=True, slots=True)
class GroupNetwork:
    """A network, the NPU of each position of the group, and a key.

    Groups with equal `identity` and equally many members can share an algorithm.
    """

    topology: Topology
    npus: tuple[int, ...]
    identity: Hashable


def group_network(topology: Topology, members: tuple[int, ...]) -> GroupNetwork:
    """Return the network restricted to the group; the full network if that is not connected.

    Connected means routes from and to the first member. Cost: building a subset of the topology.
    """
    if members == tuple(range(topology.num_npus)):
        return GroupNetwork(topology, members, ())
    subset = topology.subset(members)
    ranks = np.arange(1, len(members))
    first = np.zeros_like(ranks)
    try:
        subset.routes(np.concatenate([first, ranks]), np.concatenate([ranks, first]))
    except InputError:
        return GroupNetwork(topology, members, members)
    columns = (
        *(subset.source, subset.destination, subset.bandwidth_bytes_per_s, subset.latency_s),
        subset.plane,
    )
    identity = tuple(column.tobytes() for column in columns)
    return GroupNetwork(subset, tuple(range(len(members))), identity)
