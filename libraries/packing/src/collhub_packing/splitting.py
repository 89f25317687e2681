"""Remove the switches of a network without loss: links through them become direct links.

Edge splitting (Lovasz 1976; Mader 1978; Bang-Jensen, Frank and Jackson 1995), as ForestColl uses
it (Zhao et al., arXiv 2402.06787): one link into a switch and one out of it become a link past it,
as far as every least cut between compute nodes allows. Where as much capacity enters a switch as
leaves it, all of it can be replaced so. The kernel `split_off` does the splitting; this module
keeps the account of which physical links a direct one stands for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from collhub_columns import Arcs, Int64Array

from collhub_packing.flows import UNLIMITED, FlowNetwork
from collhub_packing.graph import CapacityGraph
from collhub_packing.trees import SpanningTree
from hub_core.model import InputError

if TYPE_CHECKING:
    from collhub_packing.kernels import Junction


# Where both neighbours are one node, as the kernel takes it.
_NO_WIRE = -1

_Route = tuple[int, ...]
_Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class DirectNetwork:
    """A network of compute nodes alone, whose arcs stand for routes of a network with switches.

    `graph`: its arcs, several for a pair of nodes where there are several routes; `row` is that
    of the first link. Arc a runs over the arcs `routes[a]` of the network with switches, and all
    routes together fit into it.
    """

    graph: CapacityGraph
    routes: tuple[tuple[int, ...], ...]

    def paths(self, tree: SpanningTree, switched: CapacityGraph) -> dict[int, list[int]]:
        """For every node of a tree but the root, the rows of the topology's links to it.

        They lead from its parent; `switched` is the network with switches.
        """
        paths = {}
        for node in np.flatnonzero(tree.arc >= 0).tolist():
            # An arc of the tree may pass several switches.
            route = self.routes[tree.arc[node]]
            paths[node] = [int(switched.row[arc]) for arc in route]
        return paths


def direct(graph: CapacityGraph) -> DirectNetwork:
    """A network without switches as one whose routes are its arcs."""
    return DirectNetwork(graph, tuple((arc,) for arc in range(graph.num_arcs)))


class SwitchSpread(Enum):
    """Where the traffic between the neighbours of a switch is spread evenly over all pairs.

    Spread traffic needs more links and often more trees, but flatter ones. `WIDEST`: at switches
    that join compute nodes alone and are the widest way out of each, such as those inside a
    machine.
    """

    NOWHERE = "nowhere"
    WIDEST = "widest"
    EVERYWHERE = "everywhere"


class _RoutedCapacity(NamedTuple):
    """Some capacity between two nodes that runs over one route."""

    amount: int
    route: _Route


_RoutedCapacities = dict[_Pair, list[_RoutedCapacity]]


def without_switches(
    graph: CapacityGraph,
    sent: Sequence[int] | Int64Array,
    *,
    spread: SwitchSpread = SwitchSpread.NOWHERE,
) -> DirectNetwork:
    """Split off all switches such that `sent[v]` from all compute nodes v still reaches all others.

    Exact, with flows to all compute nodes kept and repaired. Where traffic is not spread, every
    pair takes as much as it can. Raises `InputError` where the demand does not fit, and for some
    switches whose links differ by direction.
    """
    demand = np.asarray(sent, np.int64)
    links = _links_of(graph)
    for switch in _removal_order(graph):
        is_spread = _is_spread(spread, switch, links, graph.num_compute)
        _remove(switch, links, graph, demand, is_spread)
    return _direct_network(links, graph)


def _is_spread(
    spread: SwitchSpread,
    switch: int,
    links: _RoutedCapacities,
    num_compute: int,
) -> bool:
    """Whether the traffic at a switch is to be spread."""
    if spread is SwitchSpread.WIDEST:
        return _is_widest(switch, links, num_compute)
    return spread is SwitchSpread.EVERYWHERE


def _links_of(graph: CapacityGraph) -> _RoutedCapacities:
    """All arcs with capacity by their ends, each routed over itself."""
    links: _RoutedCapacities = {}
    ends = zip(graph.source.tolist(), graph.destination.tolist(), strict=True)
    # Arcs without capacity carry nothing past a switch.
    for arc, pair in enumerate(ends):
        if graph.capacity[arc]:
            links[pair] = [_RoutedCapacity(int(graph.capacity[arc]), (arc,))]
    return links


def _direct_network(links: _RoutedCapacities, graph: CapacityGraph) -> DirectNetwork:
    """Links between compute nodes as a network, one arc a route, in the order of ends and route."""
    found = []
    for (source, destination), routed in links.items():
        for piece in routed:
            found.append((source, destination, piece.route, piece.amount))
    found.sort()
    routes = tuple(route for _, _, route, _ in found)
    direct_graph = CapacityGraph(
        num_nodes=graph.num_compute,
        num_compute=graph.num_compute,
        source=np.asarray([source for source, _, _, _ in found], np.int64),
        destination=np.asarray([destination for _, destination, _, _ in found], np.int64),
        capacity=np.asarray([amount for _, _, _, amount in found], np.int64),
        row=graph.row[[route[0] for route in routes]],
        unit=graph.unit,
    )
    return DirectNetwork(direct_graph, routes)


def _removal_order(graph: CapacityGraph) -> list[int]:
    """Switches, those next to compute nodes first: their traffic then meets few others."""
    # Its neighbours are then mostly compute nodes, whose direct links stay.
    distance = _hops_from_compute(graph).tolist()
    switches = range(graph.num_compute, graph.num_nodes)
    return sorted(switches, key=lambda switch: (distance[switch], switch))


def _hops_from_compute(graph: CapacityGraph) -> Int64Array:
    """Minimum number of arcs from a compute node to every node; num_nodes without a path."""
    is_compute = np.arange(graph.num_nodes) < graph.num_compute
    arcs = Arcs(graph.num_nodes, graph.source, graph.destination)
    hops = arcs.lengths_from(is_compute, np.ones(len(graph.source)))
    return np.where(np.isfinite(hops), hops, graph.num_nodes).astype(np.int64)


def _is_widest(switch: int, links: _RoutedCapacities, num_compute: int) -> bool:
    """Whether the neighbours of a switch are compute nodes with half of their capacity to it."""
    sent: Counter[int] = Counter()
    for (source, _), routed in links.items():
        sent[source] += _amount(routed)
    to_switch = {u: _amount(routed) for (u, t), routed in links.items() if t == switch}
    is_way_out = [2 * amount >= sent[node] for node, amount in to_switch.items()]
    return all(is_way_out) and all(node < num_compute for node in to_switch)


def _amount(routed: Iterable[_RoutedCapacity]) -> int:
    """What all routes carry together."""
    return sum(piece.amount for piece in routed)


def _remove(
    switch: int,
    links: _RoutedCapacities,
    graph: CapacityGraph,
    demand: Int64Array,
    is_spread: bool,
) -> None:
    """Replace the links of one switch."""
    before = [source for source, end in sorted(links) if end == switch]
    behind = [end for source, end in sorted(links) if source == switch]
    # A switch that only takes, or only gives, is on no way between others.
    if before and behind:
        moved = _moved(switch, before, behind, links, graph, demand, is_spread)
        for i, j in np.argwhere(moved).tolist():
            _lead_past(switch, before[i], behind[j], links, int(moved[i, j]))
    for u in before:
        del links[u, switch]
    for t in behind:
        del links[switch, t]


def _lead_past(switch: int, u: int, t: int, links: _RoutedCapacities, amount: int) -> None:
    """Replace some capacity from u to t through a switch by capacity past it."""
    joined = _join(links[u, switch], links[switch, t], amount)
    # What would lead back to where it came from is dropped.
    if u != t:
        links[u, t] = _merged(links.get((u, t), []) + joined)


def _join(
    into: list[_RoutedCapacity],
    out: list[_RoutedCapacity],
    amount: int,
) -> list[_RoutedCapacity]:
    """Take `amount` off the fronts of both lists, and join the routes."""
    joined = []
    while amount:
        first, second = into[0], out[0]
        part = min(amount, first.amount, second.amount)
        joined.append(_RoutedCapacity(part, first.route + second.route))
        amount -= part
        _take_off(into, part)
        _take_off(out, part)
    return joined


def _take_off(routed: list[_RoutedCapacity], amount: int) -> None:
    """Take `amount`, which the first route has, off it."""
    first = routed.pop(0)
    if first.amount > amount:
        # What is left stays in front, so that few routes are cut.
        routed.insert(0, first._replace(amount=first.amount - amount))


def _merged(routed: list[_RoutedCapacity]) -> list[_RoutedCapacity]:
    """The same capacity with every route once."""
    amounts: dict[_Route, int] = {}
    for piece in routed:
        amounts[piece.route] = amounts.get(piece.route, 0) + piece.amount
    return [_RoutedCapacity(amount, route) for route, amount in amounts.items()]


def _moved(
    switch: int,
    before: list[int],
    behind: list[int],
    links: _RoutedCapacities,
    graph: CapacityGraph,
    demand: Int64Array,
    is_spread: bool,
) -> Int64Array:
    """How much of every pair of neighbours becomes a direct link: int64[before, behind]."""
    # numba takes a second to import.
    from collhub_packing import kernels

    junction, capacity = _junction(switch, before, behind, links, graph, demand)
    if not kernels.supply(junction, capacity):
        raise InputError("the demand does not fit into the network", code="no-room")
    moved = np.zeros((len(before), len(behind)), np.int64)
    shares = _shares(before, behind, junction.before, junction.behind, is_spread)
    order = _orders(switch, before, behind, links)
    kernels.split_off(junction, order, shares, moved)
    if junction.before.any() and junction.behind.any():
        raise _unbalanced(switch)
    return moved


def _unbalanced(switch: int) -> InputError:
    """The refusal of a switch that more enters than leaves, of which some cannot be replaced."""
    return InputError(
        f"switch {switch}: its links differ by direction so that direct ones cannot replace them",
        cure="give them one bandwidth both ways",
        code="unbalanced-switch",
    )


def _junction(
    switch: int,
    before: list[int],
    behind: list[int],
    links: _RoutedCapacities,
    graph: CapacityGraph,
    demand: Int64Array,
) -> tuple[Junction, Int64Array]:
    """A switch as the kernel takes it, without flows yet, and the capacities by wire."""
    from collhub_packing import kernels

    pairs = [(u, t) for u in before for t in behind if u != t]
    # Links that splitting may make have wires from the beginning.
    ends = sorted({*links, *pairs})
    network, capacity = _sourced(ends, links, graph, demand)
    place = {pair: int(network.place[index]) for index, pair in enumerate(ends)}
    inward = np.asarray([place[u, switch] for u in before], np.int64)
    outward = np.asarray([place[switch, t] for t in behind], np.int64)
    across = [[place.get((u, t), _NO_WIRE) for t in behind] for u in before]
    junction = kernels.Junction(
        wires=network.wires,
        source=graph.num_nodes,
        sinks=np.arange(graph.num_compute),
        demand=int(demand.sum()),
        inward=inward,
        outward=outward,
        across=np.asarray(across, np.int64),
        before=capacity[inward],
        behind=capacity[outward],
        flows=np.empty((graph.num_compute, len(capacity)), np.int64),
    )
    return junction, capacity


def _sourced(
    ends: list[_Pair],
    links: _RoutedCapacities,
    graph: CapacityGraph,
    demand: Int64Array,
) -> tuple[FlowNetwork, Int64Array]:
    """The network of some pairs of nodes with the source of all demand, and capacities by wire."""
    compute = np.arange(graph.num_compute)
    source, destination = np.asarray(ends, np.int64).T
    network = FlowNetwork.fed(graph.num_nodes, source, destination, compute)
    held = [_amount(links.get(pair, ())) for pair in ends]
    # Links that splitting may make hold nothing yet.
    capacity = np.concatenate([held, demand]).astype(np.int64)
    return network, network.residual(capacity)


def _shares(
    before: list[int],
    behind: list[int],
    enters: Int64Array,
    leaves: Int64Array,
    is_spread: bool,
) -> Int64Array:
    """Limits of the rounds, int64[rounds, before, behind].

    An even share rounded down, rounded up, then none; turning back only at last.
    """
    # Traffic that turns back at the switch is none.
    is_other = np.asarray(before)[:, None] != np.asarray(behind)
    endless = np.full(is_other.shape, UNLIMITED, np.int64)
    if not is_spread:
        return np.stack([endless * is_other, endless])
    down, up = _even_shares(enters, is_other * leaves)
    return np.stack([down, up, endless * is_other, endless])


def _even_shares(amount: Int64Array, weight: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Amounts, one a row, split by the weights in the row, rounded down and up."""
    total = np.maximum(weight.sum(axis=1, keepdims=True), 1)
    # Python's integers, since the product of two capacities overflows.
    exact = amount[:, None].astype(object) * weight
    down = (exact // total).astype(np.int64)
    up = (-(-exact // total)).astype(np.int64)
    return down, up


def _orders(
    switch: int,
    before: list[int],
    behind: list[int],
    ends: Iterable[_Pair],
) -> Int64Array:
    """For every neighbour before the switch the order of those behind it, as indices of `behind`.

    Neighbours that only the switch joins come first, of these the one with the same rank in its
    part of the network, so that each has partners of its own; the others follow in a circle.
    """
    part = _parts(switch, sorted({*before, *behind}), ends)
    rank = _ranks(part)
    sizes = Counter(part.values())

    def remoteness(u: int, t: int) -> tuple[bool, int, int]:
        is_joined_anyway = part[u] == part[t]
        turn = (rank[t] - rank[u]) % sizes[part[t]]
        return is_joined_anyway, turn, (part[t] - part[u]) % len(sizes)

    orders = []
    for u in before:
        distances = [remoteness(u, t) for t in behind]
        orders.append(sorted(range(len(behind)), key=distances.__getitem__))
    return np.asarray(orders, np.int64)


def _parts(switch: int, neighbours: list[int], ends: Iterable[_Pair]) -> dict[int, int]:
    """For every neighbour the number of its part of the network without the switch, from 0."""
    linked = _linked(switch, ends)
    part: dict[int, int] = {}
    for number, node in enumerate(neighbours):
        waiting = [node]
        while waiting:
            reached = waiting.pop()
            if reached not in part:
                part[reached] = number
                waiting += linked[reached]
    # Neighbours of one part share the number of the first of them: close the gaps.
    numbers = sorted({part[node] for node in neighbours})
    return {node: numbers.index(part[node]) for node in neighbours}


def _linked(switch: int, ends: Iterable[_Pair]) -> dict[int, list[int]]:
    """For every node those that it is linked with, either way, not through the switch."""
    linked: dict[int, list[int]] = defaultdict(list)
    for u, t in ends:
        if switch not in (u, t):
            linked[u].append(t)
            linked[t].append(u)
    return linked


def _ranks(part: Mapping[int, int]) -> dict[int, int]:
    """For every neighbour how many of its part stand before it."""
    counted: Counter[int] = Counter()
    rank = {}
    for node, number in part.items():
        # Neighbours come in ascending order, and so do ranks.
        rank[node] = counted[number]
        counted[number] += 1
    return rank
