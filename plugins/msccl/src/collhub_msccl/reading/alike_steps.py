"""Find runs of steps that are written alike, so that the parser need see only the first of a run.

Compilers print every step with the same attributes in the same order and indent; only the values
differ. Such steps are compared with the first of a piece of the file in columns: eight bytes at a
time, all steps at once. What is not alike to the letter, or could mean anything else in XML, is in
no run. Time and memory are linear in a piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from collhub_columns import Int64Array

Words = npt.NDArray[np.uint64]

_PIECE_BYTES = 1 << 20
# Smaller files and shorter runs cost more here than in the parser.
_SMALLEST_BYTES = 1 << 16
_FEWEST_STEPS = 8
_WORD_BYTES = 8
# Apostrophes quote attributes too, expat alone counts lines with carriage returns, and a zero byte
# would be lost from the end of a value.
_FOREIGN = (b"'", b"\r", b"\0")
# By number of bytes: those that belong to a value, of the eight that are read.
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], np.uint64)
_TAG = b"<step "


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """Steps that follow each other and differ in nothing but values.

    `first`, `second`, `end`: bytes where the first step begins, the second, and what follows the
    last; `lines`: lines that each takes; `codes`: int64[steps, attributes], indices into `texts`.
    """

    first: int
    second: int
    end: int
    lines: int
    codes: Int64Array
    texts: list[str]


def alike_steps(content: bytes) -> Iterator[StepRun]:
    """Runs in the order of the file.

    The first step of a run stands for all: where a parser takes it for an element that is complete,
    the others are elements with the same names.
    """
    if len(content) < _SMALLEST_BYTES or any(one in content for one in _FOREIGN):
        return
    # The eight bytes from each byte on, without a copy.
    words = np.ndarray(len(content) - _WORD_BYTES + 1, "<u8", content, strides=(1,))
    begin = 0
    while begin < len(content):
        # Pieces end where a tag begins.
        end = content.find(b"<", begin + _PIECE_BYTES)
        end = len(content) if end < 0 else end
        yield from _runs(content, words, begin, end)
        begin = end


def _runs(content: bytes, words: Words, begin: int, end: int) -> Iterator[StepRun]:
    """Runs between two bytes, all alike to the first step there."""
    tags = _positions(content, begin, end, b"<")
    ends = np.append(tags[1:], end)
    # Reading eight bytes must not pass the end of the file.
    count = int(np.searchsorted(ends, len(content) - _WORD_BYTES, "right"))
    is_step = words[tags[:count]] & _MASKS[len(_TAG)] == _word(_TAG)
    steps = np.flatnonzero(is_step)
    if len(steps) < _FEWEST_STEPS:
        return
    quotes = _quotes(_positions(content, begin, end, b'"'), tags[steps], ends[steps])
    steps, quotes = steps[quotes[:, 0] >= 0], quotes[quotes[:, 0] >= 0]
    is_alike = _is_alike(words, quotes, tags[steps], ends[steps])
    steps, quotes = steps[is_alike], quotes[is_alike]
    values, codes = _distinct(words, quotes)
    texts = _texts(values)
    if texts is None:
        return
    borders = np.flatnonzero(np.diff(steps) != 1) + 1
    for start, stop in zip([0, *borders], [*borders, len(steps)], strict=True):
        if stop - start >= _FEWEST_STEPS:
            first, second = int(tags[steps[start]]), int(ends[steps[start]])
            lines = content.count(b"\n", first, second)
            last = int(ends[steps[stop - 1]])
            yield StepRun(first, second, last, lines, codes[start:stop], texts)


def _positions(content: bytes, begin: int, end: int, byte: bytes) -> Int64Array:
    """Where a byte stands between two others."""
    piece = np.frombuffer(content, np.uint8, end - begin, begin)
    return np.flatnonzero(piece == ord(byte)) + begin


def _quotes(quotes: Int64Array, begins: Int64Array, ends: Int64Array) -> Int64Array:
    """Quotes of each step, as many as the first has; -1 for a step with another number of them."""
    first = np.searchsorted(quotes, begins)
    counts = np.searchsorted(quotes, ends) - first
    # An even number of quotes, two for each value.
    width = max(int(counts[0]) & ~1, 2)
    rows = np.minimum(first[:, None] + np.arange(width), len(quotes) - 1)
    return np.where((counts == width)[:, None], quotes[rows] if len(quotes) else -1, -1)


def _is_alike(
    words: Words,
    quotes: Int64Array,
    begins: Int64Array,
    ends: Int64Array,
) -> npt.NDArray[np.bool_]:
    """Whether all bytes outside values are those of the first step, and all values short."""
    starts = np.column_stack([begins, quotes[:, 1::2]])
    lengths = np.column_stack([quotes[:, ::2] + 1, ends]) - starts
    is_alike: npt.NDArray[np.bool_] = (lengths == lengths[:1]).all(1)
    is_alike &= (quotes[:, 1::2] - quotes[:, ::2] <= _WORD_BYTES + 1).all(1)
    rows = np.flatnonzero(is_alike)
    if not len(rows):
        return is_alike
    is_same = np.ones(len(rows), np.bool_)
    for column, length in enumerate(lengths[rows[0]]):
        for offset in range(0, length, _WORD_BYTES):
            mask = _MASKS[min(_WORD_BYTES, length - offset)]
            read = words[starts[rows, column] + offset] & mask
            is_same &= read == read[0]
    is_alike[rows] = is_same
    return is_alike


def _distinct(words: Words, quotes: Int64Array) -> tuple[Words, Int64Array]:
    """The distinct values as words, and the index of each value of each step."""
    starts = quotes[:, ::2] + 1
    read = words[starts] & _MASKS[quotes[:, 1::2] - starts]
    values = np.unique(read)
    return values, np.searchsorted(values, read)


def _texts(values: Words) -> list[str] | None:
    """The values as texts, or None where one holds more than letters that stand for themselves."""
    texts = [int(one).to_bytes(_WORD_BYTES, "little").rstrip(b"\0") for one in values]
    if any(not one.isascii() or b"&" in one for one in texts):
        return None
    found = [one.decode("ascii") for one in texts]
    return found if all(one.isprintable() for one in found) else None


def _word(text: bytes) -> np.uint64:
    """Up to eight bytes as they are read."""
    return np.uint64(int.from_bytes(text, "little"))
