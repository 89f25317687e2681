"""Processes that run tasks: if one dies, hangs or lacks memory, only its current task fails.

The pool of the standard library stops all tasks when one process dies, and cannot stop one task.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from hub_core.plugin_api import EngineRequest, NoOptions

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
        """Run a function that other processes can import; arguments and result are pickled."""
        return self._threads.submit(self._run, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the processes when all tasks are done; with `cancel_futures`, immediately."""
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
        """Start no process yet; `timeout_s`: maximum time of a task in seconds, None: no limit."""
        self._timeout_s = timeout_s
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def run(self, function: Callable[..., T], args: object, kwargs: object) -> T:
        """Return or raise the function's outcome, or raise an error as in `TaskProcesses`."""
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
        """Kill the process, if one is running."""
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
    """Run tasks until the parent closes the connection."""
    # A terminal sends Ctrl-C to all processes; the parent stops this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection.send(None)
    while True:
        try:
            function, args, kwargs = connection.recv()
        except EOFError:
            return
        connection.send(_call(function, args, kwargs))


def _call(
    function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[bool, object]:
    """Run the function; return (True, its result) or (False, its exception)."""
    try:
        return True, function(*args, **kwargs)
    except Exception as error:
        return False, error


@contextmanager
def _use_safe_path() -> Iterator[None]:
    """Prevent processes started in this context from importing from the working folder."""
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
    """Start processes that import no modules from the working folder."""
    return TaskProcesses(request.workers, request.task_timeout_s)
