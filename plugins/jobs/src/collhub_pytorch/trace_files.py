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
_RANK_WORD = re.compile(r"(?<![a-z])(?:rank|worker)[_-]?([0-9]{1,6})(?![0-9a-z])", re.IGNORECASE)
_NUMBER_BEFORE_SUFFIX = re.compile(r"(.+)\.([0-9]{1,6})((?:\.[a-z][a-z0-9_]*)+)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file: its name for messages, how to open it, and the rank that its name states."""

    name: str
    open: Callable[[], BinaryIO]
    rank: int | None = None

    def rank_or(self, stated: int | None, order: int) -> int:
        """The rank: what the content states, else the name, else the order."""
        if stated is not None:
            return stated
        return order if self.rank is None else self.rank


def files_of(source: Source) -> list[TraceFile]:
    """The parts of a source as files."""
    ranks = _ranks_of_names([part.name for part in source.parts])
    # The number in the name of a single file may be anything: that of a version, a date, a step.
    is_set = len(source.parts) > 1
    return [
        TraceFile(part.name, part.stream, part.rank if is_set and part.rank is not None else rank)
        for part, rank in zip(source.parts, ranks, strict=True)
    ]


def on_disk(paths: Sequence[str]) -> list[TraceFile]:
    """Files by name, which are read piece by piece. Raises `UsageError` for one named twice."""
    twice = sorted(path for path in set(paths) if paths.count(path) > 1)
    if twice:
        raise UsageError(f"{twice[0]} is named more than once", cure="name each rank's file once")
    ranks = _ranks_of_names(paths)
    return [TraceFile(path, _opener(path), rank) for path, rank in zip(paths, ranks, strict=True)]


def _ranks_of_names(paths: Sequence[str]) -> list[int | None]:
    """The ranks that names state: `rank3`, `worker-3`, or `job.3.json` next to `job.2.json`.

    A number without such a word is a rank only where several names differ in it alone: that of
    `llama-3.1.json` is not.
    """
    names = [re.split(r"[/\\]", path)[-1] for path in paths]
    words = [_RANK_WORD.search(name) for name in names]
    numbers = [_NUMBER_BEFORE_SUFFIX.match(name) for name in names]
    rests = {(match[1], match[3]) if match else None for match in numbers}
    is_numbered = len(names) > 1 and len(rests) == 1 and None not in rests
    return [
        int(word[1]) if word else int(number[2]) if is_numbered and number else None
        for word, number in zip(words, numbers, strict=True)
    ]


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
