"""Routes as transfers without times, and the schedule in which the farthest goes first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.path_network import PathNetwork, links_of_arcs
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.timing import in_time, settled
from hub_core.columns import ColumnTable, Int64Array, expanded_ranges, inverse


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
        from collhub_tacos.routing.remaining import remaining_times

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
