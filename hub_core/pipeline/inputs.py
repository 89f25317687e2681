"""From what a user names to an algorithm."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from hub_core.model import Algorithm, Diagnostic, InputError, Location, Workload
from hub_core.pipeline.calls import bound_options, call
from hub_core.pipeline.detection import reader_for
from hub_core.pipeline.sources import open_input
from hub_core.plugin_api import (
    FormatReader,
    Option,
    Source,
    TopologyReader,
    WorkloadReader,
    log_diagnostic,
)
from hub_core.registry.bind_options import OptionText
from hub_core.registry.descriptions import options_of
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import Provided, Registry

PathText = str | os.PathLike[str]
WORKLOAD = "workload-trace"
Report = Callable[[Diagnostic], None]
R = TypeVar("R", FormatReader, TopologyReader)


@dataclass(frozen=True, slots=True)
class OpenedAlgorithm:
    """An input whose reader is known and of which only the first bytes are read."""

    source: Source
    reader: Provided[FormatReader]
    registry: Registry

    @property
    def name(self) -> str:
        """What messages call the input."""
        return self.source.name

    @property
    def format_name(self) -> str:
        """The format as which it will be read."""
        return self.reader.name

    @property
    def options(self) -> tuple[Option, ...]:
        """The options of its reader."""
        return options_of(self.reader.offer)

    def read_any(self, options: OptionText | None = None) -> Algorithm | Workload:
        """Read it, with options of the reader. Raises `HubError`.

        What a reader of algorithms refuses as `WORKLOAD`, a workload reader of the suffix takes.
        """
        given = bound_options(self.reader, options)
        is_open = isinstance(self.reader.offer, WorkloadReader)
        kinds: tuple[type, ...] = (Algorithm, Workload) if is_open else (Algorithm,)
        try:
            return cast(Algorithm | Workload, call(self.reader, kinds, self.source, given))
        except InputError as error:
            other = self._workload_reader()
            if error.diagnostics[0].code != WORKLOAD or is_open or other is None:
                raise
            return OpenedAlgorithm(self.source, other, self.registry).read_any()

    def _workload_reader(self) -> Provided[WorkloadReader] | None:
        suffixes = set(self.reader.offer.format.suffixes)
        readers = self.registry.all(WorkloadReader)
        return next((r for r in readers if suffixes & set(r.offer.format.suffixes)), None)

    def read(self, options: OptionText | None = None) -> Algorithm:
        """As `read_any`, for those who take no workload."""
        model = self.read_any(options)
        if isinstance(model, Workload):
            cure = "inspect, verify, simulate and convert take workloads"
            message, place = "is a workload, not an algorithm", Location(self.name)
            raise InputError(message, location=place, code=WORKLOAD, cure=cure)
        return model


def open_algorithm(
    path: PathText,
    *,
    format: str | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> OpenedAlgorithm:
    """Open what `read` would read, and find its reader."""
    registry = registry or discover()
    return OpenedAlgorithm(*open_source(path, FormatReader, format, registry, report), registry)


def read(
    path: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> Algorithm:
    """Read an algorithm from a file, standard input (`-`) or a set of rank files, by its prefix.

    The format is told by suffix, then by content, unless named. `registry` defaults to a new
    discovery of the installed plugins. Warnings of the reader go to `report`, by default the logger
    `collhub`. The algorithm is not verified. Raises `HubError`.
    """
    return open_algorithm(path, format=format, registry=registry, report=report).read(options)


def open_source(
    path: PathText, kind: type[R], format: str | None, registry: Registry, report: Report
) -> tuple[Source, Provided[R]]:
    """Open a file for the only reader of `kind` that claims it, or for the one that is named."""
    chosen = registry.find(kind, format) if format is not None else None
    readers = registry.all(kind) if chosen is None else [chosen]
    opened = open_input(path, [provided.offer.format for provided in readers], report)
    return opened.source, chosen or reader_for(opened, kind, registry)
