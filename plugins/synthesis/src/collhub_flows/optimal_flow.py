"""The optimal flow of a demand: exact by a linear program (HiGHS), or approximate.

The approximation uses multiplicative weights. Both return prices of links, which prove a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collhub_flows.network import FlowDemand, FlowNetwork
from hub_core.columns import Float64Array, csr
from hub_core.model import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Status of scipy for a problem without a solution.
_INFEASIBLE = 2


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """A flow and the prices that bound it.

    `amounts[i, a]`: shares of source i on arc a, float64. `prices`: non-negative dual variable of
    every link, float64, from which a lower bound follows.
    """

    amounts: Float64Array
    prices: Float64Array


def solve_exact_flow(network: FlowNetwork, demand: FlowDemand, cost: Float64Array) -> Flow | None:
    """Solve the linear program for the flow with the minimum time of the busiest link.

    `cost`: time of one share on every link, float64. Variables: sources times arcs, plus the time.
    All shares of a source are one commodity, because only their targets differ (source-aggregated
    multicommodity flow). Returns None if the solver fails; raises `InputError` if a target is
    unreachable.
    """
    # Imported here, because the import of scipy takes half a second.
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix, eye, hstack, kron

    sources, arcs = len(demand.sources), network.num_arcs
    scale = float(cost.mean())
    loads = _build_load_matrix(network, cost / scale)
    # The time is the last variable.
    objective = np.zeros(sources * arcs + 1)
    objective[-1] = 1.0
    minus_time = csr_matrix(-np.ones((len(cost), 1)))
    limits = hstack([kron(np.ones((1, sources)), loads), minus_time])
    balance = kron(eye(sources), _build_incidence(network))
    no_time = csr_matrix((balance.shape[0], 1))
    net_demand = demand.wants.astype(np.float64)
    # The row of the source follows from the rows of its targets; it is redundant.
    net_demand[np.arange(sources), demand.sources] -= net_demand.sum(axis=1)
    solved = linprog(
        objective,
        A_ub=limits.tocsr(),
        b_ub=np.zeros(len(cost)),
        A_eq=hstack([balance, no_time]).tocsr(),
        b_eq=net_demand.ravel(),
        method="highs-ipm",
    )
    if solved.status == _INFEASIBLE:
        raise report_unreachable(network)
    if solved.status:
        return None
    amounts = solved.x[:-1].reshape(sources, arcs)
    prices = np.maximum(-solved.ineqlin.marginals, 0.0)
    return Flow(np.maximum(amounts, 0.0), prices)


def report_unreachable(network: FlowNetwork) -> InputError:
    """Create the error for a network on which a share has no path."""
    return InputError(
        f"topology {network.topology.name}: some rank cannot be reached from another one",
        cure="add the missing links, or leave ranks out with --ranks",
        code="unreachable",
    )


def _build_load_matrix(network: FlowNetwork, cost: Float64Array) -> csr_matrix:
    """Build the matrix of the time that a share on an arc occupies a link: float64[links, arcs]."""
    from scipy.sparse import csr_matrix

    links = network.routes.links
    entry = (links, network.arc_of_entry)
    return csr_matrix((cost[links], entry), (len(cost), network.num_arcs))


def _build_incidence(network: FlowNetwork) -> csr_matrix:
    """Build the incidence matrix [NPUs, arcs]: 1 at the destination of an arc, -1 at its source."""
    from scipy.sparse import csr_matrix

    arcs = np.arange(network.num_arcs)
    row = np.concatenate([network.destination, network.source])
    sign = np.repeat([1.0, -1.0], len(arcs))
    entry = (row, np.tile(arcs, 2))
    return csr_matrix((sign, entry), (network.topology.num_npus, len(arcs)))


# Larger values do not converge, because entire trees oscillate between links.
_STEEPNESS = 0.1
# Number of times that the bound of the prices is computed; each costs as much as a phase.
_EVALUATIONS = 10


def approximate_flow(
    network: FlowNetwork, demand: FlowDemand, cost: Float64Array, phases: int
) -> Flow:
    """Compute a flow that approaches the optimum with more phases.

    `cost`: time of one share on every link, float64. The prices are those with the largest bound of
    several evaluations. Raises `InputError` if a target is unreachable.
    """
    # Imported here: numba takes a second.
    from collhub_flows.kernels import run_weighted_phases

    indptr, arcs = csr(network.source, np.arange(network.num_arcs), network.topology.num_npus)
    amounts = np.zeros((len(demand.sources), network.num_arcs))
    load = np.zeros(len(cost))

    def run(steepness: float, count: int) -> None:
        run_weighted_phases(
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

    # A phase without weights gives the load of the busiest link, the unit of the exponent.
    run(0.0, 1)
    steepness = _STEEPNESS / float(load.max())
    amounts[:] = 0.0
    load[:] = 0.0
    best, prices = 0.0, np.ones(len(cost))
    done = 0
    for evaluation in range(1, _EVALUATIONS + 1):
        run(steepness, phases * evaluation // _EVALUATIONS - done)
        done = phases * evaluation // _EVALUATIONS
        current_prices = np.exp(steepness * (load - load.max()))
        bound = compute_proven_time(network, demand, cost, current_prices)
        if bound > best:
            best, prices = bound, current_prices
    # A target without a path has an infinite distance.
    if not np.isfinite(best):
        raise report_unreachable(network)
    return Flow(amounts / phases, prices)


def compute_proven_time(
    network: FlowNetwork, demand: FlowDemand, cost: Float64Array, prices: Float64Array
) -> float:
    """Compute a lower bound of the time of any flow, by weak duality, for non-negative prices.

    It is the sum over all shares of the shortest distance, divided by the sum of prices; the length
    of a link is its price times its cost.
    """
    # Imported here: numba takes a second.
    from collhub_flows.kernels import sum_distances

    indptr, arcs = csr(network.source, np.arange(network.num_arcs), network.topology.num_npus)
    length_of_link = prices * cost
    entries = length_of_link[network.routes.links]
    length: Float64Array = np.bincount(
        network.arc_of_entry, weights=entries, minlength=network.num_arcs
    ).astype(np.float64)
    total = sum_distances(demand.sources, demand.wants, indptr, arcs, network.destination, length)
    return total / float(prices.sum())
