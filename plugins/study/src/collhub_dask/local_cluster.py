"""A Dask cluster on this machine, for this user alone; nothing is left of it afterwards."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from tempfile import TemporaryDirectory

import dask
from distributed import LocalCluster, Nanny

_SETTINGS: dict[str, object] = {
    # The executor tries a task again itself, once.
    "distributed.scheduler.allowed-failures": 0,
    # A kernel that holds the interpreter for minutes is no dead worker: its nanny would know.
    "distributed.scheduler.worker-ttl": None,
    # By default a nanny is closed a while after its worker died, though it has started another.
    "distributed.deploy.lost-worker-timeout": "1000h",
    # A worker near its limit goes on until it is ended; results are too small to spill.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 1.0,
    # Web servers, which cannot be left out, serve nothing.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


@contextmanager
def local_cluster(workers: int, memory_bytes: int | None) -> Iterator[LocalCluster]:
    """A scheduler in this process, and a process a worker, each for one task at a time.

    `memory_bytes`: that a worker has; one that takes more is ended.
    """
    with (
        _environment(),
        dask.config.set(_SETTINGS),
        # Workers look for modules there: it belongs to this user alone.
        TemporaryDirectory(prefix="collhub-dask-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(1) as thread,
    ):
        # In a thread, which Ctrl-C does not leave half way: what has begun can then be ended.
        starting = thread.submit(_started, workers, memory_bytes, folder)
        try:
            yield starting.result()
        finally:
            _end(starting.result())


def _started(workers: int, memory_bytes: int | None, folder: str) -> LocalCluster:
    # Ctrl-C goes to all processes of a terminal: it is blocked in all that this thread starts. The
    # tracker of the standard library, where it is started later, would unblock it.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        memory_limit=memory_bytes or 0,
        host="127.0.0.1",
        # Without certificates, every user of the machine could have code run here.
        security=True,
        scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        silence_logs=logging.CRITICAL,
        local_directory=folder,
    )


def restart_here(cluster: LocalCluster, addresses: Sequence[str]) -> None:
    """Kill the processes of workers; their nannies start others."""
    for nanny in cluster.workers.values():
        if nanny.worker_address in addresses:
            _kill(nanny)


def _end(cluster: LocalCluster) -> None:
    """End all processes at once: a worker that is asked to would wait for its task."""
    for nanny in cluster.workers.values():
        # From now on it starts no other process in place of this one.
        nanny.close_gracefully()
        _kill(nanny)
    cluster.close()


def _kill(nanny: Nanny) -> None:
    if nanny.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(nanny.pid, signal.SIGKILL)


@contextmanager
def _environment() -> Iterator[None]:
    """Processes that are started meanwhile import nothing of the working folder.

    Undoes what nannies set for the processes that they start.
    """
    before = dict(os.environ)
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
