"""Workers of a cluster: who is there, who may run our tasks, and who is free to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from threading import Condition
from typing import TYPE_CHECKING

from distributed.versions import get_versions

from collhub_dask.environments import difference, own_versions
from hub_core.model import UsageError

if TYPE_CHECKING:
    from distributed import Client

LOOK_S = 0.5
_MOST_WAIT_S = 60.0
_RESTART_S = 30.0


class ClusterWorkers:
    """Addresses of workers, each given to one task at a time.

    A worker that dies takes what runs on it with it: were there two tasks, the other one would be
    lost without a fault. Workers that come later join, those of another environment do not.
    `needs_nannies`: whether tasks are ended after a time, which takes a nanny.
    """

    def __init__(self, client: Client, needs_nannies: bool) -> None:
        self._client = client
        self._needs_nannies = needs_nannies
        self._own = own_versions()
        self._changed = Condition()
        self._busy: set[str] = set()
        # Why a worker may not run our tasks, None where it may.
        self._misfits: dict[str, str | None] = {}
        self._looked_s = 0.0
        self._has_ended = False

    def check_all(self, most_wait_s: float) -> None:
        """Raise `UsageError` for a scheduler or a worker that does not fit, or without workers."""
        scheduler = self._client.run_on_scheduler(get_versions, packages=list(self._own))
        lacking = difference(self._own, scheduler["packages"])
        until = time.monotonic() + most_wait_s
        while not self._look() and time.monotonic() < until:
            time.sleep(LOOK_S)
        address = self._client.scheduler.address
        if not self._misfits:
            cure = "start workers for it, as with 'dask worker ADDRESS --nthreads 1'"
            raise UsageError(f"the scheduler {address} has no workers", cure=cure)
        wrong = {f"the scheduler {address}": lacking}
        wrong |= {f"the worker {one}": why for one, why in self._misfits.items()}
        for who, why in wrong.items():
            if why is not None:
                raise UsageError(f"{who} {why}", cure="give all of the cluster what is here")

    def take(self) -> str:
        """A worker that runs nothing of ours; waits for one.

        Raises `BrokenExecutor` where none has been there for a minute.
        """
        until = time.monotonic() + _MOST_WAIT_S
        with self._changed:
            while True:
                present = self._look()
                free = [one for one in present if one not in self._busy]
                if self._has_ended:
                    raise BrokenExecutor("the cluster was left")
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
        """Whether the scheduler still has it."""
        with self._changed:
            self._look()
            return address in self._misfits and not self._has_ended

    def restart(self, addresses: Sequence[str]) -> None:
        """End the tasks of workers with their processes; others come in their place."""
        self._client.restart_workers(list(addresses), timeout=_RESTART_S, raise_for_error=False)

    def end(self) -> list[str]:
        """Give no worker any more; return those that run a task."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
            return sorted(self._busy)

    def _look(self) -> list[str]:
        """Those that may run our tasks, as known since a moment ago at most."""
        now = time.monotonic()
        if now - self._looked_s > LOOK_S and not self._has_ended:
            present = self._client.nthreads()
            self._misfits = {one: self._misfits.get(one) for one in self._misfits if one in present}
            new = [one for one in present if one not in self._misfits]
            if new:
                self._misfits |= self._judged(new)
            self._looked_s = time.monotonic()
        return [one for one, why in self._misfits.items() if why is None]

    def _judged(self, addresses: Sequence[str]) -> dict[str, str | None]:
        """Why each may not run our tasks; workers that go meanwhile are left out."""
        known = self._client.scheduler_info(n_workers=-1)["workers"]
        found = self._client.run(
            get_versions, packages=list(self._own), workers=list(addresses), on_error="return"
        )
        judged: dict[str, str | None] = {}
        for address in addresses:
            versions = found.get(address)
            if address not in known or not isinstance(versions, dict):
                continue
            judged[address] = difference(self._own, versions["packages"])
            if self._needs_nannies and known[address]["nanny"] is None:
                judged[address] = "has no nanny, without which no task is ended after a time"
        return judged
