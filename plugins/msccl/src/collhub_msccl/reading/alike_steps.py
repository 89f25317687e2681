"""Find runs of steps with identical text except values, so that the parser sees only the first
step.

Compilers print every step with the same attributes in the same order and indentation; only the
values differ. All steps of a segment of the file are compared with its first step at once, eight
bytes at a time. Steps that differ in one letter outside values, or that XML might interpret
differently, belong to no run. Time and memory are linear in a segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array

Words = npt.NDArray[np.uint64]

_SEGMENT_BYTES = 1 << 20
# For smaller files and shorter runs the parser is faster.
_MIN_FILE_BYTES = 1 << 16
_MIN_RUN_STEPS = 8
_WORD_BYTES = 8
# Files with these bytes are left to the parser: apostrophes quote attributes too, only expat counts
# lines with carriage returns, and a zero byte would be lost from the end of a value.
_UNSUPPORTED_BYTES = (b"'", b"\r", b"\0")
# Entry n selects the first n of the eight bytes read.
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], np.uint64)
_TAG = b"<step "


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """Consecutive steps that differ only in their values.

    `first`, `second`, `end`: byte offsets of the first step, of the text after it, and of the text
    after the last step; `lines`: lines per step; `codes`: int64[steps, attributes], indices into
    `texts`.
    """

    first: int
    second: int
    end: int
    lines: int
    codes: Int64Array
    texts: list[str]


def find_step_runs(content: bytes) -> Iterator[StepRun]:
    """Yield runs of at least 8 consecutive `step` elements that differ only in values.

    A parser then needs to read only the first step of a run. Runs are in file order. Each
    has its byte offsets, its distinct values (`texts`), and for each step and attribute the
    index of its value. A step with a value of more than 8 bytes belongs to no run. No run
    crosses the border of two segments of about 1 MiB, and a segment with a value in these
    steps that has `&` or a character that is not printable ASCII has no runs. Files below
    `_MIN_FILE_BYTES`, or with apostrophes, CR or zero bytes, have no runs.

    The elements are not parsed, and may be in a comment. If a parser accepts the first step
    of a run as a complete element, all steps of the run are elements with the same
    attribute names.
    """
    if len(content) < _MIN_FILE_BYTES or any(byte in content for byte in _UNSUPPORTED_BYTES):
        return
    # Word i consists of bytes i to i + 7; a view, not a copy.
    words = np.ndarray(len(content) - _WORD_BYTES + 1, "<u8", content, strides=(1,))
    begin = 0
    while begin < len(content):
        # Segments end at the beginning of a tag.
        end = content.find(b"<", begin + _SEGMENT_BYTES)
        end = len(content) if end < 0 else end
        yield from _find_runs_between(content, words, begin, end)
        begin = end


def _find_runs_between(content: bytes, words: Words, begin: int, end: int) -> Iterator[StepRun]:
    """Yield the runs of at least 8 adjacent steps of equal form between two byte offsets.

    A step reaches from its `<step ` to the next `<`, or to `end`. Its form is the number of quotes
    and the text outside the values. Steps match if they have the form of the first step, and each
    value has at most 8 bytes. A run is a maximal sequence of matching steps without another tag
    between them. Runs are in file order, each with byte offsets and the line feeds per step. A run
    also has `codes`, int64[steps, attributes]: indices into `texts`, all values of matching steps.

    Nothing is yielded if any matching step has a value with "&" or with a character that is not
    printable ASCII. Steps that end less than 8 bytes before the end of the file are omitted.
    `words[i]`: the eight bytes from offset i on, as a little-endian number.
    """
    tags = _find_byte(content, begin, end, b"<")
    stops = np.append(tags[1:], end)
    # Reading eight bytes must not exceed the end of the file.
    count = int(np.searchsorted(stops, len(content) - _WORD_BYTES, "right"))
    is_step = words[tags[:count]] & _MASKS[len(_TAG)] == np.uint64(int.from_bytes(_TAG, "little"))
    steps = np.flatnonzero(is_step)
    if len(steps) < _MIN_RUN_STEPS:
        return
    # Offsets of the quotes of each step, int64[steps, quotes], for as many as the first step has,
    # rounded down to an even number, two for each value. Other steps are left out.
    all_quotes = _find_byte(content, begin, end, b'"')
    first_quote = np.searchsorted(all_quotes, tags[steps])
    counts = np.searchsorted(all_quotes, stops[steps]) - first_quote
    width = max(int(counts[0]) & ~1, 2)
    steps, first_quote = steps[counts == width], first_quote[counts == width]
    quotes = all_quotes[first_quote[:, None] + np.arange(width)]
    is_alike = _match_first_step(words, quotes, tags[steps], stops[steps])
    steps, quotes = steps[is_alike], quotes[is_alike]
    # Distinct values as words, and the index of each value, int64[steps, attributes].
    starts = quotes[:, ::2] + 1
    read = words[starts] & _MASKS[quotes[:, 1::2] - starts]
    values = np.unique(read)
    codes = np.searchsorted(values, read)
    encoded = [int(value).to_bytes(_WORD_BYTES, "little").rstrip(b"\0") for value in values]
    if any(not text.isascii() or b"&" in text for text in encoded):
        return
    texts = [text.decode("ascii") for text in encoded]
    if not all(text.isprintable() for text in texts):
        return
    borders = np.flatnonzero(np.diff(steps) != 1) + 1
    for start, stop in zip([0, *borders], [*borders, len(steps)], strict=True):
        if stop - start >= _MIN_RUN_STEPS:
            first, second = int(tags[steps[start]]), int(stops[steps[start]])
            lines = content.count(b"\n", first, second)
            last = int(stops[steps[stop - 1]])
            yield StepRun(first, second, last, lines, codes[start:stop], texts)


def _find_byte(content: bytes, begin: int, end: int, byte: bytes) -> Int64Array:
    """Return the offsets of a byte in `content[begin:end]`, ascending.

    Offsets count from the start of the file. `byte`: one byte.
    """
    piece = np.frombuffer(content, np.uint8, end - begin, begin)
    return np.flatnonzero(piece == ord(byte)) + begin


def _match_first_step(
    words: Words,
    quotes: Int64Array,
    begins: Int64Array,
    stops: Int64Array,
) -> npt.NDArray[np.bool_]:
    """Return which steps have the same text outside the attribute values: bool[steps].

    `quotes`: offsets of the opening and closing quotes of each step, int64[steps, quotes].
    `begins`, `stops`: offsets of the begin of each step and of the next tag, so that white space
    after the step must be equal too. Candidates are the steps that fulfil both of these:

    - Each text outside the values is as long as that text of step 0.
    - No value is longer than 8 bytes. Step 0 may violate this.

    A candidate is True if its texts outside the values equal those of the first candidate. All
    other steps are False; without candidates all steps are. Values may differ, also in length.
    """
    starts = np.column_stack([begins, quotes[:, 1::2]])
    lengths = np.column_stack([quotes[:, ::2] + 1, stops]) - starts
    is_alike: npt.NDArray[np.bool_] = (lengths == lengths[:1]).all(1)
    is_alike &= (quotes[:, 1::2] - quotes[:, ::2] <= _WORD_BYTES + 1).all(1)
    rows = np.flatnonzero(is_alike)
    if not len(rows):
        return is_alike
    is_equal = np.ones(len(rows), np.bool_)
    for column, length in enumerate(lengths[rows[0]]):
        for offset in range(0, length, _WORD_BYTES):
            mask = _MASKS[min(_WORD_BYTES, length - offset)]
            read = words[starts[rows, column] + offset] & mask
            is_equal &= read == read[0]
    is_alike[rows] = is_equal
    return is_alike
