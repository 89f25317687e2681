"""Workers of a cluster: which are present, have compatible versions, and are free.

A local cluster on this host can be accessed by this user only and leaves no files or processes.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import metadata
from multiprocessing import resource_tracker
from tempfile import TemporaryDirectory
from threading import Condition
from typing import TYPE_CHECKING, Any

import dask
from distributed import KilledWorker, LocalCluster, Nanny
from distributed.versions import get_versions

from hub_core.model import UsageError

if TYPE_CHECKING:
    from distributed import Client, Future

# Libraries on which pickles and results depend, in addition to the distributions of the hub.
_LIBRARIES = ("dask", "distributed", "numpy")
_PLUGINS = "collhub.plugins"


def collect_versions() -> dict[str, str]:
    """Return the versions of the distributions that affect results, by name in sorted order.

    These are the installed distributions named `collhub` or `collhub-...`, those that offer plugins
    (also disabled ones), and those in `_LIBRARIES`. Plugins are not imported.
    """
    # Plugins are not imported; disabled plugins are included.
    points = metadata.entry_points(group=_PLUGINS)
    plugins = {point.dist.name for point in points if point.dist is not None}
    names = {distribution.name for distribution in metadata.distributions()}
    # Libraries that plugins share are no plugins, but affect results.
    shared = {name for name in names if name == "collhub" or name.startswith("collhub-")}
    relevant = names & {*plugins, *shared, *_LIBRARIES}
    return {name: metadata.version(name) for name in sorted(relevant)}


def find_difference(local: Mapping[str, str], remote: Mapping[str, str | None]) -> str | None:
    """Return a text about the first distribution that differs remotely; None if none differs.

    `local`, `remote`: versions by name. The distributions in `local` are compared in their
    order; those only in `remote` are ignored. The text is `lacks NAME VERSION` if the name is
    missing in `remote` or has None there, and `has NAME VERSION, not LOCAL_VERSION` if the
    version texts differ.
    """
    for name, version in local.items():
        remote_version = remote.get(name)
        if remote_version is None:
            return f"lacks {name} {version}"
        if remote_version != version:
            return f"has {name} {remote_version}, not {version}"
    return None


LOOK_S = 0.5
_MAX_WAIT_S = 60.0
_ANSWER_S = 5.0
_SAME_CURE = "install in the whole cluster what is installed here"
_NANNY_CURE = "start it with one, as 'dask worker' does, or leave out the time"
_WORKERS_CURE = "start some, as with 'dask worker ADDRESS --nthreads 1'"


class ClusterWorkers:
    """Addresses of workers, each reserved for one task at a time.

    Two tasks on one worker would both fail if one of them kills it. Workers that start later are
    used too, if their environment has the same versions. `needs_nannies`: tasks have a timeout,
    which requires a nanny.
    """

    def __init__(self, client: Client, needs_nannies: bool) -> None:
        self._client = client
        self._needs_nannies = needs_nannies
        self._versions = collect_versions()
        self._changed = Condition()
        self._busy: set[str] = set()
        # The reason why a worker is unsuitable, None for suitable ones.
        self._known: dict[str, UsageError | None] = {}
        self._looked_s = 0.0
        # The reason why no further workers are reserved; empty before.
        self._end = ""

    def check_all(self, max_wait_s: float) -> None:
        """Check that the scheduler and all workers of the cluster are suitable.

        They must have the same versions of the relevant packages as this process
        (`collect_versions`). Workers must also have a nanny if tasks have a timeout. The scheduler
        is checked first. Then the method waits up to `max_wait_s` seconds until a worker has
        answered, suitable or not, and checks all workers that have answered by then.

        Raises `UsageError` if the scheduler is unsuitable, if no worker has answered, or for the
        first unsuitable worker in the order of their answers. Raises `BrokenExecutor` if the
        scheduler is lost while it lists the workers.
        """
        address = self._client.scheduler_info(n_workers=1)["address"]
        scheduler = self._client.run_on_scheduler(get_versions, packages=list(self._versions))
        lacking = find_difference(self._versions, scheduler["packages"])
        if lacking is not None:
            raise UsageError(f"the scheduler {address} {lacking}", cure=_SAME_CURE)
        until = time.monotonic() + max_wait_s
        while not self._refresh() and not self._known and time.monotonic() < until:
            time.sleep(LOOK_S)
        if not self._known:
            raise UsageError(f"the scheduler {address} has no workers", cure=_WORKERS_CURE)
        for misfit in self._known.values():
            if misfit is not None:
                raise misfit

    def take(self) -> str:
        """Wait for a free suitable worker, reserve it and return its address.

        Suitable workers are those that pass `_check_workers`. Of several free ones, the one that
        was added to the list earliest is taken. The list is read again every 0.5 s. While all
        suitable workers are busy, the method waits without limit.

        Raises `BrokenExecutor` if there was no suitable worker for more than `_MAX_WAIT_S` (60)
        seconds, if the scheduler is lost, and after `end`.
        """
        until = time.monotonic() + _MAX_WAIT_S
        with self._changed:
            while True:
                present = self._refresh()
                free = [address for address in present if address not in self._busy]
                if free:
                    self._busy.add(free[0])
                    return free[0]
                if present:
                    until = time.monotonic() + _MAX_WAIT_S
                elif time.monotonic() > until:
                    raise BrokenExecutor(f"the cluster had no worker for {_MAX_WAIT_S:.0f} s")
                self._changed.wait(LOOK_S)

    def give_back(self, address: str) -> None:
        """Release a worker for another task, and wake one thread that waits for it.

        A worker that is not reserved is ignored.
        """
        with self._changed:
            self._busy.discard(address)
            self._changed.notify()

    def is_there(self, address: str) -> bool:
        """Return whether the scheduler still has a worker, after an update from the scheduler.

        Raises `BrokenExecutor` after `end`.
        """
        with self._changed:
            self._refresh()
            return address in self._known

    def end(self) -> list[str]:
        """Reserve no further workers; return the addresses of the busy ones, sorted.

        Later and waiting calls of `take` raise `BrokenExecutor`; an earlier reason for the end is
        kept.
        """
        with self._changed:
            self._end = self._end or "the cluster was left"
            self._changed.notify_all()
            return sorted(self._busy)

    def _refresh(self) -> list[str]:
        """Return the addresses of the suitable workers, in the order in which they were first seen.

        The scheduler is asked again if the last look is more than `LOOK_S` (0.5 s) ago; otherwise
        the known workers are used. After a look, workers that are gone are forgotten. New ones are
        checked (`_check_workers`, at most 5 s). A new worker without an answer stays unknown and is
        checked again at the next look. Other verdicts are kept.

        Raises `BrokenExecutor` after `end`, and if the scheduler is lost. After a loss, each later
        call raises it too. The caller must hold `self._changed` if there are other threads.
        """
        if self._end:
            raise BrokenExecutor(self._end)
        if time.monotonic() - self._looked_s > LOOK_S:
            try:
                present = self._client.nthreads()
                new = [address for address in present if address not in self._known]
                verdicts = self._check_workers(new) if new else {}
            # A client that has lost its scheduler raises either of them.
            except (OSError, RuntimeError):
                self._end = "the scheduler of the cluster is gone"
                raise BrokenExecutor(self._end) from None
            remaining = {key: misfit for key, misfit in self._known.items() if key in present}
            self._known = remaining | verdicts
            self._looked_s = time.monotonic()
        return [address for address, misfit in self._known.items() if misfit is None]

    def _check_workers(self, addresses: Sequence[str]) -> dict[str, UsageError | None]:
        """Return for each worker why it is unsuitable, or None if it is suitable, by address.

        Each worker reports its package versions in a task; the method waits up to `_ANSWER_S` (5)
        seconds for all together. The order is that of `addresses`. Workers that the scheduler does
        not know, that stop, or that do not answer in time are not in the result. The `UsageError`s
        of `_find_misfit` are returned, not raised. Raises `OSError` or `RuntimeError` if the
        scheduler is lost.
        """
        infos = self._client.scheduler_info(n_workers=-1)["workers"]
        # Tasks, because `Client.run` waits forever for a worker that dies.
        futures = {
            address: self._client.submit(
                get_versions, packages=list(self._versions), workers=[address], pure=False
            )
            for address in addresses
            if address in infos
        }
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until and not all(future.done() for future in futures.values()):
            time.sleep(_ANSWER_S / 100)
        verdicts = {
            address: self._find_misfit(address, infos[address]["nanny"], packages)
            for address, future in futures.items()
            if (packages := _get_packages(future)) is not None
        }
        for future in futures.values():
            future.release()
        return verdicts

    def _find_misfit(
        self, address: str, nanny: str | None, packages: Mapping[str, str | None]
    ) -> UsageError | None:
        """Return an error that explains why a worker is unsuitable; None if it is suitable.

        A worker is unsuitable if its `packages` (versions by name) differ from the versions of this
        process (`find_difference`). It is also unsuitable if `nanny` is None although tasks have a
        timeout; only a nanny, a process that supervises a worker, can stop a task. If both apply,
        the error is about the packages. It is returned, not raised.
        """
        lacking = find_difference(self._versions, packages)
        if lacking is not None:
            return UsageError(f"the worker {address} {lacking}", cure=_SAME_CURE)
        if self._needs_nannies and nanny is None:
            message = f"the worker {address} has no nanny, which alone ends a task after a time"
            return UsageError(message, cure=_NANNY_CURE)
        return None


def _get_packages(future: Future[Any]) -> Mapping[str, str | None] | None:
    """Return the package versions that a worker reported, by name; None if there is no report.

    `future` is the task that reports them. There is no report if the task is not finished at
    the time of this call, has failed or was cancelled, or if its result does not arrive within
    `_ANSWER_S` seconds. The version of a package that the worker lacks is None.
    """
    if future.status != "finished":
        return None
    try:
        packages: Mapping[str, str | None] = future.result(timeout=_ANSWER_S)["packages"]
    except (TimeoutError, CancelledError, KilledWorker):
        return None
    return packages


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
            # A graceful stop would wait for the running tasks.
            cluster = starting.result()
            for nanny in cluster.workers.values():
                # Prevents the nanny from restarting its process.
                nanny.close_gracefully()
                _kill(nanny)
            cluster.close()


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
    """Kill the processes of the workers at `addresses`; their nannies start new ones.

    Unknown addresses are ignored.
    """
    for nanny in cluster.workers.values():
        if nanny.worker_address in addresses:
            _kill(nanny)


def _kill(nanny: Nanny) -> None:
    if nanny.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(nanny.pid, signal.SIGKILL)


@contextmanager
def _use_safe_path() -> Iterator[None]:
    """Context manager in which started processes do not import from the working directory.

    It sets `PYTHONSAFEPATH`. At the end, also after an exception, the entire environment is
    restored, because nannies change it.
    """
    before = dict(os.environ)
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
