"""A stand-in for a message library: the ranks are threads of one process, messages are copies in queues."""

from __future__ import annotations

import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hub_core.execution.job_folder import Job, serve_rank
from hub_core.execution.memory import REDUCTIONS
from hub_core.execution.rank_engine import NativeCollective, Post, RankLog, Waiting, run_task
from hub_core.execution.rank_tasks import RankTask

Array = npt.NDArray[Any]


@dataclass(slots=True)
class World:
    """What the threads share."""

    num_ranks: int
    barrier: threading.Barrier = field(init=False)
    queues: dict[tuple[int, int, int], queue.SimpleQueue[Array]] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.num_ranks)
        self.queues = defaultdict(queue.SimpleQueue)

    def run(self, work: Callable[[int], object]) -> list[object]:
        """Run `work(rank)` in a thread a rank."""
        found: list[object] = [None] * self.num_ranks

        def keep(rank: int) -> None:
            found[rank] = work(rank)

        threads = [
            threading.Thread(target=keep, args=(rank,), daemon=True)
            for rank in range(self.num_ranks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@dataclass(frozen=True, slots=True)
class _Arrival:
    queue: queue.SimpleQueue[Array]
    memory: Array

    def wait(self) -> None:
        self.memory[:] = self.queue.get()


class _Gone:
    def wait(self) -> None:
        pass


class ThreadEngine:
    """The engine of one thread."""

    def __init__(self, task: RankTask, world: World) -> None:
        self._world, self._rank = world, task.plan.rank
        self._memory = np.empty(task.plan.memory_size, task.input.dtype)
        self._reduction = REDUCTIONS[task.reduce_op]

    def part(self, start: int, length: int) -> Array:
        return self._memory[start : start + length]

    def fill(self, task: RankTask) -> None:
        self._memory[:] = task.background
        self.part(task.plan.input_start, len(task.input))[:] = task.input

    def post(
        self, sends: Sequence[Post[Array]], receives: Sequence[Post[Array]]
    ) -> Sequence[Waiting]:
        for post in sends:
            self._world.queues[self._rank, post.message.peer, post.message.tag].put(
                post.memory.copy()
            )
        arrivals = [
            _Arrival(
                self._world.queues[post.message.peer, self._rank, post.message.tag], post.memory
            )
            for post in receives
        ]
        return [*arrivals, *(_Gone() for _ in sends)]

    def copy(self, destination: Array, source: Array) -> None:
        destination[:] = source

    def reduce(self, destination: Array, source: Array) -> None:
        self._reduction(destination, source, out=destination)

    def finish(self) -> None:
        pass

    def barrier(self) -> None:
        self._world.barrier.wait()

    def output(self, task: RankTask) -> Array:
        return self.part(task.plan.output_start, task.plan.output_size)

    def native(self, task: RankTask) -> NativeCollective | None:
        return None


def main(folder: str, failing_rank: str = "") -> None:
    """Serve the job in a folder; one rank may fail."""
    job = Job(Path(folder))
    world = World(sum(1 for _ in job.folder.glob("task.*")))

    def run(task: RankTask, log: RankLog) -> Array:
        if failing_rank and task.plan.rank == int(failing_rank):
            raise ArithmeticError("planted")
        return run_task(task, ThreadEngine(task, world), log)

    world.run(lambda rank: serve_rank(job, rank, run))


if __name__ == "__main__":
    main(*sys.argv[1:])
