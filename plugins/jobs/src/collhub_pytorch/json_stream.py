"""JSON of any size as a stream: the records of one array, one at a time, and all else whole."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from hub_core.model import InputError, Location

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
