"""Match the operations of all ranks: the ranks of an operation, and ranks whose calls differ.

Collectives are matched by process group (set of ranks and description) and sequence number, never
by `record_id`: ranks that take part in other groups have other record numbers. Sends and receives
are matched by pair of ranks in their order, because their numbers count per rank.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from collhub_waits.mismatches import (
    Mismatch,
    compare_calls,
    compare_message,
    find_contradiction,
    is_all_to_all,
)
from collhub_waits.records import OperationState, RecordedCall, Records
from hub_core.columns import run_mask

CLEAR_RATIO = 4
"""Ratio between two distances of time from which on the smaller one identifies a pair of ends."""


class Arrival(Enum):
    """State of an operation on another rank, as far as the dumps show it."""

    COMPLETED = "completed"
    STARTED = "started"
    SCHEDULED = "scheduled"
    # Issued, but the ring buffer has no entry of it.
    UNRECORDED = "not recorded"
    LATE = "not issued"
    UNKNOWN = "unknown"
    NO_DUMP = "no dump"


class Partner(NamedTuple):
    """Another rank of an operation, and its row of the same operation if it is recorded."""

    rank: int
    arrival: Arrival
    row: int | None = None


class Matching:
    """Operations of all ranks by key: collectives are sorted once, messages paired on demand."""

    def __init__(self, records: Records) -> None:
        self.records = records
        columns = records.columns
        self._order = np.lexsort(
            (columns["rank"], columns["sequence"], columns["is_p2p"], columns["group"])
        )
        keys = [columns[name][self._order] for name in ("group", "is_p2p", "sequence")]
        is_first = run_mask(*keys)
        self._starts = np.append(np.flatnonzero(is_first), len(self._order))
        self._segment_of = np.empty(len(self._order), dtype=np.int64)
        self._segment_of[self._order] = np.cumsum(is_first) - 1
        self._participants: dict[int, tuple[Partner, ...]] = {}
        self._partners_of_message: dict[int, tuple[Partner, ...]] = {}
        self._offsets: dict[tuple[int, int, int], int | None] = {}
        # By rank and group: whether its messages are recorded from the first one on, and the
        # sequence number of its last collective in issue order.
        self._has_first: dict[tuple[int, int], bool] = {}
        self._newest: dict[tuple[int, int], int | None] = {}

    def rows_of_key(self, row: int) -> dict[int, int]:
        """Return the rows with the key of a row, by rank, including the row itself.

        The key is the group, the sequence number, and whether it is a message. If several rows
        of a rank have this key, because it restarted, the last one is returned.
        """
        segment = self._segment_of[row]
        rows = self._order[self._starts[segment] : self._starts[segment + 1]]
        return {self.records.rank(int(entry)): int(entry) for entry in rows}

    def participants(self, row: int) -> tuple[Partner, ...]:
        """Return the ranks that take part in the operation of a row, ascending, with their state.

        - Collective: all ranks of the group (`Records.members`), including the rank of the row. A
          rank that recorded the collective has its row and the state of that row; of several rows,
          the last. Any other rank has no row, and the state that `_arrival` infers.
        - Message or batch of messages: only the ranks at the other ends, each once. Of several
          messages with one rank, the least advanced state counts, of equal ones the first message
          (`_message_partners`). The result may be empty.

        The result is cached; all rows of a collective give the same tuple. Raises `KeyError` if the
        members of a group are unknown and no dump names it.
        """
        if self.records.columns["is_p2p"][row]:
            if row not in self._partners_of_message:
                self._partners_of_message[row] = self._message_partners(row)
            return self._partners_of_message[row]
        segment = int(self._segment_of[row])
        if segment not in self._participants:
            group = int(self.records.columns["group"][row])
            sequence = int(self.records.columns["sequence"][row])
            rows = self.rows_of_key(row)
            self._participants[segment] = tuple(
                self._recorded(rank, rows[rank])
                if rank in rows
                else Partner(rank, self._arrival(rank, group, sequence))
                for rank in self.records.members(group)
            )
        return self._participants[segment]

    def has_lost_partners(self, row: int) -> bool:
        """Return whether ring buffers may have lost messages of the rank pairs of an operation.

        `row`: the operation. True if this holds for the group and rank pair of one of its messages.
        False for collectives, and if the ranks of the messages are unknown.
        """
        group = int(self.records.columns["group"][row])
        rank_pairs = (self._ends(group, call) for call in self.records.iterate_calls(row))
        return any(
            pair is not None and self._has_lost_messages((group, *pair)) for pair in rank_pairs
        )

    def mismatches(self) -> Iterator[Mismatch]:
        """Yield the operations whose calls differ between ranks or are contradictory in themselves.

        Collectives come first, by group and sequence number. Each has at most one mismatch: the
        first difference that `_compare` reports.

        Messages follow, by group, sender and receiver, then in the order of the sends: each send
        whose receive has another number of elements or another dtype. A send is not compared in
        these cases:

        - No receive is recorded for it, or its receive is unknown (`_offset`).
        - Ring buffers may have lost messages of the pair of ranks, unless both send and receive
          have started and are not completed.

        Without operations nothing is yielded.
        """
        calls = self.records.columns["calls"][self._order]
        is_p2p = self.records.columns["is_p2p"][self._order]
        group = self.records.columns["group"][self._order]
        if not len(calls):
            return
        starts = self._starts[:-1]
        differs = np.minimum.reduceat(calls, starts) != np.maximum.reduceat(calls, starts)
        # A key has the group in the upper 32 bits, the list of calls in the lower ones.
        keys = group[starts].astype(np.int64) << 32 | calls[starts].astype(np.int64)
        suspicious: list[int] = []
        for key in np.unique(keys).tolist():
            ranks = self.records.tables.groups[key >> 32].ranks
            listed = self.records.tables.calls[key & 0xFFFFFFFF]
            size = None if ranks is None else len(ranks)
            # Segments of all-to-alls may differ although the calls look equal.
            if any(map(is_all_to_all, listed)) or find_contradiction(listed, size) is not None:
                suspicious.append(key)
        needs_check = differs | np.isin(keys, np.array(suspicious, np.int64))
        for segment in np.flatnonzero(needs_check & ~is_p2p[starts]):
            rows = self._order[self._starts[segment] : self._starts[segment + 1]]
            mismatch = self._compare({self.records.rank(int(row)): int(row) for row in rows})
            if mismatch is not None:
                yield mismatch
        for key in sorted(self._messages):
            sends, receives = self._messages[key]
            offset = self._offset(key)
            for at, send in enumerate(sends):
                if offset is None or not 0 <= at - offset < len(receives):
                    continue
                receive = receives[at - offset]
                difference = compare_message(key[1], key[2], send.call, receive.call)
                pair = send.row, receive.row
                # A send may complete before its receive, which shifts the pairs.
                if difference is not None and not (
                    self._has_lost_messages(key)
                    and not self._are_in_state(pair, OperationState.STARTED)
                ):
                    completed = self._are_in_state(pair, OperationState.COMPLETED)
                    yield Mismatch(difference, pair, completed)

    def _recorded(self, rank: int, row: int) -> Partner:
        """Return a rank whose operation is recorded in a row, with the state of the row."""
        return Partner(rank, _ARRIVALS[self.records.columns["state"][row]], row)

    def _arrival(self, rank: int, group: int, sequence: int) -> Arrival:
        """Return the state of a collective on a rank that has no entry for it.

        `sequence`: number of the collective in `group`. An entry is a recorded collective of
        the group on this rank. The first rule that applies:

        1. The rank has no dump: `NO_DUMP`.
        2. The rank has an entry with a higher number: `UNRECORDED` (issued, but not recorded).
        3. The rank has an entry, and its dump has a completed operation of any group: `LATE`
           (not issued). A ring buffer loses only its oldest entries.
        4. The dump has a status of the group: `COMPLETED` if the last completed number is at
           least `sequence`; otherwise `UNRECORDED` if the last enqueued number is at least
           `sequence`; otherwise `LATE`.
        5. The rank has no entry, and its ring buffer was overwritten: `UNKNOWN`.
        6. Otherwise `LATE`.
        """
        dump = self.records.dumps.get(rank)
        if dump is None:
            return Arrival.NO_DUMP
        if (rank, group) not in self._newest:
            is_collective = np.logical_not(dump.columns["is_p2p"])
            chosen = dump.columns["sequence"][(dump.columns["group"] == group) & is_collective]
            self._newest[rank, group] = int(chosen[-1]) if len(chosen) else None
        newest = self._newest[rank, group]
        if newest is not None and newest > sequence:
            return Arrival.UNRECORDED
        # The ring buffer loses the oldest entries only, so a missing newest entry was not issued,
        # unless the dump leaves out completed operations (TORCH_INCLUDE_ONLY_ACTIVE).
        if newest is not None and dump.has_completed:
            return Arrival.LATE
        status = dump.status.get(group)
        if status is not None and status.completed >= sequence:
            return Arrival.COMPLETED
        if status is not None:
            return Arrival.UNRECORDED if status.enqueued >= sequence else Arrival.LATE
        if newest is None and dump.is_overwritten:
            return Arrival.UNKNOWN
        return Arrival.LATE

    @cached_property
    def _messages(self) -> dict[tuple[int, int, int], tuple[list[_End], list[_End]]]:
        """All recorded messages in issue order: (sends, receives) by group and pair of ranks.

        The key is (group, sender, receiver), with ranks of the job. Each recorded end is listed, so
        the two lists of a pair may differ in length. Ends whose ranks are unknown are left out.
        Computed once.
        """
        pairs: dict[tuple[int, int, int], tuple[list[_End], list[_End]]] = {}
        for row in np.flatnonzero(self.records.columns["is_p2p"]):
            group = int(self.records.columns["group"][row])
            for index, call in enumerate(self.records.iterate_calls(int(row))):
                rank_pair = self._ends(group, call)
                if rank_pair is not None:
                    both = pairs.setdefault((group, *rank_pair), ([], []))
                    both[0 if call.is_send else 1].append(_End(int(row), index, call))
        return pairs

    def _ends(self, group: int, call: RecordedCall) -> tuple[int, int] | None:
        """Return sender and receiver of a message as ranks of the job.

        `call` has both as positions in the group. None for collectives, if the members of the
        group are unknown, and if a position is not below their number.
        """
        ranks = self.records.tables.groups[group].ranks
        if not call.is_message or ranks is None:
            return None
        if max(call.source, call.destination) >= len(ranks):
            return None
        return ranks[call.source], ranks[call.destination]

    def _has_lost_messages(self, key: tuple[int, int, int]) -> bool:
        """Whether the dumps of a pair of ranks may lack messages between them.

        Nothing of a group is lost if its first recorded number is 1 and other entries precede it,
        so that its batch is not cut. Dumps of active operations lack the completed ones.
        """
        return any(self._has_lost_on(rank, key[0]) for rank in key[1:])

    def _has_lost_on(self, rank: int, group: int) -> bool:
        """Return whether the dump of a rank may lack messages of a group.

        The first rule that applies decides:

        1. The rank has no dump: False.
        2. Some dump of the job has gaps, so that the dumps leave out completed operations
           (`has_only_active`), and this dump has no completed operation: True.
        3. The oldest entries of this dump were not overwritten: False.
        4. The dump has no message of the group: True.
        5. Otherwise the first recorded message of the group decides. False if its sequence number
           is 1 and it is not the first entry of the dump; True in all other cases.
        """
        dump = self.records.dumps.get(rank)
        if dump is None:
            return False
        if self.records.has_only_active and not dump.has_completed:
            return True
        if not dump.is_overwritten:
            return False
        if (rank, group) not in self._has_first:
            rows = np.flatnonzero((dump.columns["group"] == group) & dump.columns["is_p2p"])
            is_whole = len(rows) > 0 and rows[0] > 0 and dump.columns["sequence"][rows[0]] == 1
            self._has_first[rank, group] = bool(is_whole)
        return not self._has_first[rank, group]

    def _offset(self, key: tuple[int, int, int]) -> int | None:
        """Return how many positions the recorded sends of a pair are ahead of its receives; cached.

        `key`: (group, sender, receiver). Recorded send i and recorded receive i - offset are
        the two sides of one message. The offset is 0 if no entries are lost, and None if the
        dumps do not decide it (`_find_offset`).
        """
        if key not in self._offsets:
            self._offsets[key] = self._find_offset(key)
        return self._offsets[key]

    def _find_offset(self, key: tuple[int, int, int]) -> int | None:
        """Return by how many positions the recorded sends of a pair are ahead of its receives.

        `key`: (group, sender, receiver). The result n means: recorded send number i (from 1)
        belongs to recorded receive number i - n. The first rule that applies:

        1. The dumps have lost no messages of the pair: 0.
        2. The dumps have only active operations, and the sender or receiver has no dump or no
           completed operation in it: None.
        3. A rank that may have lost messages has no record of the pair, or its oldest record of the
           pair is only scheduled: None.
        4. Creation times do not permit a comparison (`_is_partner` returns None): None.

        Otherwise S and R are the numbers of sends and receives up to the last completed one. The
        result is S - R - 1 if, by creation times, send S belongs to receive R + 1. Else it is S + 1
        - R if receive R belongs to send S + 1. Else it is S - R.
        """
        if not self._has_lost_messages(key):
            return 0
        state = self.records.columns["state"]
        counts = []
        for rank, message_ends in zip(key[1:], self._messages[key], strict=True):
            dump = self.records.dumps.get(rank)
            if self.records.has_only_active and (dump is None or not dump.has_completed):
                return None
            if self._has_lost_on(rank, key[0]) and (
                not message_ends or state[message_ends[0].row] == OperationState.SCHEDULED
            ):
                return None
            done = (
                at + 1
                for at, end in enumerate(message_ends)
                if state[end.row] == OperationState.COMPLETED
            )
            counts.append(max(done, default=0))
        sends, receives = self._messages[key]
        is_send_ahead = self._is_partner(sends[: counts[0]], receives, counts[1])
        is_receive_ahead = self._is_partner(receives[: counts[1]], sends, counts[0])
        if is_send_ahead is None or is_receive_ahead is None:
            return None
        if is_send_ahead:
            counts[1] += 1
        elif is_receive_ahead:
            counts[0] += 1
        return counts[0] - counts[1]

    def _is_partner(
        self, completed: Sequence[_End], partners: Sequence[_End], position: int
    ) -> bool | None:
        """Check if the last completed end and the other side's first incomplete end are partners.

        Returns None if undecided. A send may complete before its receive, so this is possible.
        `completed`: ends of one side up to its last completed one. `partners`: all ends of the
        other side; the first `position` are those up to its last completed one. The first rule
        that applies:

        1. `completed` is empty, or `partners` has no end at `position`: False.
        2. The end at `position` and the end before it are in one batch (row): True.
        3. `position` is 0: None.
        4. Otherwise compare the distances of the creation times (ns) of both ends from that of
           the last end in `completed`. None if the distances are equal, or if the larger is below
           4 (`CLEAR_RATIO`) times the smaller. Else True if the end at `position` is nearer.
        """
        if not completed or position >= len(partners):
            return False
        row = partners[position].row
        created = self.records.columns["created_ns"]
        if position and partners[position - 1].row == row:
            return True
        if not position:
            return None
        time = int(created[completed[-1].row])
        distance = abs(int(created[row]) - time)
        previous = abs(int(created[partners[position - 1].row]) - time)
        if max(distance, previous) < CLEAR_RATIO * min(distance, previous) or distance == previous:
            return None
        return distance < previous

    def _message_partners(self, row: int) -> tuple[Partner, ...]:
        """Return the ranks at the other ends of the messages of an operation, ascending.

        Each rank occurs once, with the state and row of its end of the message (`_other_end`). For
        several messages with one rank, the least advanced end is returned, of equal ones that of
        the first message. The order is LATE, then NO_DUMP and UNKNOWN (equal), SCHEDULED,
        UNRECORDED, STARTED, COMPLETED. Messages of a rank to itself and messages whose ranks are
        unknown are omitted. Without other messages the result is empty.
        """
        partners: dict[int, Partner] = {}
        group = int(self.records.columns["group"][row])
        for index, call in enumerate(self.records.iterate_calls(row)):
            rank_pair = self._ends(group, call)
            if rank_pair is None or rank_pair[0] == rank_pair[1]:
                continue
            partner = self._other_end(_End(row, index, call), (group, *rank_pair))
            previous = partners.get(partner.rank)
            # Of several messages with one rank, the least advanced decides.
            if previous is None or _ADVANCE[partner.arrival] < _ADVANCE[previous.arrival]:
                partners[partner.rank] = partner
        return tuple(partners[rank] for rank in sorted(partners))

    def _other_end(self, end: _End, key: tuple[int, int, int]) -> Partner:
        """Return the rank at the other end of a message, with the state and row of that end.

        `key`: (group, sender, receiver). The first rule that applies:

        1. The other rank has no dump: NO_DUMP, without a row.
        2. `_offset` of the pair is None: UNKNOWN, without a row.
        3. A send at position i of the recorded sends belongs to the receive at i minus the offset.
           A receive at position i belongs to the send at i plus the offset. A position below 0
           gives UNRECORDED, one after the last recorded end gives LATE, both without a row.
        4. Otherwise the recorded end at this position gives the row, and its state: SCHEDULED,
           STARTED or COMPLETED.
        """
        sends, receives = self._messages[key]
        same_side, opposite_ends = (sends, receives) if end.call.is_send else (receives, sends)
        rank = key[2] if end.call.is_send else key[1]
        if rank not in self.records.dumps:
            return Partner(rank, Arrival.NO_DUMP)
        # Rows ascend, and so do calls within a row.
        position = bisect.bisect_left(same_side, end[:2], key=lambda message_end: message_end[:2])
        offset = self._offset(key)
        if offset is None:
            return Partner(rank, Arrival.UNKNOWN)
        at = position + (-1 if end.call.is_send else 1) * offset
        if at < 0:
            return Partner(rank, Arrival.UNRECORDED)
        if at >= len(opposite_ends):
            return Partner(rank, Arrival.LATE)
        return self._recorded(rank, opposite_ends[at].row)

    def _are_in_state(self, rows: Sequence[int], state: OperationState) -> bool:
        """Whether all of these operations have the state."""
        return bool((self.records.columns["state"][list(rows)] == state).all())

    def _compare(self, rows: Mapping[int, int]) -> Mismatch | None:
        """Return the first difference between the calls of ranks in an operation, or None.

        `rows`: row by rank, at least one. Calls named `coalesced`, which end a batch, are left out.
        Then `compare_calls` compares the names of the operations, the sizes and the dtypes between
        the ranks, in this order. If they agree, it looks for calls that contradict themselves, and
        for all-to-alls whose sent and received data differ. It also determines the culprits.

        The rows of the result are all of `rows`: first those of the culprits, then the others, both
        by ascending rank. `is_completed` tells whether all of them are completed.
        """
        tables, columns = self.records.tables, self.records.columns
        calls = {
            rank: tuple(
                call
                for call in tables.calls[int(columns["calls"][row])]
                if call.operation != "coalesced"
            )
            for rank, row in rows.items()
        }
        group = tables.groups[int(columns["group"][next(iter(rows.values()))])]
        is_completed = self._are_in_state([*rows.values()], OperationState.COMPLETED)
        difference = compare_calls(calls, group.ranks, is_completed=is_completed)
        if difference is None:
            return None
        ordered = sorted(rows, key=lambda rank: (rank not in difference.culprits, rank))
        return Mismatch(difference, tuple(rows[rank] for rank in ordered), is_completed)


class _End(NamedTuple):
    """One end of a message: call `number` of the operation in `row`."""

    row: int
    number: int
    call: RecordedCall


_ARRIVALS = tuple(Arrival[state.name] for state in OperationState)
_ADVANCE = {
    Arrival.LATE: 0,
    Arrival.NO_DUMP: 1,
    Arrival.UNKNOWN: 1,
    Arrival.SCHEDULED: 2,
    Arrival.UNRECORDED: 3,
    Arrival.STARTED: 4,
    Arrival.COMPLETED: 5,
}
