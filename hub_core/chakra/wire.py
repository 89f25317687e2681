"""The wire format of execution traces: varints, fields and records, single and as columns.

Source: the encoding page of Protocol Buffers (protobuf.dev/programming-guides/encoding). A varint
has 7 bits per byte, the lowest first; bit 7 is set if another byte follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array, UInt64Array, first_positions

Bytes = npt.NDArray[np.uint8]
Column = npt.NDArray[np.integer]

MAX_VARINT = 10
# A tag has 29 bits of field number and 3 of wire type; the length of a record has at most 32 bits.
_MAX_SHORT_VARINT = 5
_ONE_BYTE = tuple(bytes([value]) for value in range(128))


class WireError(ValueError):
    """Bytes that no encoder writes: the reason, and the position in the buffer."""

    def __init__(self, reason: str, position: int, code: str = "malformed-record") -> None:
        """Store the reason, the position in the decoded bytes, and the code.

        `code`: code of the finding that the error becomes. The text of the exception is the reason.
        """
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.code = code


class Field(NamedTuple):
    """A field of a message; its value is `start..stop` of the buffer, without a length."""

    number: int
    wire: WireType
    start: int
    stop: int


class WireType(IntEnum):
    """Encoding of the value of a field."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


def varint(value: int) -> bytes:
    """Encode a number as a protobuf varint: 7 bits per byte, the lowest first, 1 to 10 bytes.

    Negative numbers are encoded modulo 2^64, as in int32 and int64 of protobuf. Numbers from 2^64
    on lose their high bits.
    """
    # Most numbers in traces have one byte.
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def record_bounds(content: bytes) -> tuple[Int64Array, Int64Array]:
    """Return the starts and ends of the bodies of all records of a file, int64.

    Each body follows its length, a varint. The arrays are empty for an empty file. Raises
    `WireError` for the first of these defects in the file:

    - a length of more than 5 bytes, at the start of the length (code `malformed-record`)
    - a record after the first one whose length is a single byte 0, at this byte (code
      `empty-record`); the first record may be empty
    - the file ends inside a length (at its start) or inside a body (at the start of the body): code
      `truncated`
    """
    starts: list[int] = []
    ends: list[int] = []
    position, size = 0, len(content)
    while position < size:
        length_at = position
        length = content[position]
        position += 1
        if length >= 128:
            following = content[position] if position < size else 128
            # Nearly all lengths have at most two bytes; a function call would double the time.
            if following < 128:
                length += (following << 7) - 128
                position += 1
            else:
                length, position = _read_varint(content, length_at, size, _MAX_SHORT_VARINT)
        elif not length and starts:
            raise WireError("a node record of length 0", length_at, "empty-record")
        starts.append(position)
        position += length
        ends.append(position)
    if position > size:
        reason = f"the file is truncated: {position - size} bytes of its last record are missing"
        raise WireError(reason, starts[-1], "truncated")
    return np.asarray(starts, np.int64), np.asarray(ends, np.int64)


def walk(content: bytes, start: int, stop: int) -> Iterator[Field]:
    """Yield the fields of the protobuf message in `content[start:stop]`, in their order.

    A field has its number, its wire type, and start and end of its value in `content`; the value of
    BYTES is without its length. An empty range yields nothing. Raises `WireError` at the first
    defect, after the fields before it were yielded:

    - at the tag (code `malformed-record`): the field number is 0; the wire type is not 0, 1, 2 or
      5; or the value extends beyond `stop`
    - at the number itself: a tag of more than 5 bytes, or an integer or a length of more than 10
      (`malformed-record`); a number that does not end before `stop` (`truncated`)
    """
    position = start
    while position < stop:
        tag_at = position
        tag, value_at = _read_varint(content, position, stop, _MAX_SHORT_VARINT)
        number, wire = tag >> 3, tag & 7
        if not number or wire not in _WIRE_TYPES:
            raise WireError(f"byte 0x{content[tag_at]:02x} starts no field", tag_at)
        if wire == WireType.VARINT:
            _, position = _read_varint(content, value_at, stop, MAX_VARINT)
        elif wire == WireType.BYTES:
            length, value_at = _read_varint(content, value_at, stop, MAX_VARINT)
            position = value_at + length
        else:
            position = value_at + (8 if wire == WireType.FIXED64 else 4)
        if position > stop:
            raise WireError("a field reaches beyond the end of its record", tag_at)
        yield Field(number, WireType(wire), value_at, position)


# Not `frozenset(WireType)`, because comparisons with members are slow.
_WIRE_TYPES = frozenset(int(wire) for wire in WireType)


def _read_varint(content: bytes, position: int, stop: int, longest: int) -> tuple[int, int]:
    """Read the varint at `position`, of at most `longest` bytes: (number, position after it).

    Bits of later bytes are higher; the number may exceed 64 bits. The end of the varint is the
    first byte below 128. Raises `WireError` at `position`: with code `truncated` if `stop` is
    reached before this byte within the first `longest` bytes, and with `malformed-record` if none
    of these bytes is below 128.
    """
    value = 0
    at = position
    # The longest varint of 64 bits has 10 bytes, that of 32 bits has 5.
    for shift in range(0, 7 * longest, 7):
        if at >= stop:
            raise WireError("the file is truncated inside a number", position, "truncated")
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise WireError(f"a number of more than {longest} bytes", position)


def varint_widths(values: UInt64Array) -> Int64Array:
    """Return the number of bytes of each value as a varint: int64, 1..10.

    A value below 128 needs one byte, and each further 7 bits one more.
    """
    widths = np.ones(len(values), np.int64)
    largest = int(values.max(initial=0))
    bound = 128
    while bound <= largest:
        widths += values >= np.uint64(bound)
        bound <<= 7
    return widths


def varint_byte(values: UInt64Array, index: int, has_more: BoolArray) -> Bytes:
    """Return byte number `index` of every value as a varint: uint8, one per value.

    It has bits 7 * `index` to 7 * `index` + 6 of the value. `has_more`: bool, whether another byte
    follows; then bit 7 is set.
    """
    digits = (values >> np.uint64(7 * index)).astype(np.uint8) & np.uint8(127)
    return digits | has_more.astype(np.uint8) << np.uint8(7)


def encode_varints(values: UInt64Array) -> tuple[Bytes, Int64Array]:
    """Encode all values, in order, as consecutive varints (1 to 10 bytes, lowest 7 bits first).

    Returns (bytes, number of bytes of each value as int64). Both arrays are empty if there are
    no values.
    """
    widths = varint_widths(values)
    # One round per byte: byte number `index` of all values of that width.
    first = first_positions(widths)
    encoded = np.empty(int(widths.sum()), np.uint8)
    for index in range(int(widths.max(initial=0))):
        rows = np.flatnonzero(widths > index)
        has_more = widths[rows] > index + 1
        encoded[first[rows] + index] = varint_byte(values[rows], index, has_more)
    return encoded, widths


def decode_varints(encoded: Bytes) -> tuple[UInt64Array, Int64Array]:
    """Decode consecutive varints: (values, position of the first byte of each).

    Bits beyond 64 are dropped. Bytes after the last complete varint are ignored; without a
    complete one, both arrays are empty. Raise `WireError`, at the first byte of the varint, if
    a complete one has more than 10 bytes.
    """
    # Bytes without bit 7 end a number, so all starts are known at once.
    ends = np.flatnonzero(encoded < 128) + 1
    starts = np.append(0, ends)[:-1]
    values, _ = varints_at(encoded, starts, np.full(len(ends), len(encoded)))
    return values, starts


def varints_at(data: Bytes, at: Int64Array, stops: Int64Array) -> tuple[UInt64Array, Int64Array]:
    """Decode one varint (protobuf's integer of 1 to 10 bytes) at every position of `at`.

    Returns the values and the positions after them, both parallel to `at`. `stops`: end of the
    record of each position. A varint ends with its first byte below 128. Bits beyond 64 are
    dropped.

    Raises `WireError` (`malformed-record`) with the start of one varint. Varints that reach their
    stop before their end, within 10 bytes, come first: the one with the fewest bytes is named, of
    equal ones the first in `at`. Without them, the first varint of more than 10 bytes is named.
    """
    values = np.zeros(len(at), np.uint64)
    position = at.copy()
    pending = np.arange(len(at))
    # All numbers are read together, one byte per round; most end in the first two rounds.
    for index in range(MAX_VARINT):
        outside = pending[position[pending] >= stops[pending]]
        if len(outside):
            raise WireError("a number reaches beyond the end of its record", int(at[outside[0]]))
        byte = data[position[pending]]
        digits = (byte & np.uint8(127)).astype(np.uint64)
        values[pending] |= digits << np.uint64(7 * index)
        position[pending] += 1
        pending = pending[byte >= 128]
        if not len(pending):
            return values, position
    raise WireError("a number of more than 10 bytes", int(at[pending[0]]))
