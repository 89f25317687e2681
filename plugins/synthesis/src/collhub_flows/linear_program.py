"""Exact flow: the linear program per source, by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collhub_flows.demand import FlowDemand
from collhub_flows.network import FlowNetwork
from hub_core.columns import Float64Array
from hub_core.model import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# scipy's number for a problem without solution.
_INFEASIBLE = 2


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """`amounts[i, a]`: shares of source i on arc a, float64; `prices`: of every link, float64.

    `prices` are not negative: the dual of the problem, from which a bound follows.
    """

    amounts: Float64Array
    prices: Float64Array


def exact_flow(network: FlowNetwork, demand: FlowDemand, cost: Float64Array) -> Flow | None:
    """Flow whose fullest link takes least time.

    `cost`: time of one share on every link, float64. Variables: sources times arcs, and the time.
    The flows of a source are one commodity, since their shares are told apart only by the target
    (source-aggregated multicommodity flow). None where the solver gives up;
    raises `InputError` where a target is out of reach.
    """
    # scipy takes half a second.
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix, eye, hstack, kron

    sources, arcs = len(demand.sources), network.num_arcs
    scale = float(cost.mean())
    loads = _load_matrix(network, cost / scale)
    # The time is the last variable.
    objective = np.zeros(sources * arcs + 1)
    objective[-1] = 1.0
    minus_time = csr_matrix(-np.ones((len(cost), 1)))
    limits = hstack([kron(np.ones((1, sources)), loads), minus_time])
    balance = kron(eye(sources), _incidence(network))
    no_time = csr_matrix((balance.shape[0], 1))
    wanted = demand.wants.astype(np.float64)
    # What a source gives is implied by what all others keep; the row stays as a check.
    wanted[np.arange(sources), demand.sources] -= wanted.sum(axis=1)
    solved = linprog(
        objective,
        A_ub=limits.tocsr(),
        b_ub=np.zeros(len(cost)),
        A_eq=hstack([balance, no_time]).tocsr(),
        b_eq=wanted.ravel(),
        method="highs-ipm",
    )
    if solved.status == _INFEASIBLE:
        raise unreachable(network)
    if solved.status:
        return None
    amounts = solved.x[:-1].reshape(sources, arcs)
    prices = np.maximum(-solved.ineqlin.marginals, 0.0)
    return Flow(np.maximum(amounts, 0.0), prices)


def unreachable(network: FlowNetwork) -> InputError:
    """Refusal of a network on which some share has no way."""
    return InputError(
        f"topology {network.topology.name}: some rank cannot be reached from another one",
        cure="add the missing links, or leave ranks out with --ranks",
        code="unreachable",
    )


def _load_matrix(network: FlowNetwork, cost: Float64Array) -> csr_matrix:
    """Time that a share on every arc takes of every link: float64[links, arcs]."""
    from scipy.sparse import csr_matrix

    links = network.routes.links
    place = (links, network.arc_of_entry)
    return csr_matrix((cost[links], place), (len(cost), network.num_arcs))


def _incidence(network: FlowNetwork) -> csr_matrix:
    """What an arc brings to each NPU, 1, and takes from it, -1: float64[NPUs, arcs]."""
    from scipy.sparse import csr_matrix

    arcs = np.arange(network.num_arcs)
    row = np.concatenate([network.destination, network.source])
    sign = np.repeat([1.0, -1.0], len(arcs))
    place = (row, np.tile(arcs, 2))
    return csr_matrix((sign, place), (network.topology.num_npus, len(arcs)))
