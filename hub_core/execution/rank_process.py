"""What the process of one rank does: fill its memory, then run its levels, each time when told to go."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Semaphore
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.execution.memory import (
    REDUCTIONS,
    elements_of_block,
    fill,
    find_moves,
    fused_reductions,
)
from hub_core.execution.program import RecordKind
from hub_core.plugin_api.executor import ExecutionRequest

Array = npt.NDArray[Any]

_LOOK_FOR_PARENT_S = 1.0
_FAILED = 70


@dataclass(frozen=True, slots=True)
class Pair:
    """The rendezvous of one sender with one receiver: messages posted, and messages received."""

    posted: Semaphore
    received: Semaphore


@dataclass(frozen=True, slots=True)
class Board:
    """What the processes share.

    `memory`: the flat memory of all ranks. `at`: per rank the record for which it waits, -1 when it is done.
    `starts`, `ends`: float64[runs, ranks], seconds of the common clock. `record_times`: int64[2, records], start and end in
    ns. `ready` counts ranks that wait for `go`. `starter`: the process that started the ranks and watches them.
    """

    memory: Array
    at: npt.NDArray[np.int64]
    starts: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]
    record_times: npt.NDArray[np.int64]
    pairs: dict[tuple[int, int], Pair]
    ready: Semaphore
    go: list[Semaphore]
    failures: SimpleQueue[str]
    starter: int


@dataclass(frozen=True, slots=True)
class _Message:
    """One end of a message: its record, the rendezvous, and what a receiver writes and reads, reducing or not."""

    record: int
    pair: Pair
    reduces: bool
    written: Array
    read: Array


@dataclass(frozen=True, slots=True)
class _Local:
    """A local record with the arrays that it writes and reads."""

    record: int
    reduces: bool
    written: Array
    read: Array


@dataclass(frozen=True, slots=True)
class _Level:
    """What a rank does in one level."""

    sends: list[_Message]
    receives: list[_Message]
    local: list[_Local]


def run_rank(request: ExecutionRequest, board: Board, rank: int, runs: int) -> None:
    """The whole life of the process of a rank; an exception becomes a line and a status."""
    # Ctrl-C reaches all processes of a terminal: the one that started the ranks ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker = _Worker(request, board, rank)
        for run in range(runs):
            fill(board.memory, request, rank)
            board.ready.release()
            worker.acquire(board.go[rank])
            board.starts[run, rank] = time.perf_counter()
            worker.run(is_timed=request.wants_step_times and run == runs - 1)
            board.ends[run, rank] = time.perf_counter()
            board.at[rank] = -1
        board.ready.release()
    except BaseException as error:
        board.failures.put(f"{type(error).__name__}: {error}")
        os._exit(_FAILED)


class _Worker:
    """A rank at work."""

    def __init__(self, request: ExecutionRequest, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        self._reduction = REDUCTIONS[request.reduce_op]
        self._levels = list(_levels(request, board, rank))

    def acquire(self, semaphore: Semaphore) -> None:
        """Wait, but not beyond the life of the process that started this one."""
        while not semaphore.acquire(True, _LOOK_FOR_PARENT_S):
            if os.getppid() != self._board.starter:
                os._exit(_FAILED)

    def run(self, is_timed: bool) -> None:
        """Run all levels; where `is_timed`, note when every record started and ended."""
        times = self._board.record_times if is_timed else None
        with np.errstate(all="ignore"):
            for level in self._levels:
                for send in level.sends:
                    _note(times, 0, send.record)
                    send.pair.posted.release()
                for receive in level.receives:
                    self._receive(receive, times)
                for send in level.sends:
                    self._board.at[self._rank] = send.record
                    self.acquire(send.pair.received)
                    _note(times, 1, send.record)
                for local in level.local:
                    self._move(local, times)

    def _receive(self, receive: _Message, times: npt.NDArray[np.int64] | None) -> None:
        self._board.at[self._rank] = receive.record
        self.acquire(receive.pair.posted)
        self._move(receive, times)
        receive.pair.received.release()

    def _move(self, record: _Message | _Local, times: npt.NDArray[np.int64] | None) -> None:
        _note(times, 0, record.record)
        if record.reduces:
            self._reduction(record.written, record.read, out=record.written)
        else:
            record.written[:] = record.read
        _note(times, 1, record.record)


def _note(times: npt.NDArray[np.int64] | None, side: int, record: int) -> None:
    if times is not None:
        times[side, record] = time.perf_counter_ns()


def _levels(request: ExecutionRequest, board: Board, rank: int) -> Iterator[_Level]:
    """The levels of a rank, in order; those without records are left out."""
    program, memory = request.program, board.memory
    moves, fused = find_moves(program, elements_of_block(request)), fused_reductions(request)
    is_fused = np.zeros(len(program), np.bool_)
    is_fused[fused[fused >= 0]] = True
    first, last = program.rank_indptr[rank : rank + 2].tolist()
    borders = np.flatnonzero(np.diff(program.level[first:last], prepend=-1)) + first

    def region(start: npt.NDArray[np.int64], record: int) -> Array:
        return memory[int(start[record]) : int(start[record] + moves.length[record])]

    for low, high in pairwise([*borders.tolist(), last]):
        level = _Level([], [], [])
        for record in range(low, high):
            kind, peer, read = (
                program.kind[record],
                int(program.peer[record]),
                region(moves.source, record),
            )
            if kind == RecordKind.SEND:
                level.sends.append(_Message(record, board.pairs[rank, peer], False, read, read))
            elif kind == RecordKind.RECV:
                reduction = int(fused[record])
                written = region(moves.destination, record if reduction < 0 else reduction)
                level.receives.append(
                    _Message(record, board.pairs[peer, rank], reduction >= 0, written, read)
                )
            elif not is_fused[record]:
                level.local.append(
                    _Local(
                        record, kind == RecordKind.REDUCE, region(moves.destination, record), read
                    )
                )
        yield level
