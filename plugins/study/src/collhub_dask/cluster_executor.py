"""An executor on workers of a Dask cluster: if one dies or hangs, only its task fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
)
from contextlib import ExitStack, suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from distributed import KilledWorker

from collhub_dask.cluster_workers import LOOK_S, ClusterWorkers
from hub_core.plugin_api import EngineRequest

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as DaskFuture

P = ParamSpec("P")
T = TypeVar("T")
Restart = Callable[[Sequence[str]], None]

_TRANSFER_S = 60.0
# Topic under which a nanny reports that it killed a worker for its memory use.
_MEMORY_TOPIC = "worker-restart-memory"


class _WorkerDiedError(BrokenExecutor):
    """A worker died while it ran a task."""


class ClusterExecutor(Executor):
    """Runs tasks on the workers of a cluster, at most `request.workers` at once.

    A future raises the exception of its task, `BrokenExecutor` if two workers died of the task one
    after the other, `MemoryError` if its worker ran out of memory, `TimeoutError` if the task took
    longer than requested, measured from its start on a worker. `restart`: kills the processes of
    workers, which are then replaced. `setting`: closed at shutdown.
    """

    def __init__(
        self,
        client: Client,
        workers: ClusterWorkers,
        request: EngineRequest,
        restart: Restart,
        setting: ExitStack,
    ) -> None:
        self._client = client
        self._workers = workers
        self._timeout_s = request.task_timeout_s
        self._restart = restart
        self._setting = setting
        # One thread per running task, which waits for its worker.
        self._threads = ThreadPoolExecutor(request.workers)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function on a worker of the cluster; return its future at once.

        Workers must be able to import the function; arguments and result are pickled.
        """
        return self._threads.submit(self._run, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster when all tasks are finished, or immediately with `cancel_futures`.

        With `cancel_futures`, the futures of tasks that have not started are cancelled. Workers
        that run a task of this executor are restarted, because hanging tasks would occupy them
        forever; these tasks fail with an error. `wait` is ignored: the method always waits for
        its threads. It may be called again.
        """
        if cancel_futures:
            self._threads.shutdown(wait=False, cancel_futures=True)
            # Hanging tasks would otherwise occupy their workers forever.
            self._restart(self._workers.end())
            self._setting.close()
        self._threads.shutdown()
        self._workers.end()
        self._setting.close()

    def _run(self, task: Callable[[], T]) -> T:
        try:
            return self._run_once(task)
        except _WorkerDiedError:
            # The host may have failed. If the task itself kills its worker, the second run fails.
            return self._run_once(task)

    def _run_once(self, task: Callable[[], T]) -> T:
        """Execute the task once on a free worker and return its result.

        The call waits for a free worker and releases it in all cases. Raise the exception of the
        task; `BrokenExecutor` if there is no worker, or the cluster was lost or left;
        `_WorkerDiedError` or `MemoryError` if the worker died; `TimeoutError` if the task took
        longer than the executor permits.
        """
        address = self._workers.take()
        # A worker may still be stopping because a previous task used too much memory.
        was_full = self._has_run_out_of_memory(address)
        try:
            future = self._client.submit(task, workers=[address], pure=False)
            result: T = self._get_result(future, address, was_full)
        finally:
            self._workers.give_back(address)
        return result

    def _get_result(self, future: DaskFuture[Any], address: str, was_full: bool) -> Any:
        """Wait for the task; return its result or raise its exception, and in any case release its
        data on the cluster. A killed worker raises the cause that is found, a cancelled task
        `BrokenExecutor`. `was_full`: the worker was out of memory before the task.
        """
        try:
            self._wait(future, address, was_full)
            return self._fetch(future, address)
        except KilledWorker:
            raise self._find_cause(address, was_full) from None
        except CancelledError:
            raise BrokenExecutor("the cluster was left") from None
        finally:
            future.release()

    def _wait(self, future: DaskFuture[Any], address: str, was_full: bool) -> None:
        """Wait until the task is finished, with a result or an exception, which is not raised here.

        Every `LOOK_S` (0.5) seconds, a task that is not finished is checked in this order:

        1. The scheduler does not list the worker: raises the error of `_find_cause`, `MemoryError`
           or `_WorkerDiedError`. `was_full`: whether the worker ran out of memory before the task.
        2. The executor has a timeout, and the wait takes longer: the task is released, the worker
           is restarted, and `TimeoutError` is raised. Without a timeout (None) the wait is
           unlimited.

        Check 1 raises `BrokenExecutor` if the scheduler is lost or the executor was shut down.
        """
        done = Event()
        future.add_done_callback(lambda future: done.set())
        start_s = time.monotonic()
        while not done.wait(LOOK_S):
            if not self._workers.is_there(address):
                raise self._find_cause(address, was_full)
            taken_s = time.monotonic() - start_s
            if self._timeout_s is not None and taken_s > self._timeout_s:
                # Released first, because the restarted worker would run the task again.
                future.release()
                self._restart([address])
                raise TimeoutError

    def _fetch(self, future: DaskFuture[Any], address: str) -> Any:
        """Return the result of a task that has ended, or raise the exception of the task.

        Raise `_WorkerDiedError` if a result does not arrive from the worker at `address` within
        `_TRANSFER_S` seconds, because the worker died with it.
        """
        if future.status != "finished":
            return future.result()
        try:
            return future.result(timeout=_TRANSFER_S)
        except TimeoutError:
            # The scheduler waits for the dead worker to recompute the result.
            raise _WorkerDiedError(f"the worker {address} died with the result") from None

    def _find_cause(self, address: str, was_full: bool) -> Exception:
        """Return the error to raise for a task whose worker at `address` died.

        It is `MemoryError` if the cluster has a record that a worker with this address was
        killed for lack of memory, and `was_full` is False. Otherwise it is
        `_WorkerDiedError`, also if the cluster does not answer. `was_full`: whether there was
        such a record before the task began. The call always waits `LOOK_S` (0.5) seconds
        first, because the record is written while the worker is stopped.
        """
        # The nanny reports the reason while it stops the worker.
        time.sleep(LOOK_S)
        if not was_full and self._has_run_out_of_memory(address):
            return MemoryError(f"the worker {address} had no more memory")
        return _WorkerDiedError(f"the worker {address} that ran it died")

    def _has_run_out_of_memory(self, address: str) -> bool:
        """Return whether the cluster has a record that the worker at `address` was killed for
        lack of memory, at any time.

        False if the cluster does not answer.
        """
        with suppress(OSError, RuntimeError):
            kills = self._client.get_events(_MEMORY_TOPIC)
            return any(event["worker"] == address for _, event in kills)
        return False
