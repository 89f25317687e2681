"""Collect the reasons why a runtime refuses a file, and read numbers as the runtimes do."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import lru_cache

from collhub_msccl.findings import NumberState, parse_number
from collhub_msccl.runtimes.known_runtimes import Runtime
from hub_core.model import Diagnostic, Location, Severity

_MAX_SHOWN_PER_CODE = 5
_LONG_MAX = (1 << 63) - 1
_MAX_EXACT_DIGITS = 18


class Refusals:
    """Findings of the load check: refusals, and warnings of constructs that load but are harmful.

    Iteration yields the first 5 findings of each code, one per cause, with the number of further
    findings.
    """

    def __init__(self, file: str, runtime: Runtime) -> None:
        self.runtime = runtime
        self.is_any = False
        self._file = file
        # By code and cause: the first finding, and the number of findings.
        self._findings: dict[str, dict[Hashable, tuple[Diagnostic, int]]] = {}
        # Subjects already reported by `refuse_once`.
        self._subjects: set[tuple[str, str]] = set()

    def __iter__(self) -> Iterator[Diagnostic]:
        """Yield the findings to show, and a note on the number of hidden ones."""
        for findings_by_cause in self._findings.values():
            shown = list(findings_by_cause.values())[:_MAX_SHOWN_PER_CODE]
            for first, number_of_findings in shown:
                more = number_of_findings - 1
                words = f" (and {more} more for this reason)" if more else ""
                yield replace(first, message=first.message + words)
            hidden = len(findings_by_cause) - len(shown)
            if hidden > 0:
                more_words = f"and {hidden} more findings of this kind"
                yield Diagnostic(shown[0][0].code, more_words, Severity.NOTE, Location(self._file))

    def refuse(
        self,
        code: str,
        message: str,
        line: int,
        cure: str = "",
        cause: Hashable = None,
    ) -> None:
        """Record a reason for which the runtime refuses the file.

        `cause`: findings of a code with an equal cause are merged into the first; None: never
        merged.
        """
        self.is_any = True
        self._add(code, message, line, Severity.ERROR, cure, cause)

    def refuse_once(
        self,
        code: str,
        subject: str,
        message: str,
        line: int,
        cure: str = "",
    ) -> None:
        """Refuse for a defect that many elements share: only the first call per (code, subject)
        counts."""
        if (code, subject) in self._subjects:
            return
        self._subjects.add((code, subject))
        self.refuse(code, message, line, cure)

    def warn(
        self,
        code: str,
        message: str,
        line: int,
        cure: str = "",
        cause: Hashable = None,
    ) -> None:
        """Record a construct that the runtime accepts, but with harmful consequences; `cause` as
        in `refuse`."""
        self._add(code, message, line, Severity.WARNING, cure, cause)

    def _add(
        self,
        code: str,
        message: str,
        line: int,
        severity: Severity,
        cure: str,
        cause: Hashable,
    ) -> None:
        """Record a finding, merged with an earlier one of equal code and cause."""
        findings_by_cause = self._findings.setdefault(code, {})
        location = Location(self._file, line)
        # Without a cause every finding is separate.
        subject = len(findings_by_cause) if cause is None else cause
        new = Diagnostic(code, message, severity, location, cure)
        first, count = findings_by_cause.get(subject, (new, 0))
        findings_by_cause[subject] = first, count + 1


@lru_cache(maxsize=1 << 14)
def read_number(text: str) -> int:
    """Number as read by C's strtol: 0 without digits, and characters after the digits are ignored.

    Numbers above 2^31 - 1 of at most 18 digits are returned exactly, larger ones as 2^63 - 1.
    """
    value, state = parse_number(text)
    if state is not NumberState.OUT_OF_RANGE:
        return value
    # Sizes in bytes are 64-bit; strtol saturates at the maximum.
    if text.isdecimal() and len(text) <= _MAX_EXACT_DIGITS:
        return int(text)
    return _LONG_MAX
