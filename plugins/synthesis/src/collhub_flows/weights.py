"""Approximate flow by multiplicative weights, with the bound that its prices prove."""

from __future__ import annotations

import numpy as np

from collhub_flows.demand import FlowDemand
from collhub_flows.linear_program import Flow, unreachable
from collhub_flows.network import FlowNetwork
from hub_core.columns import Float64Array, csr

# Larger ones fail: whole trees swing from link to link.
_STEEPNESS = 0.1
# The prices are judged so many times; each costs as much as a phase.
_LOOKS = 10


def approximate_flow(
    network: FlowNetwork, demand: FlowDemand, cost: Float64Array, phases: int
) -> Flow:
    """Flow that comes closer to the optimum with every phase; `cost` as in `exact_flow`.

    Raises `InputError` where a target is out of reach.
    """
    # Imported here: numba takes a second.
    from collhub_flows.kernels import weighted_phases

    indptr, arcs = csr(network.source, np.arange(network.num_arcs), network.topology.num_npus)
    amounts = np.zeros((len(demand.sources), network.num_arcs))
    load = np.zeros(len(cost))

    def run(steepness: float, count: int) -> None:
        weighted_phases(
            demand.sources,
            demand.wants,
            indptr,
            arcs,
            network.source,
            network.destination,
            network.routes.indptr,
            network.routes.links,
            cost,
            amounts,
            load,
            steepness,
            count,
        )

    # A plain phase says what one phase puts on the fullest link: the unit of the exponent.
    run(0.0, 1)
    steepness = _STEEPNESS / float(load.max())
    amounts[:] = 0.0
    load[:] = 0.0
    best, prices = 0.0, np.ones(len(cost))
    done = 0
    for look in range(1, _LOOKS + 1):
        run(steepness, phases * look // _LOOKS - done)
        done = phases * look // _LOOKS
        tried = np.exp(steepness * (load - load.max()))
        bound = proven_time(network, demand, cost, tried)
        if bound > best:
            best, prices = bound, tried
    # A target without a way is infinitely far.
    if not np.isfinite(best):
        raise unreachable(network)
    return Flow(amounts / phases, prices)


def proven_time(
    network: FlowNetwork, demand: FlowDemand, cost: Float64Array, prices: Float64Array
) -> float:
    """Time that no flow goes below, by weak duality: shares times distances by sum of prices.

    A link is as long as its price times its cost. Holds for any prices that are not negative.
    """
    # Imported here: numba takes a second.
    from collhub_flows.kernels import total_distance

    indptr, arcs = csr(network.source, np.arange(network.num_arcs), network.topology.num_npus)
    length_of_link = prices * cost
    entries = length_of_link[network.routes.links]
    length: Float64Array = np.bincount(
        network.arc_of_entry, weights=entries, minlength=network.num_arcs
    ).astype(np.float64)
    total = total_distance(demand.sources, demand.wants, indptr, arcs, network.destination, length)
    return total / float(prices.sum())
