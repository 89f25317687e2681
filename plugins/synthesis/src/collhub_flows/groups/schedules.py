"""Find the fastest joint schedule of several groups by packing trees, and bounds on its time.

Packing grows every tree again with lengths that depend on the load of links, round after round. The
lower bounds on the joint time of all groups hold for any algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from collhub_flows.groups.jobs import GroupSchedule, TreeJobs
from collhub_flows.groups.shares import GroupWish, Pieces, Shares, Trees
from collhub_flows.optimal_flow import (
    FlowArcs,
    approximate_flow,
    compute_proven_time,
    report_unreachable,
    solve_exact_flow,
)
from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    csr,
    expanded_ranges,
    inverse,
    row_pointer,
)
from hub_core.model import InputError
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SearchBudget

_ROUNDS = 6


_STEEPNESS = 10.0


# Passes forward and backward; the gain of later ones is negligible.
_PASSES = 4


_TREES_EACH = (1, 4, 16)


_PARTS = (1, 2, 4, 8, 16)


# Below this effort, every other number of parts is skipped, and only one pass is made.
_HASTE = 1 / 16


# Maximum number of nodes visited by all searches, about ten seconds.
_MAX_VISITS = 60_000_000


_MAX_JOBS = 500_000


# Minimum limit of jobs at low effort: with fewer jobs, deep pipelines would have too few pieces.
_MIN_JOB_LIMIT = 30_000


# Maximum number of units of a group in divided shares; larger algorithms are not verified.
_MAX_UNITS = 1 << 22


# Maximum size of the tables of trees, which have a column per NPU.
_MAX_ENTRIES = 60_000_000


# Ratio of time to the load of the busiest link below which finer pieces are not tried.
_GOOD_RATIO = 1.01


_PS = 1e12


# Relative reduction of bounds that covers the rounding errors of floating-point sums.
_SAFETY = 1e-9


_MAX_EXACT_ARCS = 40_000


_PHASES = 60


# Maximum number of NPUs whose surrounding balls are evaluated as cuts.
_MAX_CENTRES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class OccupiedNetwork:
    """The network of all groups, and the model of the occupancy of links."""

    flows: FlowArcs
    occupancy: Occupancy


def find_fastest_schedule(
    network: OccupiedNetwork,
    wishes: Sequence[GroupWish],
    effort: float = 1.0,
    budget: SearchBudget | None = None,
) -> GroupSchedule:
    """Search for the joint schedule of all groups with the minimum planned time.

    A share is the data of a group with one root. It is divided into 1, 4 and 16 pieces with
    own trees, each of these into 1, 2, 4, 8 and 16 parts. The first of the fastest schedules
    is returned. Except for the first combination, further parts are skipped:
    - if pieces are too fine (`_is_too_fine`), or above 500 000 x `effort` messages (30 000
      are always allowed)
    - after a time of at most 1.01 x the load of the busiest link

    `effort` below 1/16 tries less. At a limit of `budget` (arcs of trees), its `is_reached`
    is set, and the best so far is returned. Raises `InputError` for too many shares
    (`too-large`) and unreachable members (`unreachable`).
    """
    budget = budget or SearchBudget()
    shares = Shares.of(wishes)
    best: GroupSchedule | None = None
    best_ps = 0
    is_hasty = effort < _HASTE
    max_jobs = max(_MIN_JOB_LIMIT, effort * _MAX_JOBS)
    ladder = _PARTS[::2] if is_hasty else _PARTS
    for trees in _generate_packings(network, wishes, shares, effort):
        for parts in ladder:
            cut = trees.cut(parts)
            is_fine = _is_too_fine(wishes, shares, cut.pieces.share_units)
            if best is not None and (is_fine or len(cut.arcs) > max_jobs):
                break
            jobs = TreeJobs.of(network.flows, cut, shares.bytes, network.occupancy)
            start = min(jobs.orders(passes=1 if is_hasty else _PASSES), key=jobs.time_ps)
            time_ps = jobs.time_ps(start)
            if best is None or time_ps < best_ps:
                best = GroupSchedule(network.flows, shares, cut, jobs, start)
                best_ps = time_ps
            budget.count(len(cut.arcs))
            if budget.reason:
                budget.is_reached = True
                return best
            # Finer pieces only shorten the filling and draining of pipelines.
            if time_ps <= _GOOD_RATIO * jobs.bound_ps():
                break
    assert best is not None
    return best


def _is_too_fine(wishes: Sequence[GroupWish], shares: Shares, share_units: int) -> bool:
    """Return whether the shares of the groups are too small to be divided into `share_units` units.

    True in each of these cases:

    - The smallest share of all groups has fewer than `share_units` bytes.
    - The units of a group must be divided (`GroupWish.find_factor` above 1), and its shares would
      then have more than `_MAX_UNITS` (2^22) units in total, too many to verify its algorithm.
    - The units of a group must be divided, and the full buffer would then have more units than
      bytes.
    """
    if share_units > shares.bytes.min():
        return True
    factors = ((wish, wish.find_factor(share_units)) for wish in wishes)
    return any(
        factor > 1
        and (
            int(wish.share_counts.sum()) * factor > _MAX_UNITS
            or wish.total_units * factor > wish.size
        )
        for wish, factor in factors
    )


def pack_trees(
    network: FlowArcs, wishes: Sequence[GroupWish], shares: Shares, pieces_each: int
) -> Trees:
    """Pack trees that load the links evenly, for `pieces_each` equal pieces of every share.

    A share is a part of a group's data; there must be at least one. Pieces are numbered by
    share, those of a share one after the other. Returns the trees sorted by piece. A piece that
    is only summed has one inward tree (towards the root of its share). A piece that is only
    distributed has one outward tree. A piece that is summed and then distributed has both, the
    inward one first.

    A tree joins the root with all members of the group. If the share is not summed and has a
    single target, it joins the root with this target only. In each of 6 rounds every tree is
    built again, with link lengths that grow with the load. The round with the smallest maximum
    load (in s) is returned, the first of equal ones. The result is deterministic.

    Raises `InputError` `unreachable` if the network has no arcs, or if a root and one of its
    members are not connected in the direction of the data.
    """
    # Imported here, because the import of numba takes a second.
    from collhub_flows.groups.kernels import pack

    if not network.num_arcs:
        raise report_unreachable(network)
    count = len(shares) * pieces_each
    share = np.repeat(np.arange(len(shares)), pieces_each)
    pieces = Pieces.one_behind_another(share, np.ones(count, np.int64), pieces_each)
    piece, inward = _assign_trees(shares, share)
    of_tree = share[piece]
    target_indptr, targets = _list_targets(wishes, shares, of_tree)
    nodes = network.topology.num_npus
    all_arcs = np.arange(network.num_arcs)
    size, arcs, parent = pack(
        shares.root[of_tree],
        inward,
        shares.bytes[of_tree] / pieces_each,
        target_indptr,
        targets,
        *csr(network.source, all_arcs, nodes),
        *csr(network.destination, all_arcs, nodes),
        network.source,
        network.destination,
        network.routes.indptr,
        network.routes.links,
        1.0 / network.topology.bandwidth_bytes_per_s,
        _ROUNDS,
        _STEEPNESS,
    )
    if size.min() < 0:
        raise report_unreachable(network)
    indptr = row_pointer(size)
    # Rows of the tables have the maximum length of a tree; only the used entries are copied.
    used = expanded_ranges(np.arange(len(size)) * nodes, size)
    local = parent.ravel()[used]
    shift = np.repeat(indptr[:-1], size)
    global_parent = np.where(local < 0, -1, local + shift)
    return Trees(pieces, piece, inward, indptr, arcs.ravel()[used], global_parent)


def compute_joint_bounds(
    network: FlowArcs, wishes: Sequence[GroupWish], shares: Shares
) -> dict[str, int]:
    """Compute lower bounds of the time in which all groups together finish, in ps, by name.

    A share is a part of a group's data; there must be at least one. It goes from its givers to its
    takers. Givers: all members of the group if the share is summed, else its root. Takers: the
    target of the share if it has one, else all members.

    - `cut`: bytes that must leave a set of nodes, divided by the bandwidth that leaves it. It is
      the maximum over the sets that `cut_seconds` tries (nodes by distance from one NPU).
    - `latency`: the largest latency of a shortest path from a giver to a taker of a share.
    - `flow`, only if no share is summed and each has one target: the time that link prices prove
      for a joint flow. Prices are approximate above 40 000 sources * arcs, or if the solver fails.

    Each bound is multiplied by 1 - 1e-9 and rounded down. If a giver cannot reach a taker, raises
    `InputError` (`unreachable`) where `flow` is computed, else `OverflowError`.
    """
    endpoints = _Ends.of(wishes, shares)
    # Compute the maximum latency of the shortest paths from givers to takers.
    distance = _find_distances(network.topology, network.topology.latency_s)
    worst = 0.0
    for share in range(len(endpoints.giver_indptr) - 1):
        givers = endpoints.givers[endpoints.giver_indptr[share] : endpoints.giver_indptr[share + 1]]
        takers = endpoints.takers[endpoints.taker_indptr[share] : endpoints.taker_indptr[share + 1]]
        worst = max(worst, float(distance[np.ix_(givers, takers)].max()))
    bounds_s = {
        "cut": cut_seconds(network.topology, endpoints, shares.bytes),
        "latency": worst,
    }
    if shares.are_pairs:
        # Compute a lower bound of the time of a joint flow of all pairs, by the prices of its dual.
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
        bounds_s["flow"] = time * unit_bytes / float(bandwidth.min())
    return {name: int(value * _PS * (1.0 - _SAFETY)) for name, value in bounds_s.items()}


def cut_seconds(topology: Topology, endpoints: _Ends, size: Float64Array) -> float:
    """Compute a lower bound of the joint time in s from cuts of the network.

    A share with a giver inside a set of nodes and a taker outside must leave the set at least
    once. The bound of a set is the sum of the bytes of these shares, divided by the total
    bandwidth of the links that leave the set. The result is the maximum over these sets: for
    each of the first 1024 NPUs (`_MAX_CENTRES`), order all nodes by the number of links from
    the NPU, equal ones by node number, unreachable ones last. The sets are all prefixes of this
    order and their complements.

    Sets without a link out, and sets that no share has to leave, give no bound. 0 if no set
    gives one. `endpoints`: givers and takers of every share, at least one each. `size`: bytes
    of every share.
    """
    hops = _find_distances(topology, np.ones(topology.num_links))
    best = 0.0
    for row in hops[:_MAX_CENTRES]:
        order = np.argsort(row, kind="stable")
        position = inverse(order)
        for positions in (position, len(order) - 1 - position):
            # Compute the maximum time of the prefixes of an order; `position`: of every node in it.
            first = np.minimum.reduceat(positions[endpoints.givers], endpoints.giver_indptr[:-1])
            last = np.maximum.reduceat(positions[endpoints.takers], endpoints.taker_indptr[:-1])
            crossing = _count_leaving(first, last, size, len(positions))
            start, end = positions[topology.source], positions[topology.destination]
            bandwidth = _count_leaving(start, end, topology.bandwidth_bytes_per_s, len(positions))
            # Sets that no share has to leave, and sets without links, give no bound.
            known = (crossing > 0) & (bandwidth > 0)
            best = max(best, float((crossing[known] / bandwidth[known]).max(initial=0.0)))
    return best


def _assign_trees(shares: Shares, share: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Return the trees that the pieces of data need, as (piece, whether it leads inward) of each.

    `share`: share of every piece. A piece has an inward tree, which sums it at the root, if its
    share has `gathers`, and an outward tree, which distributes it from the root, if its share
    has `spreads`. Trees are sorted by piece; if a piece has both, the inward one comes first.
    int64[trees] and bool[trees].
    """
    inward = np.flatnonzero(shares.gathers[share])
    outward = np.flatnonzero(shares.spreads[share])
    piece = np.concatenate([inward, outward])
    is_inward = np.arange(len(piece)) < len(inward)
    # Both trees of a piece are adjacent, the inward one first.
    order = np.lexsort((~is_inward, piece))
    return piece[order], is_inward[order]


def _list_targets(
    wishes: Sequence[GroupWish], shares: Shares, of_tree: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the NPUs that each tree must reach: row pointers by tree, and entries.

    `of_tree`: share of every tree; at least one tree.

    - If the share has a single target (not -1) and is no sum (`gathers`), this is the
      target.
    - Otherwise these are all members of the share's group, in their order.

    The root of the share is left out in both cases, so a row may be empty.
    """
    rows = []
    for share in of_tree.tolist():
        target = int(shares.target[share])
        npus = wishes[int(shares.group[share])].npus
        if target >= 0 and not shares.gathers[share]:
            npus = (target,)
        root = int(shares.root[share])
        rows.append([npu for npu in npus if npu != root])
    lengths = [len(row) for row in rows]
    return row_pointer(lengths), np.concatenate(rows).astype(np.int64)


def _generate_packings(
    network: OccupiedNetwork, wishes: Sequence[GroupWish], shares: Shares, effort: float
) -> Iterator[Trees]:
    """Yield packings of trees of all shares (`pack_trees`), with 1, 4 and 16 pieces per share.

    The packing with 1 piece per share is always yielded first. The generator ends before a packing
    with n > 1 pieces per share in these cases:

    - shares * n * NPUs * 6, an estimate of the visited nodes, exceeds 60 000 000 * `effort`.
    - A piece of the smallest share would be below one byte.
    - The units of a group must be divided, and are then too many (`_is_too_fine`): more than 2^22,
      or more than the bytes of its buffer.
    - n is 16 and `effort` is below 1/16.

    Raises `InputError` `too-large` if 2 * shares * NPUs exceeds 60 000 000 (`_MAX_ENTRIES`). The
    error `unreachable` of `pack_trees` passes through.
    """
    npus = network.flows.topology.num_npus
    if 2 * len(shares) * npus > _MAX_ENTRIES:
        raise InputError(
            f"{len(shares)} shares on {npus} NPUs are too many to schedule together",
            cure="name fewer or smaller groups",
            code="too-large",
        )
    ladder = _TREES_EACH[:-1] if effort < _HASTE else _TREES_EACH
    for count in ladder:
        visits = len(shares) * count * npus * 6
        is_long = visits > effort * _MAX_VISITS
        if count > 1 and (is_long or _is_too_fine(wishes, shares, count)):
            return
        yield pack_trees(network.flows, wishes, shares, count)


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """Contributors and receivers of each share: tables of NPUs by rows, int64."""

    giver_indptr: Int64Array
    givers: Int64Array
    taker_indptr: Int64Array
    takers: Int64Array

    @classmethod
    def of(cls, wishes: Sequence[GroupWish], shares: Shares) -> _Ends:
        """List for every share the NPUs that have its data (givers) and need it (takers).

        `wishes`: the groups of NPUs. Givers are all members of the share's group for a sum, else
        the share's root. Takers are all members, or the single target if the share has one (not
        -1). Both are tables of NPUs by share, as pointer and entries, int64.
        """
        givers, takers = [], []
        for share in range(len(shares)):
            members = wishes[int(shares.group[share])].npus
            root, target = int(shares.root[share]), int(shares.target[share])
            givers.append(members if shares.gathers[share] else (root,))
            takers.append(members if target < 0 else (target,))
        return cls(*_create_table(givers), *_create_table(takers))


def _create_table(rows: Sequence[Sequence[int]]) -> tuple[Int64Array, Int64Array]:
    """Convert lists to (row pointers, concatenated entries), both int64.

    List i has the entries from pointer i to pointer i + 1. At least one list is needed.
    """
    lengths = [len(row) for row in rows]
    return row_pointer(lengths), np.concatenate(rows).astype(np.int64)


def _count_leaving(
    first: Int64Array, last: Int64Array, weight: Float64Array, nodes: int
) -> Float64Array:
    """Compute how much weight leaves each prefix of an order of nodes: float64[nodes + 1].

    Entry s belongs to the first s nodes of the order, so entry 0 is 0. Row i, with `weight[i]`,
    leaves them if `first[i]` < s <= `last[i]` (positions in the order). Sums below 1e-9 of the
    total weight are set to 0, because they are rounding errors.
    """
    rows = np.flatnonzero(first < last)
    gained = np.bincount(first[rows] + 1, weight[rows], nodes + 1)
    lost = np.bincount(last[rows] + 1, weight[rows], nodes + 2)
    covered: Float64Array = np.cumsum(gained - lost[: nodes + 1])
    # Differences of large sums: small remainders are rounding errors of 0.
    covered[covered < 1e-9 * weight.sum()] = 0.0
    return covered


def _find_distances(topology: Topology, length: Float64Array) -> Float64Array:
    """Compute the length of the shortest path from every NPU to every node, float64[NPUs, nodes].

    `length`: per link, at least 0. The distance of an NPU to itself is 0. Unreachable nodes are
    infinite.
    """
    # Imported here: numba takes a second.
    from collhub_flows.kernels import find_distances

    indptr, links = csr(topology.source, np.arange(topology.num_links), topology.num_nodes)
    sources = np.arange(topology.num_npus)
    return find_distances(sources, indptr, links, topology.destination, length)
