"""Encode many records at once: a byte matrix of fixed heads and padded varints, compressed by a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hub_core.chakra.attributes import Kind
from hub_core.chakra.wire import encode_varints, ranges, varint, varint_widths

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

_ATTRIBUTE_TAG = 0x52
_NAME_TAG = 0x0A
_PACKED_TAG = 0x0A


class Piece(Protocol):
    """Consecutive bytes of every record: how many, and which."""

    @property
    def present(self) -> Mask | None:
        """The records that have the piece; None for all."""

    def sizes(self) -> Int64Array:
        """Bytes that the piece takes in each record; one number where it is the same in all."""

    def template(self) -> Bytes:
        """The bytes of the piece, as wide as it gets, with what differs between records left open."""

    def patch(self, matrix: Bytes, mask: Mask) -> None:
        """Write what differs, and unmark bytes that do not count, in views as wide as `template()`."""


class Choice:
    """One of a few byte strings a record: `texts[codes[i]]`."""

    def __init__(self, texts: tuple[bytes, ...], codes: npt.NDArray[np.intp]) -> None:
        self.present = None
        self._codes = codes
        self._lengths = np.asarray([len(text) for text in texts], np.int64)
        padded = b"".join(text.ljust(int(self._lengths.max()), b"\0") for text in texts)
        self._table: Bytes = np.frombuffer(padded, np.uint8).reshape(len(texts), -1)

    def sizes(self) -> Int64Array:
        """See `Piece`."""
        return self._lengths[self._codes]

    def template(self) -> Bytes:
        """See `Piece`."""
        return np.zeros(self._table.shape[1], np.uint8)

    def patch(self, matrix: Bytes, mask: Mask) -> None:
        """See `Piece`."""
        matrix[:] = self._table[self._codes]
        mask &= (np.arange(self._table.shape[1]) < self._lengths[:, None])[self._codes]


class Numbers:
    """A fixed head and varints behind it, in the records where `present` holds.

    `lengths`: positions in the head that hold a length, with the bytes that it counts besides the varints.
    """

    def __init__(
        self,
        head: bytes,
        lengths: Sequence[tuple[int, int]],
        values: Sequence[UInt64Array],
        present: Mask | None = None,
    ) -> None:
        if present is not None:
            # Absent numbers take the value of one that is there, so that they make nothing wider.
            values = [np.where(present, column, column[int(present.argmax())]) for column in values]
        if all(bool((column == column[0]).all()) for column in values):
            head, lengths, values = (
                _constant(head, lengths, [int(column[0]) for column in values]),
                (),
                (),
            )
        self._head = np.frombuffer(head, np.uint8)
        self._lengths = lengths
        self._values = values
        self.present = present
        self._widths = [varint_widths(column) for column in values]
        self._deepest = [int(widths.max()) for widths in self._widths]
        self._varint_bytes = sum(self._widths, start=np.zeros((), np.int64))

    def sizes(self) -> Int64Array:
        """See `Piece`."""
        size = self._varint_bytes + len(self._head)
        return size if self.present is None else np.where(self.present, size, 0)

    def template(self) -> Bytes:
        """See `Piece`."""
        return np.concatenate([self._head, np.zeros(sum(self._deepest), np.uint8)])

    def patch(self, matrix: Bytes, mask: Mask) -> None:
        """See `Piece`."""
        for position, constant in self._lengths:
            matrix[:, position] = self._varint_bytes + constant
        column = len(self._head)
        for values, widths, deepest in zip(self._values, self._widths, self._deepest, strict=True):
            shortest = int(widths.min())
            for index in range(deepest):
                digits = (values >> np.uint64(7 * index)).astype(np.uint8)
                digits |= np.uint8(128)
                if index + 1 >= shortest:
                    digits ^= (widths <= index + 1).astype(np.uint8) << np.uint8(7)
                matrix[:, column] = digits
                if index >= shortest:
                    mask[:, column] &= widths > index
                column += 1


def _constant(head: bytes, lengths: Sequence[tuple[int, int]], values: Sequence[int]) -> bytes:
    """The bytes of a piece whose numbers are the same in all records."""
    numbers = b"".join(varint(value) for value in values)
    text = bytearray(head + numbers)
    for position, constant in lengths:
        text[position] = len(numbers) + constant
    return bytes(text)


def number_field(tag: int, values: npt.NDArray[np.generic], present: Mask | None = None) -> Numbers:
    """A varint field of the node itself; `tag` is its tag byte."""
    return Numbers(bytes([tag]), (), (_unsigned(values),), present)


def number_attribute(
    name: str, kind: Kind, values: npt.NDArray[np.generic], present: Mask | None = None
) -> Numbers:
    """An attribute with one varint value."""
    inner = _name(name) + varint(kind << 3)
    head = bytes([_ATTRIBUTE_TAG, 0]) + inner
    return Numbers(head, ((1, len(inner)),), (_unsigned(values),), present)


def list_attribute(
    name: str, kind: Kind, columns: Sequence[npt.NDArray[np.generic]], present: Mask | None = None
) -> Numbers:
    """An attribute with a packed list of `len(columns)` varints."""
    inner = _name(name) + varint(kind << 3 | 2)
    head = bytes([_ATTRIBUTE_TAG, 0]) + inner + bytes([0, _PACKED_TAG, 0])
    lengths = ((1, len(head) - 2), (len(head) - 3, 2), (len(head) - 1, 0))
    return Numbers(head, lengths, [_unsigned(column) for column in columns], present)


def dependency_bytes(tag: int, indptr: Int64Array, ids: UInt64Array) -> tuple[Bytes, Int64Array]:
    """Encode the packed field `tag` of every record that has entries: all bytes, and how many each record has."""
    encoded, widths = encode_varints(ids)
    before = np.concatenate([[0], np.cumsum(widths)])
    payload = before[indptr[1:]] - before[indptr[:-1]]
    heads, head_widths = encode_varints(payload.astype(np.uint64))
    head_starts = np.cumsum(head_widths) - head_widths
    filled = np.flatnonzero(payload)
    sizes = np.where(payload > 0, 1 + head_widths + payload, 0)
    starts = np.cumsum(sizes) - sizes
    merged = np.empty(int(sizes.sum()), np.uint8)
    merged[starts[filled]] = tag
    merged[ranges(starts[filled] + 1, head_widths[filled])] = heads[
        ranges(head_starts[filled], head_widths[filled])
    ]
    merged[ranges(starts[filled] + 1 + head_widths[filled], payload[filled])] = encoded
    return merged, sizes


def encode_records(
    pieces: Sequence[Piece], insert_before: int, inserted: Sequence[tuple[Bytes, Int64Array]]
) -> tuple[bytes, Int64Array]:
    """Encode framed records: the pieces in order, with ragged bytes put in before piece number `insert_before`.

    `inserted`: per ragged field its bytes, record after record, and their number in each record; at least one.
    Returns all bytes, and the bytes of each record.
    """
    sizes = [piece.sizes() for piece in pieces]
    ragged = sum((lengths for _, lengths in inserted), start=np.zeros((), np.int64))
    if not len(ragged):
        return b"", ragged
    body_sizes = sum(sizes, start=ragged)
    frame = Numbers(b"", (), (body_sizes.astype(np.uint64),))
    content = _compressed(
        [frame, *(piece for piece, size in zip(pieces, sizes, strict=True) if size.any())],
        len(ragged),
    )
    record_sizes = frame.sizes() + body_sizes
    if not ragged.any():
        return content.tobytes(), record_sizes
    at = np.cumsum(record_sizes) - record_sizes + frame.sizes() + sum(sizes[:insert_before])
    merged = np.empty(len(content) + int(ragged.sum()), np.uint8)
    is_fixed = np.ones(len(merged), np.bool_)
    for encoded, lengths in inserted:
        places = ranges(at, lengths)
        merged[places] = encoded
        is_fixed[places] = False
        at = at + lengths
    merged[is_fixed] = content
    return merged.tobytes(), record_sizes


def _compressed(pieces: Sequence[Piece], records: int) -> Bytes:
    templates = [piece.template() for piece in pieces]
    matrix = np.empty((records, sum(map(len, templates))), np.uint8)
    matrix[:] = np.concatenate(templates)
    mask = _presence(pieces, templates, records)
    column = 0
    for piece, template in zip(pieces, templates, strict=True):
        after = column + len(template)
        piece.patch(matrix[:, column:after], mask[:, column:after])
        column = after
    compressed: Bytes = matrix[mask]
    return compressed


def _presence(pieces: Sequence[Piece], templates: Sequence[Bytes], records: int) -> Mask:
    """Which bytes of the matrix belong to pieces that are there; records come in few combinations of pieces."""
    code = np.zeros(records, np.int64)
    for number, piece in enumerate(pieces):
        if piece.present is not None:
            code |= piece.present.astype(np.int64) << number
    codes, inverse = np.unique(code, return_inverse=True)
    rows = [
        np.repeat(
            [
                piece.present is None or bool(one >> number & 1)
                for number, piece in enumerate(pieces)
            ],
            list(map(len, templates)),
        )
        for one in codes.tolist()
    ]
    mask: Mask = np.asarray(rows)[inverse]
    return mask


def _name(name: str) -> bytes:
    text = name.encode()
    return bytes([_NAME_TAG, len(text)]) + text


def _unsigned(values: npt.NDArray[np.generic]) -> UInt64Array:
    """Negative numbers become their two's complement of 64 bits, as protobuf writes them."""
    signed = values if values.dtype == np.uint64 else values.astype(np.int64)
    return signed.view(np.uint64)
