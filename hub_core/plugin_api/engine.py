"""The offer `Engine`: many tasks at once, on this machine or on others."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """How many tasks at once, and the seconds after which one is ended; None: never.

    An engine that cannot end a task raises `UsageError` for such a time.
    """

    workers: int
    task_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """`start(request: EngineRequest, options) -> concurrent.futures.Executor`.

    Tasks, their arguments and results are pickled. The future of a task whose worker died raises
    `BrokenExecutor`, of one that took too long `TimeoutError`; other tasks go on. A cluster that
    cannot be reached is a `UsageError` of `start`. `shares_files`: its workers see the files of
    this machine; no other is given tasks that name some.
    """

    name: str
    description: str
    start: Reference
    options: type = NoOptions
    shares_files: bool = False
