"""Collect what is wrong with a file, so that one run tells all of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hub_core.diagnostics import Diagnostic, InputError, Location, Severity

_SHOWN_PER_RULE = 5


class FileFindings:
    """Errors, raised together by `raise_errors`, and warnings, passed on to `report` at once."""

    def __init__(self, file: str, report: Callable[[Diagnostic], None]) -> None:
        self._file = file
        self._report = report
        self._errors: list[Diagnostic] = []

    def place(self, line: int, rank: int | None = None) -> Location:
        """Where in the file."""
        return Location(self._file, line, None, rank)

    def error(
        self, code: str, message: str, line: int, *, rank: int | None = None, cure: str = ""
    ) -> None:
        """Record a defect that makes the file unusable."""
        self._errors.append(Diagnostic(code, message, Severity.ERROR, self.place(line, rank), cure))

    def warn(
        self, code: str, message: str, line: int, *, rank: int | None = None, cure: str = ""
    ) -> None:
        """Report what was accepted, but the user should know."""
        self._report(Diagnostic(code, message, Severity.WARNING, self.place(line, rank), cure))

    def errors_at(
        self,
        code: str,
        is_wrong: npt.NDArray[np.bool_],
        line: npt.NDArray[np.int64],
        message: Callable[[int], str],
        *,
        rank: npt.NDArray[np.int64] | None = None,
        cure: str = "",
    ) -> None:
        """Record one error for each row of `is_wrong`: the first few, and how many more there are."""
        rows = np.flatnonzero(is_wrong)
        for count, row in enumerate(rows[:_SHOWN_PER_RULE].tolist(), 1):
            more = (
                f" (and {len(rows) - count} more like this)"
                if count == _SHOWN_PER_RULE < len(rows)
                else ""
            )
            self.error(code, message(row) + more, int(line[row]), rank=_at(rank, row), cure=cure)

    def warn_at(
        self,
        code: str,
        is_odd: npt.NDArray[np.bool_],
        line: npt.NDArray[np.int64],
        message: Callable[[int], str],
        *,
        rank: npt.NDArray[np.int64] | None = None,
        cure: str = "",
    ) -> None:
        """Report the first row of `is_odd`, and how many more there are."""
        rows = np.flatnonzero(is_odd)
        if len(rows):
            row = int(rows[0])
            more = f" (and {len(rows) - 1} more like this)" if len(rows) > 1 else ""
            self.warn(code, message(row) + more, int(line[row]), rank=_at(rank, row), cure=cure)

    def raise_errors(self) -> None:
        """Raise `InputError` with all errors in the order of the file, if there are any."""
        if self._errors:
            raise InputError(sorted(self._errors, key=lambda found: found.location.line or 0))


def _at(rank: npt.NDArray[np.int64] | None, row: int) -> int | None:
    return None if rank is None or rank[row] < 0 else int(rank[row])
