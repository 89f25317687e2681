"""Run the task of one rank, level by level, with any transport and memory.

This is the only engine of ranks: processes that share memory, that MPI or torchrun started, or
threads of a test differ only in their `Transport` and their `EngineMemory`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from collhub_execution.input_data import REDUCTIONS, Array
from collhub_execution.rank_plans import MessageEnd, RankLevel, RankTask
from hub_core.columns import Float64Array, Int64Array

V = TypeVar("V")

DONE = -1
NOT_STARTED = -2


class EngineMemory(Protocol[V]):
    """The memory of one rank and its operations; a V is a part of it."""

    def part(self, start: int, length: int) -> V:
        """Return `length` elements from `start` on."""

    def fill(self, task: RankTask) -> None:
        """Set the memory to its state before a run."""

    def copy(self, destination: V, source: V) -> object:
        """destination := source."""

    def reduce(self, destination: V, source: V) -> object:
        """destination := destination op source."""

    def finish(self) -> None:
        """Wait for queued work."""

    def output(self, task: RankTask) -> Array:
        """Return OUTPUT, in the dtype of the inputs."""


@dataclass(frozen=True, slots=True)
class Post(Generic[V]):
    """One end of a message to be posted, with the memory that it reads or writes."""

    end: MessageEnd
    memory: V


class Waiting(Protocol):
    """A posted message, for whose end the rank can wait."""

    def wait(self) -> object:
        """Return when the memory of the message may be used again."""


PostLevel = Callable[[], Sequence[Waiting]]
"""Posts all messages of a level; returns the receives, then the sends."""


class Transport(Protocol[V]):
    """Communication between ranks: posts the messages of a level, and synchronizes all ranks."""

    def prepare(self, sends: Sequence[Post[V]], receives: Sequence[Post[V]]) -> PostLevel:
        """Prepare the messages of a level, which every run posts again; no message is sent yet."""

    def barrier(self) -> None:
        """Wait for all ranks."""


@dataclass(frozen=True, slots=True)
class NativeCollective:
    """The library's collective: `fill` initializes its data, `run` is timed."""

    fill: Callable[[], object]
    run: Callable[[], object]


def no_native(task: RankTask) -> None:
    """Default of transports whose library has no collectives."""


@dataclass(frozen=True, slots=True)
class RankEngine(Generic[V]):
    """A rank that is ready to run.

    `native`: creates the library's collective for a task, or returns None; called after the runs,
    so that its buffers do not affect them.
    """

    memory: EngineMemory[V]
    transport: Transport[V]
    native: Callable[[RankTask], NativeCollective | None] = no_native


@dataclass(frozen=True, slots=True)
class RankLog:
    """The position of the rank and its times; other processes may read it.

    `at`: int64[1], the record for which it waits, `DONE` or `NOT_STARTED`. `times`: float64[2,
    runs] and `native_times`: float64[2, repeats], start and end in seconds of a clock that ranks of
    one host share; native ones stay 0 if there are none. `record_times`: int64[2, records of the
    rank], ns, start -1 if not timed.
    """

    at: Int64Array
    times: Float64Array
    native_times: Float64Array
    record_times: Int64Array

    @classmethod
    def blank(cls, task: RankTask) -> RankLog:
        """Create a log in private memory, as before the first run: not started, no times.

        Times of runs are 0, times of records -1.
        """
        return cls(
            np.full(1, NOT_STARTED),
            np.zeros((2, task.runs)),
            np.zeros((2, task.repeats)),
            np.full((2, len(task.plan.kind)), -1, np.int64),
        )


@dataclass(frozen=True, slots=True)
class _BoundMove:
    """A local move; `act` copies or reduces on its memory."""

    record: int
    act: Callable[[], object]


@dataclass(frozen=True, slots=True)
class _BoundLevel:
    """A level ready to run; `records`: of the receives, then of the sends."""

    post: PostLevel
    records: tuple[int, ...]
    moves: tuple[_BoundMove, ...]


def run_task(task: RankTask, engine: RankEngine[V], log: RankLog) -> Array:
    """Run the program of a rank `task.runs` times: warm-ups, repeats, and a run for step times.

    The last of these runs is present only if step times are requested. Returns the OUTPUT after it,
    or else after the last repeat. Then the communication library's collective is run with the same
    warm-ups and repeats, if the engine has one.

    Every rank must call this function: each run begins with a barrier after the memory has been
    filled, and the last step is a barrier. `log` gets the record for which the rank waits, and
    start and end of all runs in s (of the library's collective without warm-ups). Warnings of
    numpy, such as for overflow, are suppressed in the program's runs.
    """
    levels = [_resolve_level(level, engine) for level in task.plan.levels()]
    # Undefined memory may overflow; warnings must not interrupt a run.
    with np.errstate(all="ignore"):
        for run in range(task.runs):
            is_timed = task.wants_step_times and run == task.runs - 1
            _run_once(task, engine, levels, log, run, is_timed)
    output = engine.memory.output(task)
    native = engine.native(task)
    if native is not None:
        # Negative numbers are warm-ups, which are not logged.
        for run in range(-task.warmups, task.repeats):
            native.fill()
            engine.memory.finish()
            engine.transport.barrier()
            start = time.perf_counter()
            native.run()
            engine.memory.finish()
            if run >= 0:
                log.native_times[:, run] = start, time.perf_counter()
    # A rank that exits early would discard messages for which other ranks still wait.
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
    """Run all levels of a task once: fill the memory, wait for all ranks, then run level by level.

    `run`: number of the run from 0, warm-ups included. Its start and end (`perf_counter`, in s) are
    written to `log.times[:, run]`. They include queued work of the levels, but neither the filling
    nor the wait for other ranks before the first level. With `is_timed` the times of every record
    are logged too (`_run_level_timed`). At the end `log.at[0]` becomes `DONE`. If a call raises an
    exception, it is passed on, and `log.at[0]` stays at the last record that was waited for.
    """
    engine.memory.fill(task)
    # Filling may only be queued; it must not be measured.
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


def _resolve_level(level: RankLevel, engine: RankEngine[V]) -> _BoundLevel:
    """Prepare a level (operations between which no rank waits) for its runs.

    Its records are bound to memory, messages and functions, so that runs only call these. The
    record numbers of the result are in the order in which the transport returns messages: receives,
    then sends. Copies and reductions keep their order.
    """
    sends = [_resolve_end(end, engine.memory) for end in level.sends]
    receives = [_resolve_end(end, engine.memory) for end in level.receives]
    # In the order of the result of `PostLevel`.
    records = [post.end.record for post in (*receives, *sends)]
    moves = []
    for move in level.moves:
        destination = engine.memory.part(move.destination, move.length)
        source = engine.memory.part(move.source, move.length)
        act = engine.memory.reduce if move.reduces else engine.memory.copy
        moves.append(_BoundMove(move.record, partial(act, destination, source)))
    post = engine.transport.prepare(sends, receives)
    return _BoundLevel(post, tuple(records), tuple(moves))


def _resolve_end(end: MessageEnd, memory: EngineMemory[V]) -> Post[V]:
    """Return one end of a message with its memory."""
    return Post(end, memory.part(end.start, end.length))


def _run_level(level: _BoundLevel, at: Int64Array) -> None:
    """Run a level: post all its messages, wait for each, then execute its copies and reductions.

    Waits are in the order receives, then sends. Before each wait, `at[0]` is set to the record for
    which the rank waits, so that a deadlock can be located.
    """
    # `_run_level_timed` does the same with timestamps; this function is the one that is measured.
    if level.records:
        # Not `strict`: that keyword takes as long as a message.
        for record, posted in zip(level.records, level.post()):  # noqa: B905
            at[0] = record
            posted.wait()
    for move in level.moves:
        move.act()


def _run_level_timed(level: _BoundLevel, log: RankLog, first_record: int) -> None:
    """Run a level as `_run_level` does, and log the start and end of every record in ns.

    The messages are posted together, then the rank waits for the receives, then for the sends, in
    their order. The start of every message is before they are posted; its end is when its wait
    returns, so it includes the waits before it. Copies and reductions follow and are timed one by
    one. Before each wait, `log.at[0]` is set to the record. Record r is written to column r -
    `first_record` of `log.record_times`. Times are those of `perf_counter_ns`.
    """
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


class NumpyMemory:
    """An `EngineMemory` on an array of `task.plan.memory_size` elements, a new or a given one."""

    def __init__(self, task: RankTask, memory: Array | None = None) -> None:
        """Use `memory`, or a new uninitialized array if it is None, with the operator of the task.

        A new array has `task.plan.memory_size` elements of the dtype of the input. The size of
        a given array is not checked. Raises `KeyError` for an average, which has no function in
        `REDUCTIONS`.
        """
        # Ranks that share memory pass their part of it.
        if memory is None:
            memory = np.empty(task.plan.memory_size, task.input.dtype)
        self._memory = memory
        self._reduction = REDUCTIONS[task.reduce_op]

    def part(self, start: int, length: int) -> Array:
        """Return a view."""
        return self._memory[start : start + length]

    def fill(self, task: RankTask) -> None:
        """Write the task's INPUT to its place, and the background value to all other elements.

        So elements that a run does not write can be recognized. In place, INPUT may be a part of
        OUTPUT.
        """
        # The background first, because in place INPUT may be a part of OUTPUT.
        self._memory[:] = task.background
        self.part(task.plan.input_start, len(task.input))[:] = task.input

    def copy(self, destination: Array, source: Array) -> None:
        """destination := source."""
        destination[:] = source

    def reduce(self, destination: Array, source: Array) -> None:
        """destination := destination op source."""
        self._reduction(destination, source, destination)

    def finish(self) -> None:
        """No work is queued."""

    def output(self, task: RankTask) -> Array:
        """Return OUTPUT, a view."""
        return self.part(task.plan.output_start, task.plan.output_size)
