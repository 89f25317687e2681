"""The order in which a program runs where a send ends only when it is received, or where its ranks come to a stand."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.execution.program import LevelledProgram, RecordKind
from hub_core.execution.stall import deadlock
from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunOrder:
    """RECV, COPY and REDUCE records in an order in which they can run.

    `records[batches[k]:batches[k + 1]]` are of one kind and independent of each other.
    """

    records: Int64Array
    batches: Int64Array


def run_order(algorithm: Algorithm, program: LevelledProgram) -> RunOrder:
    """An order for the whole program. Raises `InputError` with the position of every rank where it stands still.

    For a well levelled program that is level by level, by the proof in `LevelledProgram`, the k-th local records of all
    ranks together; any other program is simulated message by message.
    """
    if not is_well_levelled(program):
        records = simulate_rendezvous(algorithm, program)
        return RunOrder(records, np.arange(len(records) + 1))
    moves = np.flatnonzero(program.kind != RecordKind.SEND)
    keys = np.stack(
        [
            program.level,
            program.is_local,
            _local_ordinals(program),
            program.kind == RecordKind.REDUCE,
        ]
    )[:, moves]
    order = np.lexsort(keys[::-1])
    is_border = np.any(np.diff(keys[:, order]) != 0, axis=0)
    borders = np.flatnonzero(is_border) + 1
    return RunOrder(
        moves[order],
        np.concatenate([[0], borders, [len(order)]]) if len(order) else np.zeros(1, np.int64),
    )


def _local_ordinals(program: LevelledProgram) -> Int64Array:
    """Of a COPY or REDUCE how many stand before it in its rank and level, of a message 0."""
    here = np.arange(len(program))
    groups = np.stack([program.rank, program.level, program.is_local])
    is_first = np.concatenate([[True], np.any(np.diff(groups) != 0, axis=0)])[: len(here)]
    ordinals: Int64Array = np.where(
        program.is_local, here - np.maximum.accumulate(np.where(is_first, here, 0)), 0
    )
    return ordinals


def is_well_levelled(program: LevelledProgram) -> bool:
    """Whether every message has one level, two ends that agree, and the records of every rank stand in their order."""
    send, receive = program.message_ends()
    if len(send) != len(receive) or not np.array_equal(
        program.message[send], program.message[receive]
    ):
        return False
    rank = program.rank
    sides: list[tuple[npt.NDArray[np.signedinteger], npt.NDArray[np.signedinteger]]] = [
        (program.level[send], program.level[receive]),
        (program.count[send], program.count[receive]),
        (program.peer[send], rank[receive]),
        (rank[send], program.peer[receive]),
    ]
    if not all(np.array_equal(at_send, at_receive) for at_send, at_receive in sides):
        return False
    number = np.where(program.is_local, np.arange(len(program)), program.message)
    order = np.lexsort((number, program.is_local, program.level, rank))
    return len(np.unique(program.message[send])) == len(send) and bool(
        np.all(order == np.arange(len(order)))
    )


def simulate_rendezvous(
    algorithm: Algorithm, program: LevelledProgram, seed: int | None = None
) -> Int64Array:
    """Run the program's messages, without data, strictly: a rank posts the messages of its level, in order, and goes on when
    all of them have met their other end; messages of one pair of ranks meet in the order in which they are posted.

    Returns RECV, COPY and REDUCE records in the order of completion. `seed` shuffles which rank goes first, which must not
    matter. One Python step a record: for programs that may be wrong, and for tests. Raises `InputError`.
    """
    ranks = _Ranks(program)
    ready = list(range(program.num_ranks))
    shuffle = np.random.default_rng(seed).shuffle if seed is not None else lambda ranks: None
    while ready:
        shuffle(ready)
        ready = [freed for rank in ready for freed in ranks.advance(rank)]
    stuck = ranks.waiting()
    if any(record is not None for record in stuck):
        count = sum(record is not None for record in stuck)
        raise deadlock(
            algorithm,
            program,
            stuck,
            f"{count} of {program.num_ranks} ranks wait for each other and never end",
        )
    return np.asarray(ranks.order, np.int64)


class _Ranks:
    """Where every rank stands: its next record, the messages of its level that are under way, and what is posted."""

    def __init__(self, program: LevelledProgram) -> None:
        self._program = program
        self._kind, self._level = program.kind.tolist(), program.level.tolist()
        self._peer, self._count = program.peer.tolist(), program.count.tolist()
        self._next = program.rank_indptr[:-1].tolist()
        self._end = program.rank_indptr[1:].tolist()
        self._open: list[list[int]] = [[] for _ in self._next]
        self._posted: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.order: list[int] = []

    def advance(self, rank: int) -> Iterator[int]:
        """Go on with a rank while no message of its level is open; yield the ranks that this may have freed."""
        while not self._open[rank] and self._next[rank] < self._end[rank]:
            record = self._next[rank]
            if self._kind[record] >= RecordKind.COPY:
                self.order.append(record)
                self._next[rank] += 1
                continue
            yield from self._post_level(rank, self._level[record])

    def _post_level(self, rank: int, level: int) -> Iterator[int]:
        record = self._next[rank]
        while (
            record < self._end[rank]
            and self._level[record] == level
            and self._kind[record] < RecordKind.COPY
        ):
            self._open[rank].append(record)
            record += 1
        self._next[rank] = record
        for posted in list(self._open[rank]):
            yield from self._meet(rank, posted)

    def _meet(self, rank: int, record: int) -> Iterator[int]:
        """Post one end of a message, and complete the message where the other end is there."""
        peer, kind = self._peer[record], self._kind[record]
        pair = (rank, peer) if kind == RecordKind.SEND else (peer, rank)
        others = self._posted[(*pair, RecordKind.RECV - kind)]
        if not others:
            self._posted[(*pair, kind)].append(record)
            return
        other = others.popleft()
        if self._count[other] != self._count[record]:
            counts = (
                f"{self._count[record]} blocks at rank {rank}, {self._count[other]} at rank {peer}"
            )
            message = f"a message from rank {pair[0]} to rank {pair[1]} has {counts}"
            raise InputError(message, code="count-mismatch")
        self.order.append(record if kind == RecordKind.RECV else other)
        self._open[rank].remove(record)
        self._open[peer].remove(other)
        if not self._open[peer]:
            yield peer

    def waiting(self) -> list[int | None]:
        """Per rank the first record for which it waits."""
        return [
            open_records[0] if open_records else (at if at < end else None)
            for open_records, at, end in zip(self._open, self._next, self._end, strict=True)
        ]
