"""Lower bounds on the joint time of all groups, for any algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_flows.groups.shares import GroupWish, Shares
from collhub_flows.network import FlowNetwork
from collhub_flows.optimal_flow import approximate_flow, compute_proven_time, solve_exact_flow
from hub_core.columns import Float64Array, Int64Array, row_pointer
from hub_core.network import Topology

_PS = 1e12
# Relative reduction of bounds that covers the rounding errors of floating-point sums.
_SAFETY = 1e-9
_MAX_EXACT_ARCS = 40_000
_PHASES = 60
# Maximum number of NPUs whose surrounding balls are evaluated as cuts.
_MAX_CENTRES = 1024


def compute_joint_bounds(
    network: FlowNetwork, wishes: Sequence[GroupWish], shares: Shares
) -> dict[str, int]:
    """Compute bounds in picoseconds by name: `cut`, `latency`, and `flow` if all shares are pairs.

    `cut`: maximum over many sets of nodes of the bytes that must leave divided by the bandwidth of
    the leaving links. `flow`: dual of the multicommodity flow. `latency`: the farthest pair.
    """
    endpoints = _Ends.of(wishes, shares)
    bounds_s = {
        "cut": cut_seconds(network.topology, endpoints, shares.bytes),
        "latency": _compute_latency_s(network.topology, endpoints),
    }
    if shares.are_pairs:
        bounds_s["flow"] = _compute_flow_s(network, shares)
    return {name: int(value * _PS * (1.0 - _SAFETY)) for name, value in bounds_s.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """Contributors and receivers of each share: tables of NPUs by rows, int64."""

    giver_indptr: Int64Array
    givers: Int64Array
    taker_indptr: Int64Array
    takers: Int64Array

    @classmethod
    def of(cls, wishes: Sequence[GroupWish], shares: Shares) -> _Ends:
        """List all members as contributors of sums, and as receivers of shares for all."""
        givers, takers = [], []
        for share in range(len(shares)):
            members = wishes[int(shares.group[share])].npus
            root, target = int(shares.root[share]), int(shares.target[share])
            givers.append(members if shares.gathers[share] else (root,))
            takers.append(members if target < 0 else (target,))
        return cls(*_create_table(givers), *_create_table(takers))


def _create_table(rows: Sequence[Sequence[int]]) -> tuple[Int64Array, Int64Array]:
    """Return row pointers and the concatenated entries."""
    lengths = [len(row) for row in rows]
    return row_pointer(lengths), np.concatenate(rows).astype(np.int64)


def cut_seconds(topology: Topology, endpoints: _Ends, size: Float64Array) -> float:
    """Compute the maximum time over balls around NPUs and their complements.

    A share with a giver in the set and a taker outside must leave it at least once. `size`: bytes
    of every share.
    """
    hops = _find_distances(topology, np.ones(topology.num_links))
    best = 0.0
    for row in hops[:_MAX_CENTRES]:
        order = np.argsort(row, kind="stable")
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        for positions in (position, len(order) - 1 - position):
            best = max(best, _sweep(topology, endpoints, size, positions))
    return best


def _sweep(topology: Topology, endpoints: _Ends, size: Float64Array, position: Int64Array) -> float:
    """Compute the maximum time of the prefixes of an order; `position`: of every node in it."""
    first = np.minimum.reduceat(position[endpoints.givers], endpoints.giver_indptr[:-1])
    last = np.maximum.reduceat(position[endpoints.takers], endpoints.taker_indptr[:-1])
    crossing = _count_leaving(first, last, size, len(position))
    start, end = position[topology.source], position[topology.destination]
    bandwidth = _count_leaving(start, end, topology.bandwidth_bytes_per_s, len(position))
    # Sets that no share has to leave, and sets without links, give no bound.
    known = (crossing > 0) & (bandwidth > 0)
    return float((crossing[known] / bandwidth[known]).max(initial=0.0))


def _count_leaving(
    first: Int64Array, last: Int64Array, weight: Float64Array, nodes: int
) -> Float64Array:
    """Return the weight that leaves each prefix: row i leaves prefix s if first < s <= last."""
    rows = np.flatnonzero(first < last)
    gained = np.bincount(first[rows] + 1, weight[rows], nodes + 1)
    lost = np.bincount(last[rows] + 1, weight[rows], nodes + 2)
    covered: Float64Array = np.cumsum(gained - lost[: nodes + 1])
    # Differences of large sums: small remainders are rounding errors of 0.
    covered[covered < 1e-9 * weight.sum()] = 0.0
    return covered


def _compute_latency_s(topology: Topology, endpoints: _Ends) -> float:
    """Compute the maximum latency of the shortest paths from givers to takers."""
    # The search treats entries of 0 as missing links.
    distance = _find_distances(topology, np.maximum(topology.latency_s, 1e-15))
    worst = 0.0
    for share in range(len(endpoints.giver_indptr) - 1):
        givers = endpoints.givers[endpoints.giver_indptr[share] : endpoints.giver_indptr[share + 1]]
        takers = endpoints.takers[endpoints.taker_indptr[share] : endpoints.taker_indptr[share + 1]]
        worst = max(worst, float(distance[np.ix_(givers, takers)].max()))
    return max(worst - 1e-15 * topology.num_nodes, 0.0)


def _find_distances(topology: Topology, length: Float64Array) -> Float64Array:
    """Compute the shortest paths from all NPUs to all nodes: float64[NPUs, nodes]."""
    # Imported here, because the import of scipy takes half a second.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    nodes = topology.num_nodes
    key = topology.source * nodes + topology.destination
    # The shortest of parallel links counts; a matrix would add them up.
    order = np.lexsort((length, key))
    pairs, first = np.unique(key[order], return_index=True)
    shortest = length[order][first]
    rows_and_columns = np.divmod(pairs, nodes)
    graph = csr_matrix((shortest, rows_and_columns), (nodes, nodes))
    distances: Float64Array = dijkstra(graph, indices=np.arange(topology.num_npus))
    return distances


def _compute_flow_s(network: FlowNetwork, shares: Shares) -> float:
    """Compute a lower bound of the time of a joint flow of all pairs, by the prices of its dual."""
    demand = shares.demand(network.topology.num_npus)
    bandwidth = network.topology.bandwidth_bytes_per_s
    cost = bandwidth.min() / bandwidth
    flow = None
    if len(demand.sources) * network.num_arcs <= _MAX_EXACT_ARCS:
        flow = solve_exact_flow(network, demand, cost)
    if flow is None:
        flow = approximate_flow(network, demand, cost, _PHASES)
    time = compute_proven_time(network, demand, cost, flow.prices)
    # Demands are relative to the largest pair, costs relative to the slowest link.
    unit_bytes = float(shares.bytes.sum() / demand.wants.sum())
    return time * unit_bytes / float(bandwidth.min())
