"""What verification found: one verdict a mode, and findings in a fixed order, capped per code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hub_core.diagnostics import Diagnostic, Location, Severity
from hub_core.steps import StepTable

CAP = 8
"""How many findings of one code are listed; the rest is counted."""


@dataclass(frozen=True, slots=True)
class ModeReport:
    """The outcome for one mode of calling, in place or out of place.

    `verdict`: "ok", "wrong", "race" (right in one sequential order, but conflicting accesses are not ordered)
    or "wrong+race". What concerns every mode (matching, bounds, deadlock) makes each mode wrong but stands in
    `VerifyReport.diagnostics` only; `diagnostics` holds the races and contents of this mode.
    """

    is_claimed: bool
    verdict: str
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of `verify`.

    `modes`: "in_place" and "out_of_place", claimed or not. `diagnostics`: what concerns every mode, then the
    findings of the claimed modes; within these first causes first. `method`: how contents were compared:
    "exact" (multisets), "fingerprint" (64-bit sums) or "none"; `error_probability`: upper bound on the
    probability that a wrong output passed, over the random fingerprints.
    """

    modes: Mapping[str, ModeReport]
    diagnostics: tuple[Diagnostic, ...]
    method: str
    error_probability: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every claimed mode is ok."""
        return all(mode.verdict == "ok" for mode in self.modes.values() if mode.is_claimed)


@dataclass(slots=True)
class Findings:
    """Diagnostics under construction: codes in the order of their first appearance, at most `CAP` of each."""

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
        self._count[code] = self._count.get(code, 0) + 1
        if len(listed) < CAP:
            listed.append(Diagnostic(code, message, severity, location, cure))

    def add_rows(
        self,
        code: str,
        steps: StepTable,
        rows: npt.NDArray[np.int64],
        say: Callable[[int], str],
        cure: str = "",
    ) -> None:
        """Add one finding a row; only what is listed is put in words."""
        for row in rows[:CAP].tolist():
            self.add(code, say(row), steps.location(row, self.file), cure)
        self.count(code, len(rows) - CAP)

    def count(self, code: str, number: int) -> None:
        """Count findings of a code that is listed already, without putting them in words."""
        if number > 0:
            self._count[code] += number

    def note(self, code: str, message: str) -> None:
        """Add a remark that does not make the algorithm wrong."""
        self.add(code, message, Location(self.file), severity=Severity.NOTE)

    def has(self, code: str) -> bool:
        """Whether this code was found."""
        return code in self._count

    def has_errors(self, besides: str = "") -> bool:
        """Whether something other than notes was found, of another code than `besides`."""
        return any(
            item.severity is Severity.ERROR
            for code, items in self._by_code.items()
            if code != besides
            for item in items
        )

    def __iter__(self) -> Iterator[Diagnostic]:
        for code, listed in self._by_code.items():
            yield from listed
            rest = self._count[code] - len(listed)
            if rest:
                yield Diagnostic(
                    code,
                    f"and {rest} more findings of this kind",
                    Severity.NOTE,
                    Location(self.file),
                )


def verdict(is_wrong: bool, is_racy: bool) -> str:
    """Name the verdict of a mode."""
    return (
        "+".join(name for name, holds in (("wrong", is_wrong), ("race", is_racy)) if holds) or "ok"
    )
