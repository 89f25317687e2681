"""Open trace files, and parse JSON of any size as a stream."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

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


Record = dict[str, Any]
_CHUNK_BYTES = 1 << 20
_MOST_CHARACTERS_OF_A_VALUE = 64 << 20
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder(strict=False).raw_decode


class JsonStream:
    """An object with a large array in it, or a bare array.

    `header`: the other members of the object, as far as they are read: all of them after the last
    record. In memory is one chunk of the file and the value that reaches beyond it.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.header: Record = {}
        self._file = file
        self._name = name
        # Torch writes what the names of kernels and files hold, which need not be UTF-8.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._position = 0
        self._bytes_before = 0
        self._is_over = False

    def records(self, array: str) -> Iterator[Record]:
        """The objects of the array `array`, or of the bare array.

        Raises `InputError` with the byte where the file ends early or is no JSON.
        """
        if self._next("[{") == "[":
            yield from self._items()
            return
        separator = self._next('"}', keep=True)
        while separator != "}":
            key = self._value()
            self._next(":")
            if key == array and self._next("[", keep=True, optional=True):
                self._position += 1
                yield from self._items()
            else:
                self.header[str(key)] = self._value()
            separator = self._next(",}")

    def _items(self) -> Iterator[Record]:
        """The records up to the end of an array whose bracket is read."""
        if self._next("]", keep=True, optional=True):
            self._position += 1
            return
        while True:
            yield from self._whole_items()
            # The chunk ends within the next record or its comma: the careful way reads on.
            record = self._value()
            if isinstance(record, dict):
                yield record
            if self._next(",]") == "]":
                return
            self._skip_space()

    def _whole_items(self) -> Iterator[Record]:
        """The records, each with the comma behind it, that lie in the text already read."""
        # Most of the time of reading is spent here.
        text, position = self._text, self._position
        try:
            while True:
                record, end = _decode(text, position)
                comma = _COMMA.match(text, end)
                if comma is None:
                    return
                self._position = position = comma.end()
                if isinstance(record, dict):
                    yield record
        except (ValueError, RecursionError):
            # `_value` reads this one again, and reports what is wrong.
            return

    def _next(self, wanted: str, *, keep: bool = False, optional: bool = False) -> str:
        """The next character that is no space, one of `wanted`; "" for another where `optional`."""
        self._skip_space()
        found = self._text[self._position : self._position + 1]
        if not found or found not in wanted:
            if optional and found:
                return ""
            raise self._fault(self._position, bool(found))
        self._position += not keep
        return found

    def _skip_space(self) -> None:
        while True:
            match = _SPACE.match(self._text, self._position)
            if match is not None:
                self._position = match.end()
            if self._position < len(self._text) or not self._grow():
                return

    def _value(self) -> Any:
        """The next value, however long it is."""
        self._skip_space()
        while True:
            try:
                value, end = _decode(self._text, self._position)
            except (json.JSONDecodeError, RecursionError) as error:
                if not self._grow():
                    place = error.pos if isinstance(error, json.JSONDecodeError) else 0
                    raise self._fault(place, not self._is_over) from None
                continue
            except ValueError:
                # An integer of more digits than Python converts (4300).
                raise self._fault(self._position, True) from None
            # A number at the end of the chunk may go on in the next one.
            if end < len(self._text) or not self._grow():
                self._position = end
                return value

    def _grow(self) -> bool:
        """Read one chunk more and forget what is done; false at the end and for endless values."""
        if self._is_over or len(self._text) - self._position > _MOST_CHARACTERS_OF_A_VALUE:
            return False
        content = self._file.read(_CHUNK_BYTES)
        self._is_over = not content
        self._bytes_before += len(self._text[: self._position].encode())
        more = self._decoder.decode(content, final=self._is_over)
        self._text = self._text[self._position :] + more
        self._position = 0
        return not self._is_over

    def _fault(self, position: int, is_there: bool) -> InputError:
        """What is wrong at a position of the text: something that is no JSON, or nothing."""
        byte = self._bytes_before + len(self._text[:position].encode())
        place = Location(self._name, byte=byte)
        if is_there:
            message = f"this is no JSON: {self._text[position : position + 20]!r}"
            return InputError(message, location=place, cure="record the profile again")
        message = "the file ends within its JSON: it is truncated"
        cure = "copy it again, or let the profiler finish writing"
        return InputError(message, location=place, cure=cure, code="truncated")
