"""Workers of a cluster: who is there, who may run our tasks, and who is free to."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from threading import Condition
from typing import TYPE_CHECKING, Any

from distributed import KilledWorker
from distributed.versions import get_versions

from collhub_dask.environments import difference, own_versions
from hub_core.model import UsageError

if TYPE_CHECKING:
    from distributed import Client, Future

LOOK_S = 0.5
_MOST_WAIT_S = 60.0
_ANSWER_S = 5.0
_SAME_CURE = "install in the whole cluster what is installed here"
_NANNY_CURE = "start it with one, as 'dask worker' does, or leave out the time"
_WORKERS_CURE = "start some, as with 'dask worker ADDRESS --nthreads 1'"


class ClusterWorkers:
    """Addresses of workers, each given to one task at a time.

    A worker that dies takes what runs on it with it: were there two tasks, the other one would be
    lost without a fault. Workers that come later join; those of another environment do not.
    `needs_nannies`: whether tasks are ended after a time, which takes a nanny.
    """

    def __init__(self, client: Client, needs_nannies: bool) -> None:
        self._client = client
        self._needs_nannies = needs_nannies
        self._own = own_versions()
        self._changed = Condition()
        self._busy: set[str] = set()
        # Why a worker may not run our tasks, None where it may.
        self._known: dict[str, UsageError | None] = {}
        self._looked_s = 0.0
        # Why none is given any more.
        self._end = ""

    def check_all(self, most_wait_s: float) -> None:
        """Raise `UsageError` for a scheduler or a worker that does not fit, or without workers."""
        address = self._client.scheduler_info(n_workers=1)["address"]
        scheduler = self._client.run_on_scheduler(get_versions, packages=list(self._own))
        lacking = difference(self._own, scheduler["packages"])
        if lacking is not None:
            raise UsageError(f"the scheduler {address} {lacking}", cure=_SAME_CURE)
        until = time.monotonic() + most_wait_s
        while not self._look() and not self._known and time.monotonic() < until:
            time.sleep(LOOK_S)
        if not self._known:
            raise UsageError(f"the scheduler {address} has no workers", cure=_WORKERS_CURE)
        for misfit in self._known.values():
            if misfit is not None:
                raise misfit

    def take(self) -> str:
        """A worker that runs nothing of ours; waits for one.

        Raises `BrokenExecutor` where none has been there for a minute, or at the end.
        """
        until = time.monotonic() + _MOST_WAIT_S
        with self._changed:
            while True:
                present = self._look()
                free = [one for one in present if one not in self._busy]
                if free:
                    self._busy.add(free[0])
                    return free[0]
                if present:
                    until = time.monotonic() + _MOST_WAIT_S
                elif time.monotonic() > until:
                    raise BrokenExecutor(f"the cluster had no worker for {_MOST_WAIT_S:.0f} s")
                self._changed.wait(LOOK_S)

    def give_back(self, address: str) -> None:
        """Let another task have it."""
        with self._changed:
            self._busy.discard(address)
            self._changed.notify()

    def is_there(self, address: str) -> bool:
        """Whether the scheduler still has it. Raises `BrokenExecutor` at the end."""
        with self._changed:
            self._look()
            return address in self._known

    def end(self) -> list[str]:
        """Give no worker any more; return those that run a task."""
        with self._changed:
            self._end = self._end or "the cluster was left"
            self._changed.notify_all()
            return sorted(self._busy)

    def _look(self) -> list[str]:
        """Those that may run our tasks, as known since a moment ago at most."""
        if self._end:
            raise BrokenExecutor(self._end)
        if time.monotonic() - self._looked_s > LOOK_S:
            try:
                present = self._client.nthreads()
                new = [one for one in present if one not in self._known]
                judged = self._judged(new) if new else {}
            # A client that has lost its scheduler raises the one or the other.
            except (OSError, RuntimeError):
                self._end = "the scheduler of the cluster is gone"
                raise BrokenExecutor(self._end) from None
            kept = {one: why for one, why in self._known.items() if one in present}
            self._known = kept | judged
            self._looked_s = time.monotonic()
        return [one for one, misfit in self._known.items() if misfit is None]

    def _judged(self, addresses: Sequence[str]) -> dict[str, UsageError | None]:
        """Why each may not run our tasks; workers that go meanwhile are left out."""
        infos = self._client.scheduler_info(n_workers=-1)["workers"]
        # As tasks: one on a worker that dies is lost, whereas `Client.run` waits for it forever.
        asked = {
            address: self._client.submit(
                get_versions, packages=list(self._own), workers=[address], pure=False
            )
            for address in addresses
            if address in infos
        }
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until and not all(one.done() for one in asked.values()):
            time.sleep(_ANSWER_S / 100)
        found = {
            address: self._misfit(address, infos[address]["nanny"], packages)
            for address, future in asked.items()
            if (packages := _packages(future)) is not None
        }
        for future in asked.values():
            future.release()
        return found

    def _misfit(
        self, address: str, nanny: str | None, packages: Mapping[str, str | None]
    ) -> UsageError | None:
        """Why a worker may not run our tasks, or None; `nanny` is None for a worker without."""
        found = difference(self._own, packages)
        if found is not None:
            return UsageError(f"the worker {address} {found}", cure=_SAME_CURE)
        if self._needs_nannies and nanny is None:
            message = f"the worker {address} has no nanny, which alone ends a task after a time"
            return UsageError(message, cure=_NANNY_CURE)
        return None


def _packages(future: Future[Any]) -> Mapping[str, str | None] | None:
    """What a worker has; None where it has not said it."""
    if future.status != "finished":
        return None
    try:
        packages: Mapping[str, str | None] = future.result(timeout=_ANSWER_S)["packages"]
    except (TimeoutError, CancelledError, KilledWorker):
        return None
    return packages
