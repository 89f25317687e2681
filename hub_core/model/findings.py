"""Diagnostics under construction: codes in a fixed order, capped, in words only where listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hub_core.columns import Int64Array
from hub_core.model.diagnostics import Diagnostic, Location, Severity
from hub_core.model.steps import StepTable

CAP = 8
"""How many findings of one code are listed; the rest is counted."""


@dataclass(slots=True)
class Findings:
    """Diagnostics under construction: codes in the order of their first appearance.

    At most `CAP` of each code are listed; the rest is counted. `file` is named in their places.
    """

    file: str | None = None
    _by_code: dict[str, list[Diagnostic]] = field(default_factory=dict)
    _count: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        code: str,
        message: str,
        location: Location,
        cure: str = "",
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Add one finding; beyond the cap it is only counted."""
        listed = self._by_code.setdefault(code, [])
        # Counted whether it is listed or not, for the line that says how many more there are.
        self._count[code] = self._count.get(code, 0) + 1
        if len(listed) < CAP:
            listed.append(Diagnostic(code, message, severity, location, cure))

    def add_rows(
        self,
        code: str,
        steps: StepTable,
        rows: Int64Array,
        say: Callable[[int], str],
        cure: str = "",
    ) -> None:
        """Add one finding a row; only what is listed is put in words."""
        # A wrong file may have a finding for every one of its million rows.
        for row in rows[:CAP].tolist():
            self.add(code, say(row), steps.location(row, self.file), cure)
        self.count(code, len(rows) - CAP)

    def count(self, code: str, number: int) -> None:
        """Count findings of a code that is listed already, without putting them in words."""
        if number > 0:
            self._count[code] += number

    def copy(self) -> Findings:
        """The same findings, to be added to apart from these."""
        listed = {code: list(items) for code, items in self._by_code.items()}
        return Findings(self.file, listed, dict(self._count))

    def note(self, code: str, message: str) -> None:
        """Add a remark on the whole file that does not make the algorithm wrong."""
        place = Location(self.file)
        self.add(code, message, place, severity=Severity.NOTE)

    def has(self, code: str) -> bool:
        """Whether this code was found."""
        return code in self._count

    def has_errors(self, besides: str = "") -> bool:
        """Whether something other than notes was found, of another code than `besides`."""
        # What is only counted has a listed one of its code, and of its severity.
        codes = self._by_code.keys() - {besides}
        listed = [item for code in codes for item in self._by_code[code]]
        return any(item.severity is Severity.ERROR for item in listed)

    def __iter__(self) -> Iterator[Diagnostic]:
        """Diagnostics code by code, and how many of each are not listed."""
        for code, listed in self._by_code.items():
            yield from listed
            rest = self._count[code] - len(listed)
            if rest:
                message = f"and {rest} more findings of this kind"
                yield Diagnostic(code, message, Severity.NOTE, Location(self.file))
