"""What one rank of a levelled program does, in elements of its own memory: all that a process on any machine needs to know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.execution.memory import elements_of_block, find_moves
from hub_core.execution.program import LevelledProgram, RecordKind
from hub_core.model.kinds import Buffer, CollectiveKind, ReduceOp
from hub_core.plugin_api.executor import ExecutionRequest

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Message:
    """One end of a message: `length` elements from `start` on. `tag`: its number among those of its two ranks, from 0."""

    record: int
    peer: int
    tag: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Move:
    """A copy or a reduction within the rank, destination := destination op source."""

    record: int
    reduces: bool
    source: int
    destination: int
    length: int


@dataclass(frozen=True, slots=True)
class Level:
    """Messages to post at once and to wait for, then local records in their order. No message goes to the own rank."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The records of one rank, whose memory of `memory_size` elements holds INPUT, OUTPUT and SCRATCH.

    Columns of equal length, as in `LevelledProgram`, but `source` and `destination` in elements of the own memory, -1 on an
    unused side. `first_record`: the number that the first record has in the program.
    """

    rank: int
    num_ranks: int
    memory_size: int
    input_start: int
    output_start: int
    output_size: int
    first_record: int
    kind: npt.NDArray[np.uint8]
    level: npt.NDArray[np.int32]
    peer: npt.NDArray[np.int32]
    tag: Int64Array
    source: Int64Array
    destination: Int64Array
    length: Int64Array

    def levels(self) -> Iterator[Level]:
        """The levels of the rank in order; those without records are left out."""
        borders = np.flatnonzero(np.diff(self.level, prepend=-1)).tolist()
        for low, high in pairwise([*borders, len(self.kind)]):
            yield self._level(range(low, high))

    def _level(self, rows: range) -> Level:
        found: dict[RecordKind, list[int]] = {kind: [] for kind in RecordKind}
        for row in rows:
            found[RecordKind(int(self.kind[row]))].append(row)
        return Level(
            tuple(self._message(row, self.source) for row in found[RecordKind.SEND]),
            tuple(self._message(row, self.destination) for row in found[RecordKind.RECV]),
            tuple(self._move(row) for row in rows if self.kind[row] >= RecordKind.COPY),
        )

    def _message(self, row: int, starts: Int64Array) -> Message:
        return Message(
            self.first_record + row,
            int(self.peer[row]),
            int(self.tag[row]),
            int(starts[row]),
            int(self.length[row]),
        )

    def _move(self, row: int) -> Move:
        reduces = bool(self.kind[row] == RecordKind.REDUCE)
        return Move(
            self.first_record + row,
            reduces,
            int(self.source[row]),
            int(self.destination[row]),
            int(self.length[row]),
        )


class Plans:
    """The plans of all ranks of a program whose blocks have `elements` elements."""

    def __init__(self, program: LevelledProgram, elements: int) -> None:
        self._program, self._elements = program, elements
        self._moves, self._tags = find_moves(program, elements), _tags(program)

    def plan(self, rank: int) -> RankPlan:
        """The plan of one rank."""
        program, elements = self._program, self._elements
        own = program.rank_memory(rank)
        first, last = program.rank_indptr[rank : rank + 2].tolist()
        rows, origin = slice(first, last), own.start * elements
        starts = program.layout.base[rank] * elements - origin
        kind = program.kind[rows]
        return RankPlan(
            rank=rank,
            num_ranks=program.num_ranks,
            memory_size=(own.stop - own.start) * elements,
            input_start=int(starts[Buffer.INPUT]),
            output_start=int(starts[Buffer.OUTPUT]),
            output_size=int(program.layout.size[rank, Buffer.OUTPUT]) * elements,
            first_record=first,
            kind=kind,
            level=program.level[rows],
            peer=program.peer[rows],
            tag=self._tags[rows],
            source=np.where(kind == RecordKind.RECV, -1, self._moves.source[rows] - origin),
            destination=np.where(
                kind == RecordKind.SEND, -1, self._moves.destination[rows] - origin
            ),
            length=self._moves.length[rows],
        )


@dataclass(frozen=True, slots=True)
class RankTask:
    """A plan with the data to run it on: INPUT of the rank, what all other memory holds before a run, the runs wanted.

    `collective` and `root` (0 where it has no meaning) are what a library's own collective is called with.
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
        return self.warmups + self.repeats + int(self.wants_step_times)


def rank_tasks(request: ExecutionRequest) -> Iterator[RankTask]:
    """What a request asks of every rank."""
    collective, plans = (
        request.algorithm.collective,
        Plans(request.program, elements_of_block(request)),
    )
    for rank, data in enumerate(request.inputs):
        yield RankTask(
            plans.plan(rank),
            collective.kind,
            collective.root or 0,
            request.reduce_op,
            data,
            request.background,
            request.warmups,
            request.repeats,
            request.wants_step_times,
        )


def _tags(program: LevelledProgram) -> Int64Array:
    """The running number of every message within its pair of ranks, in the order in which both ends post; 0 in local records."""
    tags = np.zeros(len(program), np.int64)
    rank = program.rank
    for kind in (RecordKind.SEND, RecordKind.RECV):
        rows = np.flatnonzero(program.kind == kind)
        rows = rows[np.lexsort((rows, program.peer[rows], rank[rows]))]
        here = np.arange(len(rows))
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = (np.diff(rank[rows]) != 0) | (np.diff(program.peer[rows]) != 0)
        tags[rows] = here - np.maximum.accumulate(np.where(is_first, here, 0))
    return tags
