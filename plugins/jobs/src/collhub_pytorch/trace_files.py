"""Open trace files, and parse JSON of any size as a stream.

Records of one array are parsed one at a time; all other members are parsed as complete values.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from hub_core.model import InputError, Location, UsageError
from hub_core.plugin_api import Source, decompressed

_RANK_WORD = re.compile(r"(?<![a-z])(?:rank|worker)[_-]?([0-9]{1,6})(?![0-9a-z])", re.IGNORECASE)
_NUMBER_BEFORE_SUFFIX = re.compile(r"(.+)\.([0-9]{1,6})((?:\.[a-z][a-z0-9_]*)+)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file: its name for messages, a function that opens it, and the rank in its name."""

    name: str
    open: Callable[[], BinaryIO]
    rank: int | None = None

    def rank_or(self, stated: int | None, order: int) -> int:
        """Return the file's rank: `stated` (in its content) if not None, else that in its name.

        Without both, it is `order`, the position of the file.
        """
        if stated is not None:
            return stated
        return order if self.rank is None else self.rank


def files_of(source: Source) -> list[TraceFile]:
    """Convert the parts of a source to trace files with their ranks, in the order of the parts.

    - A single part: its rank is the one in its name, marked as in `rank3` or `worker_3`. A
      number such as in `job.3.json`, which may be a version or a date, and the rank of the
      part itself are ignored.
    - Several parts: the rank of the part itself. If it has none, the marked rank in the name;
      otherwise a number as in `job.3.json`, if all names differ only in it.

    The rank is None if none of these is known. Repeated ranks are not detected.
    """
    ranks = rank_numbers([part.name for part in source.parts])
    # The number in the name of a single file may be a version, a date or a step.
    is_set = len(source.parts) > 1
    return [
        TraceFile(part.name, part.stream, part.rank if is_set and part.rank is not None else rank)
        for part, rank in zip(source.parts, ranks, strict=True)
    ]


def list_files(paths: Sequence[str]) -> list[TraceFile]:
    """Create the trace files of these paths, in order, with the ranks in their names.

    The rank is None if the name contains none. No file is opened. Raises `UsageError` for a
    repeated path.
    """
    twice = sorted(path for path in set(paths) if paths.count(path) > 1)
    if twice:
        raise UsageError(f"{twice[0]} is named more than once", cure="name each rank's file once")
    ranks = rank_numbers(paths)
    return [TraceFile(path, _opener(path), rank) for path, rank in zip(paths, ranks, strict=True)]


def rank_numbers(paths: Sequence[str]) -> list[int | None]:
    r"""Return the rank in each file name; None for a name without a rank.

    Only the part after the last `/` or `\` counts. Repeated ranks are not detected.

    - First, the first `rank` or `worker` (in any case) that is not preceded by a letter and is
      followed by 1 to 6 digits decides, as in `rank3` or `worker-3`. `-` or `_` may be between;
      a digit or letter after the digits is not permitted.
    - Otherwise a number between points before the suffix is the rank, as in `job.3.json`. This
      needs several names, all of which differ only in this number. So `llama-3.1.json` as the
      only file contains no rank.
    """
    names = [re.split(r"[/\\]", path)[-1] for path in paths]
    words = [_RANK_WORD.search(name) for name in names]
    numbers = [_NUMBER_BEFORE_SUFFIX.match(name) for name in names]
    surroundings = {(match[1], match[3]) if match else None for match in numbers}
    is_numbered = len(names) > 1 and len(surroundings) == 1 and None not in surroundings
    return [
        int(word[1]) if word else int(number[2]) if is_numbered and number else None
        for word, number in zip(words, numbers, strict=True)
    ]


def open_decompressed(file: TraceFile) -> BinaryIO:
    """Open a file and decompress it. Reading raises `InputError` for damaged archives."""
    return decompressed(file.open(), file.name)


def _opener(path: str) -> Callable[[], BinaryIO]:
    def open_path() -> BinaryIO:
        try:
            return open(path, "rb")
        except OSError as error:
            message = error.strerror or str(error)
            raise InputError(message, location=Location(path), code="unreadable-input") from None

    return open_path


Record = dict[str, Any]
_CHUNK_BYTES = 1 << 20
_MAX_VALUE_CHARACTERS = 64 << 20
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_ESCAPE_LENGTH = 5
_LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
# Text after the digits of a number whose fraction or exponent is missing.
_NUMBER_END = re.compile(r"[.eE][+-]?")
_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder(strict=False).raw_decode


class JsonStream:
    """JSON object that contains a large array, or a bare array.

    `header`: the other members of the object that have been parsed, complete after the last
    record. Memory: one chunk of the file, and the value that extends beyond it.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.header: Record = {}
        self._file = file
        self._name = name
        # Names of kernels and files that torch writes need not be valid UTF-8.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._position = 0
        self._bytes_before = 0
        self._is_over = False

    def records(self, array: str) -> Iterator[Record]:
        """Yield the objects of the list `array` in the outer JSON object, one at a time.

        If the file is itself a list, its objects are yielded. Elements that are no objects are
        skipped. Several lists of this name are all yielded; without one, nothing is yielded.

        All other members of the outer object are stored in `self.header`, the last one of equal
        names. This includes a member `array` that is no list. Members are stored when the iteration
        reaches them. Text after the outer object or list is ignored.

        Raises `InputError` with a byte offset: `not-json` for invalid text, for a file that is
        neither an object nor a list, and for a value that is too long; `truncated` if the file ends
        too early.
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
        """Yield the objects of a list, up to and including its closing bracket.

        The opening bracket must have been read; afterwards the position is after the closing
        one. Elements of other types are skipped. Raises `InputError` if the text is invalid
        (`not-json`) or the file ends within the list (`truncated`).
        """
        if self._next("]", keep=True, optional=True):
            self._position += 1
            return
        while True:
            yield from self._complete_items()
            # The chunk ends within the next record or its comma: `_value` reads further chunks.
            record = self._value()
            if isinstance(record, dict):
                yield record
            if self._next(",]") == "]":
                return
            self._skip_space()

    def _complete_items(self) -> Iterator[Record]:
        """Yield the objects that are complete in the current text, including the comma after them.

        The position moves after each comma. The iteration stops, without an error, at an element
        that is incomplete, invalid, or without a comma; the caller parses this element again. It
        skips elements that are no objects.
        """
        # Hot loop: it takes most of the reading time.
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
            # `_value` parses this record again and reports the error.
            return

    def _next(self, expected: str, *, keep: bool = False, optional: bool = False) -> str:
        """Return the next character that is no space, which must be one of `expected`.

        With `optional`, `""` is returned for another character; otherwise, and at the end of the
        file, `InputError` is raised. `keep`: do not consume the character.
        """
        self._skip_space()
        character = self._text[self._position : self._position + 1]
        if not character or character not in expected:
            if optional and character:
                return ""
            raise self._syntax_error(self._position, bool(character))
        self._position += not keep
        return character

    def _skip_space(self) -> None:
        while True:
            match = _SPACE.match(self._text, self._position)
            if match is not None:
                self._position = match.end()
            if self._position < len(self._text) or not self._grow():
                return

    def _value(self) -> Any:
        """Parse and return the next JSON value, and move the position after it.

        Spaces before the value are skipped. Further chunks of the file are read until the value is
        complete. A value at the end of the text read so far is parsed again with the next chunk,
        because a number may continue there. Raises `InputError`:

        - `not-json` for invalid text, an integer of more than 4300 digits, and too deep nesting
        - `not-json` for a value that is incomplete after more than `_MAX_VALUE_CHARACTERS`
        - `truncated` if the file ends within the value or before it
        """
        self._skip_space()
        while True:
            try:
                value, end = _decode(self._text, self._position)
            except (json.JSONDecodeError, RecursionError):
                if not self._grow():
                    raise self._create_value_error() from None
                continue
            except ValueError:
                # An integer with more digits than Python converts (4300).
                raise self._syntax_error(self._position, True) from None
            # A number at the end of the chunk may continue in the next chunk.
            if end < len(self._text) or not self._grow():
                self._position = end
                return value

    def _create_value_error(self) -> InputError:
        r"""Create (not raise) the error of the invalid or incomplete value at the position.

        All text up to the end of the file, or up to the limit, must have been read. The code is
        `truncated` if the file has been read to its end and, at the JSON error, one of these
        holds:

        - no text remains
        - a string has no end
        - an escape such as `\u12` is cut off
        - the rest is the begin of a literal such as `tru`, or ends after `.`, `e` or `E` as in
          `1.`

        Otherwise the code is `not-json`, also for a value that is nested too deeply. The location
        is the byte offset of the error; of a value that is nested too deeply, the offset of the
        value.
        """
        try:
            _decode(self._text, self._position)
        except json.JSONDecodeError as error:
            rest = self._text[error.pos :].strip()
            is_cut = (
                error.msg.startswith("Unterminated string")
                or any(word.startswith(rest) for word in _LITERALS)
                or _NUMBER_END.fullmatch(rest) is not None
                # At the position is the `u`, which four digits follow.
                or ("\\u" in error.msg and len(rest) <= _ESCAPE_LENGTH)
            )
            return self._syntax_error(error.pos, not (is_cut and self._is_over))
        except RecursionError:
            pass
        return self._syntax_error(self._position, True)

    def _grow(self) -> bool:
        """Read one more chunk of the file; return whether the caller can continue to parse.

        Returns False without a change if the end of the file was reached before, or if the unparsed
        text exceeds `_MAX_VALUE_CHARACTERS`. Otherwise the parsed part of the text is dropped and
        counted in `_bytes_before`, `_position` becomes 0, and the decoded chunk is appended.
        Invalid UTF-8 becomes replacement characters.

        The result is True if the chunk had bytes. An empty chunk is the end of the file: the result
        is False, and an incomplete UTF-8 character at the end becomes a replacement character.
        """
        if self._is_over or len(self._text) - self._position > _MAX_VALUE_CHARACTERS:
            return False
        content = self._file.read(_CHUNK_BYTES)
        self._is_over = not content
        self._bytes_before += len(self._text[: self._position].encode())
        more = self._decoder.decode(content, final=self._is_over)
        self._text = self._text[self._position :] + more
        self._position = 0
        return not self._is_over

    def _syntax_error(self, position: int, is_there: bool) -> InputError:
        """Create (not raise) the error at a position of the text: `not-json`, or `truncated`.

        `is_there`: there is text at the position, so that the file is not truncated. The location
        is the byte offset in the (decompressed) file.
        """
        byte = self._bytes_before + len(self._text[:position].encode())
        location = Location(self._name, byte=byte)
        if is_there:
            message = f"this is no JSON: {self._text[position : position + 20]!r}"
            return InputError(
                message, location=location, cure="record the profile again", code="not-json"
            )
        message = "the file ends within its JSON: it is truncated"
        cure = "copy it again, or let the profiler finish writing"
        return InputError(message, location=location, cure=cure, code="truncated")
