"""Encode many records at once: a byte matrix of fixed heads and padded varints, cut by a mask.

A record is a sequence of pieces. Each piece has columns of the matrix for its widest record. A mask
selects the valid bytes, and indexing by it writes the records one after another. Lists of any
length are inserted afterwards. The bytes equal those that protobuf writes. Cost: records times the
bytes of the widest record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hub_core.chakra.nodes import AttributeKind
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
"""Concatenated bytes of all records, and the number of bytes of each record."""

# Tags of fields of bytes: Node.attr, AttributeProto.name, and the packed values of a list message.
_ATTRIBUTE_TAG = 0x52
_NAME_TAG = 0x0A
_PACKED_TAG = 0x0A


class RecordPiece:
    """Consecutive bytes of a record:

    a fixed head, followed by varints; only in records in `present`.

    `lengths`: (position in the head of a length byte, bytes that it counts in addition to the
    varints). `sizes`: bytes of the piece in each record; a single number if it is equal in all.
    """

    def __init__(
        self,
        head: bytes,
        values: Sequence[UInt64Array] = (),
        present: BoolArray | None = None,
        lengths: Sequence[tuple[int, int]] = (),
    ) -> None:
        if present is not None:
            # Absent values are replaced by a present one, so that they do not widen the piece.
            some = int(present.argmax())
            values = [np.where(present, column, column[some]) for column in values]
        if all(bool((column == column[0]).all()) for column in values):
            # Numbers that are equal in all records become a part of the head, encoded only once.
            numbers = b"".join(varint(int(column[0])) for column in values)
            text = bytearray(head + numbers)
            for position, constant in lengths:
                text[position] = len(numbers) + constant
            head, values, lengths = bytes(text), (), ()
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
        """Write the varying bytes of this piece into `matrix`, and clear `mask` in unused columns.

        Both arrays have one row per record and the columns of this piece. `matrix` must contain the
        template of the piece in every row; `mask` must be True in the rows of records with the
        piece.

        Each number has as many columns as its longest varint in any record. In a record with a
        shorter varint, `mask` becomes False in the last columns of that number; no entry becomes
        True. A length byte gets the number of bytes of all varints of its record plus its constant.
        A piece whose numbers are equal in all records has them in its template, and changes
        nothing.
        """
        for position, constant in self._lengths:
            # A length is one byte, because heads and lists of three varints are short.
            matrix[:, position] = self._varint_bytes + constant
        column_index = self._first
        for column, widths in zip(self._values, self._widths, strict=True):
            shortest = int(widths.min())
            for index in range(int(widths.max())):
                matrix[:, column_index] = varint_byte(column, index, widths > index + 1)
                # Every record has a byte here up to the length of its shortest number.
                if index >= shortest:
                    mask[:, column_index] &= widths > index
                column_index += 1


def number_field(tag: int, values: Column, present: BoolArray | None = None) -> RecordPiece:
    """Create the piece of a varint field of the node; `tag` is its tag byte."""
    # Field numbers below 16: the tag is one byte.
    return RecordPiece(bytes([tag]), [_to_unsigned(values)], present)


def number_attribute(
    name: str, kind: AttributeKind, values: Column, present: BoolArray | None = None
) -> RecordPiece:
    """Create the piece (encoded bytes per record) of an attribute with one varint value per record.

    `values`: one integer per record, at least one; negative ones become 64-bit two's complement.
    `present`: True for the records that have the attribute; None for all. A record without the
    attribute has no bytes in this piece. The length of the attribute is encoded in one byte, so the
    attribute must have fewer than 128 bytes: the name in UTF-8, two bytes before it, the tag of
    `kind` and the varint. Only fewer than 128 bytes of the name are asserted; a longer attribute
    gives a wrong encoding without an error.
    """
    inner = _encode_name(name) + varint(kind << 3)
    # The length of the attribute follows its tag.
    head = bytes([_ATTRIBUTE_TAG, 0]) + inner
    return RecordPiece(head, [_to_unsigned(values)], present, [(1, len(inner))])


def list_attribute(
    name: str, kind: AttributeKind, columns: Sequence[Column], present: BoolArray
) -> RecordPiece:
    """Create the piece (bytes per record) of an attribute that is a packed list of varints.

    `kind`: the list kind, for example `INT64_LIST`; it is not checked. `columns[k]`:
    integers, entry k of the list of every record, so all lists have `len(columns)` entries;
    negative ones become 64-bit two's complement. `present`: bool, at least one record; True
    for the records that have the attribute. The piece has no bytes in the other records.
    The attribute must have fewer than 128 bytes, because its length takes one byte; only
    the length of the name is asserted.
    """
    inner = _encode_name(name) + varint(kind << 3 | 2)
    head = bytes([_ATTRIBUTE_TAG, 0]) + inner + bytes([0, _PACKED_TAG, 0])
    # Lengths of the attribute, of its list message, and of the packed values.
    lengths = [(1, len(head) - 2), (len(head) - 3, 2), (len(head) - 1, 0)]
    return RecordPiece(head, [_to_unsigned(column) for column in columns], present, lengths)


def packed_field(tag: int, indptr: Int64Array, values: UInt64Array) -> list[Ragged]:
    """Encode a packed list of varints for every record: tag, length in bytes, entries.

    The entries of record i are `values[indptr[i]:indptr[i + 1]]`; a record without entries
    gets no bytes. `tag`: the encoded tag, one byte. Returns three parts for
    `encode_records` in this order: tags, lengths as varints, and entries as varints. A part
    is (bytes of all records, number of bytes of each record, int64).
    """
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
    start: Sequence[RecordPiece], inserted: Sequence[Ragged], rest: Sequence[RecordPiece]
) -> tuple[bytes, Int64Array]:
    """Encode records; return (all bytes, bytes of each record as int64).

    A record is its length as a varint, the pieces of `start`, the inserted bytes, and the pieces of
    `rest`. A piece is omitted from records in which it is not present. The encoded length does not
    include the varint itself; the second result does.

    `inserted` must have at least one pair: the bytes of all records, concatenated, and the number
    of bytes by record. A record gets its bytes of all pairs, in the order of the pairs. The first
    pair determines the number of records, which must be at least 1.
    """
    records = len(inserted[0][1])
    start_sizes = _sum_sizes([piece.sizes for piece in start], records)
    ragged_sizes = _sum_sizes([lengths for _, lengths in inserted], records)
    body_sizes = start_sizes + ragged_sizes + _sum_sizes([piece.sizes for piece in rest], records)
    # The length of a record is a piece as well.
    frame = RecordPiece(b"", [body_sizes.astype(np.uint64)])
    pieces = [piece for piece in (frame, *start, *rest) if piece.sizes.any()]
    content = _assemble_records(pieces, records)
    record_sizes = frame.sizes + body_sizes
    if not ragged_sizes.any():
        return content.tobytes(), record_sizes
    at = first_positions(record_sizes) + frame.sizes + start_sizes
    merged = np.empty(len(content) + sum(len(encoded) for encoded, _ in inserted), np.uint8)
    is_content = np.ones(len(merged), np.bool_)
    # `at`: position in the result of the next inserted byte of every record.
    for encoded, lengths in inserted:
        places = expanded_ranges(at, lengths)
        merged[places] = encoded
        is_content[places] = False
        at = at + lengths
    # The remaining positions are filled in order.
    merged[is_content] = content
    return merged.tobytes(), record_sizes


def _sum_sizes(sizes: Sequence[Int64Array], records: int) -> Int64Array:
    total = np.zeros(records, np.int64)
    for size in sizes:
        total += size
    return total


def _assemble_records(pieces: Sequence[RecordPiece], records: int) -> Bytes:
    """Return the bytes of all records, one after another, without bytes that are inserted later.

    A record consists of those pieces (encoded fields) that are present in it, in the order of
    `pieces`. A number takes only the bytes of its own varint, even if other records need more.
    `records`: the number of records; with 0 the result is empty. There must be 1 to 63 pieces.
    """
    widths = [len(piece.template) for piece in pieces]
    matrix = np.empty((records, sum(widths)), np.uint8)
    # Written row by row, which is sequential in memory, unlike piece by piece.
    matrix[:] = np.concatenate([piece.template for piece in pieces])
    # Combination of the pieces of every record: bit i is set if piece i is present.
    code = np.zeros(records, np.int64)
    for number, piece in enumerate(pieces):
        is_present = np.True_ if piece.present is None else piece.present
        code |= is_present.astype(np.int64) << number
    # There are few combinations of pieces, so rows of the mask are looked up.
    codes, combination = np.unique(code, return_inverse=True)
    has_piece = (codes[:, None] >> np.arange(len(pieces))) & 1
    rows = np.repeat(has_piece.astype(np.bool_), widths, axis=1)
    # True for all columns of a piece; `RecordPiece.fill` clears those that short varints leave
    # unused.
    mask: BoolArray = rows[combination]
    for piece, first, width in zip(pieces, first_positions(widths), widths, strict=True):
        part = slice(first, first + width)
        piece.fill(matrix[:, part], mask[:, part])
    compressed: Bytes = matrix[mask]
    return compressed


def _encode_name(name: str) -> bytes:
    """Encode the field AttributeProto.name: tag, length in one byte, UTF-8 text.

    The text must have fewer than 128 bytes, because its length takes one byte; this is only
    asserted.
    """
    text = name.encode()
    assert len(text) < 128, name  # The names of the trace profile are shorter.
    return bytes([_NAME_TAG, len(text)]) + text


def _to_unsigned(values: Column) -> UInt64Array:
    """Convert a column of integers to uint64.

    Negative numbers become their 64-bit two's complement, as protobuf writes them. The
    result shares the memory of `values` if `values` is uint64; otherwise it is a copy.
    """
    same = values if values.dtype == np.uint64 else values.astype(np.int64)
    return same.view(np.uint64)
