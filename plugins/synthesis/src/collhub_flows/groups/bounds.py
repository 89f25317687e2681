"""Lower bounds on the time of all groups at once, whatever their algorithms are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_flows.groups.shares import Shares
from collhub_flows.groups.wishes import GroupWish
from collhub_flows.linear_program import exact_flow
from collhub_flows.network import FlowNetwork
from collhub_flows.weights import approximate_flow, proven_time
from hub_core.columns import Float64Array, Int64Array, row_pointer
from hub_core.network import Topology

_PS = 1e12
# Sums of floats err in the last digits: a bound gives way.
_SAFETY = 1e-9
_MOST_EXACT = 40_000
_PHASES = 60
# Sets of NPUs that are tried: balls around so many of them.
_MOST_CENTRES = 1024


def joint_bounds(
    network: FlowNetwork, wishes: Sequence[GroupWish], shares: Shares
) -> dict[str, int]:
    """Bounds in picoseconds by name: `cut`, `latency`, and `flow` where all shares are pairs.

    `cut`: bytes that must leave a set of nodes by the bandwidth of its links, the largest of many
    sets. `flow`: the dual of the multicommodity flow. `latency`: the farthest pair.
    """
    ends = _Ends.of(wishes, shares)
    found = {
        "cut": cut_seconds(network.topology, ends, shares.bytes),
        "latency": _latency_seconds(network.topology, ends),
    }
    if shares.are_pairs:
        found["flow"] = _flow_seconds(network, shares)
    return {name: int(value * _PS * (1.0 - _SAFETY)) for name, value in found.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """Whose data make up each share, and who must have it: tables of NPUs by rows, int64."""

    giver_indptr: Int64Array
    givers: Int64Array
    taker_indptr: Int64Array
    takers: Int64Array

    @classmethod
    def of(cls, wishes: Sequence[GroupWish], shares: Shares) -> _Ends:
        """Of a sum all members are givers; what goes to all has all members as takers."""
        givers, takers = [], []
        for share in range(len(shares)):
            members = wishes[int(shares.group[share])].npus
            root, target = int(shares.root[share]), int(shares.target[share])
            givers.append(members if shares.gathers[share] else (root,))
            takers.append(members if target < 0 else (target,))
        return cls(*_table(givers), *_table(takers))


def _table(rows: Sequence[Sequence[int]]) -> tuple[Int64Array, Int64Array]:
    """Where rows begin, and their entries one behind the other."""
    lengths = [len(row) for row in rows]
    return row_pointer(lengths), np.concatenate(rows).astype(np.int64)


def cut_seconds(topology: Topology, ends: _Ends, size: Float64Array) -> float:
    """Largest time over balls around nodes, and over what is left without one.

    A share with a giver in the set and a taker outside must cross it once at least. `size`: bytes
    of every share.
    """
    hops = _distances(topology, np.ones(topology.num_links))
    best = 0.0
    for row in hops[:_MOST_CENTRES]:
        order = np.argsort(row, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        for each in (place, len(order) - 1 - place):
            best = max(best, _sweep(topology, ends, size, each))
    return best


def _sweep(topology: Topology, ends: _Ends, size: Float64Array, place: Int64Array) -> float:
    """Largest time of the sets of the first nodes of an order; `place`: of every node in it."""
    first = np.minimum.reduceat(place[ends.givers], ends.giver_indptr[:-1])
    last = np.maximum.reduceat(place[ends.takers], ends.taker_indptr[:-1])
    crossing = _covered(first, last, size, len(place))
    start, end = place[topology.source], place[topology.destination]
    bandwidth = _covered(start, end, topology.bandwidth_bytes_per_s, len(place))
    # What nothing has to cross, or nothing can, says nothing.
    known = (crossing > 0) & (bandwidth > 0)
    return float((crossing[known] / bandwidth[known]).max(initial=0.0))


def _covered(first: Int64Array, last: Int64Array, weight: Float64Array, nodes: int) -> Float64Array:
    """Weight that leaves each set: i is in the s first nodes where first < s <= last."""
    rows = np.flatnonzero(first < last)
    gained = np.bincount(first[rows] + 1, weight[rows], nodes + 1)
    lost = np.bincount(last[rows] + 1, weight[rows], nodes + 2)
    covered: Float64Array = np.cumsum(gained - lost[: nodes + 1])
    # Differences of large sums: what is left of nothing is nothing.
    covered[covered < 1e-9 * weight.sum()] = 0.0
    return covered


def _latency_seconds(topology: Topology, ends: _Ends) -> float:
    """Longest of the shortest ways from a giver to a taker."""
    # A way of no time would be no way for the search.
    far = _distances(topology, np.maximum(topology.latency_s, 1e-15))
    worst = 0.0
    for share in range(len(ends.giver_indptr) - 1):
        givers = ends.givers[ends.giver_indptr[share] : ends.giver_indptr[share + 1]]
        takers = ends.takers[ends.taker_indptr[share] : ends.taker_indptr[share + 1]]
        worst = max(worst, float(far[np.ix_(givers, takers)].max()))
    return max(worst - 1e-15 * topology.num_nodes, 0.0)


def _distances(topology: Topology, length: Float64Array) -> Float64Array:
    """Shortest ways between all NPUs and nodes: float64[NPUs, nodes]."""
    # scipy takes half a second.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    nodes = topology.num_nodes
    key = topology.source * nodes + topology.destination
    # Of parallel links the shortest counts; a matrix would add them up.
    order = np.lexsort((length, key))
    pairs, first = np.unique(key[order], return_index=True)
    shortest = length[order][first]
    ends = np.divmod(pairs, nodes)
    graph = csr_matrix((shortest, ends), (nodes, nodes))
    found: Float64Array = dijkstra(graph, indices=np.arange(topology.num_npus))
    return found


def _flow_seconds(network: FlowNetwork, shares: Shares) -> float:
    """Time that no flow of all pairs together goes below, by the prices of its dual."""
    demand = shares.demand(network.topology.num_npus)
    bandwidth = network.topology.bandwidth_bytes_per_s
    cost = bandwidth.min() / bandwidth
    found = None
    if len(demand.sources) * network.num_arcs <= _MOST_EXACT:
        found = exact_flow(network, demand, cost)
    if found is None:
        found = approximate_flow(network, demand, cost, _PHASES)
    time = proven_time(network, demand, cost, found.prices)
    # Distances are shares of the largest pair, costs parts of the slowest link.
    whole = float(shares.bytes.sum() / demand.wants.sum())
    return time * whole / float(bandwidth.min())
