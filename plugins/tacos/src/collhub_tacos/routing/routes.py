"""Routes of chunks on links that share the load: multicast trees, paths, and their schedules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_tacos.link_network import (
    LinkNetwork,
    LinkTimes,
    PathNetwork,
    get_links_of_arcs,
)
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.timing import compute_times, retime_by_events
from collhub_tacos.search.seeds import Progress, ignore_progress, report_activity, report_part
from hub_core.columns import BoolArray, ColumnTable, Int64Array, expanded_ranges, inverse

ALL_NEEDED_NODES = -1
"""Target of a chunk for all needed nodes."""


@dataclass(frozen=True, slots=True)
class RouteRules:
    """Cost of a route: the time of its links, multiplied by `1 + steepness * u^8`.

    u is the load of a link relative to a reference load. `slack`: the reference is this multiple of
    the lower bound of the maximum load, 0: the maximum load so far. `depth_weight`: factor of the
    distance of a tree node when the tree grows from it; 0: the depth is ignored, 1: distances count
    in full, which gives shallow trees.
    """

    steepness: float = 1.0
    depth_weight: float = 0.0
    slack: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class RoutePlan(ColumnTable):
    """Routes without times: chunk `chunk[i]` crosses link `link[i]` after transfer `parent[i]`.

    int64 columns. `parent`: the transfer that brings the chunk to the source of the link, which is
    an earlier row, or -1 at the origin.
    """

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    parent: Int64Array

    def max_load_ps(self, times: LinkTimes) -> int:
        """Return the largest time in ps for which a link is busy; 0 without transfers.

        The load of a link is its number of transfers times `busy`. A transfer through switches
        counts on every link of its path.
        """
        paths, single = get_links_of_arcs(self.network, times)
        first, lengths = paths.indptr[self.link], np.diff(paths.indptr)[self.link]
        links = paths.links[expanded_ranges(first, lengths)]
        load = np.bincount(links, minlength=len(single.busy)) * single.busy
        return int(load.max(initial=0))

    def minimum_ps(self, times: LinkTimes) -> int:
        """Return a lower bound in ps on the time of all schedules of the plan; 0 without transfers.

        It is the larger of the largest load of a link (`max_load_ps`) and the last arrival if
        no transfer waited for a busy link.
        """
        arrival = times.arrival[self.link]
        last = _find_earliest_starts(self.parent, arrival) + arrival
        return max(self.max_load_ps(times), int(last.max(initial=0)))

    def sort_by(self, key: Int64Array) -> RoutePlan:
        """Return a copy of the plan with its transfers in ascending order of a key.

        `key`: int64, one value per transfer; equal ones keep their order. Parents are
        renumbered. A parent (the transfer that brings the chunk) must precede its children in
        the new order too; this is not checked.
        """
        order = np.argsort(key, kind="stable")
        # A parent of -1 selects the last entry, which is -1.
        new_row = np.append(inverse(order), -1)
        parent = new_row[self.parent[order]]
        return RoutePlan(self.network, self.chunk[order], self.link[order], parent)

    def schedule_without_contention(self, times: LinkTimes) -> LinkSchedule:
        """Return the schedule in which a transfer waits only for its parent, never for its link.

        A transfer starts when its parent arrives, or at 0 without a parent, so transfers may
        overlap on a link. Rows keep the order of the plan.
        """
        arrival = times.arrival[self.link]
        start = _find_earliest_starts(self.parent, arrival)
        return LinkSchedule.without_reduction(
            self.network, self.chunk, self.link, start, start + arrival
        )

    def schedule_farthest_first(self, times: LinkTimes) -> LinkSchedule:
        """Return the schedule in which free links send the chunk with the longest remaining path.

        The remaining path is the time to the last arrival that depends on the transfer. Messages
        through switches are chosen by their expected delay first. Except for windows, no link idles
        while its source has a message for it. Ties are ordered by (destination - source) modulo the
        number of nodes, then by row.
        """
        # Imported here: numba takes a second.
        from collhub_tacos.routing.trees_kernel import compute_remaining_times

        network = self.network
        remaining = compute_remaining_times(self.parent, times.arrival[self.link])
        step = network.destination[self.link] - network.source[self.link]
        # Of equally long paths, all nodes send in the same rotation.
        rotation = step % max(network.num_nodes, 1)
        rank = inverse(np.lexsort((rotation, -remaining)))
        return self.schedule_by_rank(times, rank)

    def schedule_by_rank(
        self, times: LinkTimes, rank: Int64Array, *, is_fixed: bool = False
    ) -> LinkSchedule:
        """Return the schedule in which transfers with smaller `rank` have priority on their link.

        `rank`: int64[transfers], a permutation of 0, 1, .... Every transfer waits for its
        parent, which brings its chunk.

        - With `is_fixed`, every link sends strictly in this order. Raise `InputError`
          (`schedule-acausal`) if transfers then wait for each other.
        - Otherwise a free link sends, of its available transfers, the one with the shortest
          expected waiting time at switches, then the smallest rank.

        On networks with switches, the start times are then computed again with the resulting
        order fixed, in both cases.
        """
        network = self.network
        # Each transfer waits for one arrival, that of its parent.
        children = np.flatnonzero(self.parent >= 0)
        waits = (self.parent[children], children)
        start, finish = compute_times(network, times, self.link, waits, rank, is_fixed=is_fixed)
        schedule = LinkSchedule.without_reduction(network, self.chunk, self.link, start, finish)
        # Simulators send in a fixed order, so retime with that order to get the contention at
        # switches.
        return retime_by_events(schedule, times) if isinstance(network, PathNetwork) else schedule


def _find_earliest_starts(parent: Int64Array, arrival: Int64Array) -> Int64Array:
    """Return the earliest start of every transfer in ps if links are never busy: int64.

    A transfer starts when its parent has arrived, or at 0 without a parent (-1). `arrival`: int64,
    the time in ps from the start to the arrival of each transfer.
    """
    start = np.zeros(len(parent), np.int64)
    rows = np.flatnonzero(parent >= 0)
    # Each pass considers one more ancestor; rows that do not change have reached their origin.
    while len(rows):
        earliest = (start + arrival)[parent[rows]]
        is_later = earliest > start[rows]
        start[rows] = earliest
        rows = rows[is_later]
    return start


# Shallow trees, fast for few chunks, come first; then trees that balance the load, fast for many.
_SHALLOW = RouteRules(steepness=1.0, depth_weight=0.9, slack=1.1)
_BALANCED = RouteRules(steepness=4.0, depth_weight=0.5, slack=1.0)
_ROUNDS = (_SHALLOW,) * 7 + (_BALANCED,) * 7


def spread(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    needed: BoolArray,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> LinkSchedule:
    """Return a schedule that brings chunk x from NPU `origin[x]` to all nodes of `needed`.

    `network`: only NPUs, such as from `contract_switches`. `needed`: bool by node; further entries
    are ignored. Other nodes may relay, and receive only chunks that they forward. Every node
    receives a chunk at most once, its origin never. Without chunks the schedule is empty.

    The tree of a chunk grows from its origin by the cheapest path to a needed node that lacks the
    chunk (Takahashi and Matsuyama, 1980). The cost of a link increases with its load. In each of 14
    rounds (7 with rules for shallow trees, 7 for balanced loads) all trees are built again, given
    the load of the others. Transfers are scheduled longest remaining path first. The schedule with
    the earliest end is returned, on a tie the first.

    `seed` decides the order of the chunks. `progress` gets the fraction after each round. Raises
    `InputError` (`disconnected`), with node and cut, for a needed node that cannot be reached.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.routing.rounds import Router

    members = needed[: network.num_nodes]
    targets = np.full(len(origin), ALL_NEEDED_NODES)
    router = Router(network, times, origin, targets, members, seed)
    best: LinkSchedule | None = None
    for done, rules in enumerate(_ROUNDS, start=1):
        router.improve(rules)
        schedule = router.plan().schedule_farthest_first(times)
        if best is None or schedule.time_ps < best.time_ps:
            best = schedule
        progress(done / len(_ROUNDS), "multicast")
    assert best is not None
    return best


_MAX_ROUNDS = 8


def route_all(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    target: Int64Array,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> LinkSchedule:
    """Return a schedule that brings chunk x from NPU `origin[x]` to NPU `target[x]` (int64).

    `network` has NPUs only, as from `contract_switches`. Other NPUs may be relays. A chunk that
    starts at its target has no transfers. In each round, every chunk gets the cheapest path; the
    cost of a link increases with the load of the other chunks (after Garg and Koenemann, SIAM J.
    Comput. 37, 2007). Rounds end after 8, or after a round that does not lower the maximum load of
    a link; the first round always counts. The paths of the last round that counts are used. A free
    link sends the chunk with the longest remaining path (Andrews et al., JACM 48, 2001).

    `seed` decides the order of the chunks in each round; the same seed gives the same schedule.
    `progress` gets fractions, and 1 at the end. Raises `InputError` (`disconnected`) for the first
    chunk whose target cannot be reached.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.routing.rounds import Router

    no_nodes = np.zeros(network.num_nodes, np.bool_)
    router = Router(network, times, origin, target, no_nodes, seed)
    plan, min_load_ps = router.plan(), 0
    for done in range(_MAX_ROUNDS):
        round_progress = report_part(progress, done, _MAX_ROUNDS + 1)
        router.improve(RouteRules(), report_activity(round_progress, "routing"))
        # The first round has no predecessor to compare it with.
        if done and router.max_load_ps >= min_load_ps:
            break
        plan, min_load_ps = router.plan(), router.max_load_ps
    schedule = plan.schedule_farthest_first(times)
    progress(1.0, "routing")
    return schedule
