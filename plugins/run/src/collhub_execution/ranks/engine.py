"""Run the task of one rank, level by level, on whatever moves and reduces its data.

This is the only engine of ranks: processes that share memory, that MPI or torchrun started, or
threads of a test differ in their `Transport` and their `EngineMemory` alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from collhub_execution.data.element_types import Array
from collhub_execution.ranks.plans import LocalMove, MessageEnd, RankLevel, RankTask
from hub_core.columns import Float64Array, Int64Array

V = TypeVar("V")

DONE = -1
NOT_STARTED = -2


class EngineMemory(Protocol[V]):
    """The memory of one rank, and what works on it; a V is a part of it."""

    def part(self, start: int, length: int) -> V:
        """Elements of the memory."""

    def fill(self, task: RankTask) -> None:
        """Put the memory in the state before a run."""

    def copy(self, destination: V, source: V) -> object:
        """destination := source."""

    def reduce(self, destination: V, source: V) -> object:
        """destination := destination op source."""

    def finish(self) -> None:
        """Wait for work that was only queued."""

    def output(self, task: RankTask) -> Array:
        """OUTPUT, in the dtype of the inputs."""


@dataclass(frozen=True, slots=True)
class Post(Generic[V]):
    """One end of a message to be posted, with the memory that it reads or writes."""

    end: MessageEnd
    memory: V


class Waiting(Protocol):
    """A message that was posted."""

    def wait(self) -> object:
        """Return when the memory of the message may be used again."""


PostLevel = Callable[[], Sequence[Waiting]]
"""Start all messages of a level; what is returned stands for receives, then sends."""


class Transport(Protocol[V]):
    """What carries messages between the ranks."""

    def prepare(self, sends: Sequence[Post[V]], receives: Sequence[Post[V]]) -> PostLevel:
        """Make ready what every run posts again; nothing is sent yet."""

    def barrier(self) -> None:
        """Wait for all ranks."""


@dataclass(frozen=True, slots=True)
class NativeCollective:
    """The library's own collective: `fill` puts its data in place, `run` is timed."""

    fill: Callable[[], object]
    run: Callable[[], object]


def no_native(task: RankTask) -> None:
    """The answer of transports that have no collectives of their own."""


@dataclass(frozen=True, slots=True)
class RankEngine(Generic[V]):
    """A rank ready to work.

    `native`: makes the library's own collective for a task, None where it has none; called after
    the runs, so that its buffers are no burden to them.
    """

    memory: EngineMemory[V]
    transport: Transport[V]
    native: Callable[[RankTask], NativeCollective | None] = no_native


@dataclass(frozen=True, slots=True)
class RankLog:
    """Where the rank stands and what it measured; others may watch.

    `at`: int64[1], the record for which it waits, `DONE` or `NOT_STARTED`. `times`:
    float64[2, runs] and `native_times`: float64[2, repeats], start and end in seconds of a clock
    that ranks of one machine share; native ones stay 0 where there are none. `record_times`:
    int64[2, records of the rank], ns, start -1 for those not timed.
    """

    at: Int64Array
    times: Float64Array
    native_times: Float64Array
    record_times: Int64Array

    @classmethod
    def blank(cls, task: RankTask) -> RankLog:
        """A log that nobody else reads."""
        return cls(
            np.full(1, NOT_STARTED),
            np.zeros((2, task.runs)),
            np.zeros((2, task.repeats)),
            np.full((2, len(task.plan.kind)), -1, np.int64),
        )


@dataclass(frozen=True, slots=True)
class _BoundMove:
    """A local move; `act` copies or reduces, and knows its memory."""

    record: int
    act: Callable[[], object]


@dataclass(frozen=True, slots=True)
class _BoundLevel:
    """A level ready to run; `records`: of the receives, then of the sends."""

    post: PostLevel
    records: tuple[int, ...]
    moves: tuple[_BoundMove, ...]


def run_task(task: RankTask, engine: RankEngine[V], log: RankLog) -> Array:
    """Run warm-ups and repeats, each from a barrier on, and return OUTPUT.

    Then the library's own collective runs as often.
    """
    levels = [_bound(level, engine) for level in task.plan.levels()]
    # Contents of undefined memory overflow; nobody is to be told in the middle of a run.
    with np.errstate(all="ignore"):
        for run in range(task.runs):
            is_timed = task.wants_step_times and run == task.runs - 1
            _run_once(task, engine, levels, log, run, is_timed)
    output = engine.memory.output(task)
    _run_native(task, engine, log)
    # A rank that leaves early would take messages with it that others still wait for.
    engine.transport.barrier()
    return output


def _run_once(
    task: RankTask,
    engine: RankEngine[V],
    levels: Sequence[_BoundLevel],
    log: RankLog,
    run: int,
    is_timed: bool,
) -> None:
    """One run, from a barrier on."""
    engine.memory.fill(task)
    # Filling may only be queued; it is not to be measured.
    engine.memory.finish()
    engine.transport.barrier()
    start = time.perf_counter()
    for level in levels:
        if is_timed:
            _run_level_timed(level, log, task.plan.first_record)
        else:
            _run_level(level, log.at)
    engine.memory.finish()
    log.times[:, run] = start, time.perf_counter()
    log.at[0] = DONE


def _bound(level: RankLevel, engine: RankEngine[V]) -> _BoundLevel:
    """Look up once what all runs use: memory, messages, functions."""
    sends = [_bound_end(end, engine.memory) for end in level.sends]
    receives = [_bound_end(end, engine.memory) for end in level.receives]
    # In the order in which `PostLevel` answers.
    records = [post.end.record for post in (*receives, *sends)]
    moves = [_bound_move(move, engine.memory) for move in level.moves]
    post = engine.transport.prepare(sends, receives)
    return _BoundLevel(post, tuple(records), tuple(moves))


def _bound_end(end: MessageEnd, memory: EngineMemory[V]) -> Post[V]:
    """One end of a message with its memory."""
    return Post(end, memory.part(end.start, end.length))


def _bound_move(move: LocalMove, memory: EngineMemory[V]) -> _BoundMove:
    """A local move with its memory and its function."""
    destination = memory.part(move.destination, move.length)
    source = memory.part(move.source, move.length)
    act = memory.reduce if move.reduces else memory.copy
    return _BoundMove(move.record, partial(act, destination, source))


def _run_level(level: _BoundLevel, at: Int64Array) -> None:
    """Post all messages, wait for them, then do the local records."""
    # `_run_level_timed` does the same with a look at the clock: this one is what is measured.
    if level.records:
        # Not `strict`: that keyword takes as long as a message.
        for record, posted in zip(level.records, level.post()):  # noqa: B905
            at[0] = record
            posted.wait()
    for move in level.moves:
        move.act()


def _run_level_timed(level: _BoundLevel, log: RankLog, first_record: int) -> None:
    """As `_run_level`, with start and end of every record; messages start when they are posted."""
    starts, ends = log.record_times
    for record in level.records:
        starts[record - first_record] = time.perf_counter_ns()
    if level.records:
        for record, posted in zip(level.records, level.post(), strict=True):
            log.at[0] = record
            posted.wait()
            ends[record - first_record] = time.perf_counter_ns()
    for move in level.moves:
        starts[move.record - first_record] = time.perf_counter_ns()
        move.act()
        ends[move.record - first_record] = time.perf_counter_ns()


def _run_native(task: RankTask, engine: RankEngine[V], log: RankLog) -> None:
    """Run the library's own collective as often as the program, and time it."""
    native = engine.native(task)
    if native is None:
        return
    # Negative numbers are warm-ups.
    for run in range(-task.warmups, task.repeats):
        native.fill()
        engine.memory.finish()
        engine.transport.barrier()
        start = time.perf_counter()
        native.run()
        engine.memory.finish()
        if run >= 0:
            log.native_times[:, run] = start, time.perf_counter()
