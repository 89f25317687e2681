"""Copies and sums that switches make of messages, on the routes of the messages.

The routes of a multicast are merged from the sender up to the last shared switch that supports
multicast: a trie of links, each of which carries the message once. A sum is the mirror image: a
switch that supports reduction waits for all messages of a sum that pass it on the way to the same
receiver, and forwards one. Groups with equal routes are computed once. Cost: the hops of each set
of routes, and arrays over the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_kernels.event_queue import Records

from collhub_astra_sim.simulating.kernel import SUM, SWITCHED
from hub_core.columns import Int64Array, run_starts
from hub_core.network import Routes, Topology
from hub_core.schedules import SwitchGroups

# Links of a route, in order.
_Route = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Copy:
    """Member `member` of a multicast is copied from member `origin` after `hops` links."""

    member: int
    origin: int
    hops: int


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum in a switch: the members of a group that enter it, and after how many links each.

    The first member carries the result.
    """

    members: tuple[int, ...]
    hops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _GroupSums:
    """Sums of a group, the farthest from the receiver first; and the members delivered together.

    `arrivals`: tuples of members, each beginning with the carrier.
    """

    sums: tuple[_Sum, ...]
    arrivals: tuple[tuple[int, ...], ...]


def create_no_switched_records() -> tuple[Records, Records]:
    """Return (no switch actions, no sums), for simulations whose switches only forward."""
    return np.zeros(0, SWITCHED), np.zeros(0, SUM)


def build_switched_records(
    groups: SwitchGroups,
    topology: Topology,
    routes: Routes,
    node_of_row: Int64Array,
    route_of_node: Int64Array,
) -> tuple[Records, Records]:
    """Plan which messages switches copy or add, instead of separate messages on all links.

    Returns a record (`SWITCHED`) per node and the sums (`SUM`). `groups`: steps of multicasts and
    of sums. `node_of_row`: SEND node of every step. `route_of_node`: index in `routes` of every
    SEND.

    - A message of a multicast is copied from an earlier one at the last switch up to which both
      have the same links, if switches of the topology there can multicast (`_Shapes.copies`).
    - Messages of a sum to one receiver that pass a switch that can reduce are added there, and one
      message carries the result on (`_Shapes.sums`).

    All other messages are sent separately; the references of their records are -1. Other fields of
    records without a value are 0.
    """
    switched = np.zeros(len(route_of_node), SWITCHED)
    for name in ("first_copy", "next_copy", "leaves_at", "sum", "sum_at"):
        switched[name] = -1
    switched["first_part"] = switched["next_part"] = switched["leader"] = -1
    laid_out = _Layout(_Shapes(topology, routes), routes, switched)
    for nodes in _iterate_members(groups.multicasts, node_of_row):
        laid_out.copy(nodes, route_of_node[nodes])
    for nodes in _iterate_members(groups.sums, node_of_row):
        laid_out.add(nodes, route_of_node[nodes])
    return switched, np.array([tuple(record) for record in laid_out.sums], SUM)


def _iterate_members(
    groups: tuple[Int64Array, Int64Array], node_of_row: Int64Array
) -> Iterator[Int64Array]:
    """Yield the SEND nodes of every group of messages, in the order of its steps.

    `groups`: rows of steps, and the group of each, ascending. `node_of_row`: SEND node by step.
    Without steps no group is yielded.
    """
    rows, group = groups
    if len(rows):
        yield from np.split(node_of_row[rows], run_starts(group)[1:])


class _Layout:
    """Fills the records of switches.

    `sums`: lists of carrier, missing messages, next sum, and its position.
    """

    def __init__(self, shapes: _Shapes, routes: Routes, switched: Records) -> None:
        self._shapes = shapes
        self._first = routes.indptr
        self._switched = switched
        self.sums: list[list[int]] = []

    def copy(self, nodes: Int64Array, routes: Int64Array) -> None:
        """Record which messages of a multicast switches copy, and from which message.

        `nodes`: SENDs of the multicast; `routes`: number of the route of each. A copy records the
        message that is really sent (`leader`), the hop of the other's route at which it is made,
        and that it skips as many hops of its own route. The message that it is copied from gets it
        as first of its list of copies. Messages without an entry are sent separately.
        """
        switched = self._switched
        for copied in self._shapes.copies(routes):
            node, source = nodes[copied.member], nodes[copied.origin]
            leader = switched["leader"][source]
            switched["leader"][node] = source if leader < 0 else leader
            switched["leaves_at"][node] = self._first[routes[copied.origin]] + copied.hops
            switched["skipped"][node] = copied.hops
            switched["next_copy"][node] = switched["first_copy"][source]
            switched["first_copy"][source] = node

    def add(self, nodes: Int64Array, routes: Int64Array) -> None:
        """Record which messages to one receiver switches add, and which are delivered together.

        `nodes`: SENDs of the messages. `routes`: numbers of their routes, in the same order. The
        sums are those of `_Shapes.sums`; without a switch that supports reduction nothing is
        recorded.

        - Each sum appends a list to `sums`: the node of its first message, which carries the result
          on; the number of added messages; the next sum that the result enters, and the position of
          the last link before that sum. The last two are -1 if there is no next sum.
        - The record of a message names the first sum that it enters, and the position there.
        - A message with the sum of others refers to the first of them, and these to the next one.

        A position is an index in the links of all routes, one after another.
        """
        group_sums = self._shapes.sums(routes)
        last: dict[int, int] = {}
        for group_sum in group_sums.sums:
            index = len(self.sums)
            self.sums.append([int(nodes[group_sum.members[0]]), len(group_sum.members), -1, -1])
            for member, hops in zip(group_sum.members, group_sum.hops, strict=True):
                position = int(self._first[routes[member]]) + hops
                if member in last:
                    self.sums[last[member]][2:] = [index, position]
                else:
                    node = int(nodes[member])
                    self._switched["sum"][node] = index
                    self._switched["sum_at"][node] = position
                last[member] = index
        for first, *parts in group_sums.arrivals:
            carrier, delivered = int(nodes[first]), nodes[parts]
            if len(delivered):
                self._switched["first_part"][carrier] = delivered[0]
                self._switched["next_part"][delivered[:-1]] = delivered[1:]


class _Shapes:
    """Caches copies and sums by the routes of the members of a group."""

    def __init__(self, topology: Topology, routes: Routes) -> None:
        self._topology = topology
        self._routes = routes
        self._copies: dict[tuple[int, ...], list[_Copy]] = {}
        self._sums: dict[tuple[int, ...], _GroupSums] = {}

    def copies(self, routes: Int64Array) -> list[_Copy]:
        """Return which members of a multicast switches copy, and from which earlier members.

        `routes`: numbers of the members' routes, in the order of the members. A member is copied at
        the last switch with multicast up to which its route equals that of an earlier member; the
        earliest such member is its origin. A result has the positions of both, and the number of
        hops up to the switch. A member without a result, such as the first one, is sent separately.

        The list is in the order of the members. It is cached by the routes and shared; it must not
        be changed.
        """
        shape = tuple(routes.tolist())
        if shape not in self._copies:
            self._copies[shape] = self._find_copies(self._get_routes(routes))
        return self._copies[shape]

    def sums(self, routes: Int64Array) -> _GroupSums:
        """Find which sums switches can compute of messages that take these routes to one receiver.

        `routes`: numbers of the members' routes. Members are named by position. Without a switch
        that supports reduction there are no sums, and every message arrives separately. The result
        is cached by the routes and shared.
        """
        shape = tuple(routes.tolist())
        if shape not in self._sums:
            self._sums[shape] = self._find_sums(self._get_routes(routes))
        return self._sums[shape]

    def _get_routes(self, routes: Int64Array) -> list[_Route]:
        """Return the links of each given route, from source to destination, as tuples of numbers.

        `routes`: numbers of routes; the result has the same order and length.
        """
        bounds = zip(self._routes.indptr[routes], self._routes.indptr[routes + 1], strict=True)
        return [tuple(self._routes.links[first:end].tolist()) for first, end in bounds]

    def _find_copies(self, routes: Sequence[_Route]) -> list[_Copy]:
        """Find the members of a multicast that switches can copy, in the order of the members.

        `routes`: links of each member's route. A member is copied at the last switch with multicast
        up to which its route equals that of an earlier member. The result has this member, the
        earliest such member, and the number of hops up to the switch. The first member is never a
        copy.
        """
        owner: dict[_Route, int] = {}
        copies = []
        for member, route in enumerate(routes):
            hops = self._count_shared_hops(route, owner)
            if hops:
                copies.append(_Copy(member, owner[route[:hops]], hops))
            for end in range(hops + 1, len(route) + 1):
                owner.setdefault(route[:end], member)
        return copies

    def _count_shared_hops(self, route: _Route, owner: Mapping[_Route, int]) -> int:
        """Return after how many hops of `route` a message can be copied from an earlier one.

        `owner`: all prefixes of the earlier routes. The hops are the longest prefix of `route` that
        is one of them and ends at a switch with multicast, before the end of the route. 0 without
        such a switch.
        """
        hops = 0
        for end in range(1, len(route)):
            if route[:end] not in owner:
                break
            if int(self._topology.destination[route[end - 1]]) in self._topology.multicast:
                hops = end
        return hops

    def _find_sums(self, routes: Sequence[_Route]) -> _GroupSums:
        """Find the sums that switches can form of the messages of a group to one receiver.

        `routes`: links of each message from its sender to the receiver. A member is the position of
        a message in `routes`. A switch sums messages if it supports reduction, and their routes
        from this switch on consist of the same links. At least two messages must meet there. After
        a sum, only the message of its lowest member (the carrier) travels on; in later sums it
        stands for all members of the sum.

        - `sums`: sorted by the number of links from the switch to the receiver, descending, then by
          these links. A sum has the members whose messages travel to its switch, ascending, and for
          each the number of links from its sender to the switch.
        - `arrivals`: one tuple per message that reaches the receiver: its carrier, then the other
          members that it contains, ascending. Tuples ascend by carrier. A member in no sum is a
          tuple of one.

        Without routes both are empty.
        """
        ends: dict[_Route, list[int]] = {}
        for member, route in enumerate(routes):
            for start in range(1, len(route)):
                if int(self._topology.source[route[start]]) in self._topology.reduction:
                    ends.setdefault(route[start:], []).append(member)
        # By member: the carrier of the last sum that it entered.
        carrier = list(range(len(routes)))
        sums = []
        for end in sorted(ends, key=lambda end: (-len(end), end)):
            members = tuple(dict.fromkeys(carrier[member] for member in ends[end]))
            if len(members) > 1:
                hops = tuple(len(routes[member]) - len(end) for member in members)
                sums.append(_Sum(members, hops))
                for member in ends[end]:
                    carrier[member] = members[0]
        arrivals: dict[int, list[int]] = {}
        for member, first in enumerate(carrier):
            arrivals.setdefault(first, []).append(member)
        return _GroupSums(tuple(sums), tuple(map(tuple, arrivals.values())))
