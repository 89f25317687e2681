"""Run comparisons: an algorithm a task, several at once in processes, the known ones from a cache.

A task whose process dies costs its algorithm alone. What was measured is kept at once, so that a
comparison that Ctrl-C has ended goes on where it was. At a time limit searches end with
their best; a task that does not is ended soon after, and reported as cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from dataclasses import replace
from types import TracebackType

from collhub_tuning.measuring import file_read, measured
from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion, Measurement
from collhub_tuning.result_cache import ResultCache
from collhub_tuning.task_processes import TaskProcesses
from hub_core import Registry, run_registry
from hub_core.network import Topology
from hub_core.plugin_api import SearchBudget, SearchCut

Start = Callable[[int, float | None], Executor]
Progress = Callable[[float, str], None]
# Seconds for searches to end with their best at the time limit.
_GRACE_S = 2.0
# What was measured, or why nothing was.
_Done = tuple[ComparedAlgorithm, list[Measurement] | str]


class Measuring:
    """Where algorithms are measured, for one comparison after another: here, or by workers.

    `jobs`: algorithms at once; the number changes nothing in the result. `budget`: the time limit
    of the user. `start`: what starts workers, by the number at once and the seconds after which a
    task is ended; by default processes, or none where one algorithm is measured at a time.
    `shares_files`: whether workers see the files of this machine. `registry`: the plugins of the
    run, which workers use too; None: those of `run_registry`. Workers are started for the first
    algorithm that is not known, and end with the context.
    """

    def __init__(
        self,
        jobs: int,
        budget: SearchBudget | None = None,
        start: Start | None = None,
        shares_files: bool = True,
        registry: Registry | None = None,
    ) -> None:
        self._jobs = jobs
        self._budget = budget or SearchBudget()
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

    @property
    def is_over(self) -> bool:
        """Whether the time limit is reached."""
        return bool(self._budget.reason)

    def done(
        self,
        missing: Sequence[ComparedAlgorithm],
        question: ComparisonQuestion,
        network: Topology | None,
    ) -> Iterator[_Done]:
        """Each algorithm when it is measured, or why it is not."""
        asked = (question, network, None, self._registry, self._budget)
        timeout_s = self._ending_s()
        # A task that may be ended needs a process of its own.
        may_be_here = self._start is None and timeout_s is None
        if not missing or (may_be_here and min(self._jobs, len(missing)) <= 1):
            for one in missing:
                yield one, measured(one, *asked)
            return
        if self._workers is None:
            self._workers = (self._start or TaskProcesses)(self._jobs, timeout_s)
        tasks: dict[Future[list[Measurement]], ComparedAlgorithm] = {}
        for one in missing:
            if self._shares_files or not one.is_file:
                tasks[self._workers.submit(measured, one, *asked)] = one
                continue
            read = file_read(one, question, self._registry)
            if isinstance(read, list):
                yield one, read
            else:
                given = (question, network, read, self._registry, self._budget)
                tasks[self._workers.submit(measured, one, *given)] = one
        try:
            for task in as_completed(list(tasks), timeout_s):
                yield tasks.pop(task), self._outcome(task)
        except TimeoutError:
            # Nobody waits for searches that do not end.
            self._workers.shutdown(cancel_futures=True)
            self._workers = None
            for one in tasks.values():
                yield one, self._budget.reason

    def _ending_s(self) -> float | None:
        """Seconds after which tasks are ended that have not ended at the time limit themselves."""
        left_s = self._budget.left_s
        return None if left_s is None else left_s + _GRACE_S

    def _outcome(self, task: Future[list[Measurement]]) -> list[Measurement] | str:
        """The result of a task, or why it has none."""
        try:
            return task.result()
        except BrokenExecutor as error:
            return str(error) or "the process that measured it died"
        except TimeoutError:
            return self._budget.reason
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
            measurements = _lost(one, question, measurements, measuring.is_over)
        else:
            cache.keep(one, question, measurements)
        found[one] = measurements
        progress(len(found) / len(algorithms), one.name)
    return [measurement for one in algorithms for measurement in found[one]]


def _lost(
    one: ComparedAlgorithm, question: ComparisonQuestion, reason: str, is_over: bool
) -> list[Measurement]:
    """Measurements of an algorithm that has none, with the reason; cut if the time was over."""
    cuts = (SearchCut(one.name, 0, reason, "all sizes"),) if is_over else ()
    first, *others = (Measurement(one.name, size, None, reason) for size in question.sizes)
    return [replace(first, cuts=cuts), *others]
