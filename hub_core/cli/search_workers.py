"""Workers of a search: those of an engine, named on the command line, or none."""

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

OWN_ENGINE = "processes"


@dataclass(frozen=True, slots=True)
class SearchWorkers:
    """Engine and number of workers as the user wants them; None: what the machine offers."""

    engine: str | None
    jobs: int | None

    @property
    def name(self) -> str:
        """The engine."""
        return self.engine or OWN_ENGINE

    def sides(self, session: Session) -> Mapping[str, tuple[Option, ...]]:
        """The options of the engine, by the side that `-O` calls it."""
        # Without an engine there is nobody to have options.
        if not self._is_there(session):
            return {}
        declared = session.options_of(Engine, self.name)
        return {self.name.replace("-", "_"): declared}

    @contextmanager
    def started(
        self, session: Session, options: Mapping[str, Assignments]
    ) -> Iterator[Executor | None]:
        """The workers, which end with the context; None for one job, and where none is installed.

        Raises `HubError` for an engine that is named and not there.
        """
        jobs = self.jobs or os.cpu_count() or 1
        is_alone = self.engine is None and jobs == 1
        if is_alone or not self._is_there(session):
            yield None
            return
        # Imported here: the help of the command needs no numpy.
        from hub_core.pipeline.calls import start_engine

        given = options[self.name.replace("-", "_")]
        registry = session.registry()
        workers = start_engine(self.name, EngineRequest(jobs), options=given, registry=registry)
        try:
            yield workers
        except BaseException:
            # Of Ctrl-C as well: nobody waits for what is under way.
            workers.shutdown(cancel_futures=True)
            raise
        workers.shutdown()

    def _is_there(self, session: Session) -> bool:
        """Whether the engine is installed; one that was named has to be."""
        # One that is named and not installed is an error of whoever looks for it.
        if self.engine is not None:
            return True
        names = [found.name for found in session.registry().all(Engine)]
        return OWN_ENGINE in names


def is_search(session: Session, name: str) -> bool:
    """Whether the pass of a name searches, so that it is given workers."""
    # A pass that is not there is refused elsewhere, with the closest name.
    found = session.registry().all(AlgorithmPass)
    named = [one.offer for one in found if one.name == name]
    return any(offer.searches for offer in named)
