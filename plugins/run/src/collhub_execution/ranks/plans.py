"""What one rank of a levelled program does, in elements of its own memory.

A plan and its task are all that a process needs to know, on whatever machine it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from collhub_execution.data.element_types import Array
from collhub_execution.data.memory import find_moves, fused_moves, used_elements
from collhub_execution.levelling.program import LevelledProgram, RecordKind
from collhub_execution.request_levelling import LevelledRequest
from hub_core.columns import BoolArray, Int32Array, Int64Array, UInt8Array, ordinals
from hub_core.model import Buffer, CollectiveKind, ReduceOp


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """One end of a message: `length` elements from `start` on.

    `record`: its number in the program. `tag`: its number among those of its two ranks, from 0.
    `reduces`: what arrives is not stored but reduced with what is there.
    """

    record: int
    peer: int
    tag: int
    start: int
    length: int
    reduces: bool


@dataclass(frozen=True, slots=True)
class LocalMove:
    """A copy or a reduction within the rank, destination := destination op source."""

    record: int
    reduces: bool
    source: int
    destination: int
    length: int


@dataclass(frozen=True, slots=True)
class RankLevel:
    """Messages to post at once and to wait for, then local records in their order.

    No message goes to the own rank.
    """

    sends: tuple[MessageEnd, ...]
    receives: tuple[MessageEnd, ...]
    moves: tuple[LocalMove, ...]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The records of one rank, whose memory of `memory_size` elements holds all its buffers.

    Columns of equal length, as in `LevelledProgram`, but `source` and `destination` in elements of
    the own memory, -1 on an unused side. `reduces`: REDUCE records, and RECV records that do the
    work of a REDUCE on the way (see `fused_reductions`), which is then `is_done`. `first_record`:
    the number that the first record has in the program.
    """

    rank: int
    num_ranks: int
    memory_size: int
    input_start: int
    output_start: int
    output_size: int
    first_record: int
    kind: UInt8Array
    level: Int32Array
    peer: Int32Array
    tag: Int64Array
    source: Int64Array
    destination: Int64Array
    length: Int64Array
    reduces: BoolArray
    is_done: BoolArray

    def levels(self) -> Iterator[RankLevel]:
        """The levels of the rank in order; those without records are left out."""
        # Levels may be missing: a rank takes part in few of them.
        borders = np.flatnonzero(np.diff(self.level, prepend=-1)).tolist()
        for low, high in pairwise([*borders, len(self.kind)]):
            yield self._level(range(low, high))

    def _level(self, rows: range) -> RankLevel:
        """The records of one level, in their order."""
        sends, receives, moves = [], [], []
        for row in rows:
            kind = self.kind[row]
            if kind == RecordKind.SEND:
                sends.append(self._end(row, self.source))
            elif kind == RecordKind.RECV:
                receives.append(self._end(row, self.destination))
            elif not self.is_done[row]:
                moves.append(self._move(row))
        return RankLevel(tuple(sends), tuple(receives), tuple(moves))

    def _end(self, row: int, starts: Int64Array) -> MessageEnd:
        """A message as this rank sees it."""
        return MessageEnd(
            record=self.first_record + row,
            peer=int(self.peer[row]),
            tag=int(self.tag[row]),
            start=int(starts[row]),
            length=int(self.length[row]),
            reduces=bool(self.reduces[row]),
        )

    def _move(self, row: int) -> LocalMove:
        """A copy or reduction of this rank."""
        return LocalMove(
            record=self.first_record + row,
            reduces=bool(self.reduces[row]),
            source=int(self.source[row]),
            destination=int(self.destination[row]),
            length=int(self.length[row]),
        )


class RankPlans:
    """The plans of all ranks of a program whose blocks have `elements` elements.

    `fused`: int64[records], per RECV the REDUCE that it does on the way, for transports that can
    reduce while they receive; None for all others.
    """

    def __init__(
        self, program: LevelledProgram, elements: int, fused: Int64Array | None = None
    ) -> None:
        self._program, self._elements = program, elements
        self._tags = _tags(program)
        self._moves, self._is_done = find_moves(program, elements), np.zeros(len(program), np.bool_)
        if fused is not None:
            self._moves, self._is_done = fused_moves(self._moves, fused)
        self._used = used_elements(program, self._moves, self._is_done, elements)
        # Per record where its message lies at the sender, in elements of the flat memory of all.
        self.sent_from = self._moves.source

    def plan(self, rank: int) -> RankPlan:
        """The plan of one rank."""
        program, elements = self._program, self._elements
        # Addresses in the flat memory of all ranks become addresses in that of this rank.
        own = program.rank_memory(rank)
        origin = own.start * elements
        starts = program.layout.base[rank] * elements - origin
        first, last = program.rank_indptr[rank : rank + 2].tolist()
        rows = slice(first, last)
        kind = program.kind[rows]
        # The sender of what is received has a memory of its own.
        source = np.where(kind == RecordKind.RECV, -1, self._moves.source[rows] - origin)
        destination = self._moves.destination[rows]
        return RankPlan(
            rank=rank,
            num_ranks=program.num_ranks,
            memory_size=int(self._used[rank]),
            input_start=int(starts[Buffer.INPUT]),
            output_start=int(starts[Buffer.OUTPUT]),
            output_size=int(program.layout.size[rank, Buffer.OUTPUT]) * elements,
            first_record=first,
            kind=kind,
            level=program.level[rows],
            peer=program.peer[rows],
            tag=self._tags[rows],
            source=source,
            destination=np.where(kind == RecordKind.SEND, -1, destination - origin),
            length=self._moves.length[rows],
            reduces=self._moves.reduces[rows],
            is_done=self._is_done[rows],
        )


@dataclass(frozen=True, slots=True)
class RankTask:
    """A plan with the data to run it on, and the runs that are wanted.

    `input`: INPUT of the rank; `background`: what all other memory holds before a run. `collective`
    and `root` (0 where it has no meaning) are what a library's own collective is called with.
    """

    plan: RankPlan
    collective: CollectiveKind
    root: int
    reduce_op: ReduceOp
    input: Array
    background: np.generic
    warmups: int
    repeats: int
    wants_step_times: bool

    @property
    def runs(self) -> int:
        """Runs of the program, the one that is timed step by step included."""
        step_timing = int(self.wants_step_times)
        return self.warmups + self.repeats + step_timing


def rank_task(request: LevelledRequest, plan: RankPlan) -> RankTask:
    """What a request asks of the rank of a plan."""
    collective = request.algorithm.collective
    return RankTask(
        plan=plan,
        collective=collective.kind,
        root=collective.root or 0,
        reduce_op=request.reduce_op,
        input=request.inputs[plan.rank],
        background=request.background,
        warmups=request.warmups,
        repeats=request.repeats,
        wants_step_times=request.wants_step_times,
    )


def rank_tasks(request: LevelledRequest) -> Iterator[RankTask]:
    """What a request asks of every rank."""
    # Plans are made one by one: those of all ranks together would be as large as the program.
    plans = RankPlans(request.program, request.elements)
    for rank in range(request.program.num_ranks):
        yield rank_task(request, plans.plan(rank))


def _tags(program: LevelledProgram) -> Int64Array:
    """The running number of every message in its pair of ranks, in the order of posting.

    The same at both ends, by the order of records that `LevelledProgram` promises; 0 in local
    records.
    """
    tags = np.zeros(len(program), np.int64)
    # One number for (rank, peer); of its two ends a rank posts sends and receives apart.
    pair = program.rank * program.num_ranks + program.peer
    for kind in (RecordKind.SEND, RecordKind.RECV):
        rows = np.flatnonzero(program.kind == kind)
        tags[rows] = ordinals(pair[rows])
    return tags
