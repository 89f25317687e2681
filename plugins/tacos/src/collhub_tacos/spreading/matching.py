"""All-gather where all links are alike, by what brings chunks nearest to those who lack them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.distances import ShortestPaths, unreachable_error
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.seed_search import (
    AfterTrial,
    Best,
    FractionReport,
    Progress,
    find_best_of_seeds,
    ignore_fraction,
    ignore_progress,
    ignore_trial,
    report_activity,
)
from hub_core.columns import BoolArray, Int64Array

if TYPE_CHECKING:
    # Importing it takes a second: numba.
    from collhub_tacos.spreading.matching_kernel import SpreadState


def new_state(
    network: LinkNetwork,
    origin: Int64Array,
    near: npt.NDArray[np.int16] | Int64Array,
    needed: BoolArray,
    seed: int,
) -> SpreadState:
    """State in which chunk x is at `origin[x]`, `near[x]` from every node, and all links are free.

    `needed`: bool per node, who must get the chunks.
    """
    from collhub_tacos.spreading.matching_kernel import SpreadState

    chunks = len(origin)
    held = np.zeros((chunks, network.num_nodes), np.bool_)
    held[np.arange(chunks), origin] = True
    # Pairs of a chunk and who must still get it.
    missing = chunks * int(needed.sum()) - int(needed[origin].sum())
    chunk, link, step = np.zeros((3, chunks * network.num_nodes), np.int64)
    return SpreadState(
        held,
        held.copy(),
        near,
        chunk,
        link,
        step,
        np.asarray([0, 0, 0, missing, 0], np.int64),
        np.ones(network.num_links, np.bool_),
        np.asarray([seed], np.uint64),
    )


# Where the latency is many times what a message takes, shorter steps cost more than they bring.
_MOST_LAG = 64


def step_lengths(busy_ps: int, arrival_ps: int) -> list[int]:
    """Shortest steps, and the shortest with one less to the arrival; at most 64 to it."""
    # What arrives between two steps waits for the next: longer steps may lose less by that.
    most = min(-(-arrival_ps // busy_ps), _MOST_LAG)
    fewest = max(1, min(arrival_ps // busy_ps, _MOST_LAG))
    lags = sorted({most, fewest}, reverse=True)
    return [max(busy_ps, -(-arrival_ps // lag)) for lag in lags]


Int16Array = npt.NDArray[np.int16]

# Looks at chunks per slice: a tenth of a second, so that Ctrl-C and progress get through.
_SLICE = 1 << 20
_FARTHEST = np.iinfo(np.int16).max


def matched_all_gather(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    seed: int = 0,
    *,
    is_needed: BoolArray | None = None,
    most_ps: int | None = None,
    progress: FractionReport = ignore_fraction,
) -> LinkSchedule | None:
    """Bring every chunk to all NPUs; chunk x starts at NPU `origin[x]`; all links take one time.

    Time goes in steps of a message: in each, nodes in random order take what brings chunks nearest
    to those who lack them, no two over one link. `is_needed`: bool per node, who must get the
    chunks, default all NPUs. None where it would take `most_ps` or more. `progress(fraction)` is
    called often, and what it raises ends the work. Raises `InputError` for a network in which a
    chunk cannot get everywhere. Cost: steps x nodes x chunks x nodes at most.
    """
    needed = np.arange(network.num_nodes) < network.num_npus if is_needed is None else is_needed
    hops = _hops(network, origin, needed)
    best: LinkSchedule | None = None
    # Longer steps may fit the arrival better: each length is a schedule of its own.
    for step_ps in step_lengths(int(times.busy[0]), int(times.arrival[0])):
        spread = _MatchedSpread(network, times, origin, hops, needed, step_ps)
        limit = most_ps if best is None else best.time_ps
        found = spread.schedule(seed, limit, progress)
        if found is not None and (limit is None or found.time_ps < limit):
            best = found
    return best


def best_matched_all_gather(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    *,
    seeds: int,
    first_seed: int = 0,
    goal_ps: int = 0,
    threads: int = 0,
    is_needed: BoolArray | None = None,
    progress: Progress = ignore_progress,
    after_trial: AfterTrial = ignore_trial,
) -> Best[LinkSchedule]:
    """Fastest of `seeds` seeds from `first_seed` on, the first that takes at most `goal_ps`.

    `threads`: seeds tried at once (0: a core each); the result does not depend on it. Ctrl-C ends
    the search; without a result it is raised again. Raises like `matched_all_gather`.
    """

    def attempt(seed: int, report: FractionReport) -> LinkSchedule:
        made = matched_all_gather(
            network, times, origin, seed, is_needed=is_needed, progress=report
        )
        # Without a limit there is always a schedule.
        assert made is not None
        return made

    return find_best_of_seeds(
        attempt,
        lambda schedule: schedule.time_ps,
        range(first_seed, first_seed + seeds),
        goal=goal_ps,
        threads=threads or os.cpu_count() or 1,
        progress=report_activity(progress, "spreading to the nearest"),
        after_trial=after_trial,
    )


def _hops(network: LinkNetwork, origin: Int64Array, needed: BoolArray) -> Int16Array:
    """Links from every node to every node, int16; raises `InputError` where a chunk cannot go."""
    one = np.ones(network.num_links, np.int64)
    paths = ShortestPaths(network.num_nodes, network.source, network.destination, one)
    hops = paths.lengths(np.arange(network.num_nodes))
    for start in np.unique(origin).tolist():
        lost = np.flatnonzero(needed & (hops[start] >= _FARTHEST))
        if len(lost):
            raise unreachable_error(network, start, int(lost[0]))
    return np.minimum(hops, _FARTHEST - 1).astype(np.int16)


class _MatchedSpread:
    """Spreading with steps of one length, seed after seed."""

    def __init__(
        self,
        network: LinkNetwork,
        times: LinkTimes,
        origin: Int64Array,
        hops: Int16Array,
        needed: BoolArray,
        step_ps: int,
    ) -> None:
        self._network = network
        self._times = times
        self._origin = origin
        self._hops = hops
        self._needed = needed
        self._step_ps = step_ps
        self._arrival_ps = int(times.arrival[0])

    def schedule(
        self, seed: int, most_ps: int | None, progress: FractionReport
    ) -> LinkSchedule | None:
        """What a seed gives, None where that takes `most_ps` or more."""
        # Imported here: numba takes a second.
        from collhub_tacos.spreading.matching_kernel import InLinks, advance

        network, origin = self._network, self._origin
        lag = -(-self._arrival_ps // self._step_ps)
        # A hundredth of a link for every node decides between what is about equal.
        noise = network.num_nodes / 100
        links = InLinks(network.indptr, network.source, self._hops, noise)
        # Nobody can bring anything nearer than 0 to those who need nothing.
        near = np.where(self._needed, self._hops[origin], 0).astype(np.int16)
        state = new_state(network, origin, near, self._needed, seed)
        missing = int(state.counter[3])
        last_step = self._last_step(most_ps)
        while not advance(links, state, self._needed, lag, last_step, _SLICE):
            progress(1 - state.counter[3] / missing)
        if state.counter[3]:
            return None
        sent = state.counter[0]
        return self._made(state.chunk[:sent], state.link[:sent], state.step[:sent])

    def _last_step(self, most_ps: int | None) -> int:
        """Step in which nothing may be sent any more."""
        if most_ps is None:
            return np.iinfo(np.int64).max
        return max(0, -(-(most_ps - self._arrival_ps) // self._step_ps))

    def _made(self, chunk: Int64Array, link: Int64Array, step: Int64Array) -> LinkSchedule:
        start = step * self._step_ps
        schedule = LinkSchedule.without_reduction(
            self._network, chunk, link, start, start + self._arrival_ps
        )
        if self._times.is_uniform:
            return schedule
        # Imported here: numba takes a second.
        from collhub_tacos.schedules.retiming import retime

        return retime(schedule, self._times)


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
    after_trial: AfterTrial = ignore_trial,
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
        from collhub_tacos.spreading.matching_kernel import (
            EventTimes,
            InLinks,
            spread_by_events,
        )

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
        return LinkSchedule.without_reduction(network, state.chunk[:sent], link, start, finish)
