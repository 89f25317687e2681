"""Networks with switches, contracted to their NPUs: an arc is the route between two of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from hub_core.columns import BoolArray, Int64Array, group_of_entry, group_pointer, row_pointer
from hub_core.model import UsageError
from hub_core.network import Links, Occupancy, Routes, Topology, link_times_ns

# Simulators count nanoseconds, everything here picoseconds.
_PS_PER_NS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class PathTimes(LinkTimes):
    """Times of a message on every arc of a `PathNetwork`: int64 picoseconds.

    `busy`: that of the arc's first link; `arrival`: the sum over its links. `hops`: the times on
    every link of `PathNetwork.links`.
    """

    hops: LinkTimes


@dataclass(frozen=True, slots=True, eq=False)
class PathNetwork(LinkNetwork):
    """NPUs alone, joined by arcs; an arc is the route of a message that passes switches only.

    Arc i takes the links `paths.links[paths.indptr[i]:paths.indptr[i + 1]]` of `links` one after
    the other, as simulators route it; arcs share links. `row`: the first of them, by which the
    sender orders its messages.
    """

    links: LinkNetwork
    paths: Routes

    def link_times(self, chunk_bytes: int, occupancy: Occupancy) -> PathTimes:
        """Times of a message of `chunk_bytes` on every arc while no other is under way."""
        hops = self._hop_times(chunk_bytes, occupancy)
        first = self.paths.links[self.paths.indptr[:-1]]
        return PathTimes(hops.busy[first], self._sums(hops.arrival), hops)

    def _sums(self, column: Int64Array) -> Int64Array:
        """Sum over the links of every arc: int64 per arc."""
        starts = self.paths.indptr[:-1]
        # `reduceat` takes no empty list of starts.
        if not len(starts):
            return column[:0]
        sums: Int64Array = np.add.reduceat(column[self.paths.links], starts)
        return sums

    def _hop_times(self, chunk_bytes: int, occupancy: Occupancy) -> LinkTimes:
        """Times on every link in whole nanoseconds, as simulators count.

        Fractions would decide who is first in line at a switch. Raises `InputError` for a message
        that takes too long to be counted in picoseconds.
        """
        self.links.link_times(chunk_bytes, occupancy)
        row = self.links.row
        bandwidth = self.topology.bandwidth_bytes_per_s[row]
        size = np.full(len(row), chunk_bytes, np.int64)
        busy_ns, arrival_ns = link_times_ns(
            bandwidth, self.topology.latency_ns[row], size, occupancy
        )
        return LinkTimes(_PS_PER_NS * busy_ns, _PS_PER_NS * arrival_ns)


def links_of_arcs(network: LinkNetwork, times: LinkTimes) -> tuple[Routes, LinkTimes]:
    """Links that every arc takes, and their times; without switches an arc is a link."""
    if isinstance(network, PathNetwork):
        assert isinstance(times, PathTimes)
        return network.paths, times.hops
    count = np.arange(network.num_links + 1, dtype=np.int64)
    return Routes(count, count[:-1]), times


def contracted(topology: Topology) -> LinkNetwork:
    """Network of NPUs alone: a `PathNetwork` where there are switches, else its links as they are.

    A pair of NPUs has an arc where its route passes no other NPU; routes are shortest, so that
    what can be reached at all can be reached over arcs. Cost: routes of all pairs at switches.
    """
    links = LinkNetwork.of(topology)
    if links.num_nodes == links.num_npus:
        return links
    source, destination = _pairs_joined_by_switches(topology)
    routes = topology.routes(source, destination)
    is_arc = _passes_no_npu(topology, routes)
    source, destination = source[is_arc], destination[is_arc]
    paths = _chosen_routes(routes, is_arc, _number_of_rows(links))
    return PathNetwork(
        topology=topology,
        num_npus=topology.num_npus,
        num_nodes=topology.num_npus,
        indptr=group_pointer(destination, topology.num_npus),
        source=source,
        row=links.row[paths.links[paths.indptr[:-1]]],
        links=links,
        paths=paths,
    )


def _passes_no_npu(topology: Topology, routes: Routes) -> BoolArray:
    """Whether a route has switches alone between its ends: bool per route."""
    ends_at_npu = topology.destination[routes.links] < topology.num_npus
    # The last link of every route ends at its NPU, which is no relay.
    ends_at_npu[routes.indptr[1:] - 1] = False
    route = group_of_entry(routes.indptr)
    is_direct = np.ones(len(routes.indptr) - 1, np.bool_)
    is_direct[route[ends_at_npu]] = False
    return is_direct


def _number_of_rows(links: LinkNetwork) -> Int64Array:
    """Link of the network that each row of the topology is: int64[rows], -1 for parallel ones."""
    # Parallel links have a row, but no number.
    number = np.full(links.topology.num_links, -1, np.int64)
    number[links.row] = np.arange(links.num_links)
    return number


def _chosen_routes(routes: Routes, is_chosen: BoolArray, number: Int64Array) -> Routes:
    """Some of the routes, their rows replaced by links."""
    lengths = np.diff(routes.indptr)
    is_kept = np.repeat(is_chosen, lengths)
    return Routes(row_pointer(lengths[is_chosen]), number[routes.links[is_kept]])


def _pairs_joined_by_switches(topology: Topology) -> tuple[Int64Array, Int64Array]:
    """Pairs of NPUs with a link or a path over switches alone, by destination, then by source."""
    npus = topology.num_npus
    reached = _reached_over_switches(topology)
    # Its switch tells what else an NPU reaches.
    leaves_npu = topology.source < npus
    tails = topology.source[leaves_npu].tolist()
    heads = topology.destination[leaves_npu].tolist()
    table = np.zeros((npus, npus), np.bool_)
    for tail, head in zip(tails, heads, strict=True):
        if head < npus:
            table[head, tail] = True
        else:
            table[reached[head - npus], tail] = True
    # A way through a switch and back to where it began is no arc.
    np.fill_diagonal(table, False)
    destination, source = np.nonzero(table)
    return source.astype(np.int64), destination.astype(np.int64)


def _reached_over_switches(topology: Topology) -> BoolArray:
    """Which NPUs every switch reaches over switches alone: bool[switches, NPUs]."""
    npus = topology.num_npus
    reached = np.zeros((topology.num_nodes - npus, npus), np.bool_)
    switches, heads = topology.source - npus, topology.destination
    leaves_switch = switches >= 0
    last = leaves_switch & (heads < npus)
    reached[switches[last], heads[last]] = True
    inner = np.flatnonzero(leaves_switch & (heads >= npus))
    before = -1
    total = int(reached.sum())
    # The closure is reached when a pass over the links between switches adds nothing.
    while total > before:
        behind = reached[heads[inner] - npus]
        np.logical_or.at(reached, switches[inner], behind)
        before, total = total, int(reached.sum())
    return reached


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
