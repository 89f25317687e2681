"""A Dask cluster on this host that only this user can access; it leaves no files or processes."""

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
    # The executor repeats a failed task once itself.
    "distributed.scheduler.allowed-failures": 0,
    # A worker whose kernel blocks the interpreter for minutes is not dead; nannies detect deaths.
    "distributed.scheduler.worker-ttl": None,
    # By default, a nanny is closed some time after its worker died, although it has restarted one.
    "distributed.deploy.lost-worker-timeout": "1000h",
    # A worker runs until it reaches its memory limit; results are too small to spill.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 1.0,
    # Web servers cannot be disabled, so they have no routes.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


@contextmanager
def start_local_cluster(workers: int, memory_bytes: int | None) -> Iterator[LocalCluster]:
    """Start a scheduler in this process, and one process per worker, each with one thread.

    `memory_bytes`: memory limit per worker; a worker that exceeds it is killed. The workers use a
    temporary folder of this user. At the end of the `with` block all processes are killed, also if
    Ctrl-C interrupts the start.
    """
    with (
        _use_safe_path(),
        dask.config.set(_SETTINGS),
        # Workers import modules from this folder, so only this user may write to it.
        TemporaryDirectory(prefix="collhub-dask-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(1) as thread,
    ):
        # In a thread, because Ctrl-C cannot interrupt it: a partially started cluster would leak.
        starting = thread.submit(_create_cluster, workers, memory_bytes, folder)
        try:
            yield starting.result()
        finally:
            _stop(starting.result())


def _create_cluster(workers: int, memory_bytes: int | None, folder: str) -> LocalCluster:
    # A terminal sends Ctrl-C to all processes: block it in all processes that this thread starts.
    # The resource tracker of the standard library would unblock it if it were started later.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        memory_limit=memory_bytes or 0,
        host="127.0.0.1",
        # Without certificates, every user of the host could run code in this process.
        security=True,
        scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        silence_logs=logging.CRITICAL,
        local_directory=folder,
    )


def restart_local_workers(cluster: LocalCluster, addresses: Sequence[str]) -> None:
    """Kill the processes of workers; their nannies start new ones."""
    for nanny in cluster.workers.values():
        if nanny.worker_address in addresses:
            _kill(nanny)


def _stop(cluster: LocalCluster) -> None:
    """Kill all processes and close the cluster; a graceful stop would wait for running tasks."""
    for nanny in cluster.workers.values():
        # Prevents the nanny from restarting its process.
        nanny.close_gracefully()
        _kill(nanny)
    cluster.close()


def _kill(nanny: Nanny) -> None:
    if nanny.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(nanny.pid, signal.SIGKILL)


@contextmanager
def _use_safe_path() -> Iterator[None]:
    """Prevent processes started in this context from importing from the working folder.

    Afterwards restores the environment, which nannies change for their processes.
    """
    before = dict(os.environ)
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
