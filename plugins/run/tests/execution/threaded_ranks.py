"""A stand-in for a message library: ranks are threads, messages are copies in queues."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
from collhub_execution import (
    JobFolder,
    NumpyMemory,
    Post,
    PostLevel,
    RankEngine,
    RankPart,
    RankTask,
    Waiting,
    run_task,
    serve_rank,
)
from collhub_execution.testing import in_threads

Array = npt.NDArray[Any]


class _Queues(dict[tuple[int, int, int], "queue.SimpleQueue[Array]"]):
    """Queues by (source, destination, tag), created at the first access.

    A defaultdict may create two queues if two threads request one at the same time; `setdefault` is
    atomic.
    """

    def __missing__(self, key: tuple[int, int, int]) -> queue.SimpleQueue[Array]:
        return self.setdefault(key, queue.SimpleQueue())


@dataclass(slots=True)
class ThreadWorld:
    """What the threads share."""

    num_ranks: int
    barrier: threading.Barrier = field(init=False)
    queues: dict[tuple[int, int, int], queue.SimpleQueue[Array]] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.num_ranks)
        self.queues = _Queues()

    def run(self, work: Callable[[int], object]) -> list[object]:
        """Run `work(rank)` in a thread a rank."""
        return in_threads(work, self.num_ranks)


@dataclass(frozen=True, slots=True)
class _QueuedArrival:
    queue: queue.SimpleQueue[Array]
    memory: Array

    def wait(self) -> None:
        self.memory[:] = self.queue.get()


class _AlreadyGone:
    def wait(self) -> None:
        pass


class ThreadTransport:
    """Messages between the threads of a world."""

    def __init__(self, rank: int, world: ThreadWorld) -> None:
        self._world, self._rank = world, rank

    def prepare(self, sends: Sequence[Post[Array]], receives: Sequence[Post[Array]]) -> PostLevel:
        def post_level() -> Sequence[Waiting]:
            for post in sends:
                queue = self._world.queues[self._rank, post.end.peer, post.end.tag]
                queue.put(post.memory.copy())
            return [*map(self._arrival, receives), *(_AlreadyGone() for _ in sends)]

        return post_level

    def _arrival(self, post: Post[Array]) -> Waiting:
        queue = self._world.queues[post.end.peer, self._rank, post.end.tag]
        return _QueuedArrival(queue, post.memory)

    def barrier(self) -> None:
        self._world.barrier.wait()


def thread_engine(
    task: RankTask, world: ThreadWorld, memory: Array | None = None
) -> RankEngine[Array]:
    """The engine of one thread."""
    return RankEngine(NumpyMemory(task, memory), ThreadTransport(task.plan.rank, world))


def main(folder: str, failing_rank: str = "") -> None:
    """Serve the job in a folder; one rank may fail."""
    job = JobFolder(Path(folder))
    world = ThreadWorld(job.num_tasks())

    def run(part: RankPart) -> Array:
        if failing_rank and part.task.plan.rank == int(failing_rank):
            raise ArithmeticError("planted")
        return run_task(part.task, thread_engine(part.task, world, part.memory), part.log)

    world.run(lambda rank: serve_rank(job, rank, run))


if __name__ == "__main__":
    main(*sys.argv[1:])
