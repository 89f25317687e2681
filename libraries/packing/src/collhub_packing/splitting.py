"""Remove the switches of a network without loss: links through a switch become links between its neighbours."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_packing.flows import UNLIMITED, FlowNetwork
from collhub_packing.graph import CapacityGraph
from collhub_packing.trees import SpanningTree
from hub_core.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]

_Route = tuple[int, ...]
_Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class DirectNetwork:
    """A network of compute nodes alone, whose arcs stand for routes of a network with switches.

    `graph`: its arcs, several for a pair of nodes where there are several routes; `row` is that of the first link. Arc a
    runs over the arcs `routes[a]` of the network with switches, and all routes together fit into it.
    """

    graph: CapacityGraph
    routes: tuple[tuple[int, ...], ...]

    def paths(self, tree: SpanningTree, switched: CapacityGraph) -> dict[int, list[int]]:
        """For every node of a tree but the root the rows of the topology's links from its parent to it."""
        hanging = np.flatnonzero(tree.arc >= 0).tolist()
        return {
            node: [int(switched.row[arc]) for arc in self.routes[tree.arc[node]]]
            for node in hanging
        }


def direct(graph: CapacityGraph) -> DirectNetwork:
    """A network without switches as one whose routes are its arcs."""
    return DirectNetwork(graph, tuple((arc,) for arc in range(graph.num_arcs)))


class SwitchSpread(Enum):
    """Where the traffic between the neighbours of a switch is spread evenly over all pairs of them.

    SwitchSpread traffic needs more links and often more trees, but flatter ones. `WIDEST`: at switches that join compute nodes
    alone and are the widest way out of each, such as those inside a machine.
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
    """Split off all switches such that `sent[v]` from every compute node v at once still reaches all others.

    Exact: one link through a switch and another one out of it become a link past it as far as every least cut allows,
    with flows to all compute nodes kept and repaired. Where traffic is not spread, every pair takes as much as it can.
    Raises `InputError` where the demand does not fit, and for some switches whose links differ by direction.
    """
    demand = np.asarray(sent, np.int64)
    pieces: _RoutedCapacities = {}
    for arc, ends in enumerate(zip(graph.source.tolist(), graph.destination.tolist(), strict=True)):
        if graph.capacity[arc]:
            pieces[ends] = [_RoutedCapacity(int(graph.capacity[arc]), (arc,))]
    for switch in _removal_order(graph):
        is_spread = spread is SwitchSpread.EVERYWHERE or (
            spread is SwitchSpread.WIDEST and _is_widest(switch, pieces, graph.num_compute)
        )
        _remove(switch, pieces, graph, demand, is_spread)
    ordered = sorted(
        (ends, piece.route, piece.amount) for ends, found in pieces.items() for piece in found
    )
    routes = tuple(route for _, route, _ in ordered)
    replaced = CapacityGraph(
        graph.num_compute,
        graph.num_compute,
        np.asarray([ends[0] for ends, _, _ in ordered], np.int64),
        np.asarray([ends[1] for ends, _, _ in ordered], np.int64),
        np.asarray([amount for _, _, amount in ordered], np.int64),
        graph.row[[route[0] for route in routes]],
        graph.unit,
    )
    return DirectNetwork(replaced, routes)


def _removal_order(graph: CapacityGraph) -> list[int]:
    """Switches, those next to compute nodes first."""
    distance = np.where(np.arange(graph.num_nodes) < graph.num_compute, 0, graph.num_nodes)
    for _ in range(graph.num_nodes):
        nearer = distance.copy()
        np.minimum.at(nearer, graph.destination, distance[graph.source] + 1)
        if np.array_equal(nearer, distance):
            break
        distance = nearer
    return sorted(
        range(graph.num_compute, graph.num_nodes), key=lambda switch: (distance[switch], switch)
    )


def _is_widest(switch: int, pieces: _RoutedCapacities, num_compute: int) -> bool:
    """Whether the neighbours of a switch are compute nodes with at least half of their capacity to it."""
    sent: Counter[int] = Counter()
    to_switch: Counter[int] = Counter()
    for (u, t), found in pieces.items():
        amount = sum(piece.amount for piece in found)
        sent[u] += amount
        if t == switch:
            to_switch[u] += amount
    return all(u < num_compute and 2 * to_switch[u] >= sent[u] for u in to_switch)


def _remove(
    switch: int,
    pieces: _RoutedCapacities,
    graph: CapacityGraph,
    demand: Int64Array,
    is_spread: bool,
) -> None:
    """Replace the links of one switch."""
    before = [u for u, w in sorted(pieces) if w == switch]
    behind = [t for w, t in sorted(pieces) if w == switch]
    if before and behind:
        moved = _moved(switch, before, behind, pieces, graph, demand, is_spread)
        for i, j in np.argwhere(moved).tolist():
            u, t = before[i], behind[j]
            joined = _join(pieces[u, switch], pieces[switch, t], int(moved[i, j]))
            if u != t:
                pieces[u, t] = _merged(pieces.get((u, t), []) + joined)
    for u in before:
        del pieces[u, switch]
    for t in behind:
        del pieces[switch, t]


def _join(
    into: list[_RoutedCapacity], out: list[_RoutedCapacity], amount: int
) -> list[_RoutedCapacity]:
    """Take `amount` off the fronts of both lists, and join the routes."""
    joined = []
    while amount:
        first, second = into[0], out[0]
        part = min(amount, first.amount, second.amount)
        joined.append(_RoutedCapacity(part, first.route + second.route))
        amount -= part
        for pieces, piece in ((into, first), (out, second)):
            pieces[:1] = [piece._replace(amount=piece.amount - part)] if piece.amount > part else []
    return joined


def _merged(pieces: list[_RoutedCapacity]) -> list[_RoutedCapacity]:
    """The same capacity with every route once."""
    amounts: dict[_Route, int] = {}
    for piece in pieces:
        amounts[piece.route] = amounts.get(piece.route, 0) + piece.amount
    return [_RoutedCapacity(amount, route) for route, amount in amounts.items()]


def _moved(
    switch: int,
    before: list[int],
    behind: list[int],
    pieces: _RoutedCapacities,
    graph: CapacityGraph,
    demand: Int64Array,
    is_spread: bool,
) -> Int64Array:
    """How much of every pair of neighbours becomes a direct link: int64[before, behind]."""
    from collhub_packing import kernels

    ends = sorted({*pieces, *((u, t) for u in before for t in behind if u != t)})
    network, capacity = _sourced(ends, pieces, graph, demand)
    place = {pair: int(network.place[index]) for index, pair in enumerate(ends)}
    inward = np.asarray([place[u, switch] for u in before], np.int64)
    outward = np.asarray([place[switch, t] for t in behind], np.int64)
    junction = kernels.Junction(
        network.wires,
        graph.num_nodes,
        np.arange(graph.num_compute),
        int(demand.sum()),
        inward,
        outward,
        np.asarray([[place.get((u, t), -1) for t in behind] for u in before], np.int64),
        capacity[inward],
        capacity[outward],
        np.empty((graph.num_compute, len(capacity)), np.int64),
    )
    if not kernels.supply(junction, capacity):
        raise InputError("the demand does not fit into the network", code="no-room")
    moved = np.zeros((len(before), len(behind)), np.int64)
    shares = _shares(before, behind, junction.before, junction.behind, is_spread)
    kernels.split_off(junction, _orders(switch, before, behind, pieces), shares, moved)
    if junction.before.any() and junction.behind.any():
        raise InputError(
            f"switch {switch}: its links differ by direction so that direct ones cannot replace them",
            cure="give them one bandwidth both ways",
            code="unbalanced-switch",
        )
    return moved


def _sourced(
    ends: list[_Pair], pieces: _RoutedCapacities, graph: CapacityGraph, demand: Int64Array
) -> tuple[FlowNetwork, Int64Array]:
    """The network of some pairs of nodes, with the source of all demand, and its capacities by wire."""
    compute = np.arange(graph.num_compute)
    source = np.concatenate(
        [[u for u, _ in ends], np.full(graph.num_compute, graph.num_nodes)]
    ).astype(np.int64)
    destination = np.concatenate([[t for _, t in ends], compute]).astype(np.int64)
    held = [sum(piece.amount for piece in pieces.get(pair, ())) for pair in ends]
    network = FlowNetwork.of(graph.num_nodes + 1, source, destination)
    return network, network.residual(np.concatenate([held, demand]).astype(np.int64))


def _shares(
    before: list[int], behind: list[int], enters: Int64Array, leaves: Int64Array, is_spread: bool
) -> Int64Array:
    """Limits of the rounds: an even share rounded down, rounded up, then none; turning back only at last."""
    is_other = np.asarray(before)[:, None] != np.asarray(behind)
    endless = np.full(is_other.shape, UNLIMITED, np.int64)
    if not is_spread:
        return np.stack([endless * is_other, endless])
    weight = is_other * leaves
    total = np.maximum(weight.sum(axis=1, keepdims=True), 1)
    # Python's integers, since the product of two capacities overflows.
    exact = enters[:, None].astype(object) * weight
    down, up = (exact // total).astype(np.int64), (-(-exact // total)).astype(np.int64)
    return np.stack([down, up, endless * is_other, endless])


def _orders(switch: int, before: list[int], behind: list[int], ends: Iterable[_Pair]) -> Int64Array:
    """For every neighbour before the switch the order of those behind it, as indices of `behind`.

    Neighbours that only the switch joins come first, of these the one with the same rank in its part of the network, so
    that each has partners of its own; the others follow in a circle.
    """
    part, rank = _parts(switch, sorted({*before, *behind}), ends)
    sizes = Counter(part.values())

    def key(u: int, t: int) -> tuple[bool, int, int]:
        return (
            part[u] == part[t],
            (rank[t] - rank[u]) % sizes[part[t]],
            (part[t] - part[u]) % len(sizes),
        )

    return np.asarray(
        [sorted(range(len(behind)), key=lambda j: key(u, behind[j])) for u in before], np.int64
    )


def _parts(
    switch: int, neighbours: list[int], ends: Iterable[_Pair]
) -> tuple[dict[int, int], dict[int, int]]:
    """For every neighbour the number of its part of the network without the switch, and its rank in it."""
    linked: dict[int, list[int]] = defaultdict(list)
    for u, t in ends:
        if switch not in (u, t):
            linked[u].append(t)
            linked[t].append(u)
    part: dict[int, int] = {}
    for number, node in enumerate(neighbours):
        waiting = [] if node in part else [node]
        while waiting:
            reached = waiting.pop()
            if reached not in part:
                part[reached] = number
                waiting += linked[reached]
    names = {name: index for index, name in enumerate(sorted({part[node] for node in neighbours}))}
    counted: Counter[int] = Counter()
    rank = {}
    for node in neighbours:
        rank[node] = counted[part[node]]
        counted[part[node]] += 1
    return {node: names[part[node]] for node in neighbours}, rank
