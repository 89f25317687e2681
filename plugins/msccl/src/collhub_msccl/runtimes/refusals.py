"""Collect why a runtime does not take a file, and read the numbers that it compares."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import lru_cache

from collhub_msccl.numbers import NumberState, parse_number
from collhub_msccl.runtimes.known_runtimes import Runtime
from hub_core.model import Diagnostic, Location, Severity

_SHOWN_PER_RULE = 5
_LONG_MAX = (1 << 63) - 1
_DIGITS_OF_LONG = 18


class Refusals:
    """Findings of the load check: refusals, and warnings of what a runtime takes but should not.

    Iterating gives the first few findings of each code, one for each cause, and a note on how many
    more there are.
    """

    def __init__(self, file: str, runtime: Runtime) -> None:
        self.runtime = runtime
        self.is_any = False
        self._file = file
        # By code and root cause the first finding, and how many there are.
        self._found: dict[str, dict[Hashable, tuple[Diagnostic, int]]] = {}
        # What has been told of, for rules that tell each thing once.
        self._subjects: set[tuple[str, str]] = set()

    def __iter__(self) -> Iterator[Diagnostic]:
        for found in self._found.values():
            shown = list(found.values())[:_SHOWN_PER_RULE]
            for first, number_of_findings in shown:
                more = number_of_findings - 1
                words = f" (and {more} more for this reason)" if more else ""
                yield replace(first, message=first.message + words)
            hidden = len(found) - len(shown)
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
        """The runtime does not take the file.

        `cause`: what findings of the code have in common of which one tells the others.
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
        """The same for what many elements have in common: told at the first one."""
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
        """The runtime takes it, with consequences."""
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
        found = self._found.setdefault(code, {})
        place = Location(self._file, line)
        # Without a cause in common every finding is one of its own.
        subject = len(found) if cause is None else cause
        new = Diagnostic(code, message, severity, place, cure)
        first, count = found.get(subject, (new, 0))
        found[subject] = first, count + 1


@lru_cache(maxsize=1 << 14)
def number(text: str) -> int:
    """A number as C's strtol has it: no digits is 0, and what follows the digits is cut."""
    value, state = parse_number(text)
    if state is not NumberState.OUT_OF_RANGE:
        return value
    # Sizes in bytes are 64-bit; strtol stops at the largest.
    if text.isdecimal() and len(text) <= _DIGITS_OF_LONG:
        return int(text)
    return _LONG_MAX
