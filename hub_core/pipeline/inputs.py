"""Open inputs that users name, and read algorithms and workloads from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hub_core.model import Algorithm, Diagnostic, InputError, Location, Workload
from hub_core.pipeline.calls import bound_options, call
from hub_core.pipeline.detection import find_reader
from hub_core.pipeline.sources import content_of, open_input, open_rank_files
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
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Provided, Registry

PathText = str | os.PathLike[str]
WORKLOAD = "workload-trace"
Report = Callable[[Diagnostic], None]
R = TypeVar("R", FormatReader, TopologyReader)


@dataclass(frozen=True, slots=True)
class OpenedAlgorithm:
    """An input whose reader is chosen; only the first bytes are read."""

    source: Source
    reader: Provided[FormatReader]

    @property
    def name(self) -> str:
        """Name of the input in messages."""
        return self.source.name

    @property
    def format_name(self) -> str:
        """Name of the format as which the input is read."""
        return self.reader.name

    @property
    def options(self) -> tuple[Option, ...]:
        """Options of the reader."""
        return options_of(self.reader.offer)

    @property
    def holds_workload(self) -> bool:
        """Whether the reader reads workloads."""
        return isinstance(self.reader.offer, WorkloadReader)

    def read_any(self, options: OptionText | None = None) -> Algorithm | Workload:
        """Read the input with options of its reader. Raises `HubError`."""
        bound = bound_options(self.reader, options)
        if self.holds_workload:
            return call(self.reader, Workload, self.source, bound)
        return call(self.reader, Algorithm, self.source, bound)

    def read(self, options: OptionText | None = None) -> Algorithm:
        """Read the input; raises `InputError` also if it is a workload."""
        return require_algorithm(self.read_any(options), self.name)


def require_algorithm(model: Algorithm | Workload, name: str) -> Algorithm:
    """Return an algorithm; raise `InputError` for a workload, which was read from `name`."""
    if isinstance(model, Workload):
        cure = "inspect, verify, simulate and convert take workloads"
        message = "is a workload, not an algorithm"
        raise InputError(message, location=Location(name), code=WORKLOAD, cure=cure)
    return model


def require_workload(model: Algorithm | Workload, name: str) -> Workload:
    """Return a workload; raise `InputError` for an algorithm, which was read from `name`."""
    if isinstance(model, Algorithm):
        message = "is an algorithm, not a workload"
        raise InputError(message, location=Location(name), code="algorithm", cure="read it as that")
    return model


def open_algorithm(
    path: PathText,
    *,
    format: str | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
    more: Sequence[str] = (),
) -> OpenedAlgorithm:
    """Open an input and find its reader; only the first bytes are read. Raises `HubError`.

    `more`: further files that are rank files of one job together with `path`, regardless of names.
    """
    request = path, FormatReader, format, registry or run_registry(), report
    return OpenedAlgorithm(*open_source(*request, more))


def read(
    path: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> Algorithm:
    """Read an algorithm from a file, standard input (`-`) or a set of rank files, by its prefix.

    `format`: default by suffix, then by content. `registry`: default the installed plugins.
    `report`: called with warnings of the reader; default the logger `collhub`. The algorithm is not
    verified. Raises `HubError`.
    """
    return open_algorithm(path, format=format, registry=registry, report=report).read(options)


def read_workload(
    path: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> Workload:
    """Read a workload, otherwise as `read`. Raises `HubError`, for algorithms too."""
    opened = open_algorithm(path, format=format, registry=registry, report=report)
    return require_workload(opened.read_any(options), opened.name)


def open_source(
    path: PathText,
    kind: type[R],
    format: str | None,
    registry: Registry,
    report: Report,
    more: Sequence[str] = (),
) -> tuple[Source, Provided[R]]:
    """Open a file, and find its reader among readers of `kind`; `format` names the reader.

    `more`: as of `open_algorithm`.
    """
    chosen = registry.find(kind, format) if format is not None else None
    readers = registry.all(kind) if chosen is None else [chosen]
    if more:
        opened = open_rank_files([os.fspath(path), *more], report)
    else:
        opened = open_input(path, [provided.offer.format for provided in readers], report)
    reader = chosen or find_reader(opened, kind, registry)
    return content_of(opened, reader.offer.format), reader
