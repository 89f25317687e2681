"""All-gather by matchings that bring chunks nearest to the nodes that lack them.

On equal links time is divided into steps. On unequal links each schedule must meet a deadline that
is earlier than the fastest schedule so far; messages that would be late are not started. Slow links
then do not take chunks that a faster link should bring later, which no rule that examines one link
at a time was observed to avoid.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.search.seeds import (
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
from collhub_tacos.symmetry import ShortestPaths, unreachable_error
from hub_core.columns import BoolArray, Int64Array

if TYPE_CHECKING:
    # Not imported at run time: numba takes a second.
    from collhub_tacos.spreading.matching_kernel import SpreadState


def build_initial_state(
    network: LinkNetwork,
    origin: Int64Array,
    distance: npt.NDArray[np.int16] | Int64Array,
    needed: BoolArray,
    seed: int,
) -> SpreadState:
    """Return the state in which chunk x is only at node `origin[x]`, and all links are free.

    `distance`: [chunks, nodes], distance of each node from the chunk's origin, 0 for nodes that
    need no chunks. It is stored without a copy, and the search changes it. `needed`: bool[nodes],
    nodes that must receive all chunks. The number of missing pairs is chunks times needed nodes,
    without the origins that are needed nodes. The columns of messages have room for one message per
    chunk and node. All other counters and the clock are 0. `seed`: initial state of the random
    numbers, 0 to 2^64 - 1.
    """
    from collhub_tacos.spreading.matching_kernel import SpreadState

    chunks = len(origin)
    is_held = np.zeros((chunks, network.num_nodes), np.bool_)
    is_held[np.arange(chunks), origin] = True
    # Number of (chunk, node) pairs that must still be delivered.
    missing = chunks * int(needed.sum()) - int(needed[origin].sum())
    chunk, link, step = np.zeros((3, chunks * network.num_nodes), np.int64)
    return SpreadState(
        is_held,
        is_held.copy(),
        distance,
        chunk,
        link,
        step,
        np.asarray([0, 0, 0, missing, 0], np.int64),
        np.ones(network.num_links, np.bool_),
        np.asarray([seed], np.uint64),
    )


# If the latency is many times the busy time, shorter steps cost more than they gain.
_MAX_LAG = 64


def choose_step_lengths(busy_ps: int, arrival_ps: int) -> list[int]:
    """Return one or two step lengths in ps, of which a message takes an integer number each.

    `busy_ps`, `arrival_ps`: times until the link is free and until the arrival. The first length is
    arrival / n, with n the arrival in busy times, rounded up; the second uses n rounded down, if it
    differs. n is 1 to 64. Lengths are rounded up and at least `busy_ps`.
    """
    # A chunk that arrives between two steps waits for the next one, which longer steps may avoid.
    max_lag = min(-(-arrival_ps // busy_ps), _MAX_LAG)
    min_lag = max(1, min(arrival_ps // busy_ps, _MAX_LAG))
    lags = sorted({max_lag, min_lag}, reverse=True)
    return [max(busy_ps, -(-arrival_ps // lag)) for lag in lags]


Int16Array = npt.NDArray[np.int16]

# Examined chunks per call: a tenth of a second, so that Ctrl-C and progress reports are prompt.
_CHUNKS_PER_CALL = 1 << 20
_MAX_HOPS = np.iinfo(np.int16).max


def build_matched_all_gather(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    seed: int = 0,
    *,
    is_needed: BoolArray | None = None,
    limit_ps: int | None = None,
    progress: FractionReport = ignore_fraction,
) -> LinkSchedule | None:
    """Bring every chunk to all NPUs on links of equal times; chunk x starts at NPU `origin[x]`.

    In each step, the nodes in random order take the chunks that come nearest to nodes that lack
    them, at most one per link. The one or two step lengths of `choose_step_lengths` are tried;
    the fastest schedule is returned, of equal ones that of the first length. `is_needed`:
    bool[nodes], nodes that must receive the chunks, None for all NPUs.

    Return None if all schedules would take `limit_ps` or more. `progress(fraction)` is called
    often; an exception that it raises ends the work. Raise `InputError` (`disconnected`) if a
    chunk cannot reach a needed node. Takes at most steps x nodes x chunks x nodes.
    """
    needed = np.arange(network.num_nodes) < network.num_npus if is_needed is None else is_needed
    hops = _count_hops(network, origin, needed)
    best: LinkSchedule | None = None
    # Longer steps may fit the arrival better; each length gives a schedule.
    for step_ps in choose_step_lengths(int(times.busy[0]), int(times.arrival[0])):
        gather = _MatchedSpread(network, times, origin, hops, needed, step_ps)
        limit = limit_ps if best is None else best.time_ps
        schedule = gather.schedule(seed, limit, progress)
        if schedule is not None and (limit is None or schedule.time_ps < limit):
            best = schedule
    return best


def find_best_matched_all_gather(
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
    """Find the fastest matched all-gather over `seeds` seeds from `first_seed` on.

    Each seed gives the schedule of `build_matched_all_gather`, for links of equal times. Of equally
    fast schedules, that of the lowest seed is the result. The search ends at the first seed whose
    schedule takes at most `goal_ps` (in ps); later seeds are ignored.

    - `threads`: seeds tried in parallel (0: one per CPU). The first seed is tried before the
      parallel ones. The number does not change the result.
    - `is_needed`: bool[nodes], nodes that must receive the chunks; None for all NPUs.
    - `after_trial()` is called for every seed that counts, in order.

    A `KeyboardInterrupt` (Ctrl-C, or a limit raised by `progress` or `after_trial`) ends the search
    with the best result so far (`is_interrupted`). It is raised again if there is no result yet.
    Raises `InputError` if a chunk cannot reach a needed node. `seeds` must be at least 1.
    """

    def attempt(seed: int, report: FractionReport) -> LinkSchedule:
        schedule = build_matched_all_gather(
            network, times, origin, seed, is_needed=is_needed, progress=report
        )
        # Without a limit there is always a schedule.
        assert schedule is not None
        return schedule

    return find_best_of_seeds(
        attempt,
        lambda schedule: schedule.time_ps,
        range(first_seed, first_seed + seeds),
        goal=goal_ps,
        threads=threads or os.cpu_count() or 1,
        progress=report_activity(progress, "spreading to the nearest"),
        after_trial=after_trial,
    )


def _count_hops(network: LinkNetwork, origin: Int64Array, needed: BoolArray) -> Int16Array:
    """Return the number of links on a shortest path between all nodes: int16[from, to].

    A larger number than 32766, and a missing path, has the value 32766. The number from
    a node to itself is 0. `origin`: node of each chunk; `needed`: bool[nodes].

    Raise `InputError` (`disconnected`) if a node of `needed` has no path of at most
    32766 links from an origin. It names the first such origin in ascending order, with
    its lowest such node.
    """
    unit_length = np.ones(network.num_links, np.int64)
    paths = ShortestPaths(network.num_nodes, network.source, network.destination, unit_length)
    hops = paths.lengths(np.arange(network.num_nodes))
    for start in np.unique(origin).tolist():
        unreachable = np.flatnonzero(needed & (hops[start] >= _MAX_HOPS))
        if len(unreachable):
            raise unreachable_error(network, start, int(unreachable[0]))
    return np.minimum(hops, _MAX_HOPS - 1).astype(np.int16)


class _MatchedSpread:
    """Spreading with steps of one length, for any seed."""

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
        self._count_hops = hops
        self._needed = needed
        self._step_ps = step_ps
        self._arrival_ps = int(times.arrival[0])

    def schedule(
        self, seed: int, limit_ps: int | None, progress: FractionReport
    ) -> LinkSchedule | None:
        """Return the schedule of a seed; None if a message would arrive at `limit_ps` or later.

        `limit_ps` None means no limit. Every message starts at a multiple of the step length. It
        arrives after the time of the first link (index 0), whatever its own link. A node forwards
        it in the first step that begins at its arrival or later. In every step the nodes choose
        chunks in random order.

        Unless all links have equal times and are busy until the arrival, the finished schedule is
        moved to the earliest times that the links allow (`retime`). `limit_ps` is compared before
        that.

        Messages are in the order of sending; none reduces. `progress` gets the fraction of the
        needed deliveries that have been sent, about every 2^20 examined chunks. An exception from
        it ends the search. Equal seeds give equal schedules.
        """
        # Imported here: numba takes a second.
        from collhub_tacos.spreading.matching_kernel import InLinks, advance

        network, origin = self._network, self._origin
        lag = -(-self._arrival_ps // self._step_ps)
        # Noise of a hundredth of a link per node decides between nearly equal chunks.
        noise = network.num_nodes / 100
        links = InLinks(network.indptr, network.source, self._count_hops, noise)
        # Distance 0 for nodes that need no chunks: it cannot decrease.
        distance = np.where(self._needed, self._count_hops[origin], 0).astype(np.int16)
        state = build_initial_state(network, origin, distance, self._needed, seed)
        missing = int(state.counter[3])
        # The first step in which a message would not arrive before the limit.
        step_limit = np.iinfo(np.int64).max
        if limit_ps is not None:
            step_limit = max(0, -(-(limit_ps - self._arrival_ps) // self._step_ps))
        while not advance(links, state, self._needed, lag, step_limit, _CHUNKS_PER_CALL):
            progress(1 - state.counter[3] / missing)
        if state.counter[3]:
            return None
        sent = state.counter[0]
        start = state.step[:sent] * self._step_ps
        finish = start + self._arrival_ps
        schedule = LinkSchedule.without_reduction(
            network, state.chunk[:sent], state.link[:sent], start, finish
        )
        if self._times.is_uniform:
            return schedule
        # Imported here: numba takes a second.
        from collhub_tacos.schedules.retiming import retime

        return retime(schedule, self._times)


MAX_DEADLINE_COST = 1 << 25
"""Maximum cost, nodes^2 times chunks^2, of a schedule that takes about 20 ms."""

# First and last fraction of the time to save, and the number of failures after which it is halved.
_INITIAL_SAVING, _MIN_SAVING = 0.02, 1e-3
_PATIENCE = 12
_MAX_TRIALS = 400
# Noise relative to the mean link time, per node, used in turn.
_NOISES = (0.01, 0.2)


def estimate_deadline_cost(network: LinkNetwork, num_chunks: int) -> int:
    """Return the cost of a schedule, to be compared with `MAX_DEADLINE_COST`."""
    return num_chunks**2 * network.num_nodes**2


def search_with_deadlines(
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
    """Search for an all-gather that is faster than `begin`, with decreasing deadlines.

    Chunk x starts at NPU `origin[x]`; all NPUs need all chunks. `network` must be connected,
    without switches. Trial t (from 0, at most 400) has the seed `first_seed` + t. Its deadline is
    the fastest time so far minus a fraction of it, at least `goal_ps`. The fraction begins at 2 %
    and is halved after 12 trials in a row without a schedule below the deadline. The search ends
    before a trial if the fastest time is at most `goal_ps`, or if the fraction is below 0.1 %.

    The result is the last schedule that met its deadline, with its seed and t + 1 as `tried`, or
    `begin` if there is none. Equal seeds give equal results. `report(t / 400)` is called before
    each trial, `after_trial()` after it. `KeyboardInterrupt` (Ctrl-C, or raised by these calls)
    ends the search with the best result so far, marked `is_interrupted`.
    """
    gather = _DeadlineSpread(network, times, origin)
    best, saving, num_failures = begin, _INITIAL_SAVING, 0
    try:
        for trial in range(_MAX_TRIALS):
            fastest_ps = best.result.time_ps
            if fastest_ps <= goal_ps or saving < _MIN_SAVING:
                break
            report(trial / _MAX_TRIALS)
            deadline_ps = max(goal_ps, int(fastest_ps * (1.0 - saving)))
            faster = gather.schedule(first_seed + trial, deadline_ps)
            if faster is not None:
                best, num_failures = Best(faster, first_seed + trial, trial + 1), 0
            else:
                num_failures += 1
            if num_failures == _PATIENCE:
                saving, num_failures = saving / 2, 0
            after_trial()
    except KeyboardInterrupt:
        return replace(best, is_interrupted=True)
    return best


class _DeadlineSpread:
    """Spreading of chunks by a deadline, for any seed."""

    def __init__(self, network: LinkNetwork, times: LinkTimes, origin: Int64Array) -> None:
        nodes = np.arange(network.num_nodes)
        paths = ShortestPaths(network.num_nodes, network.source, network.destination, times.arrival)
        self._network, self._times, self._origin = network, times, origin
        self._distance = paths.lengths(nodes)
        self._noise_unit = float(np.mean(times.arrival)) * network.num_nodes

    def schedule(self, seed: int, deadline_ps: int) -> LinkSchedule | None:
        """Return the schedule of a seed; None if some chunk would arrive after `deadline_ps`.

        The seed determines the random numbers and the strength of the noise, which is the entry of
        `_NOISES` at the seed modulo their number. Transfers are in the order in which they were
        sent; none reduces.
        """
        # Imported here: numba takes a second.
        from collhub_tacos.spreading.matching_kernel import (
            EventTimes,
            InLinks,
            spread_by_events,
        )

        network, times = self._network, self._times
        noise = _NOISES[seed % len(_NOISES)] * self._noise_unit
        links = InLinks(network.indptr, network.source, self._distance, noise)
        needed = np.ones(network.num_nodes, np.bool_)
        state = build_initial_state(
            network, self._origin, self._distance[self._origin], needed, seed
        )
        events = EventTimes(times.busy, times.arrival, *network.out_links())
        if not spread_by_events(links, events, state, needed, deadline_ps):
            return None
        sent = state.counter[0]
        link, start = state.link[:sent], state.step[:sent]
        finish = start + times.arrival[link]
        return LinkSchedule.without_reduction(network, state.chunk[:sent], link, start, finish)
