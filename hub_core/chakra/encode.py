"""Encode many records at once: a byte matrix of fixed heads and padded varints, cut by a mask.

A record is a row of pieces. A piece is as wide in the matrix as it gets in any record; a mask keeps
the bytes that count, and selecting by it writes the records one behind the other. Lists of any
length are put in afterwards. The bytes are those that protobuf itself writes. Cost: records times
the bytes of the widest record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hub_core.chakra.nodes import Kind
from hub_core.chakra.wire import (
    Bytes,
    Column,
    encode_varints,
    varint,
    varint_byte,
    varint_widths,
)
from hub_core.columns import (
    BoolArray,
    Int64Array,
    UInt64Array,
    expanded_ranges,
    first_positions,
    row_pointer,
)

Ragged = tuple[Bytes, Int64Array]
"""Bytes of all records one behind the other, and how many each record has."""

# Tags of fields of bytes: Node.attr, AttributeProto.name, and the packed values of a list message.
_ATTRIBUTE_TAG = 0x52
_NAME_TAG = 0x0A
_PACKED_TAG = 0x0A


class Piece:
    """Consecutive bytes of a record: a fixed head and varints behind it, where `present` holds.

    `lengths`: positions in the head that hold a length, with what it counts besides the varints.
    `sizes`: bytes of the piece in each record; one number where it is the same in all.
    """

    def __init__(
        self,
        head: bytes,
        values: Sequence[UInt64Array] = (),
        present: BoolArray | None = None,
        lengths: Sequence[tuple[int, int]] = (),
    ) -> None:
        if present is not None:
            # Absent numbers take the value of one that is there, so that they make nothing wider.
            some = int(present.argmax())
            values = [np.where(present, column, column[some]) for column in values]
        if all(bool((column == column[0]).all()) for column in values):
            head = _with_numbers(head, [int(column[0]) for column in values], lengths)
            values, lengths = (), ()
        self.present = present
        self._values, self._lengths = values, lengths
        self._widths = [varint_widths(column) for column in values]
        self._varint_bytes = sum(self._widths, start=np.zeros((), np.int64))
        size = self._varint_bytes + len(head)
        self.sizes = size if present is None else np.where(present, size, 0)
        self._first = len(head)
        open_bytes = sum(int(widths.max()) for widths in self._widths)
        self.template = np.frombuffer(head + bytes(open_bytes), np.uint8)

    def fill(self, matrix: Bytes, mask: BoolArray) -> None:
        """Write what differs between records, and unmark bytes that do not count."""
        for position, constant in self._lengths:
            # A length is one byte: heads are short, and so are lists of three varints.
            matrix[:, position] = self._varint_bytes + constant
        place = self._first
        for column, widths in zip(self._values, self._widths, strict=True):
            shortest = int(widths.min())
            for index in range(int(widths.max())):
                matrix[:, place] = varint_byte(column, index, widths > index + 1)
                # Up to the shortest number every record has a byte here.
                if index >= shortest:
                    mask[:, place] &= widths > index
                place += 1


def _with_numbers(head: bytes, values: Sequence[int], lengths: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of a piece whose numbers are the same in all records."""
    numbers = b"".join(varint(value) for value in values)
    text = bytearray(head + numbers)
    for position, constant in lengths:
        text[position] = len(numbers) + constant
    return bytes(text)


def number_field(tag: int, values: Column, present: BoolArray | None = None) -> Piece:
    """A varint field of the node itself; `tag` is its tag byte."""
    # Field numbers below 16: the tag is one byte.
    return Piece(bytes([tag]), [_unsigned(values)], present)


def number_attribute(
    name: str, kind: Kind, values: Column, present: BoolArray | None = None
) -> Piece:
    """An attribute with one varint value."""
    inner = _name(name) + varint(kind << 3)
    # The length of the attribute stands behind its tag.
    head = bytes([_ATTRIBUTE_TAG, 0]) + inner
    return Piece(head, [_unsigned(values)], present, [(1, len(inner))])


def list_attribute(name: str, kind: Kind, columns: Sequence[Column], present: BoolArray) -> Piece:
    """An attribute with a packed list of `len(columns)` varints."""
    inner = _name(name) + varint(kind << 3 | 2)
    head = bytes([_ATTRIBUTE_TAG, 0]) + inner + bytes([0, _PACKED_TAG, 0])
    # The lengths of the attribute, of its list message and of the packed values in that.
    lengths = [(1, len(head) - 2), (len(head) - 3, 2), (len(head) - 1, 0)]
    return Piece(head, [_unsigned(column) for column in columns], present, lengths)


def packed_field(tag: int, indptr: Int64Array, values: UInt64Array) -> list[Ragged]:
    """The packed field `tag` of every record that has entries: its tag, its length, its varints."""
    encoded, widths = encode_varints(values)
    # Bytes of the list of every record.
    payload = np.diff(row_pointer(widths)[indptr])
    filled = payload > 0
    length_bytes, length_widths = encode_varints(payload[filled].astype(np.uint64))
    tag_sizes = filled.astype(np.int64)
    length_sizes = np.zeros(len(payload), np.int64)
    length_sizes[filled] = length_widths
    tags = np.full(len(length_widths), tag, np.uint8)
    return [(tags, tag_sizes), (length_bytes, length_sizes), (encoded, payload)]


def encode_records(
    start: Sequence[Piece], inserted: Sequence[Ragged], rest: Sequence[Piece]
) -> tuple[bytes, Int64Array]:
    """Encode framed records: the pieces of `start`, the ragged bytes, the pieces of `rest`.

    Returns all bytes, and the bytes of each record.
    """
    records = len(inserted[0][1])
    start_sizes = _total([piece.sizes for piece in start], records)
    ragged_sizes = _total([lengths for _, lengths in inserted], records)
    body_sizes = start_sizes + ragged_sizes + _total([piece.sizes for piece in rest], records)
    # The length before a record is a piece like the others.
    frame = Piece(b"", [body_sizes.astype(np.uint64)])
    pieces = [piece for piece in (frame, *start, *rest) if piece.sizes.any()]
    content = _compressed(pieces, records)
    record_sizes = frame.sizes + body_sizes
    if not ragged_sizes.any():
        return content.tobytes(), record_sizes
    at = first_positions(record_sizes) + frame.sizes + start_sizes
    return _merged(content, inserted, at).tobytes(), record_sizes


def _total(sizes: Sequence[Int64Array], records: int) -> Int64Array:
    total = np.zeros(records, np.int64)
    for size in sizes:
        total += size
    return total


def _compressed(pieces: Sequence[Piece], records: int) -> Bytes:
    """The bytes of all records without what is inserted."""
    widths = [len(piece.template) for piece in pieces]
    matrix = np.empty((records, sum(widths)), np.uint8)
    # Whole rows at a time: that is memory copied in order, unlike piece after piece.
    matrix[:] = np.concatenate([piece.template for piece in pieces])
    mask = _presence(pieces, widths, records)
    for piece, first, width in zip(pieces, first_positions(widths), widths, strict=True):
        part = slice(first, first + width)
        piece.fill(matrix[:, part], mask[:, part])
    compressed: Bytes = matrix[mask]
    return compressed


def _presence(pieces: Sequence[Piece], widths: Sequence[int], records: int) -> BoolArray:
    """Which bytes of the matrix belong to pieces that are there."""
    code = np.zeros(records, np.int64)
    for number, piece in enumerate(pieces):
        here = np.True_ if piece.present is None else piece.present
        code |= here.astype(np.int64) << number
    # Records come in few combinations of pieces, so that rows of the mask are looked up.
    codes, combination = np.unique(code, return_inverse=True)
    has_piece = (codes[:, None] >> np.arange(len(pieces))) & 1
    rows = np.repeat(has_piece.astype(np.bool_), widths, axis=1)
    mask: BoolArray = rows[combination]
    return mask


def _merged(content: Bytes, inserted: Sequence[Ragged], at: Int64Array) -> Bytes:
    """The content with ragged bytes put in; `at`: where those of each record come to stand."""
    merged = np.empty(len(content) + sum(len(encoded) for encoded, _ in inserted), np.uint8)
    is_content = np.ones(len(merged), np.bool_)
    for encoded, lengths in inserted:
        places = expanded_ranges(at, lengths)
        merged[places] = encoded
        is_content[places] = False
        at = at + lengths
    # What is left between the insertions is filled in order.
    merged[is_content] = content
    return merged


def _name(name: str) -> bytes:
    """The field AttributeProto.name."""
    text = name.encode()
    return bytes([_NAME_TAG, len(text)]) + text


def _unsigned(values: Column) -> UInt64Array:
    """Negative numbers become their two's complement of 64 bits, as protobuf writes them."""
    same = values if values.dtype == np.uint64 else values.astype(np.int64)
    return same.view(np.uint64)
