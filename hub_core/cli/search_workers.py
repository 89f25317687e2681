"""Workers of a search: those of the engine that the command line names, or none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.cli.assignments import Assignments
from hub_core.plugin_api import AlgorithmPass, Engine, EngineRequest

if TYPE_CHECKING:
    from hub_core.cli.session import Session
    from hub_core.plugin_api import Option

DEFAULT_ENGINE = "processes"


@dataclass(frozen=True, slots=True)
class SearchWorkers:
    """Engine and number of workers from the command line.

    None: the default engine, and one worker per core.
    """

    engine: str | None
    jobs: int | None

    @property
    def name(self) -> str:
        """Name of the engine."""
        return self.engine or DEFAULT_ENGINE

    def sides(self, session: Session) -> Mapping[str, tuple[Option, ...]]:
        """Return the options of the engine by its name in `-O`; empty if it is not installed."""
        if not self._is_installed(session):
            return {}
        declared = session.options_of(Engine, self.name)
        return {self.name.replace("-", "_"): declared}

    @contextmanager
    def started(
        self, session: Session, options: Mapping[str, Assignments]
    ) -> Iterator[Executor | None]:
        """Start the workers, which are stopped at the end of the body.

        Yields None for one worker, and if the default engine is not installed. Raises `HubError` if
        an engine is named that is not installed.
        """
        jobs = self.jobs or os.cpu_count() or 1
        is_alone = self.engine is None and jobs == 1
        if is_alone or not self._is_installed(session):
            yield None
            return
        # Imported here: the help of the command needs no numpy.
        from hub_core.pipeline.calls import start_engine

        engine_options = options[self.name.replace("-", "_")]
        registry = session.registry()
        workers = start_engine(
            self.name, EngineRequest(jobs), options=engine_options, registry=registry
        )
        try:
            yield workers
        except BaseException:
            # Also on Ctrl-C: running tasks are not waited for.
            workers.shutdown(cancel_futures=True)
            raise
        workers.shutdown()

    def _is_installed(self, session: Session) -> bool:
        """Whether the engine is installed; True without a check if the command line names it."""
        # If a named engine is not installed, its use raises the error.
        if self.engine is not None:
            return True
        names = [provided.name for provided in session.registry().all(Engine)]
        return DEFAULT_ENGINE in names


def is_search(session: Session, name: str) -> bool:
    """Whether the pass `name` searches and therefore gets workers; False for an unknown pass."""
    # The error for an unknown pass is raised elsewhere, with the closest name.
    passes = session.registry().all(AlgorithmPass)
    return any(offered.offer.searches for offered in passes if offered.name == name)
