"""Cuts in time and evacuation bounds: proofs that data cannot be at a node before an instant.

A time tau(v) for every node divides all pairs (node, instant) into those before tau(v) and those
from tau(v) on. Data that start at a node u with tau(u) <= 0 and must reach a node w with the
largest tau(w) = T can cross before T only by a message that leaves some u at tau(u) or later and
arrives at v before tau(v). Link l from u to v carries at most ceil((tau(v) - tau(u) - arrival(l)) /
busy(l)) such messages. If these are fewer than the messages that must cross, no algorithm finishes
before T. Minimum cuts of time-expanded networks are such cuts (Ford and Fulkerson, Operations
Research 6, 1958), and so are cuts of the network itself.

The evacuation bound is for all-gathers on equal links. In the time-expanded network every link is
an arc from (u, t) to (v, t + lag) with capacity 1, and waiting is an arc to the next step. A
maximum flow from the origins to (d, T) is the maximum number of chunks that can be at d by step T;
all chunks must be there, for every d. This covers ingress, distances and all cuts at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_packing.flows import Cut, FlowNetwork

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.lower_bounds import (
    CollectiveDemand,
    LinkGroups,
    build_exits,
    list_known_sets,
)
from collhub_tacos.symmetry import ShortestPaths, transpose_network
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Collective, CollectiveKind
from hub_core.schedules import Chunks

# Collectives in which all data that leave a set must reach each member outside it.
_TO_EACH = frozenset(
    {CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST, CollectiveKind.ALL_REDUCE}
)
_MIRRORED = {
    CollectiveKind.REDUCE_SCATTER: CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE: CollectiveKind.BROADCAST,
}
_UNREACHABLE_PS = 1 << 60
# Number of latest cuts that are tried with each node later than all others.
_MAX_RAISED_CUTS = 6

MAX_CUT_CELLS = 1 << 16
"""Nodes times links up to which `find_tightest_cut` takes about a second."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeCut:
    """Cut in time: from `since_ps[v]` on (int64[nodes]) node v is on the far side.

    The maximum is the time of the bound.
    """

    since_ps: Int64Array

    @property
    def time_ps(self) -> int:
        """Lower bound of the collective in picoseconds."""
        return int(self.since_ps.max(initial=0))

    @property
    def reversed(self) -> TimeCut:
        """Cut of the time-reversed collective on the transposed network."""
        return TimeCut(self.time_ps - self.since_ps)

    def with_later(self, node: int, since_ps: int) -> TimeCut:
        """Return a copy of the cut in which `node` is on the far side from `since_ps` on.

        The previous time of the node is replaced, also by an earlier one.
        """
        since = self.since_ps.copy()
        since[node] = since_ps
        return TimeCut(since)

    def count_possible(self, network: LinkNetwork, times: LinkTimes) -> int:
        """Return the largest number of messages that can cross the cut.

        A message crosses if it starts at or after the time `since_ps` of its source, and
        arrives before that of its destination. Link l from u to v adds (since[v] - since[u] -
        arrival[l]) / busy[l], rounded up, or 0 if this is negative. `busy` must be above 0.
        """
        begin, end = self.since_ps[network.source], self.since_ps[network.destination]
        crossing = -((begin + times.arrival - end) // times.busy)
        return int(np.maximum(crossing, 0).sum())

    def count_needed(self, demand: CollectiveDemand) -> int:
        """Return the minimum number of messages that must cross before the collective finishes."""
        return demand.count_between(self.since_ps <= 0, self.since_ps >= self.time_ps)


class TimeCuts:
    """Builds cuts in time of a collective on a network; every result is a valid bound."""

    def __init__(self, network: LinkNetwork, times: LinkTimes, demand: CollectiveDemand) -> None:
        paths = ShortestPaths(network.num_nodes, network.source, network.destination, times.arrival)
        self._network = network
        self._times = times
        self._demand = demand
        nodes = np.arange(network.num_nodes)
        self._far = np.minimum(paths.lengths(nodes), _UNREACHABLE_PS)

    def list_of_sets(self, sets: Sequence[BoolArray]) -> list[TimeCut]:
        """Return the cut in time of each node set (bool[nodes]), in the order of `sets`.

        A cut gives each node the time in ps from which it is on the far side:

        - Node of the set: 0.
        - Any other node: the crossing time, at which the last message can have crossed a link
          out of the set. It is 0 if no link leads out, or if no data must leave the set.
        - For an all-gather, broadcast or all-reduce, in which all data must reach each member
          outside of the set, other nodes are later if the crossing time is not 0: their distance
          from the nearest end of a link out of the set is added. The time of the last member of
          the collective limits the sum.

        For all other kinds no distance is added. `sets` must not be empty.
        """
        exits = build_exits(self._demand, self._network, sets)
        heads = np.split(self._network.destination[exits.links], exits.indptr[1:-1])
        crossed = exits.list_times_ps(self._times).tolist()
        is_to_each = self._demand.collective.kind in _TO_EACH
        cuts = []
        for nodes, heads_of_set, crossed_ps in zip(sets, heads, crossed, strict=True):
            since = np.where(nodes, 0, crossed_ps)
            if is_to_each and crossed_ps:
                from_heads = self._far[np.unique(heads_of_set)].min(axis=0)
                since = since + np.where(nodes, 0, from_heads)
                # Nodes that do not take part may be farther away, but no data must reach them.
                since = np.minimum(since, since[self._demand.is_member].max())
            cuts.append(TimeCut(since))
        return cuts

    def of_distance(self) -> TimeCut:
        """Return the cut in time for the longest shortest path from a sender to a receiver.

        Of equal paths, that of the lowest sender, then of the lowest receiver is used; pairs
        without a path are ignored. A cut gives each node the time from which it is on the far
        side: here its distance in ps from this sender, at most the distance of this receiver.
        Without any path all times are 0.
        """
        senders, receivers = self._demand.get_senders_and_receivers()
        between = np.where(np.outer(senders, receivers), self._far, -1)
        between[between >= _UNREACHABLE_PS] = -1
        start, last = divmod(int(np.argmax(between)), self._network.num_nodes)
        return TimeCut(np.minimum(self._far[start], max(0, between[start, last])))

    def raise_one_node(self, cut: TimeCut) -> TimeCut:
        """Return the latest valid cut found that differs from `cut` by a later time of one node.

        A cut is valid if fewer messages can cross it than must: after the last message has
        reached the neighbours of the node, some data must still come from them. Every member
        whose time in `cut` is above 0 is tried, in ascending order. A member is used only if
        its time can be above the time of the best cut so far; then its latest valid time is
        searched, at most 2 * `cut.time_ps`. `cut` is returned if no such cut exists, and for
        collectives whose data need not reach every member.
        """
        best = cut
        if self._demand.collective.kind not in _TO_EACH:
            return best
        for node in np.flatnonzero(self._demand.is_member & (cut.since_ps > 0)).tolist():
            # For most nodes this fails, and a later time lets more messages cross.
            later = cut.with_later(node, best.time_ps + 1)
            if self._holds(later):
                best = self._find_latest(later, node, 2 * cut.time_ps)
        return best

    def _find_latest(self, cut: TimeCut, node: int, max_ps: int) -> TimeCut:
        """Return the valid cut in which `node` has the latest time, at most `max_ps`.

        A cut is valid if fewer messages can cross it than must. `cut` must be valid, and no
        node may have a later time in it than `node`; it is returned if no later time of `node`
        is valid. The search is a bisection between `cut.time_ps` and `max_ps`; it assumes that
        all times before a valid one are valid.
        """
        best, high = cut, max_ps
        while best.time_ps < high:
            middle = (best.time_ps + high + 1) // 2
            later = cut.with_later(node, middle)
            if self._holds(later):
                best = later
            else:
                high = middle - 1
        return best

    def _holds(self, cut: TimeCut) -> bool:
        """Return whether a cut proves a bound.

        It does if fewer messages can cross it before its time than the collective needs.
        """
        crossing = cut.count_possible(self._network, self._times)
        return crossing < cut.count_needed(self._demand)


def supports_time_cuts(network: LinkNetwork, times: LinkTimes) -> bool:
    """Return whether `find_tightest_cut` supports a network and times.

    The network must have links and at most 65,536 nodes times links (`MAX_CUT_CELLS`), and
    every message must occupy its link for at least 1 ps.
    """
    cells = network.num_nodes * network.num_links
    return 0 < cells <= MAX_CUT_CELLS and int(times.busy.min()) > 0


def find_tightest_cut(
    collective: Collective,
    network: LinkNetwork,
    times: LinkTimes,
    members: Int64Array,
) -> TimeCut:
    """Return the cut with the latest time (in ps), a lower bound on the time of the collective.

    `members`: int64, the nodes that take part. The candidates are, in this order:

    1. the cut of the longest distance
    2. by node, the cuts of this node alone and of all other nodes
    3. the cuts of `list_known_sets`: nodes below each coordinate of a dimension, and groups
    4. for an all-gather, the cuts of the sets whose outgoing links limit it (`_find_slowest_sets`)

    The 6 candidates with the latest times are each replaced by `raise_one_node`, which returns an
    equal or later cut. The latest of these is returned. Ties: the one whose candidate was later,
    then the one whose candidate was first.

    A reduce-scatter or reduce is an all-gather or broadcast on the transposed network, with the cut
    reversed in time. `supports_time_cuts` must accept network and times (unchecked). Raises
    `InputError` (`capacities`) if the flows of an all-gather or reduce-scatter have capacities of
    2^60 or more in total.
    """
    mirrored = _MIRRORED.get(collective.kind)
    if mirrored is not None:
        forwards = replace(collective, kind=mirrored)
        turned = transpose_network(network)
        rows = np.lexsort((network.destination, network.source))
        back = LinkTimes(times.busy[rows], times.arrival[rows])
        return find_tightest_cut(forwards, turned, back, members).reversed
    demand = CollectiveDemand.of(collective, network, members)
    cuts = TimeCuts(network, times, demand)
    single_nodes = np.eye(network.num_nodes, dtype=np.bool_)
    sets = [nodes for is_node in single_nodes for nodes in (is_node, ~is_node)]
    sets.extend(list_known_sets(network))
    # The data that leave a set of an all-gather grow with the set; flows find the slowest sets.
    if collective.kind is CollectiveKind.ALL_GATHER:
        share = collective.units_per_rank
        sets.extend(_find_slowest_sets(network, times, members, share))
    candidates = [cuts.of_distance(), *cuts.list_of_sets(sets)]
    candidates.sort(key=lambda cut: cut.time_ps, reverse=True)
    raised_cuts = [cuts.raise_one_node(cut) for cut in candidates[:_MAX_RAISED_CUTS]]
    return max(raised_cuts, key=lambda cut: cut.time_ps)


def _find_slowest_sets(
    network: LinkNetwork, times: LinkTimes, members: Int64Array, share: int
) -> Iterator[BoolArray]:
    """Yield node sets (bool[nodes]) whose outgoing links limit the time of an all-gather.

    The time of a set is the earliest time at which all chunks that start in it can have left it.
    `share`: number of chunks with which every member starts. A cut for a time is a set that keeps
    some member from receiving all chunks by this time. Sets may repeat. Their order is:

    1. The minimum cut for time 0, then again and again the minimum cut for the time of the set
       before it (Newton's iteration, Dinkelbach 1967). Their times strictly increase. The last one,
       for whose time no cut exists, is the slowest set.
    2. For each of `members`, in order: the minimum cut that keeps this member from receiving all
       chunks by 1 ps before the time of the slowest set. Members without such a cut are skipped.

    Raises `InputError` (`capacities`) if the capacities of a flow add up to 2^60 or more.
    """
    flows = _MessageFlows(network, times, members, share)
    time_ps, cut = 0, flows.find_limiting_cut(0, members)
    while cut is not None:
        nodes = cut.side[:-1]
        yield nodes
        time_ps = flows.time_ps(nodes)
        cut = flows.find_limiting_cut(time_ps, members)
    # These sets are about as slow as the slowest. Chunks may have longer paths after leaving them.
    for member in members:
        cut = flows.find_limiting_cut(time_ps - 1, np.asarray([member]))
        if cut is not None:
            yield cut.side[:-1]


class _MessageFlows:
    """Flows from all members to one member over links with the capacity of a given time."""

    def __init__(
        self, network: LinkNetwork, times: LinkTimes, members: Int64Array, share: int
    ) -> None:
        self._network = network
        self._times = times
        self._members = members
        self._share = share
        ends = network.source, network.destination
        self._flows = FlowNetwork.fed(network.num_nodes, *ends, members)

    def find_limiting_cut(self, time_ps: int, sinks: Int64Array) -> Cut | None:
        """Return a cut that keeps one of `sinks` from receiving all chunks by `time_ps`, or None.

        It is the smallest minimum cut over all sinks, of equal ones that of the first sink.
        Capacities are the numbers of messages that can arrive over each link by `time_ps`. None
        if every sink can receive everything by then. Raises `InputError` (`capacities`) if the
        capacities add up to 2^60 or more.
        """
        total = self._share * len(self._members)
        arrived = (time_ps - self._times.arrival) // self._times.busy + 1
        # Larger capacities have no effect, and their sum might overflow.
        arcs = np.clip(arrived, 0, total)
        start = np.full(len(self._members), self._share)
        capacity = np.concatenate([arcs, start])
        return self._flows.least_cut(capacity, self._network.num_nodes, sinks, total)

    def time_ps(self, nodes: BoolArray) -> int:
        """Return the earliest time in ps by which all chunks that start in a set can have left it.

        `nodes`: bool[nodes], the set. All chunks of its members cross the links out of the set;
        0 if it has no such links or no members.
        """
        network = self._network
        leaves = nodes[network.source] & ~nodes[network.destination]
        inside = int(nodes[self._members].sum())
        return LinkGroups.one(leaves, self._share * inside).time_ps(self._times)


MAX_EVACUATION_CELLS = 1 << 19
"""Nodes of the expanded network times destinations up to which the bound takes about a second."""


@dataclass(frozen=True, slots=True, eq=False)
class EvacuationBound:
    """No all-gather finishes before `time_ps`: by step `steps - 1` not all chunks can be at `node`.

    `since`: int64[nodes], the proof: the steps after which each node is on the far side of the
    minimum cut; None if `time_ps` is the bound from which the search started.
    """

    time_ps: int
    steps: int
    node: int
    since: Int64Array | None = None

    def time_cut(self, times: LinkTimes) -> TimeCut | None:
        """Convert the proof of the bound to a cut in picoseconds; None without a proof.

        The proof `since` has, for each node, the step after which the node is on the far
        side of the cut. The cut has these numbers times the busy time of a link (duration
        of a step). At the node of the bound, where not all chunks can be in time, the
        arrival time modulo the busy time is added. `times`: the link times for which the
        bound was computed; all links have equal times.
        """
        if self.since is None:
            return None
        busy = int(times.busy[0])
        arrival = int(times.arrival[0])
        since = self.since * busy
        # Only the remainder of the last message after its steps is not a multiple of a step.
        since[self.node] += arrival % busy
        return TimeCut(since)


def evacuation_bound(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    at_least_ps: int = 0,
    *,
    max_cells: int = MAX_EVACUATION_CELLS,
) -> EvacuationBound | None:
    """Return a lower bound in ps on the time of every all-gather: the largest over all NPUs.

    Chunk x starts at NPU `origin[x]`, and every NPU must receive all chunks. Time is counted in
    steps: the busy time of a link in ps, which must be above 0. The search starts at `at_least_ps`,
    rounded down to a step. NPUs are tried in ascending order. While a minimum cut proves that
    not all chunks can be at an NPU in time, the bound grows by a step. `time_ps` is the final
    bound, at least `at_least_ps`. `node` and `since` are the NPU and the proof of the last
    growth; 0 and None if there was none.

    Returns None if link times differ, with switches, without links, or if (steps + 1) * nodes *
    NPUs exceeds `max_cells`. The last case also occurs if an NPU can never receive all chunks.
    Raises `InputError` (`capacities`) if the capacities of the flow sum to 2^60 or more.
    """
    if not times.is_equal or not network.num_links or network.num_nodes > network.num_npus:
        return None
    # All links are equal.
    busy, arrival = int(times.busy[0]), int(times.arrival[0])
    lag = max(1, arrival // busy)
    chunks_at_node = np.bincount(origin, minlength=network.num_npus).astype(np.int64)
    # The known bound may be within a step and is rounded down.
    steps = max(lag, lag + (at_least_ps - arrival) // busy)
    last_node, since = 0, None
    for node in range(network.num_npus):
        while True:
            if (steps + 1) * network.num_nodes * network.num_npus > max_cells:
                return None
            cut_steps = _find_cut_steps(network, lag, steps, chunks_at_node, node)
            if cut_steps is None:
                break
            steps, last_node, since = steps + 1, node, cut_steps
    time_ps = max(at_least_ps, (steps - lag) * busy + arrival)
    return EvacuationBound(time_ps, steps, last_node, since)


def compute_evacuation_bound(
    collective: Collective,
    network: LinkNetwork,
    times: LinkTimes,
    chunks: Chunks,
    at_least_ps: int,
) -> EvacuationBound | None:
    """Return the bound from the chunks that must leave each set of nodes, None without one.

    It exists for an all-gather, and to a reduce-scatter, which is an all-gather reversed in
    time. All links must have equal times, the network must have links and no switches, and
    must not be too large for the search (`evacuation_bound`). All NPUs must take part, rank
    r on NPU r, which is not checked. `at_least_ps`: a known bound in ps at which the search
    starts; the result is not below it. Raises `InputError` (`capacities`) if the capacities of
    a flow sum to 2^60 or more.
    """
    if collective.kind is CollectiveKind.ALL_GATHER:
        return evacuation_bound(network, times, chunks.origin, at_least_ps)
    if collective.kind is CollectiveKind.REDUCE_SCATTER and times.is_equal:
        # Reversed in time, chunks that are collected at an NPU are spread from there.
        return evacuation_bound(transpose_network(network), times, chunks.target, at_least_ps)
    return None


def _find_cut_steps(
    network: LinkNetwork, lag: int, steps: int, chunks_at_node: Int64Array, node: int
) -> Int64Array | None:
    """Return the steps from which on nodes are on the far side of a minimum cut: int64[nodes].

    The far side is that of the chunks' origins. The cut, in the time-expanded network, proves that
    not all chunks can be at `node` by its last step. That network has `steps` steps, and a message
    takes `lag` steps. `chunks_at_node`: number of chunks with which each node starts.

    An entry of 0 means from the start on. A node that is never on the far side has the number of
    steps + 1. Returns None if all chunks can be at `node` in time. Raises `InputError`
    (`capacities`) if the capacities add up to 2^60 or more.
    """
    # Node v after step t has the number t * nodes + v.
    nodes = network.num_nodes
    begin = nodes * np.arange(steps - lag + 1)[:, None]
    waits = np.arange(steps * nodes)
    tails = np.concatenate([(begin + network.source).ravel(), waits])
    heads = np.concatenate([(begin + lag * nodes + network.destination).ravel(), waits + nodes])
    flows = FlowNetwork.fed((steps + 1) * nodes, tails, heads, np.arange(nodes))
    total = int(chunks_at_node.sum())
    # Waiting arcs have unlimited capacity, so every node changes sides only once.
    is_wait = np.arange(len(tails)) >= len(tails) - len(waits)
    capacity = np.concatenate([np.where(is_wait, total, 1), chunks_at_node])
    last = steps * nodes
    cut = flows.least_cut(capacity, last + nodes, [last + node], total)
    if cut is None:
        return None
    is_beyond = cut.side[:-1].reshape(-1, nodes)
    last_step: Int64Array = np.sum(~is_beyond, axis=0)
    return last_step
