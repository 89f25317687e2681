"""Columns of numbers of a page: byte planes, compressed with zlib, one line of text each.

A column is stored byte by byte: the lowest bytes of all values, then the next ones. Numbers of
20 random bits thus need 20 bits; if the bytes of a number were together, the compression would not
recognize the four unused bits. The text has 13 bits in two of 91 characters, 6.5 bits a byte, where
base64 has 6. The characters `"`, `&`, `<` and `>` do not occur: HTML needs no escapes for it.

Columns of steps omit values that the page derives from others. Values of a wait are those of the
step that waits, the next one. Steps without message have no peer. Both ends of a message have equal
bytes and chunks. The k-th send from one rank to another matches the k-th receive there. Values are
only left out if the rule reproduces them exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array

Reference = dict[str, "int | str | bool | list[int]"]

_ROWS_AT_A_TIME = 1 << 18
_LEVEL = 6
_DIGITS = np.array([code for code in range(0x20, 0x7F) if code not in b'"&<>'], np.uint8)
_GROUP_BYTES = 13
_GROUP_DIGITS = 8
_MAX_WIDTH = 6
_TABLE_SIZE = 256
_SAMPLE = 4096
IN_ORDER = "in order"
"""Matching steps that the page derives from the order of sends and receives."""


class ColumnLines:
    """The lines of all columns of a page.

    `budget`: number of bytes that lines may have in total before optional columns are refused.
    """

    def __init__(self, budget: int) -> None:
        self.lines: list[bytes] = []
        self.omitted: list[str] = []
        self._budget, self._size = budget, 0

    @property
    def excess(self) -> float:
        """Size of all lines divided by the budget, both in bytes; above 1 if the budget is
        exceeded.
        """
        return self._size / self._budget

    def reset(self, num_lines: int) -> None:
        """Keep only the first `num_lines` lines, and clear the list of omitted columns.

        The bytes of the removed lines are available again in the budget. If there are at most
        `num_lines` lines, no line is removed, but the list is cleared too.
        """
        self._size -= sum(map(len, self.lines[num_lines:]))
        del self.lines[num_lines:]
        self.omitted.clear()

    def add(self, values: npt.ArrayLike, *, is_delta: bool = False) -> Reference:
        """Compress a column of numbers, append it to the page as a line, return its description.

        With `is_delta`, integers are stored as differences from the previous one, the first from 0.
        Floats are always stored as they are. The first rule that applies gives the form:

        1. Floats: `f64`, 8 bytes per value.
        2. Integers without `is_delta`, if they have at most 256 different values, at most half as
           many as entries, and not all values are in 0..255: a table. Indices into the sorted table
           are stored, and the description has the additional member `values` with the table.
        3. `uint`, or `int` if a stored integer is negative, in the fewest bytes from 1 to 6.
        4. Integers that need more bytes: `f64`, not as differences.

        The description has `column` (number of the line, from 0), `bytes` (compressed size),
        `type`, `width` (bytes per value), `length` (entries) and `delta` (whether differences are
        stored). An empty integer column is a `uint` of width 1.
        """
        column = np.asarray(values)
        table = None if is_delta else _find_table(column)
        if table is not None:
            places = np.searchsorted(table, column)
            return self.add(places) | {"values": table.tolist()}
        kind, width = _choose_type(column, is_delta)
        compressor = zlib.compressobj(_LEVEL)
        pieces = []
        if kind == "f64":
            pieces.append(compressor.compress(column.astype("<f8").tobytes()))
        for plane in range(0 if kind == "f64" else width):
            for piece in _read_pieces(column, is_delta):
                if kind == "int":
                    piece = (piece << 1) ^ (piece >> 63)
                low = (piece >> (8 * plane)).astype(np.uint8)
                pieces.append(compressor.compress(low.tobytes()))
        pieces.append(compressor.flush())
        data = b"".join(pieces)
        line = encode_text(data)
        self.lines.append(line)
        self._size += len(line)
        return {
            "column": len(self.lines) - 1,
            "bytes": len(data),
            "type": kind,
            "width": width,
            "length": len(column),
            "delta": is_delta and kind != "f64",
        }

    def add_optional(
        self, name: str, values: npt.ArrayLike | None, *, is_delta: bool = False
    ) -> Reference | None:
        """Add a column to the page and return its description, or None if it is not added.

        1. If `values` is None, nothing happens and None is returned.
        2. If the lines have more bytes than the budget, before or with the new line, the column is
           not added. `name` is appended to `omitted`, and None is returned. A total equal to the
           budget is allowed.
        3. Otherwise the result is that of `add`. `name` is not stored.

        `is_delta`: as in `add`. A line that does not fit is removed again from `lines`.
        """
        if values is None or self._size > self._budget:
            if values is not None:
                self.omitted.append(name)
            return None
        reference = self.add(values, is_delta=is_delta)
        if self._size <= self._budget:
            return reference
        self._size -= len(self.lines.pop())
        self.omitted.append(name)
        return None


def encode_text(data: bytes) -> bytes:
    """Return bytes as ASCII text in which every two characters encode 13 bits.

    The data is padded with zero bytes to a multiple of 13 bytes; each 13 bytes give 16 characters.
    The length of the data is therefore not in the text. Each group of 13 bytes is one
    little-endian number, of which the lowest 13 bits come first. A value of 13 bits is written as
    digit value // 91, then digit value % 91. The 91 digits are the printable ASCII characters from
    space to `~` in order, without `"`, `&`, `<` and `>`. Empty data gives empty text.
    """
    groups = -(-len(data) // _GROUP_BYTES)
    padded = np.zeros(groups * _GROUP_BYTES, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    text = np.empty((groups, _GROUP_DIGITS, 2), np.uint8)
    for first in range(0, groups, _ROWS_AT_A_TIME):
        last = min(groups, first + _ROWS_AT_A_TIME)
        rows = padded[first * _GROUP_BYTES : last * _GROUP_BYTES].reshape(-1, _GROUP_BYTES)
        for digit in range(_GROUP_DIGITS):
            byte, shift = divmod(13 * digit, 8)
            # Bits beyond the last byte of a group are never used: 13 * 8 bits are 13 bytes.
            parts = [
                rows[:, byte + k].astype(np.uint32) << (8 * k) for k in range(min(3, 13 - byte))
            ]
            value = (sum(parts[1:], parts[0]) >> shift) & 0x1FFF
            text[first:last, digit, 0] = _DIGITS[value // 91]
            text[first:last, digit, 1] = _DIGITS[value % 91]
    return text.tobytes()


def _read_pieces(column: npt.NDArray[np.generic], is_delta: bool) -> Iterator[Int64Array]:
    """Yield the stored integers of a column, at most `_ROWS_AT_A_TIME` rows at a time: the values,
    or with `is_delta` the differences from the previous value (the first one from 0).
    """
    for first in range(0, len(column), _ROWS_AT_A_TIME):
        piece = column[first : first + _ROWS_AT_A_TIME].astype(np.int64)
        if is_delta:
            piece = np.diff(piece, prepend=np.int64(column[first - 1]) if first else 0)
        yield piece


def _choose_type(column: npt.NDArray[np.generic], is_delta: bool) -> tuple[str, int]:
    """Return (type, bytes per value) for storing the numbers of a column.

    With `is_delta`, integers are stored as differences from the previous value, the first one from
    0. Floats are never stored as differences.

    - Floats: ("f64", 8).
    - Integers, if no stored number is negative: ("uint", n) with the fewest bytes n for the
      highest.
    - Integers, if one is negative: ("int", n). A number v >= 0 is encoded as 2v, a negative one as
      -2v - 1. The result has the fewest bytes n for the highest code.
    - If n would be above `_MAX_WIDTH` (6), also for integers: ("f64", 8).

    n is at least 1. An empty integer column gives ("uint", 1). Example: 3 and -1 give ("int", 1).
    """
    if column.dtype.kind == "f":
        return "f64", 8
    least = most = 0
    for piece in _read_pieces(column, is_delta):
        least, most = min(least, int(piece.min())), max(most, int(piece.max()))
    kind = "int" if least < 0 else "uint"
    largest = max(2 * most, -2 * least - 1) if least < 0 else most
    width = max(1, -(-largest.bit_length() // 8))
    return (kind, width) if width <= _MAX_WIDTH else ("f64", 8)


def _find_table(column: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    """Return the sorted distinct values of an integer column if a table of them is useful.

    It is if there are at most `_TABLE_SIZE` (256) values, at most half as many as entries, and they
    are not all in 0 to 255. Otherwise, and for an empty column or floats, returns None. Byte planes
    would hide that the bytes of such a value depend on each other.
    """
    if column.dtype.kind == "f" or not len(column):
        return None
    if int(column.min()) >= 0 and int(column.max()) < _TABLE_SIZE:
        return None
    if len(np.unique(column[:_SAMPLE])) > _TABLE_SIZE:
        return None
    table = np.unique(column)
    return table if len(table) <= min(_TABLE_SIZE, len(column) // 2) else None


@dataclass(frozen=True, slots=True)
class StepColumnWriter:
    """Writer of the columns of a run's steps; steps are sorted by lane.

    `rank`: rank of each step; `is_wait`, `is_send`, `is_receive`: bool. `partner`: step at the
    other end of the message, -1 for none.
    """

    lines: ColumnLines
    rank: Int64Array
    is_wait: BoolArray
    is_send: BoolArray
    is_receive: BoolArray
    partner: Int64Array

    def add_gaps(self, start: Int64Array, end: Int64Array, first: Int64Array) -> Reference:
        """Add the time between the end of the previous step of the lane and each start."""
        return self.lines.add(compute_gaps(start, end, first))

    def add_partners(self, peer: Int64Array) -> Reference | str | None:
        """Add the column of the matching steps of messages, and return its description.

        A partner is the row of the step at the other end of a message, -1 for none
        (`self.partner`). `peer`: the other rank of every step. The first case that applies is used:

        1. Matching the k-th receive of each pair of ranks with its k-th send gives exactly these
           partners (`_match_in_order`): `IN_ORDER`, and no column is added.
        2. All partners are mutual (the partner of a partner is the step itself): the column has,
           for the step of a message with the lower row, the distance to the other row. Other steps
           have 0. The description has also `ends: "first"`.
        3. Otherwise: the column has all partners, stored as differences.

        If the column exceeds the budget (`add_optional`), None is returned and `matching steps` is
        appended to the omitted columns.
        """
        if np.array_equal(self._match_in_order(peer), self.partner):
            return IN_ORDER
        step = np.arange(len(self.partner))
        has_partner = self.partner >= 0
        back = self.partner[self.partner[has_partner]]
        if np.array_equal(back, step[has_partner]):
            offset = np.where(has_partner & (self.partner > step), self.partner - step, 0)
            reference = self.lines.add_optional("matching steps", offset)
            return None if reference is None else reference | {"ends": "first"}
        return self.lines.add_optional("matching steps", self.partner, is_delta=True)

    def add_awaited(self, awaited: Int64Array, peer: Int64Array) -> Reference | None:
        """Add the column of the ranks for which waits wait, and return its description.

        `awaited`, `peer`: ranks of every step. The column has one value per wait: the awaited
        rank minus the peer of the next step, which is the step that waits. If the column would
        exceed the budget, it is listed as omitted, and None is returned.
        """
        difference = (awaited - np.append(peer[1:], -1))[self.is_wait]
        return self.lines.add_optional("awaited ranks", difference)

    def add(
        self,
        name: str,
        values: Int64Array,
        *,
        is_delta: bool = False,
        has_partners: bool,
        is_required: bool = False,
    ) -> Reference | None:
        """Add a column with one value per step, without values that the page can infer.

        Each of the following rules that applies removes values, and adds its key to the
        description:

        - `waits: "next"` if the value of each wait equals that of the next row, and the last row is
          no wait. The values of waits are removed.
        - `rest: VALUE` if there are steps that are no waits, sends or receives, and all of them
          have this value. Their values are removed.
        - `ends: "first"` if the two ends of every message have equal values, and `has_partners`,
          i.e. the page knows the matching steps. The value of the later row of each message is
          removed.

        Without waits or without messages, the rules `waits` and `ends` apply too. The other values
        are written in order by `ColumnLines.add`, with `is_delta` as differences. Returns the
        description.

        If the lines then exceed the budget of the page, the column is not added, `name` is appended
        to `omitted` of the lines, and None is returned. With `is_required` the budget is ignored.
        """
        kept = np.ones(len(values), bool)
        waits = np.flatnonzero(self.is_wait)
        without_message = ~(self.is_wait | self.is_send | self.is_receive)
        second = np.flatnonzero((self.partner >= 0) & (self.partner < np.arange(len(values))))
        marks: Reference = {}
        has_next = not len(waits) or int(waits[-1]) + 1 < len(values)
        if has_next and np.array_equal(values[waits], values[waits + 1]):
            marks["waits"] = "next"
            kept[waits] = False
        rest = values[without_message]
        if len(rest) and (rest == rest[0]).all():
            marks["rest"] = int(rest[0])
            kept[without_message] = False
        if has_partners and np.array_equal(values[second], values[self.partner[second]]):
            marks["ends"] = "first"
            kept[second] = False
        if is_required:
            return self.lines.add(values[kept], is_delta=is_delta) | marks
        reference = self.lines.add_optional(name, values[kept], is_delta=is_delta)
        return None if reference is None else reference | marks

    def _match_in_order(self, peer: Int64Array) -> Int64Array:
        """Return the partner of every step if messages match in order: int64, -1 without one.

        `peer`: the other rank of each step, -1 without one. In the order of the steps, the k-th
        receive of rank b from rank a is matched with the k-th send from a to b. Each of the two
        gets the index of the other one. Surplus sends and receives, steps without a peer, and all
        other steps get -1.

        If a step is both a send and a receive and both match, it gets the receive that matches its
        send. `peer` is not changed.
        """
        partner = np.full(len(peer), -1, np.int64)
        ranks = int(max(self.rank.max(initial=0), peer.max(initial=0))) + 1
        sends = np.flatnonzero(self.is_send & (peer >= 0))
        receives = np.flatnonzero(self.is_receive & (peer >= 0))
        sent = self.rank[sends] * ranks + peer[sends]
        received = peer[receives] * ranks + self.rank[receives]
        by_sent, by_received = np.argsort(sent, kind="stable"), np.argsort(received, kind="stable")
        sends, sent = sends[by_sent], sent[by_sent]
        receives, received = receives[by_received], received[by_received]
        ordinal = np.arange(len(received)) - np.searchsorted(received, received)
        place = np.searchsorted(sent, received) + ordinal
        matches = place < len(sent)
        matches[matches] = sent[place[matches]] == received[matches]
        partner[receives[matches]] = sends[place[matches]]
        partner[sends[place[matches]]] = receives[matches]
        return partner


def compute_gaps(start: Int64Array, end: Int64Array, first: Int64Array) -> Int64Array:
    """Return the time from the end of the previous entry of a lane to the start of each entry.

    It is negative if the two overlap. For the first entry of a lane it is the start. Lanes
    are consecutive ranges of entries, which may be empty; `first`: position of the first
    entry of each lane, then the number of all entries.
    """
    before = np.zeros_like(start)
    before[1:] = end[:-1]
    before[first[:-1][np.diff(first) > 0]] = 0
    return start - before
