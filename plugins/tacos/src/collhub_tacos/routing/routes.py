"""What makes a route good: how much the load of its links counts, and the depth of a tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.switches import PathNetwork, links_of_arcs
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.timing import in_time, settled
from collhub_tacos.seed_search import Progress, named, part_of, silent
from hub_core.columns import BoolArray, ColumnTable, Int64Array, expanded_ranges, inverse

EVERYONE = -1
"""As a target: all nodes that are needed."""


@dataclass(frozen=True, slots=True)
class RouteRules:
    """Cost of a route: the time of its links, times `1 + steepness * u^8`.

    u is the load of a link by a reference: `slack` times the least that the fullest link can have,
    0: the fullest so far. `depth_weight`: what the way to a node of a tree counts when the tree
    grows on from there, 0: nothing, 1: as much as when it was reached: shallow trees.
    """

    steepness: float = 1.0
    depth_weight: float = 0.0
    slack: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class RoutePlan(ColumnTable):
    """Chunk `chunk[i]` goes over `link[i]` of `network` when transfer `parent[i]` is done.

    int64 columns. `parent`: the transfer that brings the chunk to the source, which stands before
    it, or -1 at the origin.
    """

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    parent: Int64Array

    def fullest_ps(self, times: LinkTimes) -> int:
        """How long the link with most transfers is busy, in picoseconds."""
        paths, single = links_of_arcs(self.network, times)
        first, lengths = paths.indptr[self.link], np.diff(paths.indptr)[self.link]
        links = paths.links[expanded_ranges(first, lengths)]
        load = np.bincount(links, minlength=len(single.busy)) * single.busy
        return int(load.max(initial=0))

    def least_ps(self, times: LinkTimes) -> int:
        """What no schedule of the plan goes below, in picoseconds.

        Its fullest link is busy so long, and its longest way takes so long without waits.
        """
        arrival = times.arrival[self.link]
        last = _earliest(self.parent, arrival) + arrival
        return max(self.fullest_ps(times), int(last.max(initial=0)))

    def sorted_by(self, key: Int64Array) -> RoutePlan:
        """The same, small keys first, of equal ones as they stand; no parent has a larger key."""
        order = np.argsort(key, kind="stable")
        # Who has no parent finds its -1 behind all places.
        place = np.append(inverse(order), -1)
        parent = place[self.parent[order]]
        return RoutePlan(self.network, self.chunk[order], self.link[order], parent)

    def unhindered(self, times: LinkTimes) -> LinkSchedule:
        """Schedule in which messages do not wait for one another, but for their chunk alone.

        Of those that start in one instant, what stands first in the plan goes first.
        """
        arrival = times.arrival[self.link]
        start = _earliest(self.parent, arrival)
        return LinkSchedule.spreading(self.network, self.chunk, self.link, start, start + arrival)

    def farthest_first(self, times: LinkTimes) -> LinkSchedule:
        """Schedule in which every free link sends what has farthest to go of what is there.

        Farthest in time, with all that depends on it. At switches what waits least on its way goes
        first of all. No link idles while its source has something for it, but for the windows.
        """
        return self.in_order(times, self._ranks(times))

    def in_order(
        self, times: LinkTimes, rank: Int64Array, *, is_fixed: bool = False
    ) -> LinkSchedule:
        """The same with the smallest `rank` first: int64 per transfer.

        `is_fixed`: always, else of what is at hand, and waits least at switches.
        """
        network = self.network
        # A chunk goes on when it has come: one wait a transfer.
        children = np.flatnonzero(self.parent >= 0)
        waits = (self.parent[children], children)
        start, finish = in_time(network, times, self.link, waits, rank, is_fixed=is_fixed)
        schedule = LinkSchedule.spreading(network, self.chunk, self.link, start, finish)
        # A simulator sends in a fixed order: so that is how messages meet at switches.
        return settled(schedule, times) if isinstance(network, PathNetwork) else schedule

    def _ranks(self, times: LinkTimes) -> Int64Array:
        """Place of every transfer by how far it has to go, the farthest first: int64.

        Of equals all go round alike: what leads to the next node in the order of numbers first.
        """
        # Imported here: numba takes a second.
        from collhub_tacos.routing.trees_kernel import remaining_times

        network = self.network
        remaining = remaining_times(self.parent, times.arrival[self.link])
        step = network.destination[self.link] - network.source[self.link]
        way_round = step % max(network.num_nodes, 1)
        return inverse(np.lexsort((way_round, -remaining)))


def _earliest(parent: Int64Array, arrival: Int64Array) -> Int64Array:
    """When the parent of every transfer, which took `arrival`, and all before it are done."""
    start = np.zeros(len(parent), np.int64)
    rows = np.flatnonzero(parent >= 0)
    # Every pass looks one transfer further back, so that what does not grow is at its origin.
    while len(rows):
        earliest = (start + arrival)[parent[rows]]
        is_later = earliest > start[rows]
        start[rows] = earliest
        rows = rows[is_later]
    return start


# Shallow trees first, which are fast for few chunks; then trees that fill links evenly, which are
# fast for many.
_SHALLOW = RouteRules(steepness=1.0, depth_weight=0.9, slack=1.1)
_EVEN = RouteRules(steepness=4.0, depth_weight=0.5, slack=1.0)
_ROUNDS = (_SHALLOW,) * 7 + (_EVEN,) * 7


def spread(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    needed: BoolArray,
    seed: int = 0,
    progress: Progress = silent,
) -> LinkSchedule:
    """Bring chunk x from NPU `origin[x]` to all nodes of `needed` (bool per node).

    Others relay where that helps, and get what they pass on alone; who gets a chunk gets it once.
    Every chunk grows a tree from its origin, by the nearest node that lacks it (Takahashi and
    Matsuyama, 1980), over links that cost more the fuller they are; in each of some rounds all
    trees are grown anew with the others in view and put in time, what has farthest to go first,
    and the fastest round is kept. Cost: a search per chunk and round. `network`: of NPUs, or
    `path_network.contracted`. Raises `InputError` that names a node that cannot be reached and the
    cut.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.routing.rounds import Router

    members = needed[: network.num_nodes]
    targets = np.full(len(origin), EVERYONE)
    router = Router(network, times, origin, targets, members, seed)
    best: LinkSchedule | None = None
    for done, rules in enumerate(_ROUNDS, start=1):
        router.improve(rules)
        found = router.plan().farthest_first(times)
        if best is None or found.time_ps < best.time_ps:
            best = found
        progress(done / len(_ROUNDS), "multicast")
    assert best is not None
    return best


_MOST_ROUNDS = 8


def route_all(
    network: LinkNetwork,
    times: LinkTimes,
    origin: Int64Array,
    target: Int64Array,
    seed: int = 0,
    progress: Progress = silent,
) -> LinkSchedule:
    """Bring chunk x from NPU `origin[x]` to NPU `target[x]`, over others where that helps.

    int64 per chunk. Routes are chosen one chunk at a time, over links that cost more the fuller
    they are, and chosen anew with all others in view for as long as the fullest link gets emptier:
    after the multicommodity flows of Garg and Koenemann (SIAM J. Comput. 37, 2007). Then every
    free link sends what has farthest to go (Andrews et al., JACM 48, 2001). Cost: a search per
    chunk and round, guided by the distance that is left. `network`: of NPUs, or
    `path_network.contracted`. Same seed, same schedule. Raises `InputError` for a target that
    cannot be reached.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.routing.rounds import Router

    nobody = np.zeros(network.num_nodes, np.bool_)
    router = Router(network, times, origin, target, nobody, seed)
    plan, least = router.plan(), 0
    for done in range(_MOST_ROUNDS):
        round_progress = part_of(progress, done, _MOST_ROUNDS + 1)
        router.improve(RouteRules(), named(round_progress, "routing"))
        # Before the first round there are no routes to compare it with.
        if done and router.fullest_ps >= least:
            break
        plan, least = router.plan(), router.fullest_ps
    schedule = plan.farthest_first(times)
    progress(1.0, "routing")
    return schedule
