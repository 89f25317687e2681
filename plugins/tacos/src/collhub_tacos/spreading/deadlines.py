"""All-gather on links that differ, by deadlines: each schedule must end before the fastest so far.

What could not arrive in time is not begun. A slow link then takes no chunk that a faster one had
better bring later, which no rule was seen to do that looks at one link at a time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collhub_tacos.networks.distances import ShortestPaths
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.progress import AfterTrial, FractionReport, uncounted
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.spreading.matching_state import new_state
from collhub_tacos.spreading.seed_search import Best
from hub_core.columns import Int64Array

MOST_LOOKS = 1 << 25
"""Nodes times pairs of a node and a chunk times chunks, up to which a schedule takes some 20 ms."""

# Parts of the time to save, at first and at last, and how many schedules in vain halve it.
_FIRST_SAVING, _LEAST_SAVING = 0.02, 1e-3
_PATIENCE = 12
_MOST_TRIED = 400
# Of the time of a mean link, for every node: what counts as none, in turn.
_NOISES = (0.01, 0.2)


def looks(network: LinkNetwork, num_chunks: int) -> int:
    """Cost of a schedule, to be compared with `MOST_LOOKS`."""
    return num_chunks**2 * network.num_nodes**2


def before_deadlines(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    begin: Best[LinkSchedule],
    *,
    goal_ps: int,
    first_seed: int,
    report: FractionReport,
    after_trial: AfterTrial = uncounted,
) -> Best[LinkSchedule]:
    """Fastest all-gather that is found by ever earlier deadlines, or `begin` where none is faster.

    Chunk x starts at NPU `origin[x]`, and all NPUs need all; `network` has no switches and connects
    all. The search ends at `goal_ps`, and where a thousandth cannot be saved. Of one seed it is
    the same each time. `report(fraction)` and `after_trial()` may raise; Ctrl-C and limits end the
    search with the best so far.
    """
    spread = _DeadlineSpread(network, times, origin)
    best, saving, in_vain = begin, _FIRST_SAVING, 0
    try:
        for place in range(_MOST_TRIED):
            fastest_ps = best.result.time_ps
            if fastest_ps <= goal_ps or saving < _LEAST_SAVING:
                break
            report(place / _MOST_TRIED)
            deadline_ps = max(goal_ps, int(fastest_ps * (1.0 - saving)))
            made = spread.schedule(first_seed + place, deadline_ps)
            if made is not None:
                best, in_vain = Best(made, first_seed + place, place + 1), 0
            else:
                in_vain += 1
            if in_vain == _PATIENCE:
                saving, in_vain = saving / 2, 0
            after_trial()
    except KeyboardInterrupt:
        return replace(best, is_interrupted=True)
    return best


class _DeadlineSpread:
    """Spreading of some chunks, seed after seed."""

    def __init__(self, network: LinkNetwork, times: LinkTimes, origin: Int64Array) -> None:
        nodes = np.arange(network.num_nodes)
        paths = ShortestPaths(network.num_nodes, network.source, network.destination, times.arrival)
        self._network, self._times, self._origin = network, times, origin
        self._far = paths.lengths(nodes)
        self._unit = float(np.mean(times.arrival)) * network.num_nodes

    def schedule(self, seed: int, deadline_ps: int) -> LinkSchedule | None:
        """What a seed gives, None where that misses the deadline."""
        # Imported here: numba takes a second.
        from collhub_tacos.spreading.matching_kernel import EventTimes, InLinks, spread_by_events

        network, times = self._network, self._times
        noise = _NOISES[seed % len(_NOISES)] * self._unit
        links = InLinks(network.indptr, network.source, self._far, noise)
        needed = np.ones(network.num_nodes, np.bool_)
        state = new_state(network, self._origin, self._far[self._origin], needed, seed)
        events = EventTimes(times.busy, times.arrival, *network.out_links())
        if not spread_by_events(links, events, state, needed, deadline_ps):
            return None
        sent = state.counter[0]
        link, start = state.link[:sent], state.step[:sent]
        finish = start + times.arrival[link]
        return LinkSchedule.spreading(network, state.chunk[:sent], link, start, finish)
