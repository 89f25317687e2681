"""A worker that ends for what another task took costs the next task nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from collhub_dask.cluster_executor import ClusterExecutor

from hub_core.plugin_api import EngineRequest

FULL, FREE = "tcp://full", "tcp://free"


@dataclass
class _DaskFuture:
    """What is done at once, or never."""

    value: object
    is_done: bool
    status: str = "finished"

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        if self.is_done:
            callback(self)

    def result(self, timeout: float | None = None) -> object:
        return self.value

    def release(self) -> None:
        """Nothing of it stays anyway."""


class _Client:
    """The nanny of the full worker has said already why it ends it."""

    def submit(self, task: Callable[[], object], workers: Sequence[str], pure: bool) -> _DaskFuture:
        return _DaskFuture(task(), is_done=workers == [FREE])

    def get_events(self, topic: str) -> list[tuple[float, dict[str, str]]]:
        return [(0.0, {"worker": FULL})]


class _Workers:
    """The full worker is given out once more before it is gone."""

    def __init__(self) -> None:
        self._next = [FREE, FULL]

    def take(self) -> str:
        return self._next.pop()

    def give_back(self, address: str) -> None:
        """Nobody takes it again."""

    def is_there(self, address: str) -> bool:
        return address == FREE

    def end(self) -> list[str]:
        return []


def test_a_task_given_to_a_worker_that_was_out_of_memory_is_done_by_another() -> None:
    request = EngineRequest(1, None)
    with ClusterExecutor(_Client(), _Workers(), request, lambda gone: None, ExitStack()) as engine:
        assert engine.submit(pow, 2, 3).result(20.0) == 8
