"""Varints, fields and framed records: the wire format under execution traces, one by one and as numpy columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

MAX_VARINT = 10
MAX_LENGTH_VARINT = 5


class WireError(ValueError):
    """Bytes that no encoder writes: what is wrong, and at which position of the buffer."""

    def __init__(self, reason: str, position: int, code: str = "malformed-record") -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.code = code


class WireType(IntEnum):
    """How the value of a field is laid out."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class Field(NamedTuple):
    """One field of a message: its number and wire type, and where its value stands (BYTES: after the length)."""

    number: int
    wire: WireType
    start: int
    stop: int


def varint(value: int) -> bytes:
    """Encode a number of 0..2^64-1; negative ones as their two's complement, as int32 and int64 fields do."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def record_bounds(content: bytes) -> tuple[Int64Array, Int64Array]:
    """Find the records of a file: int64 arrays of where each body starts and ends.

    Raises `WireError` for a file that ends inside a record, a length of more than 5 bytes, and an empty record
    other than the first one.
    """
    starts, ends = array("q"), array("q")
    position, size = 0, len(content)
    while position < size:
        length = content[position]
        position += 1
        if length >= 128:
            length, position = _read_varint(content, position - 1, size, MAX_LENGTH_VARINT)
        elif not length and starts:
            raise WireError("a node record of length 0", position - 1, "empty-record")
        starts.append(position)
        position += length
        ends.append(position)
    if position > size:
        missing = position - size
        raise WireError(
            f"the file is truncated: {missing} bytes of its last record are missing",
            starts[-1],
            "truncated",
        )
    return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64)


def walk(content: bytes | memoryview, start: int, stop: int) -> Iterator[Field]:
    """Yield the fields of the message in `content[start:stop]`. Raises `WireError` where it is not one."""
    position = start
    while position < stop:
        tag_at = position
        tag, position = _read_varint(content, position, stop, MAX_LENGTH_VARINT)
        number, wire = tag >> 3, tag & 7
        if not number or wire not in (0, 1, 2, 5):
            raise WireError(f"byte 0x{content[tag_at]:02x} starts no field", tag_at)
        value_at = position
        if wire == WireType.VARINT:
            _, position = _read_varint(content, position, stop, MAX_VARINT)
        elif wire == WireType.BYTES:
            length, value_at = _read_varint(content, position, stop, MAX_VARINT)
            position = value_at + length
        else:
            position += 8 if wire == WireType.FIXED64 else 4
        if position > stop:
            raise WireError("a field reaches beyond the end of its record", tag_at)
        yield Field(number, WireType(wire), value_at, position)


def _read_varint(
    content: bytes | memoryview, position: int, stop: int, longest: int
) -> tuple[int, int]:
    value = 0
    for index in range(longest):
        if position + index >= stop:
            raise WireError("the file is truncated inside a number", position, "truncated")
        byte = content[position + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, position + index + 1
    raise WireError(f"a number of more than {longest} bytes", position)


def varint_widths(values: UInt64Array) -> Int64Array:
    """Bytes that each value takes as a varint: int64, 1..10."""
    widths = np.ones(len(values), np.int64)
    largest = int(values.max(initial=0))
    bound = 128
    while bound <= largest:
        widths += values >= np.uint64(bound)
        bound <<= 7
    return widths


def encode_varints(values: UInt64Array) -> tuple[Bytes, Int64Array]:
    """Encode many values one after the other: the bytes, and the width of each value."""
    widths = varint_widths(values)
    first = np.cumsum(widths) - widths
    encoded = np.empty(int(widths.sum()), np.uint8)
    for index in range(int(widths.max(initial=0))):
        longer = widths > index
        digits = (values[longer] >> np.uint64(7 * index)) & np.uint64(127)
        encoded[first[longer] + index] = digits | np.where(
            widths[longer] > index + 1, np.uint64(128), np.uint64(0)
        )
    return encoded, widths


def decode_varints(encoded: Bytes) -> tuple[UInt64Array, Int64Array]:
    """Decode varints that stand one after the other: values, and where each one starts.

    The last byte must end a varint. Raises `WireError` for a varint of more than 10 bytes.
    """
    ends = np.flatnonzero(encoded < 128)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else np.zeros(0, np.int64)
    widths = ends - starts + 1
    if len(widths) and int(widths.max()) > MAX_VARINT:
        raise WireError("a number of more than 10 bytes", int(starts[int(np.argmax(widths))]))
    values = np.zeros(len(starts), np.uint64)
    for index in range(int(widths.max(initial=0))):
        longer = np.flatnonzero(widths > index)
        values[longer] |= (encoded[starts[longer] + index] & np.uint8(127)).astype(
            np.uint64
        ) << np.uint64(7 * index)
    return values, starts


def varints_at(data: Bytes, at: Int64Array, stops: Int64Array) -> tuple[UInt64Array, Int64Array]:
    """Decode one varint at every position: values, and the positions after them.

    Raises `WireError` where a varint reaches beyond `stops` or is longer than 10 bytes. `data` must be longer
    than every stop.
    """
    values = np.zeros(len(at), np.uint64)
    position = at.copy()
    pending = np.arange(len(at))
    for index in range(MAX_VARINT):
        outside = np.flatnonzero(position[pending] >= stops[pending])
        if len(outside):
            raise WireError(
                "a number reaches beyond the end of its record", int(at[pending[outside[0]]])
            )
        byte = data[position[pending]]
        values[pending] |= (byte & np.uint8(127)).astype(np.uint64) << np.uint64(7 * index)
        position[pending] += 1
        pending = pending[byte >= 128]
        if not len(pending):
            return values, position
    raise WireError("a number of more than 10 bytes", int(at[pending[0]]))


def ranges(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """Concatenate the ranges `starts[i] .. starts[i] + lengths[i] - 1`."""
    shift = starts - (np.cumsum(lengths) - lengths)
    return np.repeat(shift, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)
