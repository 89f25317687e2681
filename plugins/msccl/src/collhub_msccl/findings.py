"""Collect the defects of a file, so that one run reports all of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hub_core.columns import BoolArray, Int64Array
from hub_core.model import Diagnostic, InputError, Location, Severity

# A faulty generator repeats its defect in every thread block: a screen full of copies would hide
# the remaining defects.
_MAX_SHOWN_PER_RULE = 5


class FileFindings:
    """Errors, which `raise_errors` raises together, and warnings, which go to `report`
    immediately."""

    def __init__(self, file: str, report: Callable[[Diagnostic], None]) -> None:
        self._file = file
        self._report = report
        self._errors: list[Diagnostic] = []

    def get_location(self, line: int, rank: int | None = None) -> Location:
        """Location of a 1-based line in the file."""
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
        """Record a defect that makes the file unusable."""
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
        """Report a construct that is accepted, but that the user should know about."""
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
        """Record an error for each of the first 5 rows of `is_wrong`.

        The last one gives the number of further rows.

        `is_wrong`, `line`, `rank`: one entry per row; negative ranks are unknown. `message` is
        called only for the rows that are shown.
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
        """Report the first row of `is_odd`, with the number of further rows.

        No report if there is none.
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
    """Rank of a row; None without a rank column or if the rank's id is not a number."""
    if rank is None or rank[row] < 0:
        return None
    return int(rank[row])
