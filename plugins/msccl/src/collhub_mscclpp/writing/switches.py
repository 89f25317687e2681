"""Find multicasts and sums that switch channels can execute.

A switch channel spans one buffer of a group of ranks (NVLS). `gstore` writes a local range to the
same range on all members. `glres` adds one range of all members and writes the sum to one range on
all members. Members include the rank that executes the operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_mscclpp.writing.networks import PlanNetwork
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Messages, StepKind, StepTable

# A pipeline is in one thread block, whose 16 channels serve the sum and its multicast.
_MAX_MESSAGES_OF_PIPELINE = 7


@dataclass(slots=True, eq=False)
class SwitchSteps:
    """Steps that operations of switch channels execute together.

    `multicast`: int64[rows], number of the multicast of a send, else -1; `total`: number of the sum
    of a receive, else -1. `multicasts`, `totals`: rows by number, sums in the order of their chain.
    `joined`: multicast of the result, by number of the sum. `copies`: step that copies the same
    data to the same range on the sender itself, by number of the multicast. `early_copies`:
    multicasts whose copy does not depend on the sends; the plan orders the copy before them.
    """

    multicast: Int64Array
    total: Int64Array
    multicasts: dict[int, list[int]] = field(default_factory=dict)
    totals: dict[int, list[int]] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    early_copies: set[int] = field(default_factory=set)

    @classmethod
    def empty(cls, rows: int) -> SwitchSteps:
        """Create the record of an algorithm of `rows` steps without multicasts and sums."""
        return cls(np.full(rows, -1, np.int64), np.full(rows, -1, np.int64))

    @property
    def is_empty(self) -> bool:
        """Whether there are neither multicasts nor sums."""
        return not self.multicasts and not self.totals

    def add_multicast(self, rows: list[int]) -> None:
        """Record sends as one multicast, which gets the next number.

        May be called only before any multicast is removed, because the number is the count so far.
        """
        number = len(self.multicasts)
        self.multicasts[number] = rows
        self.multicast[rows] = number

    def add_total(self, rows: list[int]) -> None:
        """Record receives as one sum, which gets the next number.

        `rows`: the receives in the order of the sum. May be called only before any sum is removed,
        because the number is the count so far.
        """
        number = len(self.totals)
        self.totals[number] = rows
        self.total[rows] = number

    def remove_cycle(self, rows: list[int]) -> bool:
        """Remove switch operations or copies that wait in a cycle; return whether any was removed.

        `rows`: rows of the cycle. If early copies (that a multicast must wait for) are among them,
        these are removed; otherwise all multicasts and sums that contain one of the rows.
        """
        early = sorted(number for number in self.early_copies if self.copies[number] in {*rows})
        self._remove_copies(early)
        if early:
            return True
        before = len(self.multicasts) + len(self.totals)
        self.remove(rows)
        return before > len(self.multicasts) + len(self.totals)

    def _remove_copies(self, multicasts: list[int]) -> None:
        """Forget the copies of these multicasts, also early ones; none is required to exist."""
        for number in multicasts:
            self.copies.pop(number, None)
            self.early_copies.discard(number)

    def remove(self, rows: Iterable[int]) -> None:
        """Remove the multicasts and sums that these rows belong to; other rows have no effect.

        All rows of a removed operation become single messages again (number -1). Removing a
        multicast also removes its copies, and its link to the sum whose result it sends; the sum
        itself remains. Removing a sum keeps the multicast.
        """
        for row in rows:
            multicast, total = int(self.multicast[row]), int(self.total[row])
            if multicast >= 0:
                self.multicast[self.multicasts.pop(multicast)] = -1
                self._remove_copies([multicast])
                self.joined = {
                    sum_number: multicast_number
                    for sum_number, multicast_number in self.joined.items()
                    if multicast_number != multicast
                }
            if total >= 0:
                self.total[self.totals.pop(total)] = -1
                self.joined.pop(total, None)

    def clusters(self, rows: int) -> Int64Array:
        """Return a number for each step, equal for the steps of one switch operation: int64[rows].

        The number is a row: for a multicast its first send, for a sum the first receive of its
        chain. The sends of a multicast that sends a sum have the number of that sum's steps.
        Any other step has its own row. `rows`: number of steps of the algorithm.
        """
        cluster = np.arange(rows, dtype=np.int64)
        for members in [*self.multicasts.values(), *self.totals.values()]:
            cluster[members] = members[0]
        for total, multicast in self.joined.items():
            cluster[self.multicasts[multicast]] = self.totals[total][0]
        return cluster

    def control_edges(self) -> tuple[Int64Array, Int64Array]:
        """Return (parents, children): each early copy of a multicast before all sends of it.

        The pairs are ordered by the number of the multicast. Both arrays are empty if there are no
        early copies.
        """
        pairs = [
            (self.copies[number], row)
            for number in sorted(self.early_copies)
            for row in self.multicasts[number]
        ]
        edges = np.asarray(pairs, np.int64).reshape(-1, 2)
        return edges[:, 0], edges[:, 1]

    def lanes(self, steps: StepTable) -> Int64Array:
        """Return the lane of every step: int64[rows].

        A switch operation (a sum or a multicast) consists of several steps. Its steps get new
        lanes:

        1. Switch operations share a lane if they have the same kind, rank and set of partners.
        2. The lanes begin at the highest lane of the algorithm + 1. They are numbered in the
           order of their first operation, first for all sums, then for all multicasts.
        3. However, a multicast that sends the result of a sum has the lane of the sum. Its number
           from rule 2 remains unused, if no other multicast has it.

        All other steps keep their lane, also -1.
        """
        lane = steps.lane.astype(np.int64)
        following = int(lane.max(initial=-1)) + 1
        numbers: dict[tuple[object, ...], int] = {}
        for kind, operations in (("sum", self.totals), ("multicast", self.multicasts)):
            for members in operations.values():
                partners = tuple(sorted(steps.peer[members].tolist()))
                key = (kind, int(steps.rank[members[0]]), partners)
                lane[members] = following + numbers.setdefault(key, len(numbers))
        for total, multicast in self.joined.items():
            lane[self.multicasts[multicast]] = lane[self.totals[total][0]]
        return lane


def find_switch_steps(
    algorithm: Algorithm,
    messages: Messages,
    network: PlanNetwork,
    *,
    has_sums: bool,
    is_sliced: bool,
) -> SwitchSteps:
    """Find the multicasts and sums that the switches of a network can execute.

    The candidates are the multicasts and sums of `find_switch_groups`. A switch can execute a
    message if sender and receiver are attached to it and are in one memory domain. Of several
    messages between two ranks, only the first counts.

    - Multicast: the switch that can execute the most messages of the candidate is used, on ties
      the first. These messages, at least 2, become the multicast. The other sends remain single.
    - Sum (only with `has_sums`): one switch must be able to execute all messages, and all
      receives must add the same source range. Otherwise the messages remain single.
    - With `is_sliced`, a multicast or sum of more than 7 messages remains single messages.

    With `has_sums`, a sum is then joined to the multicast of its result (`_join`). Local copies
    are joined to multicasts (`_find_copies`). Multicasts and sums are numbered from 0 each, in
    the order of the candidates. Without a topology, switches or candidates, the result is empty.
    """
    steps, topology = algorithm.steps, network.topology
    switches = SwitchSteps.empty(len(steps))
    if topology is None or not (topology.multicast or topology.reduction):
        return switches
    # Imported here: plans for other networks do not need it.
    from hub_core.schedules import find_switch_groups

    groups = find_switch_groups(algorithm, topology)
    if groups is None:
        return switches
    max_messages = _MAX_MESSAGES_OF_PIPELINE if is_sliced else len(steps)
    members = {
        switch: network.switch_members(switch)
        for switch in {*topology.multicast, *topology.reduction}
    }
    for rows in _split(groups.multicasts):
        candidates = [
            _select_attached(steps, rows, members[switch], network) for switch in topology.multicast
        ]
        attached = max(candidates, key=len)
        if 1 < len(attached) <= max_messages:
            switches.add_multicast(attached)
    receive_of = dict(zip(messages.send.tolist(), messages.receive.tolist(), strict=True))
    parents: dict[int, set[int]] = defaultdict(set)
    for parent, child in zip(*(column.tolist() for column in steps.edges()), strict=True):
        parents[child].add(parent)
    if has_sums:
        for rows in _split(groups.sums):
            is_whole = len(rows) <= max_messages and any(
                len(_select_attached(steps, rows, members[switch], network)) == len(rows)
                for switch in topology.reduction
            )
            chain = _order_chain([receive_of[row] for row in rows], parents)
            # All operands, including the local one, must be the same range on their ranks.
            region = _find_region(steps, "src", chain[0])
            if is_whole and all(_find_region(steps, "src", row) == region for row in rows):
                switches.add_total(chain)
        _join(steps, parents, switches)
    _find_copies(steps, receive_of, parents, switches)
    return switches


def _split(groups: tuple[Int64Array, Int64Array]) -> Iterator[list[int]]:
    """Yield the rows of every group, in the order of the first row of each group.

    `groups`: two equally long arrays, the rows and their group numbers. Rows of a group keep their
    order.
    """
    by_number: dict[int, list[int]] = defaultdict(list)
    for row, number in zip(*(column.tolist() for column in groups), strict=True):
        by_number[number].append(row)
    yield from by_number.values()


def _select_attached(
    steps: StepTable, rows: Sequence[int], members: frozenset[int], network: PlanNetwork
) -> list[int]:
    """Return the sends that a switch can execute, at most one per (sender, receiver).

    `rows`: rows of sends in `steps`. Sender and receiver must be in `members` (the NPUs of the
    switch) and in the same memory domain. The first send of a (sender, receiver) counts; the
    order of `rows` is kept.
    """
    send_of_pair: dict[tuple[int, int], int] = {}
    for row in rows:
        pair = int(steps.rank[row]), int(steps.peer[row])
        is_near = network.domain[pair[0]] == network.domain[pair[1]]
        if is_near and members.issuperset(pair):
            send_of_pair.setdefault(pair, row)
    return list(send_of_pair.values())


def _order_chain(receives: list[int], parents: dict[int, set[int]]) -> list[int]:
    """Return the receives of a sum in the order in which each depends on the previous one.

    `parents`: direct predecessors of each step; each receive must have at most one among
    the receives. If several have none, because a receive between them is missing, only the
    chain from the last of these (in the order of `receives`) is returned. Raises `KeyError`
    without receives.
    """
    members = set(receives)
    following = {next(iter(parents[row] & members), -1): row for row in receives}
    chain = [following[-1]]
    while chain[-1] in following:
        chain.append(following[chain[-1]])
    return chain


def _find_region(steps: StepTable, side: str, row: int) -> tuple[int, int, int]:
    """Return (buffer, first unit, number of units) of the range that a step reads or writes.

    `side`: `src` or `dst`. For a side that the step does not have, the values of the
    columns are returned unchecked.
    """
    buffer, offset = getattr(steps, f"{side}_buffer"), getattr(steps, f"{side}_offset")
    return int(buffer[row]), int(offset[row]), int(steps.count[row])


def _join(steps: StepTable, parents: dict[int, set[int]], switches: SwitchSteps) -> None:
    """Store in `switches.joined`, by number of a sum, the number of the multicast of its result.

    A multicast sends the result of a sum if all of these hold:

    - Both are executed by the same rank.
    - The source range of the multicast's first send equals the destination range of the last
      receive of the sum: buffer, offset and count.
    - The first send depends directly on this last receive (`parents`: direct predecessors by step).

    Sums are examined in the order of their numbers, and a multicast is joined to the first sum that
    fits. If several multicasts of a rank have the same source range, only the one with the highest
    number is examined. Other sums get no entry.
    """
    by_source = {
        (int(steps.rank[rows[0]]), _find_region(steps, "src", rows[0])): number
        for number, rows in switches.multicasts.items()
    }
    taken: set[int] = set()
    for number, chain in switches.totals.items():
        result = (int(steps.rank[chain[0]]), _find_region(steps, "dst", chain[-1]))
        multicast = by_source.get(result, -1)
        if multicast < 0 or multicast in taken:
            continue
        if chain[-1] in parents[switches.multicasts[multicast][0]]:
            switches.joined[number] = multicast
            taken.add(multicast)


def _find_copies(
    steps: StepTable,
    receive_of: dict[int, int],
    parents: dict[int, set[int]],
    switches: SwitchSteps,
) -> None:
    """Store in `switches.copies`, by number of a multicast, the COPY step of the same data.

    The copy is on the sending rank and reads the source range (buffer, offset, count) of the first
    send. It writes the range that the receive of this send writes on the receiving rank. Of several
    such copies the one with the highest row is stored. Multicasts without a copy, and multicasts in
    the values of `switches.joined` (they send a sum), get no entry.

    If the copy depends directly on no send of the multicast, the number of the multicast is also
    added to `switches.early_copies`. `receive_of`: receive row by send row. `parents`: direct
    predecessors of each step.
    """
    copies = {
        (
            int(steps.rank[row]),
            _find_region(steps, "src", row),
            _find_region(steps, "dst", row),
        ): row
        for row in np.flatnonzero(steps.is_kind(StepKind.COPY)).tolist()
    }
    for number, rows in switches.multicasts.items():
        target = _find_region(steps, "dst", receive_of[rows[0]])
        key = (int(steps.rank[rows[0]]), _find_region(steps, "src", rows[0]), target)
        if key in copies and number not in switches.joined.values():
            switches.copies[number] = copies[key]
            if not parents[copies[key]].intersection(rows):
                switches.early_copies.add(number)
