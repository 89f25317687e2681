"""Networks with switches: what lies between two NPUs as one arc over several links, or every switch unwound into links."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from hub_core.diagnostics import UsageError
from hub_core.topology import Links, Occupancy, Routes, Topology, link_times_ns

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PathTimes(LinkTimes):
    """Times of a message on every arc of a `PathNetwork`: of an arc the first link's `busy`, the sum of all arrivals.

    `hops`: the times on every link of `PathNetwork.links`.
    """

    hops: LinkTimes


@dataclass(frozen=True, slots=True, eq=False)
class PathNetwork(LinkNetwork):
    """NPUs alone; a link of this network is an arc: the route of a message from NPU to NPU that passes switches only.

    Arc i takes the links `paths.links[paths.indptr[i]:paths.indptr[i + 1]]` of `links` one after the other, as
    simulators route it; arcs share links. `row`: the first of them, by which the sender orders its messages.
    """

    links: LinkNetwork
    paths: Routes

    def link_times(self, chunk_bytes: int, occupancy: Occupancy) -> PathTimes:
        """Times of a message of `chunk_bytes` on every arc while no other message is under way.

        In whole nanoseconds, as simulators count: fractions would decide who is first in line at a switch.
        """
        topology, row = self.topology, self.links.row
        rates = (topology.bandwidth_bytes_per_s[row], topology.latency_ns[row])
        busy, arrives = link_times_ns(*rates, np.full(len(row), chunk_bytes, np.int64), occupancy)
        hops = LinkTimes(1000 * busy, 1000 * arrives)
        first = self.paths.links[self.paths.indptr[:-1]]
        arrival = (
            np.add.reduceat(hops.arrival[self.paths.links], self.paths.indptr[:-1])
            if len(first)
            else hops.arrival[:0]
        )
        return PathTimes(hops.busy[first], arrival, hops)


def contracted(topology: Topology) -> LinkNetwork:
    """The network of NPUs alone: a `PathNetwork` where there are switches, else `LinkNetwork.of(topology)`.

    A pair of NPUs has an arc where the route of its messages passes no other NPU. Routes are shortest, so that every NPU
    that can be reached at all can be reached over arcs. Cost: the routes of all pairs that switches join.
    """
    links = LinkNetwork.of(topology)
    if links.num_nodes == links.num_npus:
        return links
    source, destination = _pairs_joined_by_switches(topology)
    routes = topology.routes(source, destination)
    inner = topology.destination[routes.links] < topology.num_npus
    last = np.zeros(len(inner), np.bool_)
    last[routes.indptr[1:] - 1] = True
    pair = np.repeat(np.arange(len(source)), np.diff(routes.indptr))
    is_arc = np.ones(len(source), np.bool_)
    is_arc[pair[inner & ~last]] = False
    kept = is_arc[pair]
    number = np.full(topology.num_links, -1, np.int64)
    number[links.row] = np.arange(links.num_links)
    lengths = np.diff(routes.indptr)[is_arc]
    paths = Routes(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), number[routes.links[kept]]
    )
    indptr = np.searchsorted(destination[is_arc], np.arange(topology.num_npus + 1)).astype(np.int64)
    row = links.row[paths.links[paths.indptr[:-1]]]
    return PathNetwork(
        topology, topology.num_npus, topology.num_npus, indptr, source[is_arc], row, links, paths
    )


def _pairs_joined_by_switches(topology: Topology) -> tuple[Int64Array, Int64Array]:
    """Pairs of NPUs with a link or a path over switches alone, by destination, then by source."""
    reached = _reached_over_switches(topology)
    is_first = topology.source < topology.num_npus
    table = np.zeros((topology.num_npus, topology.num_npus), np.bool_)
    for tail, head in zip(
        topology.source[is_first].tolist(), topology.destination[is_first].tolist(), strict=True
    ):
        if head < topology.num_npus:
            table[head, tail] = True
        else:
            table[reached[head - topology.num_npus], tail] = True
    np.fill_diagonal(table, False)
    destination, source = np.nonzero(table)
    return source.astype(np.int64), destination.astype(np.int64)


def _reached_over_switches(topology: Topology) -> npt.NDArray[np.bool_]:
    """Which NPUs every switch reaches over switches alone: bool[switches, NPUs]."""
    npus = topology.num_npus
    reached = np.zeros((topology.num_nodes - npus, npus), np.bool_)
    tails, heads = topology.source - npus, topology.destination
    last = (tails >= 0) & (heads < npus)
    reached[tails[last], heads[last]] = True
    inner = np.flatnonzero((tails >= 0) & (heads >= npus))
    known = -1
    while (total := int(reached.sum())) > known:
        known = total
        np.logical_or.at(reached, tails[inner], reached[heads[inner] - npus])
    return reached


def unwound(topology: Topology, degree: int = 0) -> Topology:
    """The topology without switches: every port of a switch gets direct links to the next `degree` neighbours, cyclically.

    A switch that is entered from u at bandwidth a and left to v at bandwidth b becomes links u -> v of bandwidth
    min(a, b) / degree and the latency of both hops, from every u to the `degree` (0: all) neighbours v that follow
    it in the order of their numbers. Switches are taken in order; links that then join the same two nodes are added
    up, the latency is the largest. An algorithm for the result is to be judged on the result: that the links exist,
    or that the switch emulates them, is the caller's claim. Raises `UsageError` for a negative degree.
    """
    if degree < 0:
        raise UsageError(
            f"a switch cannot be unwound to degree {degree}",
            cure="give 0 or more",
            code="option-range",
        )
    links = Links(
        topology.source, topology.destination, topology.bandwidth_bytes_per_s, topology.latency_s
    )
    for switch in range(topology.num_npus, topology.num_nodes):
        links = _merged(_without(links, switch, degree), topology.num_nodes)
    names = topology.node_names[: topology.num_npus]
    plain = links.topology(
        f"{topology.name}, unwound", topology.num_npus, topology.num_npus, node_names=names
    )
    return replace(plain, groups=topology.groups)


def _without(links: Links, switch: int, degree: int) -> Links:
    """The links with those of one switch replaced."""
    into, out = np.flatnonzero(links.destination == switch), np.flatnonzero(links.source == switch)
    out = out[np.argsort(links.destination[out], kind="stable")]
    heads = links.destination[out]
    entered, left, parts = [], [], []
    for link in into.tolist():
        following = np.roll(
            np.arange(len(out)), -int(np.searchsorted(heads, links.source[link], "right"))
        )
        chosen = following[heads[following] != links.source[link]][: degree or None]
        entered.append(np.full(len(chosen), link, np.int64))
        left.append(out[chosen])
        parts.append(np.full(len(chosen), len(chosen), np.int64))
    kept = np.flatnonzero((links.source != switch) & (links.destination != switch))
    one, other, share = (
        np.concatenate([*arrays, np.zeros(0, np.int64)]) for arrays in (entered, left, parts)
    )
    bandwidth = np.minimum(
        links.bandwidth_bytes_per_s[one], links.bandwidth_bytes_per_s[other]
    ) / np.maximum(share, 1)
    new = Links(
        links.source[one],
        links.destination[other],
        bandwidth,
        links.latency_s[one] + links.latency_s[other],
    )
    rest = Links(
        links.source[kept],
        links.destination[kept],
        links.bandwidth_bytes_per_s[kept],
        links.latency_s[kept],
    )
    return Links.joined([rest, new])


def _merged(links: Links, num_nodes: int) -> Links:
    """Links of one pair of nodes as one, by source and then by destination."""
    key, which = np.unique(links.source * num_nodes + links.destination, return_inverse=True)
    latency = np.zeros(len(key))
    np.maximum.at(latency, which, links.latency_s)
    source, destination = np.divmod(key, num_nodes)
    bandwidth = np.bincount(which, links.bandwidth_bytes_per_s, len(key)).astype(np.float64)
    return Links(source, destination, bandwidth, latency)
