"""Lower bounds by the prices of a flow, and the certificate of such a bound.

Anybody can compute the bound again from the prices in the certificate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_flows.network import FlowDemand, FlowNetwork
from collhub_flows.optimal_flow import Flow, solve_exact_flow
from hub_core.columns import csr
from hub_core.model import JsonValue
from hub_core.network import distance_bounds_ps
from hub_core.plugin_api import BoundRequest, BoundResult, NoOptions, SynthesisRequest
from hub_core.schedules import network_object

# Operations for each variable of the linear program: HiGHS takes 0.02 s at 14 NPUs (800 variables),
# 0.9 s at 48 (10 000) and up to 6 s at 64 (16 000 to 40 000) (specs of this project's synthesis).
_WORK_PER_VARIABLE = 100_000


def prove(request: BoundRequest, options: NoOptions) -> BoundResult:
    """Compute lower bounds for all sizes from the optimal flow's prices of links (dual variables).

    The flow uses the routes of simulators; its prices bound flows over any routes and do not depend
    on the size. The result is empty for several planes, if the linear program has more variables
    than the work allows, and if the solver finds no solution.
    """
    topology, collective = request.topology, request.collective
    if topology.num_planes > 1:
        return BoundResult()
    npus = request.npus or tuple(range(collective.num_ranks))
    demand = FlowDemand.of(collective, npus, topology.num_npus)
    sources = len(demand.sources)
    # With switches there is at most one arc per pair of NPUs, else one per link.
    has_switches = topology.num_nodes > topology.num_npus
    arcs = topology.num_npus**2 if has_switches else topology.num_links
    if not sources or sources * arcs * _WORK_PER_VARIABLE > request.max_work:
        return BoundResult()
    network = FlowNetwork.of(topology)
    flow = solve_exact_flow(network, demand, 1.0 / topology.bandwidth_bytes_per_s)
    if flow is None or not flow.prices.any():
        return BoundResult()
    length = flow.prices / topology.bandwidth_bytes_per_s
    times = distance_bounds_ps(
        collective, topology, request.sizes, request.npus, length / length.max()
    )
    return BoundResult(tuple(int(time) for time in times))


# Maximum number of links listed in a certificate, because the file of every rank has a copy.
_MAX_LINKS = 1 << 13
# Prices are integers, so that the check is exact.
_PRICE_SCALE = 10**9
_SAFETY = 1e-9


@dataclass(frozen=True, slots=True)
class FlowCertificate:
    """Lower bound in nanoseconds and the document that proves it."""

    bound_ns: int
    document: dict[str, JsonValue]


def certify_flow(
    network: FlowNetwork, demand: FlowDemand, flow: Flow, request: SynthesisRequest
) -> FlowCertificate:
    """Compute the bound of a flow's prices, over all routes, and its certificate.

    The length of a link is its price divided by its bandwidth. The bound is the sum over all shares
    of bytes times the shortest distance, divided by the sum of prices.
    """
    # Imported here: numba takes a second.
    from collhub_flows.kernels import sum_distances

    topology = network.topology
    # Of parallel links only the first is counted, because simulators use only that one.
    key = topology.source * topology.num_nodes + topology.destination
    _, rows = np.unique(key, return_index=True)
    source, destination = topology.source[rows], topology.destination[rows]
    largest = float(flow.prices.max(initial=0.0)) or 1.0
    prices = np.rint(flow.prices[rows] / largest * _PRICE_SCALE).astype(np.int64)
    indptr, links = csr(source, np.arange(len(rows)), topology.num_nodes)
    length = prices / topology.bandwidth_bytes_per_s[rows]
    wants, sources = demand.wants, demand.sources
    total = sum_distances(sources, wants, indptr, links, destination, length)
    collective = request.collective
    parts = collective.kind.traits.parts(collective.num_ranks)
    bound_s = request.collective_bytes / parts * total / max(int(prices.sum()), 1)
    # The bound is reduced to cover the rounding errors of floating-point sums.
    bound_ns = int(bound_s * 1e9 * (1.0 - _SAFETY))
    is_short = topology.num_links <= _MAX_LINKS
    document: dict[str, JsonValue] = {
        "collective": str(collective.kind),
        "ranks": list(request.npus),
        "collective_bytes": request.collective_bytes,
        "parts": parts,
        "lower_bound_ns": bound_ns,
        "network": network_object(topology, with_links=is_short),
    }
    if collective.root is not None:
        document["root"] = collective.root
    # Links without a price do not contribute to the bound.
    priced = np.flatnonzero(prices)
    table = np.stack([source[priced], destination[priced], prices[priced]], axis=1)
    document["prices"] = table.tolist()
    return FlowCertificate(bound_ns, document)
