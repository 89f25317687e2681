"""The lower bound that the optimal flow of a collective proves, for `simulate` and `compare`."""

from __future__ import annotations

from collhub_flows.demand import FlowDemand
from collhub_flows.linear_program import exact_flow
from collhub_flows.network import FlowNetwork
from hub_core.network import distance_bounds_ps
from hub_core.plugin_api import BoundRequest, BoundResult, NoOptions

# Operations for each variable of the linear program: HiGHS takes 0.02 s at 14 NPUs (800 variables),
# 0.9 s at 48 (10 000) and up to 6 s at 64 (16 000 to 40 000) (specs of this project's synthesis).
_WORK_PER_VARIABLE = 100_000


def prove(request: BoundRequest, options: NoOptions) -> BoundResult:
    """The bound by the prices of the links, duals of the flow whose fullest link takes least time.

    The flow is one over the routes of simulators; the prices bound the flows over all routes. They
    depend on no size. Empty for more variables than the work allows, and without a solution.
    """
    topology, collective = request.topology, request.collective
    if topology.num_planes > 1:
        return BoundResult()
    npus = request.npus or tuple(range(collective.num_ranks))
    demand = FlowDemand.of(collective, npus, topology.num_npus)
    sources = len(demand.sources)
    # At most all pairs of NPUs over switches, else one arc a link.
    has_switches = topology.num_nodes > topology.num_npus
    arcs = topology.num_npus**2 if has_switches else topology.num_links
    if not sources or sources * arcs * _WORK_PER_VARIABLE > request.max_work:
        return BoundResult()
    network = FlowNetwork.of(topology)
    flow = exact_flow(network, demand, 1.0 / topology.bandwidth_bytes_per_s)
    if flow is None or not flow.prices.any():
        return BoundResult()
    length = flow.prices / topology.bandwidth_bytes_per_s
    times = distance_bounds_ps(
        collective, topology, request.sizes, request.npus, length / length.max()
    )
    return BoundResult(tuple(int(time) for time in times))
