"""The files of a profile, one a rank, opened as streams whether they are compressed or not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from hub_core.model import InputError, Location, UsageError
from hub_core.plugin_api import Source, decompressed

_HEAD_BYTES = 4096
_EXECUTION_TRACE = re.compile(rb'"schema"\s*:\s*"[0-9]')
_RANK_IN_NAME = re.compile(r"(?:rank|worker|\.)[_-]?([0-9]{1,6})(?![0-9a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file: its name for messages, how to open it, and the rank that a set of files states."""

    name: str
    open: Callable[[], BinaryIO]
    rank: int | None = None

    def rank_or(self, stated: int | None, order: int) -> int:
        """The rank: what the content states, else the set or the name, else the order."""
        if stated is not None:
            return stated
        if self.rank is not None:
            return self.rank
        found = _RANK_IN_NAME.findall(re.split(r"[/\\]", self.name)[-1])
        return int(found[0]) if found else order


def files_of(source: Source) -> list[TraceFile]:
    """The parts of a source as files."""
    return [TraceFile(part.name, part.stream, part.rank) for part in source.parts]


def on_disk(paths: Sequence[str]) -> list[TraceFile]:
    """Files by name, which are read piece by piece. Raises `UsageError` for one named twice."""
    twice = sorted(path for path in set(paths) if paths.count(path) > 1)
    if twice:
        raise UsageError(f"{twice[0]} is named more than once", cure="name each rank's file once")
    return [TraceFile(path, _opener(path)) for path in paths]


def opened(file: TraceFile) -> BinaryIO:
    """The content of a file, decompressed. Reading raises `InputError` for damaged archives."""
    return decompressed(file.open(), file.name)


def holds_execution_trace(file: TraceFile) -> bool:
    """Whether the content begins as an execution trace does, not as a profile."""
    with opened(file) as content:
        return _EXECUTION_TRACE.search(content.read(_HEAD_BYTES)) is not None


def _opener(path: str) -> Callable[[], BinaryIO]:
    def open_path() -> BinaryIO:
        try:
            return open(path, "rb")
        except OSError as error:
            message = error.strerror or str(error)
            raise InputError(message, location=Location(path)) from None

    return open_path
