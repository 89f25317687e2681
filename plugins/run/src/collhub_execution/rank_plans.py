"""The operations of one rank of a levelled program, in elements of its memory.

A plan and its task are all that a process needs, on any host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from collhub_execution.input_data import Array
from collhub_execution.levelling import LevelledRequest
from collhub_execution.memory import find_moves, fused_moves, used_elements
from collhub_execution.program_levels import LevelledProgram, RecordKind
from hub_core.columns import BoolArray, Int32Array, Int64Array, UInt8Array, ordinals, run_starts
from hub_core.model import Buffer, CollectiveKind, ReduceOp


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """One end of a message: `length` elements from `start` on.

    `record`: its number in the program. `tag`: its number among those of its two ranks, from 0.
    `reduces`: arriving data are not stored but reduced with the contents of the memory.
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
    """Messages to post at once and to wait for, then local records in order.

    No message is sent to the same rank.
    """

    sends: tuple[MessageEnd, ...]
    receives: tuple[MessageEnd, ...]
    moves: tuple[LocalMove, ...]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The records of one rank, whose memory of `memory_size` elements contains all its buffers.

    Columns of equal length, as in `LevelledProgram`, but `source` and `destination` in elements of
    the rank's memory, -1 on an unused side. `reduces`: REDUCE records, and RECV records that
    perform a REDUCE on arrival (see `fused_reductions`), which is then `is_done`. `first_record`:
    number of the first record in the program.
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
        """Yield the operations (records) of the rank level by level, in ascending order.

        Levels without records of this rank are omitted. The records must be sorted by level.
        """
        # Levels may be missing: a rank takes part in few of them.
        borders = run_starts(self.level).tolist()
        for low, high in pairwise([*borders, len(self.kind)]):
            yield self._build_level(range(low, high))

    def _build_level(self, rows: range) -> RankLevel:
        """Build a level from the records `rows` of the rank: sends, receives and local moves.

        A level is a group of records that the rank executes at once: it starts all messages, waits
        for them, then executes the local moves. `rows`: numbers of the records in this plan, from
        0. In the result, `record` is the number in the program, that is the row plus
        `self.first_record`. Each of the three tuples keeps the order of the records and may be
        empty.

        Local moves are the copies and reductions, without REDUCE records that are fused with a
        receive (`is_done`). Such a receive has `reduces` instead. `start` of a message is its
        address in this rank's memory, in elements.
        """
        sends, receives, moves = [], [], []
        for row in rows:
            kind = self.kind[row]
            if kind == RecordKind.SEND:
                sends.append(self._build_end(row, self.source))
            elif kind == RecordKind.RECV:
                receives.append(self._build_end(row, self.destination))
            elif not self.is_done[row]:
                moves.append(
                    LocalMove(
                        record=self.first_record + row,
                        reduces=bool(self.reduces[row]),
                        source=int(self.source[row]),
                        destination=int(self.destination[row]),
                        length=int(self.length[row]),
                    )
                )
        return RankLevel(tuple(sends), tuple(receives), tuple(moves))

    def _build_end(self, row: int, starts: Int64Array) -> MessageEnd:
        """Return the message of a record from the point of view of this rank.

        `row`: number of the record in this plan; the result has its number in the entire program.
        `starts`: first element by row, the sources for a send and the destinations for a receive.
        """
        return MessageEnd(
            record=self.first_record + row,
            peer=int(self.peer[row]),
            tag=int(self.tag[row]),
            start=int(starts[row]),
            length=int(self.length[row]),
            reduces=bool(self.reduces[row]),
        )


class RankPlans:
    """The plans of all ranks of a program with `elements` elements per block.

    `fused`: int64[records], per RECV the REDUCE that it performs on arrival, for transports that
    can reduce while they receive; None for other transports.
    """

    def __init__(
        self, program: LevelledProgram, elements: int, fused: Int64Array | None = None
    ) -> None:
        self._program, self._elements = program, elements
        # The running number of every message in its pair of ranks, in the order of posting.
        tags = np.zeros(len(program), np.int64)
        # One number for (rank, peer); sends and receives of a rank are counted separately.
        pair = program.rank * program.num_ranks + program.peer
        for kind in (RecordKind.SEND, RecordKind.RECV):
            rows = np.flatnonzero(program.kind == kind)
            tags[rows] = ordinals(pair[rows])
        self._tag = tags
        self._moves, self._is_done = find_moves(program, elements), np.zeros(len(program), np.bool_)
        if fused is not None:
            self._moves, self._is_done = fused_moves(self._moves, fused)
        self._used = used_elements(program, self._moves, self._is_done, elements)
        # Per record the address of its message at the sender, in elements of the flat memory of all
        # ranks.
        self.sent_from = self._moves.source

    def plan(self, rank: int) -> RankPlan:
        """Return the plan of one rank: its records (operations), with addresses in its own memory.

        Addresses are in elements from the start of the rank's memory. Records keep their order;
        `first_record` is the number of the first one in the program. The columns are empty for a
        rank without records. The source of a RECV and the destination of a SEND are -1, as they are
        on another rank. `tag` counts the messages from one rank to another from 0, in the order of
        the program; it has no meaning for local records.

        If the transport reduces while it receives, it executes a RECV and its REDUCE as one: the
        RECV has `reduces` and the destination of the REDUCE, and the REDUCE has `is_done`.
        `memory_size` is the end of the last element of INPUT, OUTPUT and all regions that the rank
        uses.
        """
        program, elements = self._program, self._elements
        # Convert addresses in the flat memory of all ranks to addresses in that of this rank.
        memory_blocks = program.rank_memory(rank)
        origin = memory_blocks.start * elements
        starts = program.layout.base[rank] * elements - origin
        first, last = program.rank_indptr[rank : rank + 2].tolist()
        rows = slice(first, last)
        kind = program.kind[rows]
        # The source of a RECV is in the memory of the sender.
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
            tag=self._tag[rows],
            source=source,
            destination=np.where(kind == RecordKind.SEND, -1, destination - origin),
            length=self._moves.length[rows],
            reduces=self._moves.reduces[rows],
            is_done=self._is_done[rows],
        )


@dataclass(frozen=True, slots=True)
class RankTask:
    """A plan with its data and the number of runs.

    `input`: INPUT of the rank; `background`: initial value of all other memory. `collective`
    and `root` (0 if not applicable) are arguments of a library's collective.
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
        """Return how often the rank executes its plan.

        It is the sum of warm-ups and repeats, and one more if step times are requested.
        """
        step_timing = int(self.wants_step_times)
        return self.warmups + self.repeats + step_timing


def rank_task(request: LevelledRequest, plan: RankPlan) -> RankTask:
    """Return the task of a rank: its plan, its input and the settings of the request.

    The settings are the kind of the collective, its root (0 without one), the reduction, the value
    of all other memory, the numbers of warm-ups and repeats, and whether steps are timed. The input
    is the array of `request.inputs` at the rank of the plan, not a copy.
    """
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
    """Yield the tasks of all ranks in ascending order, one built at a time.

    In them, every received message is stored before it is reduced (no REDUCE is fused with a
    receive).
    """
    # Plans are created one by one: all of them together would be as large as the program.
    plans = RankPlans(request.program, request.elements)
    for rank in range(request.program.num_ranks):
        yield rank_task(request, plans.plan(rank))
