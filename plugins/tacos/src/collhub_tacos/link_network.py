"""Networks for the kernels: in-links of every node as columns, and link times in picoseconds.

Switches are kept as nodes, contracted to arcs between NPUs (`contract_switches`), or replaced by
direct links (`unwind_switches`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from hub_core.columns import (
    Int64Array,
    csr,
    group_of_entry,
    group_pointer,
    row_pointer,
    run_mask,
)
from hub_core.model import UsageError
from hub_core.network import Links, Occupancy, Routes, Topology, link_times_ns, link_times_ps


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Limit on the number of messages of a link that are in flight at the same time.

    `max_in_flight`: 0 for as many as keep the link busy. `begins_slowly`: a link starts with one
    message in flight, then increases the number, as `link_schedule.max_released_at_once` describes.
    `keeps_order`: messages are sent in the planned order; otherwise a message is sent as soon as
    its data are available. `sums_in_turn`: even without that order, messages that are reduced are
    sent in turn.
    """

    max_in_flight: int
    begins_slowly: bool
    keeps_order: bool = True
    sums_in_turn: bool = False


# With fewer messages in flight, simulators have fewer opportunities to reorder them.
SLOW_START = WindowRule(max_in_flight=12, begins_slowly=True)
CAPPED = WindowRule(max_in_flight=12, begins_slowly=False)
UNCAPPED = WindowRule(max_in_flight=0, begins_slowly=False)
# If messages of many senders share links inside the network, no message waits for its turn.
FREE = WindowRule(max_in_flight=0, begins_slowly=False, keeps_order=False)
# If switches reduce and multicast, the reduced messages must leave room for completed sums.
SUMS_IN_TURN = WindowRule(
    max_in_flight=0, begins_slowly=False, keeps_order=False, sums_in_turn=True
)


@dataclass(frozen=True, slots=True, eq=False)
class LinkTimes:
    """Times of one message of a chunk's size on every link, in the order of `LinkNetwork`.

    `busy`: int64 picoseconds for which the link accepts no other message. `arrival`: int64
    picoseconds from the start to the arrival. `rule`: limit on the messages in flight.
    """

    busy: Int64Array
    arrival: Int64Array
    rule: WindowRule = field(default=SLOW_START, kw_only=True)

    @property
    def is_equal(self) -> bool:
        """Whether all links have equal busy times and equal arrival times; True without links."""
        is_busy_equal = np.all(self.busy == self.busy[:1])
        is_arrival_equal = np.all(self.arrival == self.arrival[:1])
        return bool(is_busy_equal and is_arrival_equal)

    @property
    def is_uniform(self) -> bool:
        """Whether all links are equal and busy until the arrival: time is divided into steps."""
        return self.is_equal and bool(np.all(self.busy == self.arrival[:1]))


@dataclass(frozen=True, slots=True, eq=False)
class LinkNetwork:
    """Directed links grouped by destination: in-links of node v are `indptr[v]:indptr[v + 1]`.

    `source`: int64 source of each link. `row`: int64 row of the link in the topology. Nodes from
    `num_npus` on are switches. Of parallel links out of an NPU only the first in link order is
    kept, because simulators use no other. All parallel links out of a switch are kept: switches
    spread routes over them (`Topology.routes`).
    """

    topology: Topology
    num_npus: int
    num_nodes: int
    indptr: Int64Array
    source: Int64Array
    row: Int64Array

    @classmethod
    def of(cls, topology: Topology) -> LinkNetwork:
        """Group the links of a topology by destination, then by source, then in link order.

        Of parallel links from an NPU to a node only the first is kept. `row` of the result has the
        row of each kept link in the topology; all other arrays are indexed by kept links.
        """
        order = np.lexsort((topology.source, topology.destination))
        source, destination = topology.source[order], topology.destination[order]
        is_used = run_mask(destination, source) | (source >= topology.num_npus)
        return cls.of_rows(topology, order[is_used].astype(np.int64))

    @classmethod
    def of_rows(cls, topology: Topology, row: Int64Array) -> LinkNetwork:
        """Build the network of some links of a topology, with all nodes of the topology.

        `row`: int64 rows of the links, sorted by destination, then by source (not checked). Nodes
        without links remain.
        """
        nodes = topology.num_nodes
        indptr = group_pointer(topology.destination[row], nodes)
        return cls(topology, topology.num_npus, nodes, indptr, topology.source[row], row)

    @property
    def num_links(self) -> int:
        """Number of links."""
        return len(self.row)

    @property
    def in_degree(self) -> Int64Array:
        """Number of in-links of every node: int64[nodes]."""
        return np.diff(self.indptr)

    @property
    def destination(self) -> Int64Array:
        """Destination of every link, ascending."""
        # Links are sorted by destination, so the row pointer determines the column.
        return group_of_entry(self.indptr)

    def out_links(self) -> tuple[Int64Array, Int64Array]:
        """Return the links by source as (indptr, links): int64[nodes + 1], int64[links]."""
        return csr(self.source, np.arange(self.num_links), self.num_nodes)

    def link_times(self, chunk_bytes: int, occupancy: Occupancy) -> LinkTimes:
        """Return the times of a message of `chunk_bytes` bytes on every link, in picoseconds.

        Latency and bytes / bandwidth are each rounded to the nearest picosecond; the arrival time
        is their sum. `occupancy`: whether a link is busy for bytes / bandwidth only, or until the
        arrival. Raise `InputError` (`too-long`) if one of the two is above 5e16 ps.
        """
        latency_s = self.topology.latency_s[self.row]
        bandwidth = self.topology.bandwidth_bytes_per_s[self.row]
        return LinkTimes(*link_times_ps(bandwidth, latency_s, chunk_bytes, occupancy))


# Simulators use nanoseconds, this package picoseconds.
_PS_PER_NS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class PathTimes(LinkTimes):
    """Times of a message on every arc of a `PathNetwork`: int64 picoseconds.

    `busy`: time of the arc's first link. `arrival`: sum over its links. `hops`: times on every link
    of `PathNetwork.links`.
    """

    hops: LinkTimes


@dataclass(frozen=True, slots=True, eq=False)
class PathNetwork(LinkNetwork):
    """NPUs joined by arcs; an arc is the route of a message that passes only switches.

    Arc i uses the links `paths.links[paths.indptr[i]:paths.indptr[i + 1]]` of `links` in order, as
    simulators route it; arcs share links. `row`: its first link, by which the sender orders its
    messages.
    """

    links: LinkNetwork
    paths: Routes

    def link_times(self, chunk_bytes: int, occupancy: Occupancy) -> PathTimes:
        """Return the times in ps of a message of `chunk_bytes` on every arc of an idle network.

        An arc is the path from one NPU to another over links and switches. The result has:

        - `hops`: the times of every single link, busy and arrival
        - `busy` of an arc: the busy time of its first link
        - `arrival` of an arc: the sum of the arrival times of its links

        The times of every single link are truncated to multiples of 1 ns, as in simulators, because
        fractions would change the order at switches. Raises `InputError` if a message takes too
        long to be counted in ps.
        """
        # Raises an error for times that do not fit in picoseconds.
        self.links.link_times(chunk_bytes, occupancy)
        row = self.links.row
        bandwidth = self.topology.bandwidth_bytes_per_s[row]
        size = np.full(len(row), chunk_bytes, np.int64)
        busy_ns, arrival_ns = link_times_ns(
            bandwidth, self.topology.latency_ns[row], size, occupancy
        )
        hops = LinkTimes(_PS_PER_NS * busy_ns, _PS_PER_NS * arrival_ns)
        links, starts = self.paths.links, self.paths.indptr[:-1]
        # `reduceat` does not support an empty list of starts. Every arc has a link.
        arrival = hops.arrival[:0]
        if len(starts):
            arrival = np.add.reduceat(hops.arrival[links], starts)
        return PathTimes(hops.busy[links[starts]], arrival, hops)


def get_links_of_arcs(network: LinkNetwork, times: LinkTimes) -> tuple[Routes, LinkTimes]:
    """Return (the links of every arc, the times of these links).

    An arc connects two NPUs. With switches (a `PathNetwork`) it consists of several links, and
    the second result has the times of all single links. Without switches an arc is one link,
    and the given `times` are returned. `times`: result of `network.link_times`.
    """
    if isinstance(network, PathNetwork):
        assert isinstance(times, PathTimes)
        return network.paths, times.hops
    count = np.arange(network.num_links + 1, dtype=np.int64)
    return Routes(count, count[:-1]), times


def contract_switches(topology: Topology) -> LinkNetwork:
    """Return a network with NPUs as its only nodes, in which arcs replace the paths over switches.

    - Without switches the result is `LinkNetwork.of(topology)`: one arc per link, and only the
      first of parallel links.
    - With switches it is a `PathNetwork`. A pair of NPUs has an arc if they are joined by a link or
      by links over switches only, and the topology's route between them passes no third NPU. The
      arc has the links of this route. Arcs are sorted by destination, then by source.

    Each NPU still reaches the same NPUs as before; an unreachable pair has no arc and is no error.
    """
    links = LinkNetwork.of(topology)
    if links.num_nodes == links.num_npus:
        return links
    source, destination = _find_pairs_joined_by_switches(topology)
    routes = topology.routes(source, destination)
    # Whether only switches are between the ends of a route: bool per route.
    ends_at_npu = topology.destination[routes.links] < topology.num_npus
    # The last link of every route ends at its destination, which is no relay.
    ends_at_npu[routes.indptr[1:] - 1] = False
    route = group_of_entry(routes.indptr)
    is_arc = np.ones(len(routes.indptr) - 1, np.bool_)
    is_arc[route[ends_at_npu]] = False
    source, destination = source[is_arc], destination[is_arc]
    # The link number of each topology row: int64[rows], -1 for dropped parallel links.
    number = np.full(links.topology.num_links, -1, np.int64)
    number[links.row] = np.arange(links.num_links)
    lengths = np.diff(routes.indptr)
    is_kept = np.repeat(is_arc, lengths)
    paths = Routes(row_pointer(lengths[is_arc]), number[routes.links[is_kept]])
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


def _find_pairs_joined_by_switches(topology: Topology) -> tuple[Int64Array, Int64Array]:
    """Return (sources, destinations) of pairs of NPUs with a direct link or a path over switches.

    Links are directed; all nodes of a path between its ends must be switches. Each pair occurs
    once, sorted by destination, then by source; a path back to its start gives no pair.
    """
    npus = topology.num_npus
    # The NPUs that every switch reaches over links through switches only: bool[switches, NPUs].
    reached = np.zeros((topology.num_nodes - npus, npus), np.bool_)
    switches, heads = topology.source - npus, topology.destination
    leaves_switch = switches >= 0
    last = leaves_switch & (heads < npus)
    reached[switches[last], heads[last]] = True
    inner = np.flatnonzero(leaves_switch & (heads >= npus))
    previous_total = -1
    total = int(reached.sum())
    # The closure is complete when a pass over the links between switches adds nothing.
    while total > previous_total:
        reached_next = reached[heads[inner] - npus]
        np.logical_or.at(reached, switches[inner], reached_next)
        previous_total, total = total, int(reached.sum())

    table = np.zeros((npus, npus), np.bool_)
    leaves_npu = ~leaves_switch
    tails = topology.source[leaves_npu].tolist()
    for tail, head in zip(tails, heads[leaves_npu].tolist(), strict=True):
        if head < npus:
            table[head, tail] = True
        else:
            # The NPU reaches all NPUs that the switch reaches.
            table[reached[head - npus], tail] = True
    # A path through a switch back to its start is no arc.
    np.fill_diagonal(table, False)
    destination, source = np.nonzero(table)
    return source.astype(np.int64), destination.astype(np.int64)


def unwind_switches(topology: Topology, degree: int = 0) -> Topology:
    """Return the topology with every switch replaced by links between its neighbours.

    A switch with an in-link from u of bandwidth a and an out-link to v of bandwidth b is replaced
    by links u -> v of bandwidth min(a, b) / k and the sum of both latencies, from every u to the k
    neighbours v that follow it cyclically in the order of their numbers: at most `degree` of them
    (0: all). This is the switch unwinding of TACOS (Won et al., MICRO 2024). Switches are processed
    in the order of their numbers. After each one, all parallel links are combined: their bandwidths
    are added, and the latency is the maximum. The name gets ", unwound"; groups are kept,
    dimensions are not.

    An algorithm for the result must be evaluated on the result; the caller asserts that the links
    exist or that the switch emulates them. Raises `UsageError` (`option-range`) for a negative
    degree.
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
        links = _replace_switch(links, switch, degree, topology.num_nodes)
    name = f"{topology.name}, unwound"
    plain = links.topology(name, npus, npus, node_names=topology.node_names[:npus])
    return replace(plain, groups=topology.groups)


def _replace_switch(links: Links, switch: int, degree: int, num_nodes: int) -> Links:
    """Return the links, with those of one switch replaced by links between its neighbours.

    For every in-link of the switch, there are direct links from its source to the destinations of
    out-links. These are the first `degree` (0: all) out-links in ascending order of destination,
    beginning after the source and continuing cyclically. Out-links back to the source are skipped.

    The bandwidth of a direct link is the smaller one of in-link and out-link, divided by the
    number of direct links of this in-link. Its latency is the sum of both.

    The links of other nodes are kept. Then all parallel links are combined, also of different
    planes: bandwidths are added, the latency is the maximum. The result has no planes and is sorted
    by source, then by destination. `num_nodes`: all nodes, with switches. `links` is unchanged.
    """
    in_link, out_link, link_count = _pair_ports(links, switch, degree)
    # The slower of two ports limits the bandwidth, which is divided among the links of the port.
    bandwidth = np.minimum(
        links.bandwidth_bytes_per_s[in_link], links.bandwidth_bytes_per_s[out_link]
    )
    direct = Links(
        links.source[in_link],
        links.destination[out_link],
        bandwidth / np.maximum(link_count, 1),
        links.latency_s[in_link] + links.latency_s[out_link],
    )
    unaffected = np.flatnonzero((links.source != switch) & (links.destination != switch))
    kept_links = Links(
        links.source[unaffected],
        links.destination[unaffected],
        links.bandwidth_bytes_per_s[unaffected],
        links.latency_s[unaffected],
    )
    # The kept links come first: sums of bandwidths depend on the order in their last digit.
    joined = Links.joined([kept_links, direct])

    pair = joined.source * num_nodes + joined.destination
    key, which = np.unique(pair, return_inverse=True)
    # The latency is that of the slower path.
    latency = np.zeros(len(key))
    np.maximum.at(latency, which, joined.latency_s)
    total_bandwidth = np.bincount(which, joined.bandwidth_bytes_per_s, len(key))
    source, destination = np.divmod(key, num_nodes)
    return Links(source, destination, total_bandwidth.astype(np.float64), latency)


def _pair_ports(
    links: Links, switch: int, degree: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the pairs of in-links and out-links of a switch that become direct links.

    Returns three equally long int64 arrays: in-link, out-link, and the number of pairs that this
    in-link has. The in-links are in the order of their numbers. Each is paired with the first
    `degree` (0: all) out-links in the cyclic order of their destinations (parallel ones by number),
    beginning after the source of the in-link. An out-link back to that source is never paired.
    """
    nothing = np.zeros(0, np.int64)
    in_link, out_link, link_count = [nothing], [nothing], [nothing]
    out = np.flatnonzero(links.source == switch)
    # Sorted by neighbour, which defines the next one.
    out = out[np.argsort(links.destination[out], kind="stable")]
    for link in np.flatnonzero(links.destination == switch).tolist():
        # The out-links to the `degree` (0: all) neighbours after `node`, cyclically.
        node = int(links.source[link])
        heads = links.destination[out]
        after = int(np.searchsorted(heads, node, "right"))
        following = np.roll(out, -after)
        # A port has no link to itself.
        out_links: Int64Array = following[links.destination[following] != node]
        chosen = out_links[: degree or None]
        in_link.append(np.full(len(chosen), link, np.int64))
        out_link.append(chosen)
        link_count.append(np.full(len(chosen), len(chosen), np.int64))
    return np.concatenate(in_link), np.concatenate(out_link), np.concatenate(link_count)
