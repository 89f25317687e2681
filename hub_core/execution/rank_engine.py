"""Run the task of one rank on whatever moves and reduces its data: the loop that all libraries of processes share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hub_core.execution.rank_tasks import Level, Message, Move, RankTask

Array = npt.NDArray[Any]
V = TypeVar("V")

DONE = -1
NOT_STARTED = -2


@dataclass(frozen=True, slots=True)
class NativeCollective:
    """The library's own collective: `fill` puts its data in place, `run` is timed."""

    fill: Callable[[], object]
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Post(Generic[V]):
    """A message about to be posted, with the memory that it reads or writes."""

    message: Message
    memory: V


class Waiting(Protocol):
    """A message that was posted."""

    def wait(self) -> object:
        """Return when the memory of the message may be used again."""


class Engine(Protocol[V]):
    """A library at work in one process, on one memory; a V is a part of that memory."""

    def part(self, start: int, length: int) -> V:
        """Elements of the memory."""

    def fill(self, task: RankTask) -> None:
        """Put the memory in the state before a run."""

    def post(self, sends: Sequence[Post[V]], receives: Sequence[Post[V]]) -> Sequence[Waiting]:
        """Start all messages of a level; what is returned stands for receives, then sends."""

    def copy(self, destination: V, source: V) -> None:
        """destination := source."""

    def reduce(self, destination: V, source: V) -> None:
        """destination := destination op source."""

    def finish(self) -> None:
        """Wait for work that was only queued."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def output(self, task: RankTask) -> Array:
        """OUTPUT, in the dtype of the inputs."""

    def native(self, task: RankTask) -> NativeCollective | None:
        """The library's own collective on the same input; None where it has none."""


@dataclass(frozen=True, slots=True)
class RankLog:
    """Where the rank stands and what it measured; others may watch.

    `at`: int64[1], the record for which it waits, `DONE` or `NOT_STARTED`. `times`: float64[2, runs] and `native_times`:
    float64[2, repeats], start and end in seconds of a clock that ranks of one machine share; native ones stay 0 where there
    are none. `record_times`: int64[2, records of the rank], ns, start -1 for those not timed.
    """

    at: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    native_times: npt.NDArray[np.float64]
    record_times: npt.NDArray[np.int64]

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
class _Bound(Generic[V]):
    """A level with its memory."""

    sends: list[Post[V]]
    receives: list[Post[V]]
    moves: list[tuple[Move, V, V]]


def run_task(task: RankTask, engine: Engine[V], log: RankLog) -> Array:
    """Run warm-ups and repeats, each from a barrier on, then the library's own collective as often; return OUTPUT."""
    levels = [_bound(level, engine) for level in task.plan.levels()]
    first = task.plan.first_record
    for run in range(task.runs):
        engine.fill(task)
        engine.finish()
        engine.barrier()
        record_times = log.record_times if task.wants_step_times and run == task.runs - 1 else None
        log.times[0, run] = time.perf_counter()
        for level in levels:
            _run_level(level, engine, log.at, record_times, first)
        engine.finish()
        log.times[1, run] = time.perf_counter()
        log.at[0] = DONE
    output = engine.output(task)
    _run_native(task, engine, log)
    # A rank that leaves early would take messages with it that others still wait for.
    engine.barrier()
    return output


def _bound(level: Level, engine: Engine[V]) -> _Bound[V]:
    sends, receives = (
        [Post(end, engine.part(end.start, end.length)) for end in ends]
        for ends in (level.sends, level.receives)
    )
    moves = [
        (move, engine.part(move.destination, move.length), engine.part(move.source, move.length))
        for move in level.moves
    ]
    return _Bound(sends, receives, moves)


def _run_level(
    level: _Bound[V],
    engine: Engine[V],
    at: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64] | None,
    first: int,
) -> None:
    posted = [*level.receives, *level.sends]
    for post in posted:
        _note(times, 0, post.message.record - first)
    waiting = engine.post(level.sends, level.receives) if posted else ()
    for post, work in zip(posted, waiting, strict=True):
        at[0] = post.message.record
        work.wait()
        _note(times, 1, post.message.record - first)
    for move, destination, source in level.moves:
        _note(times, 0, move.record - first)
        (engine.reduce if move.reduces else engine.copy)(destination, source)
        _note(times, 1, move.record - first)


def _note(times: npt.NDArray[np.int64] | None, side: int, index: int) -> None:
    if times is not None:
        times[side, index] = time.perf_counter_ns()


def _run_native(task: RankTask, engine: Engine[V], log: RankLog) -> None:
    native = engine.native(task)
    if native is None:
        return
    for run in range(-task.warmups, task.repeats):
        native.fill()
        engine.finish()
        engine.barrier()
        start = time.perf_counter()
        native.run()
        engine.finish()
        if run >= 0:
            log.native_times[:, run] = start, time.perf_counter()
