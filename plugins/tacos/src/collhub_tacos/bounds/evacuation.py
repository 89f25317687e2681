"""Bound of an all-gather on equal links: all chunks must get to every node, as in an evacuation.

In a network expanded in time, an arc from (u, t) to (v, t + lag) of one message for every link and
step, and arcs to wait, a largest flow from the origins to (d, T) tells how many chunks can be at d
by step T at most (Ford and Fulkerson, Operations Research 6, 1958). All chunks must be there, for
every d. That holds what enters a node, distances, and all cuts at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_packing.flows import FlowNetwork

from collhub_tacos.bounds.time_cuts import TimeCut
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.transposition import transposed
from hub_core.columns import Int64Array
from hub_core.model import Collective, CollectiveKind
from hub_core.schedules import Chunks

MOST_CELLS = 1 << 19
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
    most_cells: int = MOST_CELLS,
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
