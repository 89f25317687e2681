"""Unwind switches: every port gets direct links to its next neighbours, cyclically."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import UsageError
from hub_core.network import Links, Topology


def unwound(topology: Topology, degree: int = 0) -> Topology:
    """Topology without switches: ports have direct links to the next `degree` neighbours.

    A switch that is entered from u at bandwidth a and left to v at bandwidth b becomes links
    u -> v of bandwidth min(a, b) / degree and the latency of both hops, from every u to the
    `degree` (0: all) neighbours v that follow it in the order of their numbers, after the switch
    unwinding of TACOS (Won et al., MICRO 2024). Switches are taken in order; links that then join
    the same two nodes are added up, the latency is the largest.

    An algorithm for the result is to be judged on the result: that the links exist, or that the
    switch emulates them, is the caller's claim. Raises `UsageError` for a negative degree.
    """
    if degree < 0:
        raise UsageError(
            f"a switch cannot be unwound to degree {degree}",
            cure="give 0 or more",
            code="option-range",
        )
    links = Links(
        topology.source,
        topology.destination,
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
    )
    npus = topology.num_npus
    for switch in range(npus, topology.num_nodes):
        links = _merged(_without(links, switch, degree), topology.num_nodes)
    name = f"{topology.name}, unwound"
    plain = links.topology(name, npus, npus, node_names=topology.node_names[:npus])
    return replace(plain, groups=topology.groups)


def _without(links: Links, switch: int, degree: int) -> Links:
    """Links with those of one switch replaced by direct ones."""
    entered, left, share = _port_pairs(links, switch, degree)
    # The slower one of two ports decides, and is divided among its links.
    narrower = np.minimum(links.bandwidth_bytes_per_s[entered], links.bandwidth_bytes_per_s[left])
    direct = Links(
        links.source[entered],
        links.destination[left],
        narrower / np.maximum(share, 1),
        links.latency_s[entered] + links.latency_s[left],
    )
    # All links of other nodes stay.
    others = np.flatnonzero((links.source != switch) & (links.destination != switch))
    # Behind them the direct ones: numbers of links that stay keep their order.
    rest = Links(
        links.source[others],
        links.destination[others],
        links.bandwidth_bytes_per_s[others],
        links.latency_s[others],
    )
    return Links.joined([rest, direct])


def _port_pairs(
    links: Links, switch: int, degree: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Links into and out of a switch that become one, and how many the first is divided into."""
    nothing = np.zeros(0, np.int64)
    entered, left, share = [nothing], [nothing], [nothing]
    out = np.flatnonzero(links.source == switch)
    # In the order of neighbours, in which "next" is meant.
    out = out[np.argsort(links.destination[out], kind="stable")]
    for link in np.flatnonzero(links.destination == switch).tolist():
        chosen = _next_ports(links, out, int(links.source[link]), degree)
        entered.append(np.full(len(chosen), link, np.int64))
        left.append(chosen)
        share.append(np.full(len(chosen), len(chosen), np.int64))
    return np.concatenate(entered), np.concatenate(left), np.concatenate(share)


def _next_ports(links: Links, out: Int64Array, node: int, degree: int) -> Int64Array:
    """Links out of a switch to the `degree` (0: all) neighbours that follow `node`, cyclically."""
    heads = links.destination[out]
    after = int(np.searchsorted(heads, node, "right"))
    following = np.roll(out, -after)
    # Nothing goes back to where it came from.
    others: Int64Array = following[links.destination[following] != node]
    return others[: degree or None]


def _merged(links: Links, num_nodes: int) -> Links:
    """Links of one pair of nodes as one, by source and then by destination."""
    pair = links.source * num_nodes + links.destination
    key, which = np.unique(pair, return_inverse=True)
    # No message is faster than on the slower of two ways.
    latency = np.zeros(len(key))
    np.maximum.at(latency, which, links.latency_s)
    bandwidth = np.bincount(which, links.bandwidth_bytes_per_s, len(key))
    source, destination = np.divmod(key, num_nodes)
    return Links(source, destination, bandwidth.astype(np.float64), latency)
