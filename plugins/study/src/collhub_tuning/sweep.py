"""Run comparisons: one task per algorithm, several at once in processes, cached results first.

If the process of a task dies, hangs or lacks memory, only its algorithm fails; the pool of the
standard library would stop all tasks. Results are cached immediately, so that a comparison
interrupted by Ctrl-C can be resumed. At a time limit, searches return their best result; a task
that does not is stopped after a grace period and reported as cut.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from types import TracebackType
from typing import ParamSpec, TypeVar

from collhub_tuning.measuring import measured, read_file
from collhub_tuning.questions import AlgorithmAtSize, ComparedAlgorithm, ComparisonQuestion
from collhub_tuning.result_cache import ResultCache
from hub_core import Registry, run_registry
from hub_core.network import Topology
from hub_core.plugin_api import EngineRequest, NoOptions, SearchBudget, SearchCut

Start = Callable[[int, float | None], Executor]
Progress = Callable[[float, str], None]
# Grace period in seconds for searches to return their best result after the time limit.
_GRACE_S = 2.0
# An algorithm with its measurements, or with the reason why it has none.
_Done = tuple[ComparedAlgorithm, list[AlgorithmAtSize] | str]


class Measuring:
    """Measures algorithms of consecutive comparisons in this process or in workers.

    `jobs`: number of algorithms at once, which does not affect results. `budget`: the time limit of
    the user. `start`: starts workers, given their number and the task timeout in seconds; by
    default processes, or no workers if one algorithm is measured at a time. `shares_files`: workers
    can access the files of this host. `registry`: the plugins of the run, also used by workers;
    None: `run_registry`. Workers are started for the first uncached algorithm; the context stops
    them.
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
            # After an error, including Ctrl-C, running tasks are not awaited.
            self._workers.shutdown(cancel_futures=kind is not None)

    @property
    def is_over(self) -> bool:
        """True if the budget has a reason to stop, such as its time limit."""
        return bool(self._budget.reason)

    def measure(
        self,
        missing: Sequence[ComparedAlgorithm],
        question: ComparisonQuestion,
        network: Topology | None,
    ) -> Iterator[_Done]:
        """Yield each algorithm with its measurements, or with the reason (text) why it has none.

        In this process, in order, only if all of these conditions hold: no time limit, no start of
        an engine, and at most one algorithm or one job. Errors are then raised. Otherwise in
        workers, which later calls use again, in order of completion. A process that died, too
        little memory and the time limit give a reason; other errors are raised.

        If workers do not share files, algorithms in files are read here first. An unreadable one is
        yielded before all others, with its failed measurements. Workers are stopped after the rest
        of the budget plus 2 s. Remaining algorithms then get the reason of the budget. Nothing is
        yielded if `missing` is empty.
        """
        arguments = (question, network, None, self._registry, self._budget)
        # Tasks are stopped after the time limit and a grace period.
        left_s = self._budget.left_s
        timeout_s = None if left_s is None else left_s + _GRACE_S
        # A task that may be stopped needs a separate process.
        may_be_local = self._start is None and timeout_s is None
        if not missing or (may_be_local and min(self._jobs, len(missing)) <= 1):
            for algorithm in missing:
                yield algorithm, measured(algorithm, *arguments)
            return
        if self._workers is None:
            self._workers = (self._start or TaskProcesses)(self._jobs, timeout_s)
        tasks: dict[Future[list[AlgorithmAtSize]], ComparedAlgorithm] = {}
        for algorithm in missing:
            if self._shares_files or not algorithm.is_file:
                tasks[self._workers.submit(measured, algorithm, *arguments)] = algorithm
                continue
            content = read_file(algorithm, question, self._registry)
            if isinstance(content, list):
                yield algorithm, content
            else:
                with_content = (question, network, content, self._registry, self._budget)
                tasks[self._workers.submit(measured, algorithm, *with_content)] = algorithm
        try:
            for task in as_completed(list(tasks), timeout_s):
                yield tasks.pop(task), self._get_outcome(task)
        except TimeoutError:
            # Searches that exceed the grace period are abandoned.
            self._workers.shutdown(cancel_futures=True)
            self._workers = None
            for algorithm in tasks.values():
                yield algorithm, self._budget.reason

    def _get_outcome(self, task: Future[list[AlgorithmAtSize]]) -> list[AlgorithmAtSize] | str:
        """Return the result of a task, or the reason why it has none, as a text.

        The reasons are a process that died, the timeout (the reason of the budget) and a lack of
        memory; other errors are raised.
        """
        try:
            return task.result()
        except BrokenExecutor as error:
            return str(error) or "the process that measured it died"
        except TimeoutError:
            return self._budget.reason
        except MemoryError:
            return "it ran out of memory"


def compare_algorithms(
    algorithms: Sequence[ComparedAlgorithm],
    question: ComparisonQuestion,
    cache: ResultCache,
    *,
    measuring: Measuring,
    progress: Progress,
    network: Topology | None = None,
) -> list[AlgorithmAtSize]:
    """Return all measurements, in the order of the algorithms, then of the sizes.

    `network`: used instead of the network that the question names; the cache must belong to it.
    Measurements in `cache` are used. The missing algorithms are measured by `measuring`, and each
    one is stored when it is finished, also if its measurements are failures with a reason of their
    own. An algorithm whose process died, lacked memory or exceeded the time limit gets one failed
    measurement per size with this reason, which is not stored. If the limit of the budget is
    reached, the first of them also records a cut of all sizes.

    After each measured algorithm, `progress` is called with its name and the fraction of all
    algorithms that are finished or cached. Other errors of a measurement are raised. Without
    algorithms the result is [].
    """
    results: dict[ComparedAlgorithm, list[AlgorithmAtSize]] = {}
    for algorithm in algorithms:
        cached = cache.find(algorithm, question)
        if cached is not None:
            results[algorithm] = cached
    missing = [algorithm for algorithm in algorithms if algorithm not in results]
    for algorithm, measurements in measuring.measure(missing, question, network):
        if isinstance(measurements, str):
            # Failures of a process or a time limit may not recur, so they are not cached.
            reason = measurements
            measurements = [
                AlgorithmAtSize(algorithm.name, size, None, reason) for size in question.sizes
            ]
            if measuring.is_over:
                cut = SearchCut(algorithm.name, 0, reason, "all sizes")
                measurements[0] = replace(measurements[0], cuts=(cut,))
        else:
            cache.store(algorithm, question, measurements)
        results[algorithm] = measurements
        progress(len(results) / len(algorithms), algorithm.name)
    return [measurement for algorithm in algorithms for measurement in results[algorithm]]


P = ParamSpec("P")
T = TypeVar("T")

# Equivalent to the flag -P, for processes whose command line we do not control.
_SAFE_PATH = "PYTHONSAFEPATH"


class TaskProcesses(Executor):
    """`workers` processes, each of which runs one task at a time.

    A future raises the exception of its task, `BrokenExecutor` if its process died, `TimeoutError`
    if the task took longer than `timeout_s`; the process is then killed and replaced for the next
    task. The processes import no modules from the working folder.
    """

    def __init__(self, workers: int, timeout_s: float | None = None) -> None:
        self._setting = ExitStack()
        self._setting.enter_context(_use_safe_path())
        self._threads = ThreadPoolExecutor(workers)
        self._processes = [_TaskProcess(timeout_s) for _ in range(workers)]
        self._idle: SimpleQueue[_TaskProcess] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in one of the processes; return its future at once.

        Processes must be able to import the function; arguments and result are pickled.
        """
        return self._threads.submit(self._run, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the processes when all tasks are finished, or immediately with `cancel_futures`.

        With `cancel_futures`, waiting tasks are cancelled and running processes are killed,
        so that the futures of their tasks raise `BrokenExecutor`. `wait` is ignored: the
        method always waits for its threads. The environment of this process is restored. It
        may be called repeatedly.
        """
        if cancel_futures:
            self._threads.shutdown(wait=False, cancel_futures=True)
            for process in self._processes:
                process.kill()
        # After all threads have finished, no thread uses the processes.
        self._threads.shutdown()
        for process in self._processes:
            process.kill()
        self._setting.close()

    def _run(self, function: Callable[..., T], args: object, kwargs: object) -> T:
        process = self._idle.get()
        try:
            result: T = process.run(function, args, kwargs)
        finally:
            self._idle.put(process)
        return result


class _TaskProcess:
    """A process that is started for its first task, and restarted after it has died."""

    def __init__(self, timeout_s: float | None) -> None:
        """Prepare a process, which the first task starts.

        `timeout_s`: maximum time of a task in seconds, None for no limit.
        """
        self._timeout_s = timeout_s
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def run(self, function: Callable[..., T], args: object, kwargs: object) -> T:
        """Execute the function in the process; return its result or raise its exception.

        The process is started if there is none; `timeout_s` begins when it is ready. Raises
        `TimeoutError` after the timeout, and `BrokenExecutor` if the process dies, also because it
        is killed by another thread or because the result or exception cannot be pickled. In both
        cases the process is killed, and the next call starts another one. An exception of the
        function, and an error in pickling `function`, `args` or `kwargs`, is raised unchanged, and
        the process remains.
        """
        try:
            connection = self._connection or self._start()
            connection.send((function, args, kwargs))
            if not connection.poll(self._timeout_s):
                self.kill()
                raise TimeoutError
            is_result, outcome = connection.recv()
        except (EOFError, ConnectionError) as error:
            self.kill()
            raise BrokenExecutor from error
        if not is_result:
            raise outcome
        result: T = outcome
        return result

    def kill(self) -> None:
        """Kill the process, if one is running, and wait for its end.

        The next task starts another process. It may be called repeatedly.
        """
        # Another thread may be in `run`, where its connection then raises EOFError.
        process, self._process, self._connection = self._process, None, None
        if process is not None:
            process.kill()
            process.join()

    def _start(self) -> Connection:
        # Spawned, because a fork would copy locks of library threads in an arbitrary state.
        context = multiprocessing.get_context("spawn")
        connection, remote = context.Pipe()
        process = context.Process(target=_serve, args=(remote,))
        process.start()
        # Only the process keeps its end open, so that its death closes the connection.
        remote.close()
        self._process, self._connection = process, connection
        # The time of a task begins when the process is ready.
        connection.recv()
        return connection


def _serve(connection: Connection) -> None:
    """Execute tasks one by one in a child process, until the parent closes the connection.

    First sends None to report that it is ready. Then it receives (function, args, kwargs) and sends
    (True, result of the function) or (False, its exception); `KeyboardInterrupt` and `SystemExit`
    are not sent. Ctrl-C is ignored in this process, because the parent stops it. A result that
    cannot be pickled terminates the process.
    """
    # A terminal sends Ctrl-C to all processes; the parent stops this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection.send(None)
    while True:
        try:
            function, args, kwargs = connection.recv()
        except EOFError:
            return
        outcome: tuple[bool, object]
        try:
            outcome = True, function(*args, **kwargs)
        except Exception as error:
            outcome = False, error
        connection.send(outcome)


@contextmanager
def _use_safe_path() -> Iterator[None]:
    """Keep Python processes that start in this context from importing from the current folder.

    The context manager sets the environment variable `PYTHONSAFEPATH` of this process to 1, for
    all threads. It restores or removes the variable at the end, also after an exception.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def start(request: EngineRequest, options: NoOptions) -> Executor:
    """Return an executor of at most `request.workers` processes that import no modules from the
    working folder; a task may take `request.task_timeout_s` seconds.
    """
    return TaskProcesses(request.workers, request.task_timeout_s)
