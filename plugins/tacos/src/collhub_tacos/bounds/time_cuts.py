"""Cuts in time: what cannot be at a node before an instant, whatever the algorithm.

A time tau(v) for every node divides all (node, instant) in those before tau(v) and those from then
on. Data that are at a node u with tau(u) <= 0 at first, and must be at a node w of the greatest
tau(w) = T, go from the one side to the other before T only by a message that leaves some u at
tau(u) or later and arrives at v before tau(v). Link l from u to v begins at most
ceil((tau(v) - tau(u) - arrival(l)) / busy(l)) such messages. Where these are fewer than the
messages that must go, nothing ends before T. Least cuts of networks expanded in time are such cuts
(Ford and Fulkerson, Operations Research 6, 1958), as are cuts of the network itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from collhub_packing.flows import FlowNetwork

from collhub_tacos.bounds.cuts import LinkGroups, slowest_sets
from collhub_tacos.bounds.lower_bounds import CollectiveDemand, known_sets
from collhub_tacos.networks.distances import ShortestPaths
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.symmetry import transposed
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Collective, CollectiveKind
from hub_core.schedules import Chunks

# Kinds of which all that leaves a set must get to each member outside it.
_TO_EACH = frozenset(
    {CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST, CollectiveKind.ALL_REDUCE}
)
_MIRRORED = {
    CollectiveKind.REDUCE_SCATTER: CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE: CollectiveKind.BROADCAST,
}
_FAR = 1 << 60
# Of the latest cuts so many are tried with each node later than the rest.
_MOST_RAISED = 6

MAX_CUT_CELLS = 1 << 16
"""Nodes times links up to which `tightest_cut` takes about a second."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeCut:
    """`since_ps`: int64[nodes], from when on a node is on the far side; the end is the greatest."""

    since_ps: Int64Array

    @property
    def time_ps(self) -> int:
        """Instant before which the collective cannot end."""
        return int(self.since_ps.max(initial=0))

    @property
    def reversed(self) -> TimeCut:
        """The same of the collective that goes backwards in time, on the transposed network."""
        return TimeCut(self.time_ps - self.since_ps)

    def with_later(self, node: int, since_ps: int) -> TimeCut:
        """The same with another instant for one node."""
        since = self.since_ps.copy()
        since[node] = since_ps
        return TimeCut(since)

    def num_messages(self, network: LinkNetwork, times: LinkTimes) -> int:
        """Messages that can cross at most."""
        begin, end = self.since_ps[network.source], self.since_ps[network.destination]
        crossing = -((begin + times.arrival - end) // times.busy)
        return int(np.maximum(crossing, 0).sum())

    def num_needed(self, demand: CollectiveDemand) -> int:
        """Messages that must cross at least."""
        return demand.between(self.since_ps <= 0, self.since_ps >= self.time_ps)


class TimeCuts:
    """Cuts in time of a collective on a network, each of which holds."""

    def __init__(self, network: LinkNetwork, times: LinkTimes, demand: CollectiveDemand) -> None:
        paths = ShortestPaths(network.num_nodes, network.source, network.destination, times.arrival)
        self._network = network
        self._times = times
        self._demand = demand
        nodes = np.arange(network.num_nodes)
        self._far = np.minimum(paths.lengths(nodes), _FAR)

    def of_set(self, nodes: BoolArray) -> TimeCut:
        """Cut of what must leave a set of nodes, bool[nodes]; with what is left to go then.

        The last of it comes to the head of some link out of the set, and goes on to whoever is
        farthest from all heads, if everybody must get it.
        """
        network = self._network
        leaves = nodes[network.source] & ~nodes[network.destination]
        needed = self._demand.leaving_set(nodes)
        crossed_ps = LinkGroups.one(leaves, needed).time_ps(self._times)
        since = np.where(nodes, 0, crossed_ps)
        is_to_each = self._demand.collective.kind in _TO_EACH
        if not is_to_each or not crossed_ps:
            return TimeCut(since)
        heads = np.unique(network.destination[leaves])
        from_heads = self._far[heads].min(axis=0)
        since = since + np.where(nodes, 0, from_heads)
        last = since[self._demand.is_member].max()
        # Who does not take part may be farther away: nothing must get there.
        return TimeCut(np.minimum(since, last))

    def of_distance(self) -> TimeCut:
        """Cut between two members that are farthest from one another, if one needs the other."""
        begin, end = self._demand.ends()
        between = np.where(np.outer(begin, end), self._far, -1)
        between[between >= _FAR] = -1
        start, last = divmod(int(np.argmax(between)), self._network.num_nodes)
        return TimeCut(np.minimum(self._far[start], max(0, between[start, last])))

    def raised(self, cut: TimeCut) -> TimeCut:
        """The cut with one node later than all others, as long as too few messages cross.

        After what comes last to its neighbours some of it must still come to a node from them.
        """
        best = cut
        if self._demand.collective.kind not in _TO_EACH:
            return best
        for node in np.flatnonzero(self._demand.is_member & (cut.since_ps > 0)).tolist():
            # Most nodes cannot be later at all, and the later the node the more messages cross.
            later = cut.with_later(node, best.time_ps + 1)
            if self._holds(later):
                best = self._latest(later, node, 2 * cut.time_ps)
        return best

    def _latest(self, cut: TimeCut, node: int, most_ps: int) -> TimeCut:
        """The cut with the node as late as possible, at most `most_ps`; as it is, it holds."""
        best, high = cut, most_ps
        while best.time_ps < high:
            middle = (best.time_ps + high + 1) // 2
            later = cut.with_later(node, middle)
            if self._holds(later):
                best = later
            else:
                high = middle - 1
        return best

    def _holds(self, cut: TimeCut) -> bool:
        crossing = cut.num_messages(self._network, self._times)
        return crossing < cut.num_needed(self._demand)

    def of_nodes(self) -> Iterator[TimeCut]:
        """Cuts of every node alone, and of all but one."""
        nodes = np.arange(self._network.num_nodes)
        for node in nodes:
            alone = nodes == node
            yield self.of_set(alone)
            yield self.of_set(~alone)


def are_cuts_counted(network: LinkNetwork, times: LinkTimes) -> bool:
    """Whether `tightest_cut` applies: the network is small, and every message takes time.

    Cuts count messages per time that a link is busy, so that it must be at least a picosecond.
    """
    cells = network.num_nodes * network.num_links
    return 0 < cells <= MAX_CUT_CELLS and int(times.busy.min()) > 0


def tightest_cut(
    collective: Collective,
    network: LinkNetwork,
    times: LinkTimes,
    members: Int64Array,
) -> TimeCut:
    """The latest of the cuts of single nodes, slabs, groups, distances and, of all-gathers, flows.

    Reductions go backwards in time on the transposed network, and so do their cuts. Only for
    networks and times of `are_cuts_counted`. Raises `InputError` where flows would overflow.
    """
    mirrored = _MIRRORED.get(collective.kind)
    if mirrored is not None:
        forwards = replace(collective, kind=mirrored)
        turned = transposed(network)
        rows = np.lexsort((network.destination, network.source))
        back = LinkTimes(times.busy[rows], times.arrival[rows])
        return tightest_cut(forwards, turned, back, members).reversed
    demand = CollectiveDemand.of(collective, network, members)
    cuts = TimeCuts(network, times, demand)
    sets = list(known_sets(network))
    # What leaves a set of an all-gather grows with the set: flows tell which is the slowest.
    if collective.kind is CollectiveKind.ALL_GATHER:
        share = collective.units_per_rank
        sets.extend(slowest_sets(network, times, members, share))
    found = [cuts.of_distance()]
    found.extend(cuts.of_nodes())
    found.extend(cuts.of_set(nodes) for nodes in sets)
    found.sort(key=lambda cut: cut.time_ps, reverse=True)
    raised = [cuts.raised(cut) for cut in found[:_MOST_RAISED]]
    return max(raised, key=lambda cut: cut.time_ps)


MAX_EVACUATION_CELLS = 1 << 19
"""Nodes of the expanded network times destinations up to which that takes about a second."""


@dataclass(frozen=True, slots=True, eq=False)
class EvacuationBound:
    """No all-gather ends before `time_ps`: by step `steps - 1` not all chunks can be at `node`.

    `since`: int64[nodes], steps after which the least cut has a node on the far side, the proof;
    None where that is the bound from which the search began.
    """

    time_ps: int
    steps: int
    node: int
    since: Int64Array | None = None

    def time_cut(self, times: LinkTimes) -> TimeCut | None:
        """The proof in picoseconds; `times`: of all links, as long as those of the bound."""
        if self.since is None:
            return None
        busy = int(times.busy[0])
        arrival = int(times.arrival[0])
        since = self.since * busy
        # Only what is left of the last message after its steps is not in whole steps.
        since[self.node] += arrival % busy
        return TimeCut(since)


def evacuation_bound(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    at_least_ps: int = 0,
    *,
    most_cells: int = MAX_EVACUATION_CELLS,
) -> EvacuationBound | None:
    """The bound where all links take one time, None where they do not, or it would take long.

    Chunk x starts at NPU `origin[x]`, all NPUs need all chunks. `at_least_ps`: another bound that
    holds, from which the search begins. `most_cells`: what is too long. Steps are those in which a
    link is busy: a message that starts within one counts as from its beginning, so that nothing
    gets slower.
    """
    if not times.is_alike or not network.num_links or network.num_nodes > network.num_npus:
        return None
    # All links are alike: the first one tells the times of each.
    busy, arrival = int(times.busy[0]), int(times.arrival[0])
    lag = max(1, arrival // busy)
    own = np.bincount(origin, minlength=network.num_npus).astype(np.int64)
    # The other bound need not be at the end of a step: what it tells is rounded down.
    steps = max(lag, lag + (at_least_ps - arrival) // busy)
    binding, since = 0, None
    for node in range(network.num_npus):
        while True:
            if (steps + 1) * network.num_nodes * network.num_npus > most_cells:
                return None
            held_back = _ExpandedNetwork(network, lag, steps).held_back(own, node)
            if held_back is None:
                break
            steps, binding, since = steps + 1, node, held_back
    time_ps = max(at_least_ps, (steps - lag) * busy + arrival)
    return EvacuationBound(time_ps, steps, binding, since)


def evacuation_of(
    collective: Collective,
    network: LinkNetwork,
    times: LinkTimes,
    chunks: Chunks,
    at_least_ps: int,
) -> EvacuationBound | None:
    """The bound of an all-gather of all NPUs, or of a reduce-scatter, backwards; else None."""
    if collective.kind is CollectiveKind.ALL_GATHER:
        return evacuation_bound(network, times, chunks.origin, at_least_ps)
    if collective.kind is CollectiveKind.REDUCE_SCATTER and times.is_alike:
        # Backwards in time, what is collected at an NPU is spread from there.
        return evacuation_bound(transposed(network), times, chunks.target, at_least_ps)
    return None


class _ExpandedNetwork:
    """Nodes in `steps` steps: node v after step t is `t * nodes + v`."""

    def __init__(self, network: LinkNetwork, lag: int, steps: int) -> None:
        nodes = network.num_nodes
        self._last = steps * nodes
        begin = nodes * np.arange(steps - lag + 1)[:, None]
        waits = np.arange(steps * nodes)
        tails = np.concatenate([(begin + network.source).ravel(), waits])
        heads = np.concatenate([(begin + lag * nodes + network.destination).ravel(), waits + nodes])
        self._is_wait = np.arange(len(tails)) >= len(tails) - len(waits)
        self._nodes = nodes
        self._flows = FlowNetwork.fed((steps + 1) * nodes, tails, heads, np.arange(nodes))

    def held_back(self, own: Int64Array, node: int) -> Int64Array | None:
        """Steps after which nodes are beyond the least cut, where not all chunks can be at `node`.

        int64[nodes], more than the last step for those that never are; None where all can be there.
        """
        total = int(own.sum())
        arcs = np.where(self._is_wait, total, 1)
        capacity = np.concatenate([arcs, own])
        source = self._last + self._nodes
        sinks = [self._last + node]
        cut = self._flows.least_cut(capacity, source, sinks, total)
        if cut is None:
            return None
        # Who waits stays on its side: one step divides each node's instants.
        is_beyond = cut.side[:-1].reshape(-1, self._nodes)
        before: Int64Array = np.sum(~is_beyond, axis=0)
        return before
