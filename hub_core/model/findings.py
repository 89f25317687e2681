"""Collect diagnostics by code; at most `CAP` of each code are listed, the rest is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hub_core.columns import Int64Array
from hub_core.model.diagnostics import Diagnostic, Location, Severity
from hub_core.model.steps import StepTable

CAP = 8
"""Maximum number of listed findings per code; further ones are only counted."""


@dataclass(slots=True)
class Findings:
    """Collected diagnostics, grouped by code in the order of first appearance.

    At most `CAP` of each code are listed; the rest is counted. `file`: used in locations.
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
        """Add one finding. If `CAP` findings of the code are listed, it is only counted."""
        listed = self._by_code.setdefault(code, [])
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
        """Add one finding per row.

        `say(row)` creates its message and is called for listed rows only.
        """
        for row in rows[:CAP].tolist():
            self.add(code, say(row), steps.location(row, self.file), cure)
        self.count(code, len(rows) - CAP)

    def count(self, code: str, number: int) -> None:
        """Count further findings of a code of which one is listed; `number` <= 0 has no effect."""
        if number > 0:
            self._count[code] += number

    def copy(self) -> Findings:
        """Return an independent copy."""
        listed = {code: list(items) for code, items in self._by_code.items()}
        return Findings(self.file, listed, dict(self._count))

    def note(self, code: str, message: str) -> None:
        """Add a note on the entire file; notes are not errors."""
        location = Location(self.file)
        self.add(code, message, location, severity=Severity.NOTE)

    def has(self, code: str) -> bool:
        """Whether there is a finding of this code."""
        return code in self._count

    def has_errors(self, besides: str = "") -> bool:
        """Whether there is a finding with severity ERROR whose code is not `besides`."""
        # Every counted finding has a listed one with its code and severity.
        codes = self._by_code.keys() - {besides}
        listed = [item for code in codes for item in self._by_code[code]]
        return any(item.severity is Severity.ERROR for item in listed)

    def __iter__(self) -> Iterator[Diagnostic]:
        """Yield the diagnostics code by code, with a note on the number of unlisted ones."""
        for code, listed in self._by_code.items():
            yield from listed
            rest = self._count[code] - len(listed)
            if rest:
                message = f"and {rest} more findings of this kind"
                yield Diagnostic(code, message, Severity.NOTE, Location(self.file))
