"""The files of a profile, one a rank, opened as streams whether they are compressed or not."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

from hub_core.model import InputError, Location, UsageError
from hub_core.plugin_api import Source, SourcePart

_GZIP_MAGIC = b"\x1f\x8b"
# Traces shrink to a tenth or a thirtieth; gzip's limit is a thousandth.
_MOST_EXPANSION = 300
_FREE_BYTES = 64 << 20
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
    return [_file_of(part) for part in source.parts]


def on_disk(paths: Sequence[str]) -> list[TraceFile]:
    """Files by name, which are read piece by piece. Raises `UsageError` for one named twice."""
    twice = sorted(path for path in set(paths) if paths.count(path) > 1)
    if twice:
        raise UsageError(f"{twice[0]} is named more than once", cure="name each rank's file once")
    return [TraceFile(path, _opener(path)) for path in paths]


@contextmanager
def opened(file: TraceFile) -> Iterator[BinaryIO]:
    """The content of a file, unpacked; what goes wrong within the body names the file.

    Raises `InputError` for a damaged archive, and for one that unpacks to far more than traces do.
    """
    with file.open() as raw:
        try:
            unpacked = _Unpacked(raw, file.name) if _is_packed(raw) else raw
            yield cast(BinaryIO, unpacked)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            place = Location(file.name, byte=raw.tell())
            message = f"the gzip archive ends early or is damaged: {error}"
            cure = "copy it again, or let the profiler finish writing"
            raise InputError(message, location=place, cure=cure, code="truncated") from None


def holds_execution_trace(file: TraceFile) -> bool:
    """Whether the content begins as an execution trace does, not as a profile."""
    with opened(file) as content:
        return _EXECUTION_TRACE.search(content.read(_HEAD_BYTES)) is not None


class _Unpacked(io.RawIOBase):
    """A gzip archive that is unpacked as it is read."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        self._raw = raw
        self._name = name
        self._archive = gzip.GzipFile(fileobj=raw)
        self._total = 0

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes. Raises `InputError` beyond the expansion that is believed."""
        content = self._archive.read(size)
        self._total += len(content)
        if self._total > _FREE_BYTES + _MOST_EXPANSION * self._raw.tell():
            message = f"the archive unpacks to more than {_MOST_EXPANSION} times its size"
            cure = "unpack it yourself if it is a trace"
            place = Location(self._name, byte=self._raw.tell())
            raise InputError(message, location=place, cure=cure, code="bomb")
        return content


def _file_of(part: SourcePart) -> TraceFile:
    return TraceFile(part.name, lambda: io.BytesIO(part.load()), part.rank)


def _opener(path: str) -> Callable[[], BinaryIO]:
    def open_path() -> BinaryIO:
        try:
            return open(path, "rb")
        except OSError as error:
            message = error.strerror or str(error)
            raise InputError(message, location=Location(path)) from None

    return open_path


def _is_packed(raw: BinaryIO) -> bool:
    head = cast(io.BufferedReader, raw).peek(2)[:2] if hasattr(raw, "peek") else raw.read(2)
    raw.seek(0)
    return head == _GZIP_MAGIC
