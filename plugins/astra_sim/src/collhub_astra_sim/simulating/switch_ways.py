"""Where switches copy messages and add them up, on the routes that these take.

Routes of a multicast are joined from the sender on, as far as the last switch that they share and
that multicasts: a trie of their links, of which each is carried once. A sum is the mirror image: a
switch that reduces waits for all messages of a sum that come through it to the same receiver, and
sends on one. Groups of one shape of routes are laid out once; cost: the hops of each shape, and
arrays of the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collhub_astra_sim.simulating.event_queue import Records
from collhub_astra_sim.simulating.kernel import SUM, SWITCHED
from hub_core.columns import Int64Array, run_starts
from hub_core.network import Routes, Topology
from hub_core.schedules.switch_groups import SwitchGroups

# Links, in order.
_Way = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Copy:
    """Member `member` of a multicast is copied from `origin`, after so many links."""

    member: int
    origin: int
    hops: int


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum in a switch: the members of a group that come into it, and after how many links each.

    The first one carries it on.
    """

    members: tuple[int, ...]
    hops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of a group, the farthest from the receiver first, and who arrives with whom."""

    sums: tuple[_Sum, ...]
    arrivals: tuple[tuple[int, ...], ...]


def no_switched_records() -> tuple[Records, Records]:
    """Those of switches that forward alone."""
    return np.zeros(0, SWITCHED), np.zeros(0, SUM)


def switched_records(
    groups: SwitchGroups,
    topology: Topology,
    routes: Routes,
    node_of_row: Int64Array,
    route_of_node: Int64Array,
) -> tuple[Records, Records]:
    """What switches do with every message, and their sums.

    `node_of_row`: the node of every step's message, `route_of_node`: the route of a SEND.
    """
    switched = np.zeros(len(route_of_node), SWITCHED)
    for name in ("first_copy", "next_copy", "leaves_at", "sum", "sum_at"):
        switched[name] = -1
    switched["first_part"] = switched["next_part"] = switched["leader"] = -1
    laid_out = _Layout(_Shapes(topology, routes), routes, switched)
    for nodes in _members(groups.multicasts, node_of_row):
        laid_out.copy(nodes, route_of_node[nodes])
    for nodes in _members(groups.sums, node_of_row):
        laid_out.add(nodes, route_of_node[nodes])
    return switched, np.array([tuple(one) for one in laid_out.sums], SUM)


def _members(
    groups: tuple[Int64Array, Int64Array], node_of_row: Int64Array
) -> Iterator[Int64Array]:
    """The nodes of every group."""
    rows, group = groups
    if len(rows):
        yield from np.split(node_of_row[rows], run_starts(group)[1:])


class _Layout:
    """Records while they are filled; `sums`: carrier, missing, next sum, and where that is."""

    def __init__(self, shapes: _Shapes, routes: Routes, switched: Records) -> None:
        self._shapes = shapes
        self._first = routes.indptr
        self._switched = switched
        self.sums: list[list[int]] = []

    def copy(self, nodes: Int64Array, routes: Int64Array) -> None:
        """Let switches make the messages of a multicast, but for those that leave on their own."""
        switched = self._switched
        for one in self._shapes.copies(routes):
            node, source = nodes[one.member], nodes[one.origin]
            leader = switched["leader"][source]
            switched["leader"][node] = source if leader < 0 else leader
            switched["leaves_at"][node] = self._first[routes[one.origin]] + one.hops
            switched["skipped"][node] = one.hops
            switched["next_copy"][node] = switched["first_copy"][source]
            switched["first_copy"][source] = node

    def add(self, nodes: Int64Array, routes: Int64Array) -> None:
        """Let switches add up the messages of a sum."""
        found = self._shapes.sums(routes)
        last: dict[int, int] = {}
        for one in found.sums:
            index = len(self.sums)
            self.sums.append([int(nodes[one.members[0]]), len(one.members), -1, -1])
            for member, hops in zip(one.members, one.hops, strict=True):
                place = int(self._first[routes[member]]) + hops
                self._enter(int(nodes[member]), last.get(member), index, place)
                last[member] = index
        for first, *others in found.arrivals:
            self._arrive_together(int(nodes[first]), nodes[others])

    def _enter(self, node: int, before: int | None, index: int, place: int) -> None:
        """Let a message come into a sum, as its first one or behind the one before."""
        if before is not None:
            self.sums[before][2:] = [index, place]
            return
        self._switched["sum"][node] = index
        self._switched["sum_at"][node] = place

    def _arrive_together(self, carrier: int, others: Int64Array) -> None:
        """Chain those that arrive within a message to it."""
        if not len(others):
            return
        self._switched["first_part"][carrier] = others[0]
        self._switched["next_part"][others[:-1]] = others[1:]


class _Shapes:
    """Copies and sums by the routes of the members of a group, each found once."""

    def __init__(self, topology: Topology, routes: Routes) -> None:
        self._topology = topology
        self._routes = routes
        self._copies: dict[tuple[int, ...], list[_Copy]] = {}
        self._sums: dict[tuple[int, ...], _Sums] = {}

    def copies(self, routes: Int64Array) -> list[_Copy]:
        """Members of a multicast that a switch copies from others before them."""
        shape = tuple(routes.tolist())
        if shape not in self._copies:
            self._copies[shape] = self._found_copies(self._ways(routes))
        return self._copies[shape]

    def sums(self, routes: Int64Array) -> _Sums:
        """Sums of the members of a group that switches can add up."""
        shape = tuple(routes.tolist())
        if shape not in self._sums:
            self._sums[shape] = self._found_sums(self._ways(routes))
        return self._sums[shape]

    def _ways(self, routes: Int64Array) -> list[_Way]:
        bounds = zip(self._routes.indptr[routes], self._routes.indptr[routes + 1], strict=True)
        return [tuple(self._routes.links[first:end].tolist()) for first, end in bounds]

    def _found_copies(self, ways: Sequence[_Way]) -> list[_Copy]:
        owner: dict[_Way, int] = {}
        found = []
        for member, way in enumerate(ways):
            hops = self._shared_hops(way, owner)
            if hops:
                found.append(_Copy(member, owner[way[:hops]], hops))
            for end in range(hops + 1, len(way) + 1):
                owner.setdefault(way[:end], member)
        return found

    def _shared_hops(self, way: _Way, owner: Mapping[_Way, int]) -> int:
        """Links from the sender on that others take too, up to the last switch that multicasts."""
        hops = 0
        for end in range(1, len(way)):
            if way[:end] not in owner:
                break
            if int(self._topology.destination[way[end - 1]]) in self._topology.multicast:
                hops = end
        return hops

    def _found_sums(self, ways: Sequence[_Way]) -> _Sums:
        ends: dict[_Way, list[int]] = {}
        for member, way in enumerate(ways):
            for start in range(1, len(way)):
                if int(self._topology.source[way[start]]) in self._topology.reduction:
                    ends.setdefault(way[start:], []).append(member)
        # By the carrier of the sum that a member is in so far.
        carrier = list(range(len(ways)))
        found = []
        for end in sorted(ends, key=lambda end: (-len(end), end)):
            members = tuple(dict.fromkeys(carrier[member] for member in ends[end]))
            if len(members) > 1:
                hops = tuple(len(ways[member]) - len(end) for member in members)
                found.append(_Sum(members, hops))
                for member in ends[end]:
                    carrier[member] = members[0]
        arrivals: dict[int, list[int]] = {}
        for member, first in enumerate(carrier):
            arrivals.setdefault(first, []).append(member)
        return _Sums(tuple(found), tuple(map(tuple, arrivals.values())))
