"""The optimal flow of a demand on a network, and the certificate of the bound that it proves.

Arcs lead between NPUs; each is a route over links and, possibly, switches. The demand lists which
NPU sends a share to which other one. The flow is exact by a linear program (HiGHS), or approximate
by multiplicative weights. Both methods return prices of links, which prove a lower bound; anybody
can compute the bound again from the prices in the certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_linear_programs import InfeasibleError, LinearProgram, Matrix, solve

from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    csr,
    expanded_ranges,
    group_of_entry,
    row_pointer,
)
from hub_core.model import Collective, CollectiveKind, InputError, JsonValue
from hub_core.network import Routes, Topology, distance_bounds_ps
from hub_core.plugin_api import BoundRequest, BoundResult, NoOptions, SynthesisRequest
from hub_core.schedules import network_object

# Larger values do not converge, because entire trees oscillate between links.
_STEEPNESS = 0.1


# Number of times that the bound of the prices is computed; each costs as much as a phase.
_EVALUATIONS = 10


KINDS = (
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SCATTER,
    CollectiveKind.GATHER,
    CollectiveKind.ALL_TO_ALL_V,
)


# Operations for each variable of the linear program: HiGHS takes 0.02 s at 14 NPUs (800 variables),
# 0.9 s at 48 (10 000) and up to 6 s at 64 (16 000 to 40 000) (specs of this project's synthesis).
_WORK_PER_VARIABLE = 100_000


# Maximum number of links listed in a certificate, because the file of every rank has a copy.
_MAX_LINKS = 1 << 13


# Prices are integers, so that the check is exact.
_PRICE_SCALE = 10**9


_SAFETY = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class FlowDemand:
    """Demand of shares: `wants[i, t]` from NPU `sources[i]` to NPU t.

    `sources`: int64, ascending. `wants`: bool (one share or none), or float64, [sources, NPUs].
    `parts`: parts of the full buffer, of which an amount of 1 in `wants` has `scale`: for a share
    of an all-to-all 1, in an all-to-all-v the mean of all counts that are not 0.
    """

    sources: Int64Array
    wants: BoolArray | Float64Array
    parts: int = 1
    scale: float = 1.0

    @classmethod
    def of(cls, collective: Collective, npus: Sequence[int], num_npus: int) -> FlowDemand:
        """Build the demand of a collective: the shares that each NPU must send to each other NPU.

        Rank r runs on `npus[r]`. No rank sends to itself. A missing root is rank 0.

        - All-to-all: from every rank to every other rank.
        - Scatter: from the root to every other rank. Gather: from every other rank to the root.
        - With counts (all-to-all-v): the counts divided by `scale`, the mean of all positive counts
          between different ranks (1 if there are none).

        `wants` is a table with one row per NPU that sends anything (`sources`, ascending), and a
        column per NPU. With counts it is float64 and `parts` is the number of units. Otherwise it
        is bool, `parts` the number of ranks and `scale` 1. Raises `InputError`
        (`collective-unsupported`) for any other collective.
        """
        if collective.kind not in KINDS:
            raise InputError(
                f"flows does not support {collective.kind}: not every share has a single target",
                cure="choose all-to-all, all-to-all-v, scatter or gather, or use tacos or blink",
                code="collective-unsupported",
            )
        members = np.asarray(npus, np.int64)
        if collective.counts is not None:
            units = np.zeros((num_npus, num_npus), np.float64)
            units[np.ix_(members, members)] = collective.counts.table
            np.fill_diagonal(units, 0.0)
            sources = np.flatnonzero(units.any(axis=1))
            scale = float(units[units > 0].mean()) if len(sources) else 1.0
            return cls(sources, units[sources] / scale, collective.unit_count, scale)
        table = np.zeros((num_npus, num_npus), np.bool_)
        senders = receivers = members
        if collective.kind is CollectiveKind.SCATTER:
            senders = members[[collective.root or 0]]
        if collective.kind is CollectiveKind.GATHER:
            receivers = members[[collective.root or 0]]
        table[np.ix_(senders, receivers)] = True
        np.fill_diagonal(table, False)
        sources = np.flatnonzero(table.any(axis=1))
        return cls(sources, table[sources], collective.kind.traits.parts(collective.num_ranks))

    @property
    def parts_of_shares(self) -> Int64Array:
        """Number of parts of every share, int64[shares], in the order of `pairs`."""
        return np.rint(self.wants[np.nonzero(self.wants)] * self.scale).astype(np.int64)

    @property
    def is_uneven(self) -> bool:
        """True if shares have different numbers of parts. There must be a share."""
        return bool(np.ptp(self.parts_of_shares))

    @property
    def pairs(self) -> tuple[Int64Array, Int64Array]:
        """Return source and target NPU of every share, the data of one source for one target.

        Two int64 arrays, sorted by source, then target.
        """
        row, target = np.nonzero(self.wants)
        return self.sources[row], target


@dataclass(frozen=True, slots=True, eq=False)
class FlowArcs:
    """Arcs from NPU `source[a]` to NPU `destination[a]`, int64 columns.

    The route of arc a is the links `routes.links[routes.indptr[a]:routes.indptr[a + 1]]` of
    `topology`; it does not pass through any NPU. Several arcs may use the same link.
    """

    topology: Topology
    source: Int64Array
    destination: Int64Array
    routes: Routes

    @classmethod
    def of(cls, topology: Topology) -> FlowArcs:
        """Build the network for flows: an arc between every two NPUs that are connected directly.

        Without switches, the candidates are the pairs with a link, each once; with switches, all
        ordered pairs of different NPUs. A pair is an arc if its route (`Topology.routes`, which
        simulators use) passes through no other NPU. Arcs are sorted by source, then destination.
        Raise `InputError` (`disconnected`) if the topology has switches and an NPU cannot reach
        another one.
        """
        npus = topology.num_npus
        if topology.num_nodes == npus:
            # Pairs that a link connects, each once.
            key = topology.source * topology.num_nodes + topology.destination
            source, destination = np.divmod(np.unique(key), topology.num_nodes)
        else:
            source, destination = np.nonzero(~np.eye(npus, dtype=np.bool_))
        # Simulators use these routes, so a flow on other routes could not be executed.
        routes = topology.routes(source, destination)
        # Routes that enter another NPU than the destination are combinations of the other arcs.
        is_at_npu = topology.destination[routes.links] < npus
        arc = group_of_entry(routes.indptr)
        visits = np.bincount(arc[is_at_npu], minlength=len(source))
        direct = np.flatnonzero(visits == 1)
        first = routes.indptr[direct]
        lengths = routes.indptr[direct + 1] - first
        links = routes.links[expanded_ranges(first, lengths)]
        direct_routes = Routes(row_pointer(lengths), links)
        return cls(topology, source[direct], destination[direct], direct_routes)

    @property
    def num_arcs(self) -> int:
        """Number of arcs."""
        return len(self.source)

    @property
    def arc_of_entry(self) -> Int64Array:
        """Arc of every entry of `routes.links`, int64."""
        return group_of_entry(self.routes.indptr)


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """A flow and the prices that bound it.

    `amounts[i, a]`: shares of source i on arc a, float64. `prices`: non-negative dual variable of
    every link, float64, from which a lower bound follows.
    """

    amounts: Float64Array
    prices: Float64Array


def solve_exact_flow(network: FlowArcs, demand: FlowDemand, cost: Float64Array) -> Flow | None:
    """Compute the flow with the minimum time of the busiest link, by linear programming.

    All shares (data from one NPU to another) of a source are one commodity, which may be divided
    among routes. `cost`: time of one share on every link, float64[links], not all 0; only their
    ratios matter. The result has the amounts by source and arc in shares, float64[sources, arcs],
    and the prices of links, float64[links]. The prices are dual variables of a program in which
    costs are divided by their mean. Amounts and prices are at least 0. Returns None if the solver
    ends without an optimal solution. Raises `InputError` (`unreachable`) if a target is
    unreachable.
    """
    sources, arcs = len(demand.sources), network.num_arcs
    net_demand = demand.wants.astype(np.float64)
    # The row of the source follows from the rows of its targets; it is redundant.
    net_demand[np.arange(sources), demand.sources] -= net_demand.sum(axis=1)
    # The time is the last variable.
    costs = np.zeros(sources * arcs + 1)
    costs[-1] = 1.0
    program = LinearProgram(
        costs,
        _build_matrix(network, sources, cost / float(cost.mean())),
        row_lower=np.concatenate([np.full(len(cost), -np.inf), net_demand.ravel()]),
        row_upper=np.concatenate([np.zeros(len(cost)), net_demand.ravel()]),
        upper=np.full(len(costs), np.inf),
    )
    try:
        solution = solve(program, method="ipm")
    except InfeasibleError:
        raise report_unreachable(network) from None
    if solution is None:
        return None
    amounts = solution.values[:-1].reshape(sources, arcs)
    prices = np.maximum(-solution.row_prices[: len(cost)], 0.0)
    return Flow(np.maximum(amounts, 0.0), prices)


def balance_paths(
    network: FlowArcs,
    share: Int64Array,
    part: Float64Array,
    arcs_of_paths: tuple[Int64Array, Int64Array],
    cost: Float64Array,
) -> Float64Array:
    """Divide the shares anew among their paths, so that the time of the busiest link is minimal.

    A share is a part of the data that is sent along several paths. For every path, `share` has the
    number of the share that it carries (int64, from 0) and `part` how much of it (float64; 1 is an
    entire share). `arcs_of_paths`: (path, arc) columns with one entry per arc of a path. An arc is
    a route over one or more links. If several arcs of a path use one link, the path uses it that
    many times. `cost`: time of one share on every link, not all 0.

    Returns the new amounts, float64 by path, at least 0; their sum per share is unchanged. Returns
    `part` itself if the solver ends without an optimal solution.
    """
    paths, links, shares = len(share), len(cost), int(share.max(initial=-1)) + 1
    path, arc = arcs_of_paths
    lengths = np.diff(network.routes.indptr)[arc]
    link = network.routes.links[expanded_ranges(network.routes.indptr[arc], lengths)]
    # A path may use a link on several arcs.
    used, times = np.unique(link * paths + np.repeat(path, lengths), return_counts=True)
    link, path = np.divmod(used, paths)
    # A row per link: its time for all parts, minus the time (the last column); a row per share.
    entries = (
        (link, path, times * (cost / cost.mean())[link]),
        (np.arange(links), np.full(links, paths), np.full(links, -1.0)),
        (links + share, np.arange(paths), np.ones(paths)),
    )
    rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    total = np.bincount(share, part, minlength=shares)
    costs = np.zeros(paths + 1)
    costs[-1] = 1.0
    program = LinearProgram(
        costs,
        Matrix(rows, columns, values, links + shares, paths + 1),
        row_lower=np.concatenate([np.full(links, -np.inf), total]),
        row_upper=np.concatenate([np.zeros(links), total]),
        upper=np.full(paths + 1, np.inf),
    )
    solution = solve(program, method="ipm")
    return part if solution is None else np.maximum(solution.values[:-1], 0.0)


def approximate_flow(
    network: FlowArcs, demand: FlowDemand, cost: Float64Array, phases: int
) -> Flow:
    """Compute an approximate optimal flow, and prices of the links.

    In each of `phases` (at least 1) phases, every source sends its entire demand along a tree of
    shortest paths. The length of a link is its `cost` (time of one share) times a factor. The
    factor grows exponentially with the load of the link; it is computed anew for each source.

    - Amounts: the mean of all phases, in shares, float64[sources, arcs]. More phases are closer to
      the optimum.
    - Prices: the factors, divided by the largest one. They are examined after each tenth of the
      phases. Those with the largest proven bound are returned, the first if equal, or all 1 if no
      bound is above 0.

    Raises `InputError` (`unreachable`) for an unreachable target, and `ZeroDivisionError` if all
    links in use have a `cost` of 0.
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
    network: FlowArcs, demand: FlowDemand, cost: Float64Array, prices: Float64Array
) -> float:
    """Compute a lower bound of the time of any flow from non-negative prices of links (duality).

    The length of a link is price * cost. The bound is the sum of the shortest distances of all
    shares (data from one NPU to another), each times its amount, divided by the sum of the prices.
    `cost`: time of one share on every link; the result has its unit. It is infinite if a target is
    unreachable. `prices` must not be all zero.
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


def prove(request: BoundRequest, options: NoOptions) -> BoundResult:
    """Compute lower bounds of the time, for all sizes of the request, from prices of links.

    The result has integers in ps, one per size, in the order of the sizes. Prices are the dual
    variables of the optimal flow on the routes of simulators. They bound flows on any routes and do
    not depend on the size. The result is empty in the first of these cases:

    - The topology has several planes.
    - No rank sends data to another one.
    - Sources times arcs times `_WORK_PER_VARIABLE` exceed the allowed work. Arcs are the links, or
      with switches the square of the number of NPUs.
    - The solver fails, or all prices are 0.

    On one plane, raises `InputError` for collectives without a flow (`collective-unsupported`) and
    if an NPU cannot be reached.
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
    network = FlowArcs.of(topology)
    flow = solve_exact_flow(network, demand, 1.0 / topology.bandwidth_bytes_per_s)
    if flow is None or not flow.prices.any():
        return BoundResult()
    length = flow.prices / topology.bandwidth_bytes_per_s
    times = distance_bounds_ps(
        collective, topology, request.sizes, request.npus, length / length.max()
    )
    return BoundResult(tuple(int(time) for time in times))


@dataclass(frozen=True, slots=True)
class FlowCertificate:
    """Lower bound in nanoseconds and the document that proves it."""

    bound_ns: int
    document: dict[str, JsonValue]


def certify_flow(
    network: FlowArcs, demand: FlowDemand, flow: Flow, request: SynthesisRequest
) -> FlowCertificate:
    """Compute the lower bound that the link prices of a flow prove for any routes.

    Prices are divided by the largest one, multiplied by `_PRICE_SCALE` and rounded to integers; of
    parallel links only the first counts. The length of a link is price / bandwidth. The bound is
    the sum over all shares (data from one NPU to another) of bytes times shortest distance, divided
    by the sum of the integer prices. It is in ns, reduced by the relative `_SAFETY` and rounded
    down; 0 if all prices are 0. All targets must be reachable.

    The certificate is a JSON object: collective, NPUs of the ranks, size, parts, bound, network,
    and root and counts if the collective has them. Its `prices` are [source, destination, price] of
    the links with a price other than 0. The network lists its links only if there are at most
    `_MAX_LINKS`.
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
    collective, parts = request.collective, demand.parts
    bytes_per_want = request.collective_bytes / parts * demand.scale
    bound_s = bytes_per_want * total / max(int(prices.sum()), 1)
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
    if collective.counts is not None:
        document["counts"] = collective.counts.table.tolist()
    # Links without a price do not contribute to the bound.
    priced = np.flatnonzero(prices)
    table = np.stack([source[priced], destination[priced], prices[priced]], axis=1)
    document["prices"] = table.tolist()
    return FlowCertificate(bound_ns, document)


def report_unreachable(network: FlowArcs) -> InputError:
    """Return (do not raise) the error `unreachable` for a network on which a share has no path."""
    return InputError(
        f"topology {network.topology.name}: some rank cannot be reached from another one",
        cure="add the missing links, or leave ranks out with --ranks",
        code="unreachable",
    )


def _build_matrix(network: FlowArcs, sources: int, cost: Float64Array) -> Matrix:
    """Build the matrix of the linear program for the optimal flow.

    `cost`: time of a share on each link. Column i * arcs + a is the amount of source i on arc a,
    for `sources` sources. The last column is the time. The rows are:

    1. One per link, in link order: the sum of all amounts on arcs whose route has the link, times
       its `cost`, minus the time.
    2. One per source i and NPU v, in row links + i * NPUs + v: the amount of source i that enters v
       minus the amount that leaves v.
    """
    links, arcs, npus = len(cost), network.num_arcs, network.topology.num_npus
    source = np.arange(sources)[:, None]
    uses = network.routes.links
    load_columns = (source * arcs + network.arc_of_entry).ravel()
    of_source = links + source * npus
    amounts = np.arange(sources * arcs)
    entries = (
        (np.tile(uses, sources), load_columns, np.tile(cost[uses], sources)),
        (np.arange(links), np.full(links, sources * arcs), np.full(links, -1.0)),
        ((of_source + network.destination).ravel(), amounts, np.ones(len(amounts))),
        ((of_source + network.source).ravel(), amounts, np.full(len(amounts), -1.0)),
    )
    rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    return Matrix(rows, columns, values, links + sources * npus, sources * arcs + 1)
