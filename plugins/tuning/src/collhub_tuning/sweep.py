"""Run comparisons: an algorithm a task, several at once in processes, the known ones from a cache.

A task whose process dies costs its algorithm alone. What was measured is kept at once, so that a
comparison that Ctrl-C has ended goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from types import TracebackType

from collhub_tuning.measuring import file_read, measured
from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion, Measurement
from collhub_tuning.result_cache import ResultCache
from collhub_tuning.task_processes import TaskProcesses
from hub_core import Registry, run_registry
from hub_core.model import format_time
from hub_core.network import Topology

Start = Callable[[int, float | None], Executor]
Progress = Callable[[float, str], None]
# What was measured, or why nothing was.
_Done = tuple[ComparedAlgorithm, list[Measurement] | str]


class Measuring:
    """Where algorithms are measured, for one comparison after another: here, or by workers.

    `jobs`: algorithms at once; the number changes nothing in the result. `timeout_s`: after which
    an algorithm is given up, at all sizes. `start`: what starts workers, by the number at once and
    the time; by default processes, or none where one algorithm is measured at a time.
    `shares_files`: whether workers see the files of this machine. `registry`: the plugins of the
    run, which workers use too; None: those of `run_registry`. Workers are started for the first
    algorithm that is not known, and end with the context.
    """

    def __init__(
        self,
        jobs: int,
        timeout_s: float | None = None,
        start: Start | None = None,
        shares_files: bool = True,
        registry: Registry | None = None,
    ) -> None:
        self._jobs = jobs
        self._timeout_s = timeout_s
        self._start = start
        self._shares_files = shares_files
        self._registry = registry or run_registry()
        self._workers: Executor | None = None

    def __enter__(self) -> Measuring:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._workers is not None:
            # Of Ctrl-C as well: nobody waits for what is under way.
            self._workers.shutdown(cancel_futures=kind is not None)

    def done(
        self,
        missing: Sequence[ComparedAlgorithm],
        question: ComparisonQuestion,
        network: Topology | None,
    ) -> Iterator[_Done]:
        """Each algorithm when it is measured, or why it is not."""
        asked = (question, network, None, self._registry)
        # A task that may be ended needs a process of its own.
        may_be_here = self._start is None and self._timeout_s is None
        if not missing or (may_be_here and min(self._jobs, len(missing)) <= 1):
            for one in missing:
                yield one, measured(one, *asked)
            return
        if self._workers is None:
            self._workers = (self._start or TaskProcesses)(self._jobs, self._timeout_s)
        tasks: dict[Future[list[Measurement]], ComparedAlgorithm] = {}
        for one in missing:
            if self._shares_files or not one.is_file:
                tasks[self._workers.submit(measured, one, *asked)] = one
                continue
            read = file_read(one, question, self._registry)
            if isinstance(read, list):
                yield one, read
            else:
                task = self._workers.submit(measured, one, question, network, read, self._registry)
                tasks[task] = one
        for task in as_completed(tasks):
            yield tasks[task], self._outcome(task)

    def _outcome(self, task: Future[list[Measurement]]) -> list[Measurement] | str:
        """The result of a task, or why it has none."""
        try:
            return task.result()
        except BrokenExecutor as error:
            return str(error) or "the process that measured it died"
        except TimeoutError:
            return f"it took longer than {format_time((self._timeout_s or 0.0) * 1e9)}"
        except MemoryError:
            return "it ran out of memory"


def compared(
    algorithms: Sequence[ComparedAlgorithm],
    question: ComparisonQuestion,
    cache: ResultCache,
    *,
    measuring: Measuring,
    progress: Progress,
    network: Topology | None = None,
) -> list[Measurement]:
    """All measurements, in the order of the algorithms, then of the sizes.

    `network`: in place of what the text of the question names; it is that of the cache.
    """
    found: dict[ComparedAlgorithm, list[Measurement]] = {}
    for one in algorithms:
        known = cache.find(one, question)
        if known is not None:
            found[one] = known
    missing = [one for one in algorithms if one not in found]
    for one, measurements in measuring.done(missing, question, network):
        if isinstance(measurements, str):
            # What was lost may be found another time: it is not kept.
            measurements = [
                Measurement(one.name, size, None, measurements) for size in question.sizes
            ]
        else:
            cache.keep(one, question, measurements)
        found[one] = measurements
        progress(len(found) / len(algorithms), one.name)
    return [measurement for one in algorithms for measurement in found[one]]
