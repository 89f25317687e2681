"""Execution order of a program on a transport without buffers, and positions of blocked ranks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_execution.program_levels import LevelledProgram, RecordKind
from hub_core.columns import Int64Array, ordinals, run_starts
from hub_core.model import Algorithm, Diagnostic, InputError, region

_SignedArray = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class RunOrder:
    """RECV, COPY and REDUCE records in an order in which they can run.

    `records[batches[k]:batches[k + 1]]` are of one kind and independent of each other.
    """

    records: Int64Array
    batches: Int64Array


def run_order(algorithm: Algorithm, program: LevelledProgram) -> RunOrder:
    """Return an order in which one process can run all records, divided into batches.

    A record is one operation of one rank. Batch k is `records[batches[k]:batches[k + 1]]`;
    its records do not depend on each other. SENDs are left out, because the RECV moves the
    data. Without records, `batches` is [0].

    A well levelled program (`is_well_levelled`) is sorted by these keys, in this order:

    1. level
    2. in a level: RECVs before local records
    3. local records: by their position among the local records of their rank and level
    4. local records: COPY before REDUCE
    5. the row of the record

    All records that are equal in keys 1 to 4 are one batch.

    For any other program the ranks are simulated, and each batch has one record. Only then
    `InputError` is raised: for ranks that are blocked forever (`deadlock`), and for a
    message that is sent and received with different sizes (`count-mismatch`).
    """
    if not is_well_levelled(program):
        records = simulate_rendezvous(algorithm, program)
        return RunOrder(records, np.arange(len(records) + 1))
    # A SEND moves no data: the RECV reads the sender's memory.
    moves = np.flatnonzero(program.kind != RecordKind.SEND)
    level = program.level[moves]
    is_local = program.is_local[moves]
    # The number of preceding local records in the same rank and level; 0 for messages.
    ordinal = np.zeros(len(program), np.int64)
    local = np.flatnonzero(program.is_local)
    # Records are sorted by rank, then level: one number for both preserves the order.
    groups = program.rank[local] * program.num_levels + program.level[local]
    ordinal[local] = ordinals(groups)
    ordinal = ordinal[moves]
    is_reduction = program.kind[moves] == RecordKind.REDUCE
    order = np.lexsort((is_reduction, ordinal, is_local, level))
    keys = (level[order], is_local[order], ordinal[order], is_reduction[order])
    batches = np.append(run_starts(*keys), len(order))
    return RunOrder(moves[order], batches)


def is_well_levelled(program: LevelledProgram) -> bool:
    """Return whether levels and order of the records are as `LevelledProgram` requires.

    Every message must have exactly one SEND and one RECV, with matching peers and equal
    level and size. The records of every rank must be sorted by level, then messages by
    number, then local ones. Conflicting accesses within a level are not examined. True
    without records.
    """
    send, receive = program.message_ends()
    if not np.array_equal(program.message[send], program.message[receive]):
        return False
    if len(np.unique(program.message[send])) != len(send):
        return False
    rank = program.rank
    pairs: list[tuple[_SignedArray, _SignedArray]] = [
        (program.level[send], program.level[receive]),
        (program.count[send], program.count[receive]),
        (program.peer[send], rank[receive]),
        (rank[send], program.peer[receive]),
    ]
    if not all(np.array_equal(at_send, at_receive) for at_send, at_receive in pairs):
        return False
    position = np.arange(len(program))
    # Local records of a level may have any order, but follow its messages.
    number = np.where(program.is_local, position, program.message)
    order = np.lexsort((number, program.is_local, program.level, rank))
    return np.array_equal(order, position)


def simulate_rendezvous(
    algorithm: Algorithm, program: LevelledProgram, seed: int | None = None
) -> Int64Array:
    """Simulate a program in which no message is buffered; return its records by completion.

    The result is int64: the numbers of the RECV, COPY and REDUCE records in the order in which they
    complete. It is empty without such records. A rank executes its records in order. Local records
    complete immediately. Successive messages of one level are posted together, and the rank
    continues when the other ends of all of them are posted too. Messages from one rank to another
    match in the order in which they are posted.

    Ranks that can continue are advanced round by round, first in ascending order. `seed` shuffles
    them in each round; this may change the order of completion, but not which data a correct
    program computes. The simulation is slow.

    Raises `InputError` if the two ends of a message differ in size (`count-mismatch`), or if some
    ranks are blocked forever (`deadlock`). The latter has a finding for each blocked rank with its
    position; at most 64 ranks are listed.
    """
    ranks = _SimulatedRanks(program)
    ready = list(range(program.num_ranks))
    generator = None if seed is None else np.random.default_rng(seed)
    while ready:
        if generator is not None:
            generator.shuffle(ready)
        ready = [freed for rank in ready for freed in ranks.advance(rank)]
    stuck = ranks.waiting()
    count = sum(record is not None for record in stuck)
    if count:
        message = f"{count} of {program.num_ranks} ranks wait for each other and never finish"
        raise build_deadlock_error(algorithm, program, stuck, message)
    return np.asarray(ranks.order, np.int64)


class _SimulatedRanks:
    """The state of every rank: its next record, and the open messages of its level.

    A message is open at a rank from its post until both ends have been matched.
    """

    def __init__(self, program: LevelledProgram) -> None:
        """Place all ranks before their first records; no record is executed or posted.

        `order` is empty and will contain the RECV, COPY and REDUCE records as they complete.
        """
        # Lists, because single elements of numpy arrays are slow to read.
        self._kind, self._level = program.kind.tolist(), program.level.tolist()
        self._peer, self._count = program.peer.tolist(), program.count.tolist()
        self._next = program.rank_indptr[:-1].tolist()
        self._end = program.rank_indptr[1:].tolist()
        self._open: list[list[int]] = [[] for _ in self._next]
        # (source, destination, kind of end) to the records that wait for their other end.
        self._posted: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.order: list[int] = []

    def advance(self, rank: int) -> Iterator[int]:
        """Run a rank while it has no open message; yield the ranks that may be unblocked.

        Local records are appended to `order`; messages of a level are posted together. The rank
        stops at its end or when it has to wait.
        """
        while not self._open[rank] and self._next[rank] < self._end[rank]:
            record = self._next[rank]
            if self._is_local(record):
                self.order.append(record)
                self._next[rank] += 1
            else:
                yield from self._start_level(rank, self._level[record])

    def _is_local(self, record: int) -> bool:
        """Return whether a record needs no other rank.

        True for COPY and REDUCE, False for SEND and RECV.
        """
        is_local: bool = self._kind[record] >= RecordKind.COPY
        return is_local

    def _start_level(self, rank: int, level: int) -> Iterator[int]:
        """Post the messages of a rank's next level, and yield the peers that wait no longer.

        The messages are the next records (SEND or RECV) of the rank, in order. They stop before
        the first record of another level or local record (COPY or REDUCE). The record after them
        is then the next one of the rank.

        A message is complete if its counterpart (SEND or RECV) is already posted; otherwise it
        waits. A peer is yielded if this completes its last open message, even if it has no more
        records.

        The iterator must be consumed; before that, no message is posted. Raises `InputError`
        (`count-mismatch`) if the SEND and the RECV of a message differ in size.
        """
        record = self._next[rank]
        while (
            record < self._end[rank] and self._level[record] == level and not self._is_local(record)
        ):
            self._open[rank].append(record)
            record += 1
        self._next[rank] = record
        # A copy, because matching removes messages.
        for posted in list(self._open[rank]):
            yield from self._match_message(rank, posted)

    def _match_message(self, rank: int, record: int) -> Iterator[int]:
        """Post one end of a message; complete the message if its other end is already posted.

        `record`: the end, a SEND or RECV of `rank`. The other end is the one that was posted first
        among the open ends of the opposite kind for the same (sender, receiver).

        - Without another end, `record` is posted, and nothing is yielded.
        - Otherwise both ends are removed from the open messages of their ranks, and the RECV of the
          two is appended to `order`. The peer of `rank` is yielded if it has no open message left.

        Nothing happens before the iterator is consumed. Raises `InputError` (`count-mismatch`) if
        the two ends differ in size.
        """
        peer, kind = self._peer[record], self._kind[record]
        pair = (rank, peer) if kind == RecordKind.SEND else (peer, rank)
        # SEND is 0 and RECV is 1.
        other_kind = RecordKind.RECV - kind
        candidates = self._posted[(*pair, other_kind)]
        if not candidates:
            self._posted[(*pair, kind)].append(record)
            return
        match = candidates.popleft()
        count, matched_count = self._count[record], self._count[match]
        if count != matched_count:
            counts = f"{count} blocks at rank {rank}, {matched_count} at rank {self._peer[record]}"
            message = f"a message from rank {pair[0]} to rank {pair[1]} has {counts}"
            raise InputError(message, code="count-mismatch")
        self.order.append(record if kind == RecordKind.RECV else match)
        self._open[rank].remove(record)
        self._open[peer].remove(match)
        if not self._open[peer]:
            yield peer

    def waiting(self) -> list[int | None]:
        """Return, by rank, the record for which it waits; None for a rank that has finished.

        A record is one operation of the program, given by its number. A message is open at a rank
        from its post until the other end is also posted. The record is the open message that was
        posted first. Without open messages it is the next record of the rank. A rank has finished
        if it has neither.
        """
        records: list[int | None] = []
        for rank, open_messages in enumerate(self._open):
            if open_messages:
                records.append(open_messages[0])
            else:
                is_finished = self._next[rank] >= self._end[rank]
                records.append(None if is_finished else self._next[rank])
        return records


_LISTED_RANKS = 64


def build_deadlock_error(
    algorithm: Algorithm, program: LevelledProgram, records: Sequence[int | None], message: str
) -> InputError:
    """Return the error for a blocked program: `message`, then one finding per waiting rank.

    `records`: per rank the record for which it waits, None for ranks that have finished.
    """
    return InputError([Diagnostic("deadlock", message), *positions(algorithm, program, records)])


def positions(
    algorithm: Algorithm, program: LevelledProgram, records: Sequence[int | None]
) -> list[Diagnostic]:
    """Return one diagnostic `blocked` per waiting rank, ascending: where the rank waits.

    `records`: by rank the record for which it waits, None if it does not wait. The text has
    the level of the record; for a message also its peer, its number and the region that is
    sent or written; for a local record the region that it writes. The location is the step of the
    record, in the source file if known. At most `_LISTED_RANKS` (64) ranks are listed; a last
    diagnostic has the number of the remaining ones. The list is empty if no rank waits.
    """
    # If thousands of ranks wait for one another, the first ones are sufficient.
    waiting = [record for record in records if record is not None]
    file = algorithm.provenance.source_name or None
    listed = []
    for record in waiting[:_LISTED_RANKS]:
        location = algorithm.steps.location(int(program.row[record]), file)
        # Levels are counted as in the program, from 1 for messages.
        level = int(program.level[record])
        message = f"is at level {level} and waits for {_describe_awaited(program, record)}"
        listed.append(Diagnostic("blocked", message, location=location))
    rest = len(waiting) - len(listed)
    if rest:
        listed.append(Diagnostic("blocked", f"and {rest} more ranks wait"))
    return listed


def _describe_awaited(program: LevelledProgram, record: int) -> str:
    """Return a text on the event for which a record waits; it follows the words "waits for".

    - SEND: `rank 1 to receive message 3, INPUT[0:4]`, with the region that is sent
    - RECV: `rank 1 to send message 3 into OUTPUT[0:4]`
    - COPY and REDUCE: `its own work on OUTPUT[0:4]`, the region that is written

    The numbers of a region are blocks; the end is excluded.
    """
    kind = RecordKind(int(program.kind[record]))
    peer, number = int(program.peer[record]), int(program.message[record])
    if kind is RecordKind.SEND:
        buffer, offset = int(program.src_buffer[record]), int(program.src_offset[record])
        sent = region(buffer, offset, int(program.count[record]))
        return f"rank {peer} to receive message {number}, {sent}"
    if kind is RecordKind.RECV:
        return f"rank {peer} to send message {number} into {_format_destination(program, record)}"
    return f"its own work on {_format_destination(program, record)}"


def _format_destination(program: LevelledProgram, record: int) -> str:
    """Return the name of the region that a record writes, such as `OUTPUT[0:4]`.

    The numbers are blocks; the end is excluded.
    """
    buffer, offset = int(program.dst_buffer[record]), int(program.dst_offset[record])
    return region(buffer, offset, int(program.count[record]))
