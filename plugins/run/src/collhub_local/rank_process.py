"""The process of one rank: run its task on shared memory, on signals of the starter."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkContext
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Semaphore
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution import (
    FAILED,
    LevelledRequest,
    NumpyMemory,
    Post,
    PostLevel,
    RankEngine,
    RankLog,
    RankPlans,
    RankTask,
    Waiting,
    rank_task,
    run_task,
)

from hub_core.columns import Float64Array, Int64Array

Array = npt.NDArray[Any]

_LOOK_FOR_PARENT_S = 1.0


@dataclass(frozen=True, slots=True)
class RankPair:
    """The rendezvous of one sender with one receiver: counts of posted and of received messages."""

    posted: Semaphore
    received: Semaphore

    @classmethod
    def at_start(cls, context: ForkContext) -> RankPair:
        """Create semaphores without posted or received messages."""
        return cls(context.Semaphore(0), context.Semaphore(0))


@dataclass(frozen=True, slots=True)
class SharedBoard:
    """Data shared by the processes.

    `memory`: the flat memory of all ranks. `at`: int64[ranks], see `RankLog`. `times`: float64[2,
    runs, ranks], start and end in seconds of the common clock. `record_times`: int64[2, records],
    start and end in ns. `pairs`: by (source, destination). `ready` counts ranks that wait for `go`.
    `failures`: the reasons of ranks that failed. `starter`: the process that started the ranks and
    monitors them.
    """

    memory: Array
    at: Int64Array
    times: Float64Array
    record_times: Int64Array
    pairs: dict[tuple[int, int], RankPair]
    ready: Semaphore
    go: list[Semaphore]
    failures: SimpleQueue[str]
    context: ForkContext
    starter: int


def run_rank(request: LevelledRequest, plans: RankPlans, board: SharedBoard, rank: int) -> None:
    """Run the task of a rank on its range of the shared memory: the main function of its process.

    `board`: arrays and semaphores that all processes share. The OUTPUT of the rank is left in
    `board.memory`; the times are written to the board. Each run begins when the starting process
    releases the rank. The function returns after all ranks have finished.

    Ctrl-C is ignored from now on, because the starting process ends the ranks. For any exception,
    also `SystemExit`, the text `TYPE: MESSAGE` is put into `board.failures`. The process then exits
    at once with the status `FAILED`, without cleanup; so no exception is raised.
    """
    # Ctrl-C reaches all processes of a terminal: the starter ends the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # A forked child inherits all data, so none is sent.
        task = rank_task(request, plans.plan(rank))
        first = request.program.rank_memory(rank).start * request.elements
        memory = NumpyMemory(task, board.memory[first : first + task.plan.memory_size])
        first_record = task.plan.first_record
        # Views of the board, so that the starting process sees each value at once. This executor
        # has no library with a collective that could be timed: those times are discarded.
        log = RankLog(
            at=board.at[rank : rank + 1],
            times=board.times[:, :, rank],
            native_times=np.zeros((2, task.repeats)),
            record_times=board.record_times[:, first_record : first_record + len(task.plan.kind)],
        )
        transport = SharedMemoryTransport(board, plans, memory, task, log)
        run_task(task, RankEngine(memory, transport), log)
    except BaseException as error:
        board.failures.put(f"{type(error).__name__}: {error}")
        os._exit(FAILED)


class SharedMemoryTransport:
    """Messages as copies from the sender's memory, synchronized by two semaphores.

    No data or descriptors are sent: the receiver knows the address of the message from the program.
    """

    def __init__(
        self,
        board: SharedBoard,
        plans: RankPlans,
        memory: NumpyMemory,
        task: RankTask,
        log: RankLog,
    ) -> None:
        self._board, self._memory = board, memory
        self._rank = task.plan.rank
        self._sent_from = plans.sent_from
        self._first_record = task.plan.first_record
        self._starts = log.record_times[0] if task.wants_step_times else None

    def prepare(self, sends: Sequence[Post[Array]], receives: Sequence[Post[Array]]) -> PostLevel:
        """Return a function that starts the messages of a level in a run; none is started yet.

        Each call of this function signals to the receivers of all `sends` that their data are
        ready. It returns the same objects to wait for each time: those of `receives`, then those of
        `sends`, both in the given order; an empty list without messages. Their `wait` does:

        - receive: waits for the signal of the sender, stores the present time in ns as the start of
          the record (only if step times are requested), copies the data from the sender's memory
          (or reduces its own data with them), and acknowledges this to the sender
        - send: waits for the acknowledgement of the receiver; then its memory may change

        `wait` has no time limit. If the starting process no longer exists, `wait` exits from this
        process with the status `FAILED`.
        """
        posted = [self._board.pairs[self._rank, send.end.peer].posted for send in sends]
        waiting: list[Waiting] = []
        for post in receives:
            end = post.end
            start = int(self._sent_from[end.record])
            arrival = _Arrival(
                pair=self._board.pairs[end.peer, self._rank],
                starter=self._board.starter,
                act=self._memory.reduce if end.reduces else self._memory.copy,
                written=post.memory,
                read=self._board.memory[start : start + end.length],
                starts=self._starts,
                index=end.record - self._first_record,
            )
            waiting.append(arrival)
        for post in sends:
            pair = self._board.pairs[self._rank, post.end.peer]
            waiting.append(_Departure(pair, self._board.starter))

        def post_level() -> Sequence[Waiting]:
            for semaphore in posted:
                semaphore.release()
            return waiting

        return post_level

    def barrier(self) -> None:
        """Report that this rank is ready, and wait until the starting process releases all ranks.

        The starting process waits with a time limit and detects missing ranks. If it no longer
        exists, this process exits with the status `FAILED`.
        """
        # Not among the ranks: the starter waits with a time limit and detects missing ranks.
        self._board.ready.release()
        _wait_for(self._board.go[self._rank], self._board.starter)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A message to be received: `act` copies it, or reduces the destination with it."""

    pair: RankPair
    starter: int
    act: Callable[[Array, Array], object]
    written: Array
    read: Array
    starts: Int64Array | None
    index: int

    def wait(self) -> None:
        """Wait until the message is ready, copy or reduce it into own memory, and acknowledge it.

        With step times, the moment in ns at which the data become available is stored as the start.
        There is no time limit. If the starting process no longer exists, this process exits with
        the status `FAILED`.
        """
        _wait_for(self.pair.posted, self.starter)
        if self.starts is not None:
            # A receive starts when its data are available. All runs write here, but only the last
            # one, which is timed step by step, counts.
            self.starts[self.index] = time.perf_counter_ns()
        self.act(self.written, self.read)
        self.pair.received.release()


@dataclass(frozen=True, slots=True)
class _Departure:
    """A sent message: its memory may change when the receiver has copied it."""

    pair: RankPair
    starter: int

    def wait(self) -> None:
        """Wait for the acknowledgement."""
        _wait_for(self.pair.received, self.starter)


def _wait_for(semaphore: Semaphore, starter: int) -> None:
    """Acquire a semaphore, without a time limit.

    Every second without success it looks for the process `starter`; if that is no longer the
    parent, this process exits with the status `FAILED`.
    """
    # A killed starter cannot end its ranks: they detect that their parent has changed.
    while not semaphore.acquire(True, _LOOK_FOR_PARENT_S):
        if os.getppid() != starter:
            os._exit(FAILED)
