"""An executor on workers of a Dask cluster: one that dies or hangs costs its own task alone."""

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
# What a nanny says of a worker that it ended.
_MEMORY_TOPIC = "worker-restart-memory"


class _WorkerDiedError(BrokenExecutor):
    """A worker that is gone with the task that it ran."""


class ClusterExecutor(Executor):
    """As many tasks at once as are asked for and as there are workers.

    A future raises what its task raised; `BrokenExecutor` where two workers in turn died of it;
    `MemoryError` where its worker had no more; `TimeoutError` where it took longer than asked for,
    counted from when its worker was free for it. `restart`: ends what runs on workers with their
    processes; others come in their place. `setting`: closed at the end.
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
        # A thread a task under way: it waits for the worker.
        self._threads = ThreadPoolExecutor(request.workers)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function that workers can import; arguments and result are pickled."""
        return self._threads.submit(self._run, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster when all tasks are done; with `cancel_futures`, at once."""
        if cancel_futures:
            self._threads.shutdown(wait=False, cancel_futures=True)
            # Nobody else would end what may hang there.
            self._restart(self._workers.end())
            self._setting.close()
        self._threads.shutdown()
        self._workers.end()
        self._setting.close()

    def _run(self, task: Callable[[], T]) -> T:
        try:
            return self._run_once(task)
        except _WorkerDiedError:
            # Machines go. A task that ends its worker does so again, and is then known by it.
            return self._run_once(task)

    def _run_once(self, task: Callable[[], T]) -> T:
        """What the task returns, run once by a free worker; raises as `take` and `_result` do."""
        address = self._workers.take()
        # A worker may be about to end for what another task took.
        was_full = self._was_full(address)
        try:
            future = self._client.submit(task, workers=[address], pure=False)
            result: T = self._result(future, address, was_full)
        finally:
            self._workers.give_back(address)
        return result

    def _result(self, future: DaskFuture[Any], address: str, was_full: bool) -> Any:
        """What the task returns or raises; whatever happens, nothing of it stays.

        `was_full`: whether the worker was out of memory before.
        """
        try:
            self._wait(future, address, was_full)
            return self._fetched(future, address)
        except KilledWorker:
            raise self._cause(address, was_full) from None
        except CancelledError:
            raise BrokenExecutor("the cluster was left") from None
        finally:
            future.release()

    def _wait(self, future: DaskFuture[Any], address: str, was_full: bool) -> None:
        """Return when the task is done; raise where its worker is gone, or its time is over."""
        done = Event()
        future.add_done_callback(lambda found: done.set())
        start_s = time.monotonic()
        while not done.wait(LOOK_S):
            if not self._workers.is_there(address):
                raise self._cause(address, was_full)
            taken_s = time.monotonic() - start_s
            if self._timeout_s is not None and taken_s > self._timeout_s:
                # Before the worker is there again, which would begin it anew.
                future.release()
                self._restart([address])
                raise TimeoutError

    def _fetched(self, future: DaskFuture[Any], address: str) -> Any:
        """The result of a task that is done; raises what it raised."""
        if future.status != "finished":
            return future.result()
        try:
            return future.result(timeout=_TRANSFER_S)
        except TimeoutError:
            # It is computed again where the worker is that has it, which is nowhere.
            raise _WorkerDiedError(f"the worker {address} died with the result") from None

    def _cause(self, address: str, was_full: bool) -> Exception:
        """Why a worker is gone."""
        # Its nanny says it at the time when it ends the worker.
        time.sleep(LOOK_S)
        if not was_full and self._was_full(address):
            return MemoryError(f"the worker {address} had no more memory")
        return _WorkerDiedError(f"the worker {address} that ran it died")

    def _was_full(self, address: str) -> bool:
        """Whether a worker has been ended as it had no more memory."""
        with suppress(OSError, RuntimeError):
            ended = self._client.get_events(_MEMORY_TOPIC)
            return any(event["worker"] == address for _, event in ended)
        return False
