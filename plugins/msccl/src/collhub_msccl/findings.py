"""Collect what is wrong with a file, so that one run tells all of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from collhub_columns import BoolArray, Int64Array

from hub_core.model import Diagnostic, InputError, Location, Severity

# A defect of a generator is in every thread block: a screen full of copies would hide the others.
_SHOWN_PER_RULE = 5


class FileFindings:
    """Errors, raised together by `raise_errors`, and warnings, passed on to `report` at once."""

    def __init__(self, file: str, report: Callable[[Diagnostic], None]) -> None:
        self._file = file
        self._report = report
        self._errors: list[Diagnostic] = []

    def place(self, line: int, rank: int | None = None) -> Location:
        """Location in the file of a 1-based line."""
        return Location(self._file, line, None, rank)

    def error(
        self,
        code: str,
        message: str,
        line: int,
        *,
        rank: int | None = None,
        cure: str = "",
    ) -> None:
        """Record a defect that makes the file unusable."""
        place = self.place(line, rank)
        self._errors.append(Diagnostic(code, message, Severity.ERROR, place, cure))

    def warn(
        self,
        code: str,
        message: str,
        line: int,
        *,
        rank: int | None = None,
        cure: str = "",
    ) -> None:
        """Report what was accepted, but the user should know."""
        place = self.place(line, rank)
        self._report(Diagnostic(code, message, Severity.WARNING, place, cure))

    def errors_at(
        self,
        code: str,
        is_wrong: BoolArray,
        line: Int64Array,
        message: Callable[[int], str],
        *,
        rank: Int64Array | None = None,
        cure: str = "",
    ) -> None:
        """Record an error for each of the first rows of `is_wrong`; the last tells how many follow.

        `is_wrong`, `line`, `rank`: one entry a row, ranks below 0 unknown; `message` is asked for
        wrong rows only.
        """
        rows = np.flatnonzero(is_wrong)
        shown = rows[:_SHOWN_PER_RULE].tolist()
        for row in shown:
            # The last one shown speaks for those that are not.
            hidden = len(rows) - len(shown) if row == shown[-1] else 0
            text = message(row) + _more(hidden)
            self.error(code, text, int(line[row]), rank=_rank_of(rank, row), cure=cure)

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
        """Report the first row of `is_odd`, and how many more there are."""
        rows = np.flatnonzero(is_odd)
        if not len(rows):
            return
        row = int(rows[0])
        text = message(row) + _more(len(rows) - 1)
        self.warn(code, text, int(line[row]), rank=_rank_of(rank, row), cure=cure)

    def raise_errors(self) -> None:
        """Raise `InputError` with all errors in the order of the file, if there are any."""
        if self._errors:
            # Phases find errors in their own order; users read the file from the top.
            raise InputError(sorted(self._errors, key=lambda found: found.location.line or 0))


def _more(number: int) -> str:
    """Suffix of a message that stands for `number` others."""
    return f" (and {number} more like this)" if number else ""


def _rank_of(rank: Int64Array | None, row: int) -> int | None:
    """Rank of a row; None where there is none or its id is no number."""
    if rank is None or rank[row] < 0:
        return None
    return int(rank[row])
