"""Order the recorded calls of a job, place them in time, and build the nodes of every rank.

Records without start times have only the duration of each call, which includes waiting for other
ranks. The calls of a rank then follow each other in the order of the records, and all ranks of a
collective end it together, at the earliest time that the recorded durations allow.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from collhub_nccl_records import Member, input_bytes

from collhub_pytorch.calls import Call, GroupRecord, kind_of
from collhub_pytorch.kineto.graph import RankProfile, build_nodes
from collhub_pytorch.nccl.ranks import CallKey, JobRanks, RecordedCalls, match_records
from collhub_pytorch.rank_nodes import NONE, RankFacts, RankNodes
from hub_core.columns import Int64Array
from hub_core.model import NodeKind


@dataclass(slots=True)
class _RankCalls:
    """Calls of one rank in their order: index of a kind, and times in ns (-1 without times)."""

    kind: array[int] = field(default_factory=lambda: array("q"))
    start_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))

    def add(self, kind: int, start_ns: int, end_ns: int) -> None:
        """Append a call with start and end in ns; `kind`: its index in the kinds of all records."""
        self.kind.append(kind)
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)


class CallGraph:
    """Nodes of every rank, from the records of all ranks.

    `notes`: assumptions and losses for the user. `files`: name of the file of each rank.
    """

    def __init__(self, calls: RecordedCalls, job: JobRanks, files: Mapping[int, str]) -> None:
        self._calls, self._job, self._files = calls, job, files
        self.notes: list[str] = []
        self._rank_of_kind = [job.rank_of[kind.member] for kind in calls.kinds]
        self._words = [kind.word for kind in calls.kinds]
        # Ranks of the job are unknown in communicators of which some ranks have no record.
        self._is_known = {name: min(ranks) >= 0 for name, ranks in job.ranks_of.items()}
        self.has_times = bool(len(calls)) and min(calls.duration_ns) >= 0
        self.has_starts = self.has_times and min(calls.start_ns) >= 0
        self._rows_of_call = match_records(calls, job, self.notes)
        self._rank_calls = {rank: _RankCalls() for rank in sorted(set(self._rank_of_kind))}
        if self.has_starts:
            self._place_at_recorded_times()
        else:
            self._place_in_order()

    def rank_nodes(self) -> list[RankNodes]:
        """Build the nodes of every rank that has records, ascending by rank.

        Messages are matched first (`_match_messages`). Messages without a recorded other end,
        and calls of unknown operations or groups, become nodes of kind COMPUTE that count as
        communication without a peer. If there are any, a note with their number is added to
        `self.notes`, by every call.
        """
        is_matched = self._match_messages()
        return [
            self._nodes_of_rank(rank, calls, is_matched[rank])
            for rank, calls in self._rank_calls.items()
        ]

    def _members_with_records(self) -> dict[str, list[int]]:
        """Return the ranks of the job that have a record of each communicator, by its name.

        Communicators and ranks are in the order of their first record.
        """
        ranks: dict[str, dict[int, None]] = defaultdict(dict)
        for kind, rank in zip(self._calls.kinds, self._rank_of_kind, strict=True):
            ranks[kind.member.communicator][rank] = None
        return {name: list(members) for name, members in ranks.items()}

    def _place_at_recorded_times(self) -> None:
        """Add the calls of each rank to `_rank_calls` at their recorded times.

        Calls of a rank are ordered by start, then by row, i.e. the number of the record. Times are
        in ns; a call ends at its start plus its duration. A rank may get no calls.

        A collective is left out on all ranks if a rank has no record of it, but has any other
        record of its communicator. If collectives are left out, a note with their number is added
        to `notes`. Messages, calls of unknown operations, and collectives of the communicator ""
        are never left out.
        """
        calls, members = self._calls, self._members_with_records()
        left_out = 0
        rows: dict[int, list[int]] = defaultdict(list)
        for (communicator, _, _), row_of in self._rows_of_call.items():
            if communicator and len(row_of) < len(members[communicator]):
                left_out += 1
                continue
            for rank, row in row_of.items():
                rows[rank].append(row)
        if left_out:
            self.notes.append(
                f"{left_out} collectives are left out: not all of their ranks have recorded them"
            )
        for rank, numbers in rows.items():
            for row in sorted(numbers, key=lambda row: (calls.start_ns[row], row)):
                start = calls.start_ns[row]
                self._rank_calls[rank].add(calls.kind[row], start, start + calls.duration_ns[row])

    def _place_in_order(self) -> None:
        """Add the calls to `_rank_calls` one after the other, in the common order of `order_calls`.

        Without recorded durations, each rank with a record of a call gets it with the times -1.
        With durations:

        1. A rank with records of the communicator, but not of this collective, gets a copy of the
           record of the first rank, with the shortest duration of any rank. Messages and unknown
           operations are not copied.
        2. The call finishes on all its ranks at once: at the maximum of (finish of the rank's
           previous call, 0 at first) + (duration on the rank), in ns. On each rank it starts its
           duration earlier.

        A note with the number of copies is added, if there are any, after the notes of
        `order_calls`.
        """
        calls, members = self._calls, self._members_with_records()
        added = 0
        copies: dict[tuple[int, int], int] = {}
        member_of = {
            (self._job.rank_of[member], member.communicator): member for member in self._job.rank_of
        }
        ready_ns: dict[int, int] = defaultdict(int)
        order = order_calls(calls, self._job, self._rows_of_call, self.notes)
        for key in order:
            row_of = self._rows_of_call[key]
            first = next(iter(row_of.values()))
            shortest = min(calls.duration_ns[row] for row in row_of.values())
            durations = {rank: calls.duration_ns[row] for rank, row in row_of.items()}
            kinds = {rank: calls.kind[row] for rank, row in row_of.items()}
            for rank in members[key[0]] if key[0] and self.has_times else ():
                if rank not in row_of:
                    added += 1
                    durations[rank] = shortest
                    template = (calls.kind[first], rank)
                    if template not in copies:
                        copies[template] = self._copy_kind(
                            calls.kind[first], member_of[rank, key[0]]
                        )
                    kinds[rank] = copies[template]
            if not self.has_times:
                for rank, kind in kinds.items():
                    self._rank_calls[rank].add(kind, NONE, NONE)
                continue
            end = max(ready_ns[rank] + duration for rank, duration in durations.items())
            for rank, duration in durations.items():
                self._rank_calls[rank].add(kinds[rank], end - duration, end)
                ready_ns[rank] = end
        if added:
            self.notes.append(
                f"{added} records of collectives are missing on one rank only and are completed"
                " by those of other ranks"
            )

    def _copy_kind(self, kind: int, member: Member) -> int:
        """Add a copy of a kind of record for another member of its communicator; return its index.

        `self._calls.kinds`, `self._rank_of_kind` and `self._words` are extended.
        """
        self._calls.kinds.append(replace(self._calls.kinds[kind], member=member))
        self._rank_of_kind.append(self._job.rank_of[member])
        self._words.append(self._words[kind])
        return len(self._calls.kinds) - 1

    def _match_messages(self) -> dict[int, list[bool]]:
        """Return by rank, for each of its calls, whether it can become a call of the job (bool).

        A flag belongs to the call at the same position in `_rank_calls`. A rank without calls has
        an empty list.

        - Collective: True if its operation is known and all ranks of its communicator have records.
        - Message to or from an unknown rank, or to the rank itself: False.
        - Other message: True if the other end is recorded. Sends and receives with equal sender,
          receiver and bytes are counted; the communicator does not matter. For 3 sends and 2
          receives, the first 2 sends and both receives are True. A message may be True although
          other ranks of its communicator have no record.

        If any flag is False, a note with their number is added to `self.notes`.
        """
        counts: dict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0, 0])
        message_ends: dict[int, list[tuple[tuple[int, int, int], int] | None]] = {}
        for rank, calls in self._rank_calls.items():
            message_ends[rank] = [self._message_end(kind) for kind in calls.kind]
            for end in message_ends[rank]:
                if end is not None:
                    counts[end[0]][end[1]] += 1
        open_ends = {key: [min(both)] * 2 for key, both in counts.items()}
        unmatched = 0
        is_matched: dict[int, list[bool]] = {}
        for rank, calls in self._rank_calls.items():
            flags = []
            for kind, end in zip(calls.kind, message_ends[rank], strict=True):
                if end is None:
                    record = self._calls.kinds[kind]
                    is_collective = kind_of(record.operation) is not None and not record.is_message
                    flags.append(is_collective and self._is_known[record.member.communicator])
                    continue
                open_ends[end[0]][end[1]] -= 1
                flags.append(open_ends[end[0]][end[1]] >= 0)
            is_matched[rank] = flags
            unmatched += len(flags) - sum(flags)
        if unmatched:
            self.notes.append(
                f"{unmatched} messages without a record of the other end, and other calls, count as"
                " communication without a peer"
            )
        return is_matched

    def _message_end(self, kind: int) -> tuple[tuple[int, int, int], int] | None:
        """Return the message of a kind of record as ((sender, receiver, bytes), end).

        `end`: 0 for a send, 1 for a receive. A kind is the common content of the equal records
        of one rank; `kind` is its index. Sender and receiver are ranks of the job, bytes those
        of the record. The result is None for a collective, and for a message whose peer is
        unknown or the rank itself.
        """
        record = self._calls.kinds[kind]
        if not record.is_message:
            return None
        ranks, rank = self._job.ranks_of[record.member.communicator], self._rank_of_kind[kind]
        peer = ranks[record.root] if 0 <= record.root < len(ranks) else NONE
        if peer < 0 or peer == rank:
            return None
        if self._words[kind] == "send":
            return (rank, peer, record.bytes), 0
        return (peer, rank, record.bytes), 1

    def _nodes_of_rank(self, rank: int, rows: _RankCalls, is_matched: Sequence[bool]) -> RankNodes:
        """Return the nodes of a rank for its calls, at their times or, without times, in order.

        `is_matched`: bool per call of `rows`. A matched call becomes a node with the communication
        of `_call`. Any other call becomes a node of kind COMPUTE with only the name of the call.
        The names of the unmatched calls, without repetition, are `communication_names` in the facts
        of the result, so that these nodes count as communication. All other facts have their
        defaults.

        With recorded durations (`has_times`), the nodes are those of `_timed_nodes`. Otherwise
        there is one node per call with the duration -1. Each depends only on the previous one, and
        this dependency is marked as assumed; without calls there are no nodes.
        """
        number = {kind: index for index, kind in enumerate(dict.fromkeys(rows.kind))}
        calls = [self._call(kind) for kind in number]
        names = list(dict.fromkeys(call.name for call in calls))
        call = np.array([number[kind] for kind in rows.kind], np.int64)
        label = np.array([names.index(job_call.name) for job_call in calls], np.int64)[call]
        call[~np.array(is_matched, np.bool_)] = NONE
        lonely = frozenset(names[index] for index in np.unique(label[call < 0]).tolist())
        if self.has_times:
            nodes = self._timed_nodes(rank, rows, names, calls, label, call)
        else:
            nodes = RankNodes(self._files[rank], rank, self._job.world_size, names, calls)
            for name, call_index in zip(label.tolist(), call.tolist(), strict=True):
                row = nodes.add(name, NONE, on_host=False, call=call_index)
                if row:
                    nodes.link(row - 1, row, is_stated=False)
        nodes.facts = RankFacts(communication_names=lonely)
        return nodes

    def _call(self, kind: int) -> Call:
        """Return the call of the job (operation, group, peer, bytes) for a kind of record.

        `kind`: index in the kinds of all records. The name is the operation as recorded.

        - Unknown operation, or a communicator with ranks that have no record: the call is a
          computation (COMPUTE) with collective, bytes, peer and root -1. Its group has the name,
          but no ranks.
        - Collective: `root` is the recorded position in the communicator, not a rank of the job.
          The peer is -1.
        - Message: `peer` is the rank of the job at the recorded position in the communicator, or -1
          if there is no such position. The root is -1.

        `bytes` are those of the input buffer of a rank: the recorded bytes, for reduce-scatter,
        all-to-all and scatter multiplied by the number of ranks, -1 if unknown. For a message they
        are the recorded bytes.
        """
        record = self._calls.kinds[kind]
        communicator = record.member.communicator
        ranks = self._job.ranks_of[communicator]
        group = self._job.group_of[communicator]
        known = kind_of(record.operation)
        if known is None or not self._is_known[communicator]:
            group = GroupRecord(group.name)
            return Call(record.operation, NodeKind.COMPUTE, NONE, NONE, record.dtype, group)
        size = input_bytes(self._words[kind], record.bytes, len(ranks))
        peer = NONE
        if record.is_message and 0 <= record.root < len(ranks):
            peer = ranks[record.root]
        root = NONE if record.is_message else record.root
        name = record.operation
        return Call(name, *known, size, record.dtype, group, peer, root)

    def _timed_nodes(
        self,
        rank: int,
        rows: _RankCalls,
        names: Sequence[str],
        calls: Sequence[Call],
        label: Int64Array,
        call: Int64Array,
    ) -> RankNodes:
        """Return nodes whose durations and dependencies reproduce the times of the calls.

        `label`, `call`: int64 per call of `rows`: index in `names`, and index in `calls` or -1 for
        no communication.

        With recorded start times, each communicator is a stream; otherwise all calls of the rank
        are in one stream. A call depends on the previous call of its stream if that one ends at or
        before its start, otherwise on the node `start`. If time remains before its start, a node
        `gap` has this time: the call depends on the gap, and the gap on the earlier node.

        The first node is `start`, which lasts from time 0 to the first call (0 ns without calls).
        Nodes of the calls follow in the order of their starts, each directly before its gap. There
        are no nodes for work of the host.
        """
        count = len(rows.kind)
        start, end = np.array(rows.start_ns, np.int64), np.array(rows.end_ns, np.int64)
        communicators: dict[str, int] = {}
        stream_of_kind = {
            kind: communicators.setdefault(
                self._calls.kinds[kind].member.communicator, len(communicators)
            )
            for kind in dict.fromkeys(rows.kind)
        }
        # Without start times, all calls of a rank follow each other.
        stream = np.zeros(count, np.int64)
        if self.has_starts:
            stream = np.array([stream_of_kind[kind] for kind in rows.kind], np.int64)
        empty, none = np.empty(0, np.int64), np.full(count, NONE, np.int64)
        profile = RankProfile(
            self._files[rank], rank, self._job.world_size, names, calls, start, end, stream, label,
            call, none, empty, empty, empty,
        )  # fmt: skip
        return build_nodes(profile)


def order_calls(
    calls: RecordedCalls,
    job: JobRanks,
    rows_of_call: Mapping[CallKey, Mapping[int, int]],
    notes: list[str],
) -> Sequence[CallKey]:
    """Return all keys of `rows_of_call`, each once, in an order that fits the records of all ranks.

    `rows_of_call`: row of the record of each rank, by call; other records are ignored. Each rank
    has a queue of its calls by row. Then the calls of one communicator are sorted by sequence
    number within their positions, separately by operation if the key has one. Messages keep
    their positions.

    1. Each rank waits at its first call that is not taken. A call is ready when all its ranks
       wait at it. Calls are taken in the order in which they became ready. Ranks move on in
       ascending order, so the lowest rank decides ties.
    2. If no call is ready, the ranks contradict each other. The call at which the lowest
       unfinished rank waits is taken, and its other ranks skip it later.

    A note with the number of contradictions is appended to `notes` if there is any.
    """
    rank_of_kind = [job.rank_of[record_kind.member] for record_kind in calls.kinds]
    key_of_row = {row: key for key, rows in rows_of_call.items() for row in rows.values()}
    queues: dict[int, list[CallKey]] = defaultdict(list)
    for row, kind in enumerate(calls.kind):
        if row in key_of_row:
            queues[rank_of_kind[kind]].append(key_of_row[row])
    for queue in queues.values():
        _sort_by_sequence(queue)
    position = dict.fromkeys(queues, 0)
    missing = {key: len(rows) for key, rows in rows_of_call.items()}
    order: list[CallKey] = []
    is_done: set[CallKey] = set()
    contradictions = 0

    def advance(rank: int) -> CallKey | None:
        """Count the arrival of a rank at its next call that is not done.

        `position[rank]` moves past calls that are done, up to this call. `missing` of the call, the
        number of ranks that have not arrived, is reduced by 1. Returns the key of the call if it is
        now 0, otherwise None. Without a further call, returns None and counts no arrival.
        """
        queue = queues[rank]
        while position[rank] < len(queue) and queue[position[rank]] in is_done:
            position[rank] += 1
        if position[rank] == len(queue):
            return None
        key = queue[position[rank]]
        missing[key] -= 1
        return None if missing[key] else key

    reached = deque(key for rank in sorted(queues) if (key := advance(rank)) is not None)
    while len(order) < len(rows_of_call):
        if not reached:
            contradictions += 1
            rank = next(r for r in sorted(queues) if position[r] < len(queues[r]))
            reached.append(queues[rank][position[rank]])
        key = reached.popleft()
        if key in is_done:
            continue
        order.append(key)
        is_done.add(key)
        for rank in sorted(rows_of_call[key]):
            is_head = position[rank] < len(queues[rank]) and queues[rank][position[rank]] == key
            if is_head and (following := advance(rank)) is not None:
                reached.append(following)
    if contradictions:
        notes.append(
            f"the records of different ranks have different orders at {contradictions} places;"
            " the order of the lower rank is taken"
        )
    return order


def _sort_by_sequence(queue: list[CallKey]) -> None:
    """Sort the calls of each communicator by sequence number, within the positions they occupy.

    `queue`: keys (communicator, operation or "", sequence number); it is modified. Calls with an
    operation in the key (sequence numbers count per operation) are sorted separately by operation.
    Messages, whose communicator is "", keep their positions.
    """
    positions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, (communicator, word, _) in enumerate(queue):
        if communicator:
            positions[communicator, word].append(index)
    for places in positions.values():
        keys = sorted(queue[index] for index in places)
        for index, key in zip(places, keys, strict=True):
            queue[index] = key
