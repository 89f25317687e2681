"""The wait-for graph of a job: which operation each rank waits in, and for which ranks.

A rank waits in its oldest incomplete operation, and in the oldest started one of every other
group or pair of ranks. It waits there for the ranks that have not issued the operation, or that
have not started it because an earlier operation is incomplete. Ranks for which others wait and that
wait for no rank are the cause; a cycle is an order deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from collhub_waits.matching import Arrival, Matching, Partner
from collhub_waits.records import OperationState

# Dumps of a job are taken some seconds apart, by watchdogs that look at intervals.
MAX_SKEW_NS = 60 * 10**9

_UNDECIDED = (Arrival.NO_DUMP, Arrival.UNKNOWN)


class Wait(NamedTuple):
    """One edge: `rank` waits in the operation of `row` for the rank `awaited`."""

    rank: int
    row: int
    awaited: int
    arrival: Arrival


@dataclass(frozen=True)
class Front:
    """The oldest incomplete operations of a rank.

    `rows`: operations in which the rank waits. `skewed`: operations that other ranks completed, and
    that this rank is about to complete. `stuck`: operations that other ranks completed longer ago
    than the time between the dumps.
    """

    rows: tuple[int, ...] = ()
    skewed: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()


class WaitGraph:
    """Fronts of all ranks and the edges between them."""

    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self.records = matching.records
        # By identity of the participants, which the matching retains.
        self._awaited: dict[int, tuple[Partner, ...]] = {}
        self._has_left: dict[int, bool] = {}
        self.fronts = {rank: self._front(rank) for rank in sorted(self.records.dumps)}

    def awaited(self, row: int) -> tuple[Partner, ...]:
        """Return the ranks for which an operation waits, with their states; cached per operation.

        A rank is awaited if it has not issued the operation (LATE), if its state is unknown
        (NO_DUMP, UNKNOWN), or if it has only scheduled the operation because it waits in
        another one. Ranks ascend. In the last case, a collective may contain the rank of the
        row itself.
        """
        participants = self.matching.participants(row)
        key = id(participants)
        if key not in self._awaited:
            self._awaited[key] = tuple(filter(self._is_awaited, participants))
        return self._awaited[key]

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """Edges by rank, row and awaited rank, including those to ranks without evidence."""
        return tuple(
            Wait(rank, row, partner.rank, partner.arrival)
            for rank, front in self.fronts.items()
            for row in front.rows
            for partner in self.awaited(row)
            if partner.rank != rank
        )

    @cached_property
    def decided(self) -> dict[int, tuple[int, ...]]:
        """Return the ranks for which each rank certainly waits, by waiting rank; computed once.

        The keys are all ranks with a dump. Waits for ranks without a dump, or whose entries are
        lost, are left out. The tuples ascend, and are empty for a rank that waits for none.
        """
        awaited: dict[int, set[int]] = {rank: set() for rank in self.fronts}
        for wait in self.waits:
            if wait.arrival not in _UNDECIDED:
                awaited[wait.rank].add(wait.awaited)
        return {rank: tuple(sorted(ranks)) for rank, ranks in awaited.items()}

    @cached_property
    def undecided(self) -> tuple[Wait, ...]:
        """Edges to ranks without a dump, or without the entries that would show their state."""
        return tuple(wait for wait in self.waits if wait.arrival in _UNDECIDED)

    @cached_property
    def sources(self) -> dict[int, Front]:
        """Return the late ranks at which a hang starts, with their fronts, ascending; cached.

        The front of a rank is the set of operations in which it waits. A rank is late if another
        rank waits for an operation that it has not issued. A late rank is a source if its front is
        empty, or if each operation of its front meets all of these conditions:

        - It is a batch of messages between single ranks, not a collective.
        - Its partners are known, and each has recorded its part of the batch.
        - Each part itself waits for an operation that the late rank has not issued.
        """
        waiting: dict[int, set[int]] = {}
        for wait in self.waits:
            if wait.arrival is Arrival.LATE:
                waiting.setdefault(wait.awaited, set()).add(wait.row)
        return {
            rank: self.fronts[rank]
            for rank in sorted(waiting)
            if all(self._lacks_call(row, waiting[rank]) for row in self.fronts[rank].rows)
        }

    def _lacks_call(self, row: int, waiting: set[int]) -> bool:
        """Check whether all partners of a batch of messages wait for another message of its rank.

        `waiting`: rows of operations that wait for the rank of `row` to issue them. True if the
        partners of the batch are recorded, and all of their rows are in `waiting`. False for
        collectives, without partners, and if a partner is not recorded.
        """
        if not self.records.columns["is_p2p"][row]:
            return False
        rows = {partner.row for partner in self.matching.participants(row)}
        return bool(rows) and None not in rows and rows <= waiting

    def has_waited_long(self, awaited: int) -> bool:
        """Whether an operation that waits for a rank timed out, or exceeds the skew of dumps."""
        return any(wait.awaited == awaited and self._is_overdue(wait.row) for wait in self.waits)

    def order_cycles(self) -> list[tuple[int, ...]]:
        """Return the sorted ranks of every cycle of waits that depends on no rank outside of it.

        A cycle is a strongly connected set of at least two ranks in the graph of certain waits
        (`decided`), of which no rank waits for a rank outside. Cycles are disjoint, in the
        order of `_components`. The result is [] without a cycle.
        """
        cycles = []
        for ranks in _components(self.decided):
            inside = set(ranks)
            if len(ranks) > 1 and all(inside.issuperset(self.decided[rank]) for rank in ranks):
                cycles.append(ranks)
        return cycles

    def rows_issued_by_all(self) -> list[int]:
        """Return one row for each blocked operation that all its ranks have issued, ascending.

        The front of a rank has its oldest incomplete operations. An operation is blocked here if it
        is in the front (`rows`) of a rank and `awaited` is empty for it, so the hang is in the
        operation itself. If it is in several fronts, the first of them in `fronts` gives the row.
        """
        rows: dict[int, int] = {}
        for front in self.fronts.values():
            for row in front.rows:
                if not self.awaited(row):
                    peers = [
                        partner.row
                        for partner in self.matching.participants(row)
                        if partner.row is not None
                    ]
                    rows.setdefault(min([row, *peers[:1]]), row)
        return sorted(rows.values())

    def has_lost_evidence(self, row: int) -> bool:
        """Check whether lost entries could explain why an operation does not proceed.

        They could if a rank has only scheduled it and its buffer may have lost an earlier
        incomplete operation, or if the entry of a rank for it is lost.
        """
        participants = self.matching.participants(row)
        ranks = [partner.rank for partner in participants if partner.arrival is Arrival.SCHEDULED]
        if self.records.columns["state"][row] == OperationState.SCHEDULED:
            ranks.append(self.records.rank(row))
        return any(self._has_lost_incomplete(rank, row) for rank in ranks) or any(
            partner.arrival is Arrival.UNRECORDED for partner in participants
        )

    def _has_lost_incomplete(self, rank: int, row: int) -> bool:
        """Check whether a rank's ring buffer may have lost incomplete operations before `row`.

        False if the buffer was not overwritten. The dump may have a status of each group: the
        numbers of the last enqueued and the last completed collective. With a status, `row` has no
        effect. True if:

        - The first incomplete collective of a group is older than the oldest one of the group in
          the buffer. If the buffer has none of the group: an enqueued collective is incomplete.
        - Any rank has recorded a message, and the oldest entry of this rank is not completed.

        Without a status, it is True if the oldest entry of this rank is not completed. It is also
        True if its oldest entry with the group and type (collective or message) of `row` has not
        started.
        """
        dump = self.records.dumps[rank]
        if not dump.is_overwritten:
            return False
        columns = dump.columns
        if not dump.status:
            is_same = [
                columns[key] == self.records.columns[key][row] for key in ("group", "is_p2p")
            ]
            of_group = columns["state"][np.logical_and(*is_same)]
            return bool(
                columns["state"][0] != OperationState.COMPLETED
                or (len(of_group) and of_group[0] == OperationState.SCHEDULED)
            )
        for group, status in dump.status.items():
            chosen = (columns["group"] == group) & np.logical_not(columns["is_p2p"])
            sequences = columns["sequence"][chosen]
            oldest = int(sequences[0]) if len(sequences) else status.enqueued + 1
            if max(status.completed, 0) + 1 < oldest:
                return True
        has_messages = bool(self.records.columns["is_p2p"].any())
        return has_messages and bool(columns["state"][0] != OperationState.COMPLETED)

    def states(self, row: int) -> dict[int, OperationState]:
        """Return the state of an operation by rank, for the ranks that recorded it.

        `row` is the entry of one rank. Its rank comes first, then the other participants in the
        order of the matching. The participants of a message are the ranks at its other ends.
        A participant without an entry for the operation is left out.
        """
        state = self.records.columns["state"]
        states = {self.records.rank(row): OperationState(int(state[row]))}
        for partner in self.matching.participants(row):
            if partner.row is not None:
                states[partner.rank] = OperationState(int(state[partner.row]))
        return states

    def _front(self, rank: int) -> Front:
        """Return the front of a rank: the incomplete operations that it may execute now.

        Collectives of a group form a sequence. Messages of a group with the same partner ranks form
        another one. Incomplete operations are visited in the order of their rows:

        1. An operation whose sequence already has an operation of case 3 is ignored.
        2. An operation that other ranks have left (`_has_left_partner`) is added to `stuck` if it
           is overdue (`_is_overdue`), otherwise to `skewed`. It is overdue if it timed out, or if
           another rank completed it more than 60 s before the latest time of the dumps.
        3. Any other operation is a candidate. The first candidate is added to `rows` in any state,
           later ones only if they are STARTED.

        Without incomplete operations all three tuples are empty.
        """
        rows: list[int] = []
        skewed: list[int] = []
        stuck: list[int] = []
        seen: set[tuple[int, tuple[int, ...]]] = set()
        columns = self.records.columns
        start = self.records.first_row[rank]
        incomplete = np.flatnonzero(
            self.records.dumps[rank].columns["state"] != OperationState.COMPLETED
        )
        for row in (incomplete + start).tolist():
            # Operations of one group are in order, messages those of one pair.
            partner_ranks: tuple[int, ...] = ()
            if columns["is_p2p"][row]:
                partner_ranks = tuple(
                    partner.rank for partner in self.matching.participants(row)
                ) or (-1,)
            key = (int(columns["group"][row]), partner_ranks)
            if key in seen:
                continue
            if self._has_left_partner(row):
                (stuck if self._is_overdue(row) else skewed).append(row)
                continue
            seen.add(key)
            if not rows or columns["state"][row] == OperationState.STARTED:
                rows.append(row)
        return Front(tuple(rows), tuple(skewed), tuple(stuck))

    def _has_left_partner(self, row: int) -> bool:
        """Check whether other ranks completed an operation that no rank must still issue.

        For a collective, at least one rank must have completed it, and no rank may be `LATE`;
        the result is cached. For a message, all partners must have completed it; False without
        partners.
        """
        participants = self.matching.participants(row)
        if self.records.columns["is_p2p"][row]:
            return {partner.arrival for partner in participants} == {Arrival.COMPLETED}
        key = id(participants)
        if key not in self._has_left:
            arrivals = {partner.arrival for partner in participants}
            self._has_left[key] = Arrival.COMPLETED in arrivals and Arrival.LATE not in arrivals
        return self._has_left[key]

    def _is_overdue(self, row: int) -> bool:
        """Check whether an operation timed out, or was completed by other ranks too long ago.

        True in each of these cases, otherwise False:

        - The entry of the operation states that it timed out.
        - Its timeout is above 0, and the latest time in all dumps is more than the timeout after
          its creation.
        - Another rank completed it more than `MAX_SKEW_NS` (60 s) before the latest time. A
          completion time of 0 is unknown and does not count.
        """
        operation = self.records.operation(row)
        latest = self.records.latest_ns
        if operation.has_timed_out:
            return True
        if operation.timeout_ns > 0 and latest - operation.created_ns > operation.timeout_ns:
            return True
        end_times = [
            int(self.records.columns["completed_ns"][partner.row])
            for partner in self.matching.participants(row)
            if partner.row is not None and partner.arrival is Arrival.COMPLETED
        ]
        return any(0 < end < latest - MAX_SKEW_NS for end in end_times)

    def _is_awaited(self, partner: Partner) -> bool:
        """Check whether a rank is a reason that an operation does not proceed.

        `partner`: the rank and the state of the operation there. It is a reason if it has not
        issued the operation, if its state is unknown (no dump, or lost entries), or if it has
        only scheduled the operation and waits in other ones (its front has rows, but not this
        one).
        """
        if partner.arrival is Arrival.LATE or partner.arrival in _UNDECIDED:
            return True
        if partner.arrival is not Arrival.SCHEDULED or partner.row is None:
            return False
        # It is scheduled after an earlier operation of its rank that is incomplete.
        front = self.fronts[partner.rank]
        return bool(front.rows) and partner.row not in front.rows


def walk_cycle(waits: Sequence[Wait]) -> list[Wait]:
    """Return the waits of one cycle, in which each waits for the rank of the next one.

    The search starts at the first wait and then follows, from each awaited rank, the first
    of its waits in `waits`. Waits before the cycle are not in the result; the last one
    waits for the rank of the first. `waits` must not be empty (`IndexError`), and every
    awaited rank in it must also wait (`KeyError`).
    """
    by_rank = {wait.rank: wait for wait in reversed(waits)}
    path: list[Wait] = []
    wait = waits[0]
    while wait not in path:
        path.append(wait)
        wait = by_rank[wait.awaited]
    return path[path.index(wait) :]


def _components(graph: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the strongly connected components of a graph (Tarjan's algorithm, not recursive).

    `graph`: successors by node; a node that is only a successor has none. Each component ascends; a
    node in no cycle is a component. A component comes after all components that can be reached from
    it. Searches begin at the keys in ascending order.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    is_on_stack: set[int] = set()
    components: list[tuple[int, ...]] = []
    for root in sorted(graph):
        if root in index:
            continue
        work = [(root, iter(graph[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        is_on_stack.add(root)
        while work:
            node, successors = work[-1]
            successor = next(successors, None)
            if successor is not None:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    is_on_stack.add(successor)
                    work.append((successor, iter(graph.get(successor, ()))))
                elif successor in is_on_stack:
                    low[node] = min(low[node], index[successor])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                members = [stack.pop()]
                while members[-1] != node:
                    members.append(stack.pop())
                is_on_stack -= set(members)
                components.append(tuple(sorted(members)))
    return components
