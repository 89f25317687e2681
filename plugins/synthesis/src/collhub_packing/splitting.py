"""Remove the switches of a network without loss: links through them become direct links.

Edge splitting (Lovasz 1976; Mader 1978; Bang-Jensen, Frank and Jackson 1995), as in ForestColl
(Zhao et al., arXiv 2402.06787): one link into a switch and one out of it become a link past it, as
far as every minimum cut between compute nodes allows. If as much capacity enters a switch as leaves
it, all of it can be replaced this way. The kernel `split_off` does the splitting; this module
records the physical links of every direct link.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collhub_packing.flows import UNLIMITED, FlowNetwork
from collhub_packing.graph import CapacityGraph
from collhub_packing.trees import SpanningTree
from hub_core.columns import Arcs, Int64Array
from hub_core.model import InputError

if TYPE_CHECKING:
    from collhub_packing.kernels import Junction


# Marks a pair of equal neighbours for the kernel.
_NO_WIRE = -1

_Route = tuple[int, ...]
_Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class DirectNetwork:
    """A network of compute nodes whose arcs represent routes of a network with switches.

    Arc a of `graph` runs over the arcs `routes[a]` of the network with switches; its `row` is that
    of the first link. A pair of nodes has one arc per route. All routes together fit into the
    network with switches.
    """

    graph: CapacityGraph
    routes: tuple[tuple[int, ...], ...]

    def paths(self, tree: SpanningTree, switched: CapacityGraph) -> dict[int, list[int]]:
        """Return, for each node of a tree of this network, the links from its parent to it.

        Keys are the nodes that the tree reaches, without the root, ascending. Links are rows of the
        topology, in the order of the route. `switched`: the network with switches from which this
        network was derived.
        """
        paths = {}
        for node in np.flatnonzero(tree.arc >= 0).tolist():
            route = self.routes[tree.arc[node]]
            paths[node] = [int(switched.row[arc]) for arc in route]
        return paths


def direct(graph: CapacityGraph) -> DirectNetwork:
    """Represent a network without switches as a `DirectNetwork` whose routes are its arcs."""
    return DirectNetwork(graph, tuple((arc,) for arc in range(graph.num_arcs)))


class SwitchSpread(Enum):
    """At which switches traffic is spread evenly over all pairs of neighbours.

    Spread traffic needs more links and often more trees, but flatter ones. `WIDEST`: at switches
    whose neighbours are all compute nodes with at least half of their capacity to that switch, such
    as switches inside a host.
    """

    NOWHERE = "nowhere"
    WIDEST = "widest"
    EVERYWHERE = "everywhere"


class _RoutedCapacity(NamedTuple):
    """A part of the capacity between two nodes, with its route."""

    amount: int
    route: _Route


_RoutedCapacities = dict[_Pair, list[_RoutedCapacity]]


def without_switches(
    graph: CapacityGraph,
    sent: Sequence[int] | Int64Array,
    *,
    spread: SwitchSpread = SwitchSpread.NOWHERE,
) -> DirectNetwork:
    """Replace all switches by direct links that have room for the same demand.

    `sent`: one amount per compute node, in units of the capacities. Each compute node v sends
    `sent[v]` to all others at once; each must be able to receive the sum. The links of the result
    connect compute nodes. Each has its physical route as arc numbers of `graph`. Arcs without
    capacity are dropped.

    Switches are removed one by one: first those with the fewest arcs from a compute node, ties by
    number. A switch without links in or out is dropped. `spread`: switches at which capacity is
    divided evenly among pairs of neighbours (nowhere, everywhere, or `_connects_widest_links`). At
    other switches each pair takes as much as possible.

    Raises `InputError`: `no-room` without room for the demand, `unbalanced-switch` if capacity
    remains into and out of a switch, also if capacities add up to 2^60. Checked only at switches.
    """
    demand = np.asarray(sent, np.int64)
    # Map (source, destination) to the capacity of every arc with capacity, routed over itself.
    links: _RoutedCapacities = {}
    endpoints = zip(graph.source.tolist(), graph.destination.tolist(), strict=True)
    for arc, pair in enumerate(endpoints):
        if graph.capacity[arc]:
            links[pair] = [_RoutedCapacity(int(graph.capacity[arc]), (arc,))]
    # Sorted by the fewest arcs from a compute node, so that the neighbours of a switch are mostly
    # compute nodes, whose direct links are final. Unreachable switches are last.
    is_compute = np.arange(graph.num_nodes) < graph.num_compute
    arcs = Arcs(graph.num_nodes, graph.source, graph.destination)
    hops = arcs.lengths_from(is_compute, np.ones(len(graph.source)))
    distance = np.where(np.isfinite(hops), hops, graph.num_nodes).astype(np.int64).tolist()
    switches = range(graph.num_compute, graph.num_nodes)
    for switch in sorted(switches, key=lambda switch: (distance[switch], switch)):
        is_spread = spread is SwitchSpread.EVERYWHERE
        if spread is SwitchSpread.WIDEST:
            is_spread = _connects_widest_links(switch, links, graph.num_compute)
        # Replace the links of one switch by direct links, in place.
        sources = [source for source, end in sorted(links) if end == switch]
        targets = [end for source, end in sorted(links) if source == switch]
        # Without links in or out the switch is on no path.
        if sources and targets:
            amounts = _split_off(switch, sources, targets, links, graph, demand, is_spread)
            for i, j in np.argwhere(amounts).tolist():
                _move_past(switch, sources[i], targets[j], links, int(amounts[i, j]))
        for u in sources:
            del links[u, switch]
        for t in targets:
            del links[switch, t]
    return _build_direct_network(links, graph)


def remove_switches(
    graph: CapacityGraph, sent: Int64Array, *, spread: SwitchSpread = SwitchSpread.NOWHERE
) -> DirectNetwork:
    """Represent any network by direct links between compute nodes.

    A network without switches keeps its arcs (`direct`); otherwise the result is that of
    `without_switches`. `sent`: data that every compute node sends to all others, int64[compute
    nodes]. Raise `InputError` as `without_switches` does.
    """
    if not graph.has_switches:
        return direct(graph)
    return without_switches(graph, sent, spread=spread)


def _build_direct_network(links: _RoutedCapacities, graph: CapacityGraph) -> DirectNetwork:
    """Build a network from links between compute nodes, with one arc per entry of `links`.

    `links`: capacities with their routes by (source, destination), only between compute nodes. A
    route is a sequence of arcs of `graph`. Entries are not merged, so arcs may be parallel. Arcs
    are sorted by source, destination, route and capacity.

    The network has only the compute nodes of `graph`, with the same numbers, and its capacity unit.
    An arc has the `row` of the first arc of its route. Without links the network has no arcs.
    """
    arcs = []
    for (source, destination), routed in links.items():
        for capacity in routed:
            arcs.append((source, destination, capacity.route, capacity.amount))
    arcs.sort()
    routes = tuple(route for _, _, route, _ in arcs)
    direct_graph = CapacityGraph(
        num_nodes=graph.num_compute,
        num_compute=graph.num_compute,
        source=np.asarray([source for source, _, _, _ in arcs], np.int64),
        destination=np.asarray([destination for _, destination, _, _ in arcs], np.int64),
        capacity=np.asarray([amount for _, _, _, amount in arcs], np.int64),
        row=graph.row[[route[0] for route in routes]],
        unit=graph.unit,
    )
    return DirectNetwork(direct_graph, routes)


def _connects_widest_links(switch: int, links: _RoutedCapacities, num_compute: int) -> bool:
    """Return whether a switch gets at least half of the capacity that each of its senders can send.

    Senders are the nodes with a link to the switch. The capacity that a node can send is that of
    all its outgoing links. False if a sender is no compute node (node number of at least
    `num_compute`); True without senders.
    """
    sent: Counter[int] = Counter()
    for (source, _), routed in links.items():
        sent[source] += _total_flow(routed)
    to_switch = {u: _total_flow(routed) for (u, t), routed in links.items() if t == switch}
    has_majority = [2 * amount >= sent[node] for node, amount in to_switch.items()]
    return all(has_majority) and all(node < num_compute for node in to_switch)


def _total_flow(routed: Iterable[_RoutedCapacity]) -> int:
    """Return the sum of the capacities (`amount`) of all routes; 0 for none."""
    return sum(capacity.amount for capacity in routed)


def _move_past(switch: int, u: int, t: int, links: _RoutedCapacities, amount: int) -> None:
    """Replace `amount` of capacity from node u via a switch to node t by direct capacity.

    Modifies `links`, whose lists hold capacities with their routes:

    - `amount` is taken from the beginning of the lists (u, switch) and (switch, t), which
      must have at least this capacity. Entries without capacity are removed.
    - Pieces taken from both are joined in order: route to the switch, then route from it.
    - If u and t are different nodes, the joined capacity is added to (u, t). Entries with
      equal routes are merged there. Otherwise it is dropped.
    """
    incoming, outgoing = links[u, switch], links[switch, t]
    routed = []
    while amount:
        first, second = incoming[0], outgoing[0]
        portion = min(amount, first.amount, second.amount)
        routed.append(_RoutedCapacity(portion, first.route + second.route))
        amount -= portion
        _reduce_front(incoming, portion)
        _reduce_front(outgoing, portion)
    # Capacity from a node back to itself is dropped.
    if u != t:
        # Merge capacities with equal routes.
        amounts: dict[_Route, int] = {}
        for capacity in links.get((u, t), []) + routed:
            amounts[capacity.route] = amounts.get(capacity.route, 0) + capacity.amount
        links[u, t] = [_RoutedCapacity(amount, route) for route, amount in amounts.items()]


def _reduce_front(routed: list[_RoutedCapacity], amount: int) -> None:
    """Reduce the first entry of `routed` by `amount`, in place.

    Removes the entry if its capacity is at most `amount`. Entries after it do not change. `routed`
    must not be empty.
    """
    first = routed.pop(0)
    if first.amount > amount:
        # The remainder stays first, so that few routes are divided.
        routed.insert(0, first._replace(amount=first.amount - amount))


def _split_off(
    switch: int,
    senders: list[int],
    receivers: list[int],
    links: _RoutedCapacities,
    graph: CapacityGraph,
    demand: Int64Array,
    is_spread: bool,
) -> Int64Array:
    """Return how much capacity through a switch becomes direct links, by pair of neighbours.

    The result is int64[senders, receivers] in the order of the lists. `links` and `graph` are not
    changed. A pair takes all it can, as long as every compute node can still receive the demand
    from all compute nodes together. Rounds, each by sender in order, then by receiver as in
    `_order_neighbours`:

    1. Only with `is_spread`: at most the share of the sender's capacity that is proportional to the
       receiver's capacity, rounded down.
    2. Only with `is_spread`: at most the same share, rounded up.
    3. Without limit. Capacity from a node back to itself is not taken in rounds 1 to 3.
    4. Without limit, also from a node back to itself.

    Raises `InputError`: `no-room` if the demand does not fit at the start, `unbalanced-switch` if
    capacity remains both into and out of the switch. If it remains on one side only, it is dropped.
    """
    # numba takes a second to import.
    from collhub_packing import kernels

    junction, capacity = _build_junction(switch, senders, receivers, links, graph, demand)
    if not kernels.supply(junction, capacity):
        raise InputError("the demand does not fit into the network", code="no-room")
    amounts = np.zeros((len(senders), len(receivers)), np.int64)
    shares = _compute_round_limits(
        senders, receivers, junction.capacity_in, junction.capacity_out, is_spread
    )
    order = _order_neighbours(switch, senders, receivers, links)
    kernels.split_off(junction, order, shares, amounts)
    if junction.capacity_in.any() and junction.capacity_out.any():
        raise InputError(
            f"switch {switch}: its links differ by direction so that direct ones cannot "
            "replace them",
            cure="give them one bandwidth both ways",
            code="unbalanced-switch",
        )
    return amounts


def _build_junction(
    switch: int,
    senders: list[int],
    receivers: list[int],
    links: _RoutedCapacities,
    graph: CapacityGraph,
    demand: Int64Array,
) -> tuple[Junction, Int64Array]:
    """Return the flow network of a switch for compiled functions, and its wires' capacities.

    A wire is a directed link of the flow network. The network has an additional node, the
    source, with a link to each compute node. The capacity of this link is the `demand` of the
    node. Each compute node is a sink, and the flow to each sink has the value of the total
    demand.

    - `links`: capacities by pair of nodes. The routes of a pair are added.
    - `senders`, `receivers`: nodes with a link to the switch, and with a link from the
      switch.
    - Each pair of a sender and a different receiver has a wire `across[i, j]`. Its capacity
      is 0 unless such a link exists. The entry is -1 if both are the same node.
    - `capacity_in`, `capacity_out`: capacities from each sender and to each receiver.

    The array `flows` is not initialized. Raises `InputError` if all capacities add up to 2^60
    or more.
    """
    from collhub_packing import kernels

    pairs = [(u, t) for u in senders for t in receivers if u != t]
    # Links that splitting may create have wires from the beginning.
    endpoints = sorted({*links, *pairs})
    # Build the flow network of pairs of nodes with a source of all demand, and capacities by wire.
    compute = np.arange(graph.num_compute)
    source, destination = np.asarray(endpoints, np.int64).T
    network = FlowNetwork.fed(graph.num_nodes, source, destination, compute)
    amounts = [_total_flow(links.get(pair, ())) for pair in endpoints]
    # Links that splitting may create have no capacity yet.
    capacity = np.concatenate([amounts, demand]).astype(np.int64)
    capacity = network.residual(capacity)
    wire_of = {pair: int(network.place[index]) for index, pair in enumerate(endpoints)}
    inward = np.asarray([wire_of[u, switch] for u in senders], np.int64)
    outward = np.asarray([wire_of[switch, t] for t in receivers], np.int64)
    across = [[wire_of.get((u, t), _NO_WIRE) for t in receivers] for u in senders]
    junction = kernels.Junction(
        wires=network.wires,
        source=graph.num_nodes,
        sinks=np.arange(graph.num_compute),
        demand=int(demand.sum()),
        inward=inward,
        outward=outward,
        across=np.asarray(across, np.int64),
        capacity_in=capacity[inward],
        capacity_out=capacity[outward],
        flows=np.empty((graph.num_compute, len(capacity)), np.int64),
    )
    return junction, capacity


def _compute_round_limits(
    senders: list[int],
    receivers: list[int],
    enters: Int64Array,
    leaves: Int64Array,
    is_spread: bool,
) -> Int64Array:
    """Return how much capacity each pair may move in each round of splitting off a switch.

    A pair is a sender to and a receiver from the switch. `enters` has the capacity of each sender,
    `leaves` that of each receiver. The result is int64[rounds, senders, receivers]. A limit counts
    for its round only. No limit is 2^60.

    - With `is_spread`, the limit in the first round is enters * leaves / (sum of `leaves` of all
      receivers except the sender), rounded down. In the second round it is rounded up. If the sum
      is 0, both are 0. A third and fourth round have no limit.
    - Without `is_spread`, there are two rounds without limit.

    In both cases a pair of a node with itself has the limit 0, except in the last round.
    """
    # Traffic back to its sender is useless.
    is_different = np.asarray(senders)[:, None] != np.asarray(receivers)
    unlimited = np.full(is_different.shape, UNLIMITED, np.int64)
    if not is_spread:
        return np.stack([unlimited * is_different, unlimited])
    # Divide the amount of each row by the row's weights, rounded down and rounded up.
    weight = is_different * leaves
    total = np.maximum(weight.sum(axis=1, keepdims=True), 1)
    # Python integers, since the product of two capacities overflows.
    exact = enters[:, None].astype(object) * weight
    down = (exact // total).astype(np.int64)
    up = (-(-exact // total)).astype(np.int64)
    return np.stack([down, up, unlimited * is_different, unlimited])


def _order_neighbours(
    switch: int,
    senders: list[int],
    receivers: list[int],
    endpoints: Iterable[_Pair],
) -> Int64Array:
    """Return the order in which each sender of a switch tries the receivers for direct links.

    The result is int64[senders, receivers]; row i has the indices of `receivers` for sender i.
    `endpoints`: the two nodes of each link. A component has all neighbours of the switch that are
    connected without the switch. Components are numbered by their lowest node. The position of a
    neighbour is its index in its component, by ascending node. Sender u sorts the receivers t by:

    1. receivers of other components before those of u's component
    2. (position of t - position of u) modulo the size of t's component, so that senders have
       different partners
    3. (component of t - component of u) modulo the number of components
    4. index of t in `receivers`
    """
    part = _find_components(switch, sorted({*senders, *receivers}), endpoints)
    # Count, for every neighbour, the previous neighbours in its component.
    counts: Counter[int] = Counter()
    rank = {}
    for node, number in part.items():
        rank[node] = counts[number]
        counts[number] += 1
    sizes = Counter(part.values())

    def build_key(u: int, t: int) -> tuple[bool, int, int]:
        """Return the sort key of receiver t for sender u; the lowest key is tried first.

        The key consists of these values:

        1. whether both are in the same component
        2. (position of t - position of u) modulo the number of nodes in the component of t;
           a position is the index of a node in its component
        3. (component of t - component of u) modulo the number of components
        """
        is_connected = part[u] == part[t]
        offset = (rank[t] - rank[u]) % sizes[part[t]]
        return is_connected, offset, (part[t] - part[u]) % len(sizes)

    orders = []
    for u in senders:
        keys = [build_key(u, t) for t in receivers]
        orders.append(sorted(range(len(receivers)), key=keys.__getitem__))
    return np.asarray(orders, np.int64)


def _find_components(
    switch: int, neighbours: list[int], endpoints: Iterable[_Pair]
) -> dict[int, int]:
    """Return the component of each neighbour of a switch, in the network without the switch.

    Two neighbours are in one component if a path joins them. `endpoints` has the two nodes of each
    link. Links count in both directions; links of the switch itself are ignored. Other nodes may be
    on the path.

    Components are numbered 0, 1, 2, ... in the order in which their first neighbour appears in
    `neighbours`. The keys of the result are the neighbours in this order. An isolated neighbour has
    its own component.
    """
    # List the neighbours of every node in either direction, without links of the switch.
    linked: dict[int, list[int]] = defaultdict(list)
    for u, t in endpoints:
        if switch not in (u, t):
            linked[u].append(t)
            linked[t].append(u)
    part: dict[int, int] = {}
    for number, node in enumerate(neighbours):
        waiting = [node]
        while waiting:
            reached = waiting.pop()
            if reached not in part:
                part[reached] = number
                waiting += linked[reached]
    # A component has the number of its first neighbour so far: close the gaps.
    numbers = sorted({part[node] for node in neighbours})
    return {node: numbers.index(part[node]) for node in neighbours}
