"""Processes that run tasks: one that dies, hangs or lacks memory costs its own task alone.

The pool of the standard library ends all tasks when one process dies, and cannot end one task.
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

P = ParamSpec("P")
T = TypeVar("T")

# As the flag -P, for processes that are started without a command line of ours.
_SAFE_PATH = "PYTHONSAFEPATH"


class TaskProcesses(Executor):
    """As many processes as there are `workers`; each runs a task at a time.

    A future raises what its task raised; `BrokenExecutor` where its process died; `TimeoutError`
    where the task took longer than `timeout_s`, which ends the process. The next task gets a new
    one. Nothing of the working folder is imported in them.
    """

    def __init__(self, workers: int, timeout_s: float | None = None) -> None:
        self._setting = ExitStack()
        self._setting.enter_context(_safe_path())
        self._threads = ThreadPoolExecutor(workers)
        self._processes = [_TaskProcess(timeout_s) for _ in range(workers)]
        self._idle: SimpleQueue[_TaskProcess] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function that other processes can import; arguments and result are pickled."""
        return self._threads.submit(self._run, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes when all tasks are done; with `cancel_futures`, at once."""
        if cancel_futures:
            self._threads.shutdown(wait=False, cancel_futures=True)
            for process in self._processes:
                process.end()
        # Threads that are waited for own the processes; afterwards nobody does.
        self._threads.shutdown()
        for process in self._processes:
            process.end()
        self._setting.close()

    def _run(self, function: Callable[..., T], args: object, kwargs: object) -> T:
        process = self._idle.get()
        try:
            found: T = process.run(function, args, kwargs)
        finally:
            self._idle.put(process)
        return found


class _TaskProcess:
    """A process that is started when a task first needs it, and again after it has ended."""

    def __init__(self, timeout_s: float | None) -> None:
        """No process yet; a task may take `timeout_s` seconds, for None without limit."""
        self._timeout_s = timeout_s
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def run(self, function: Callable[..., T], args: object, kwargs: object) -> T:
        """What the function returns or raises, else as `TaskProcesses` says."""
        try:
            connection = self._connection or self._start()
            connection.send((function, args, kwargs))
            if not connection.poll(self._timeout_s):
                self.end()
                raise TimeoutError
            is_result, found = connection.recv()
        except (EOFError, ConnectionError) as error:
            self.end()
            raise BrokenExecutor from error
        if not is_result:
            raise found
        result: T = found
        return result

    def end(self) -> None:
        """Kill the process, if there is one."""
        # Another thread may be in `run`: it then finds its connection at the end.
        process, self._process, self._connection = self._process, None, None
        if process is not None:
            process.kill()
            process.join()

    def _start(self) -> Connection:
        # Spawned, as a fork would copy the threads of libraries in the state that they are in.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,))
        process.start()
        # Open in the process alone, so that its death is the end of the connection.
        there.close()
        self._process, self._connection = process, here
        # The time of a task begins when the process can run it.
        here.recv()
        return here


def _serve(connection: Connection) -> None:
    """Run tasks until the other end is gone."""
    # Ctrl-C goes to all processes of a terminal; who started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection.send(None)
    while True:
        try:
            function, args, kwargs = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(function, args, kwargs))


def _outcome(
    function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[bool, object]:
    """(whether it returned, what it returned or raised)."""
    try:
        return True, function(*args, **kwargs)
    except Exception as error:
        return False, error


@contextmanager
def _safe_path() -> Iterator[None]:
    """Processes that are started meanwhile import nothing of the working folder."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before
