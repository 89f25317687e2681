"""Collect the defects of a file, so that one run reports all of them.

Numbers are read with the rules of the runtimes: C's `strtol` with base 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum

import numpy as np

from hub_core import Provenance, installed_version
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Diagnostic, InputError, Location, Severity

_DISTRIBUTION = "collhub-msccl"


def build_provenance(
    file: str,
    content: bytes | None = None,
    options: Mapping[str, str] | None = None,
) -> Provenance:
    """Build the provenance of a file: this distribution as producer, name, SHA-256 and options.

    `content`: bytes of the file; None gives an empty digest. `options`: values by option name; None
    means no options. The version is empty if the distribution is not installed.
    """
    # Imported lazily: a program that prints its XML itself needs no digests.
    from hashlib import sha256

    digest = "" if content is None else sha256(content).hexdigest()
    version = installed_version(_DISTRIBUTION) or ""
    return Provenance(_DISTRIBUTION, version, file, digest, options or {})


# The grammar of `strtol(text, NULL, 0)`, ISO C 7.22.1.4: white space, sign, and a prefix that
# chooses the base. All three runtimes call it for every numeric attribute.
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))")
_BASES = (16, 8, 10)  # of the groups of digits in `_NUMBER`
# Python's int() takes quadratic time and refuses more than 4300 digits; 2^63 needs far fewer than
# 40.
_MAX_DIGITS = 40
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


class NumberState(IntEnum):
    """Result of reading a text as a number. CUT: characters after the number were ignored."""

    FINE = 0
    CUT = 1
    NO_NUMBER = 2
    OUT_OF_RANGE = 3


def parse_long(text: str) -> int:
    """Return the integer at the start of a text as C's `strtol(text, NULL, 0)` with 64 bits does.

    White space and one sign may precede the digits, characters after them are ignored, and without
    digits the result is 0. Values beyond the ends of the range are the nearest end: -2^63 or
    2^63 - 1.
    """
    match = _NUMBER.match(text)
    if match is None:
        return 0
    sign, *digits = match.groups()
    value = _compute_magnitude(digits)
    return max(-value, -_LONG_MAX - 1) if sign == "-" else min(value, _LONG_MAX)


def parse_number(text: str) -> tuple[int, NumberState]:
    """Parse an integer like C's `strtol(text, NULL, 0)`; return its value and the state.

    White space and one sign may precede the digits. Examples: `12`, `-1`, `0x10` (16),
    `010` (octal, 8). The first rule that applies gives the state:

    1. NO_NUMBER, value 0: no digit follows the white space and the sign.
    2. OUT_OF_RANGE, value 0: the magnitude is above 2^31 - 1 (the runtimes truncate it to
       32 bits).
    3. CUT: text follows the number, also a blank. `5x` is 5, `0x` and `09` are 0.
    4. FINE.
    """
    match = _NUMBER.match(text)
    if match is None:
        return 0, NumberState.NO_NUMBER
    sign, *digits = match.groups()
    value = _compute_magnitude(digits)
    if value > _INT_MAX:
        return 0, NumberState.OUT_OF_RANGE
    is_complete = match.end() == len(text)
    state = NumberState.FINE if is_complete else NumberState.CUT
    return (-value if sign == "-" else value), state


def _compute_magnitude(digits: list[str | None]) -> int:
    """Return the magnitude of a matched number.

    `digits`: one entry per base in `_BASES`; exactly one is not None and has the digits in that
    base. Empty digits give 0. Leading zeros do not count. More than 40 further digits give 2^31,
    which the caller treats as out of range. Raises `AssertionError` if all entries are None.
    """
    for base, group in zip(_BASES, digits, strict=True):
        if group is None:
            continue
        significant = group.lstrip("0")
        if len(significant) > _MAX_DIGITS:
            return _LONG_MAX + 1
        # "0" without further digits is only the octal prefix.
        return int(significant or "0", base)
    raise AssertionError("a match has one group of digits")


# A faulty generator repeats its defect in every thread block: a screen full of copies would hide
# the remaining defects.
_MAX_SHOWN_PER_RULE = 5


class FileFindings:
    """Collection of a file's errors, which `raise_errors` raises together.

    Warnings go to the function `report` immediately.
    """

    def __init__(self, file: str, report: Callable[[Diagnostic], None]) -> None:
        self._file = file
        self._report = report
        self._errors: list[Diagnostic] = []

    def get_location(self, line: int, rank: int | None = None) -> Location:
        """Build the location of a 1-based line in the file, optionally with a rank."""
        return Location(self._file, line, None, rank)

    def add_error(
        self,
        code: str,
        message: str,
        line: int,
        *,
        rank: int | None = None,
        cure: str = "",
    ) -> None:
        """Record an error at a line (from 1) of the file, for `raise_errors` to raise later.

        `code`: identifier of the rule. `rank`: rank concerned, None if unknown. `cure`: how to
        fix it. Equal errors are recorded again.
        """
        location = self.get_location(line, rank)
        self._errors.append(Diagnostic(code, message, Severity.ERROR, location, cure))

    def warn(
        self,
        code: str,
        message: str,
        line: int,
        *,
        rank: int | None = None,
        cure: str = "",
    ) -> None:
        """Report a warning at a line of the file immediately, without recording an error.

        `code`: identifier of the rule. `rank`: rank concerned, None if unknown. `cure`: how to
        avoid it.
        """
        location = self.get_location(line, rank)
        self._report(Diagnostic(code, message, Severity.WARNING, location, cure))

    def add_errors_at(
        self,
        code: str,
        is_wrong: BoolArray,
        line: Int64Array,
        message: Callable[[int], str],
        *,
        rank: Int64Array | None = None,
        cure: str = "",
    ) -> None:
        """Record an error for each of the first 5 rows where `is_wrong` is True.

        If there are more such rows, the message of the fifth error gives the number of further
        rows. `is_wrong`, `line`, `rank`: one entry per row; a negative rank is unknown. `message`
        is called with the row number to build the text, only for the recorded rows.
        """
        rows = np.flatnonzero(is_wrong)
        shown = rows[:_MAX_SHOWN_PER_RULE].tolist()
        for row in shown:
            # The message of the last row shown counts the hidden rows.
            hidden = len(rows) - len(shown) if row == shown[-1] else 0
            text = message(row) + _format_more(hidden)
            self.add_error(code, text, int(line[row]), rank=_get_rank(rank, row), cure=cure)

    def warn_at(
        self,
        code: str,
        is_odd: BoolArray,
        line: Int64Array,
        message: Callable[[int], str],
        *,
        rank: Int64Array | None = None,
        cure: str = "",
    ) -> None:
        """Report a warning for the first row where `is_odd` is True; no report if no row is.

        The message gives the number of further rows. Arguments as in `add_errors_at`.
        """
        rows = np.flatnonzero(is_odd)
        if not len(rows):
            return
        row = int(rows[0])
        text = message(row) + _format_more(len(rows) - 1)
        self.warn(code, text, int(line[row]), rank=_get_rank(rank, row), cure=cure)

    def raise_errors(self) -> None:
        """Raise `InputError` with all recorded errors, sorted by line; return if there are none."""
        if self._errors:
            # Phases record errors in their own order; users read the file from the top.
            raise InputError(sorted(self._errors, key=lambda error: error.location.line or 0))


def _format_more(number: int) -> str:
    """Suffix of a message: ` (and N more like this)`; empty for 0."""
    return f" (and {number} more like this)" if number else ""


def _get_rank(rank: Int64Array | None, row: int) -> int | None:
    """Return the rank of a row; None if there is no column or the rank is negative (unknown)."""
    if rank is None or rank[row] < 0:
        return None
    return int(rank[row])
