"""Diagnostics, exceptions with exit codes, losses of conversions, and collections of findings.

This module imports no numpy, because the start of the program imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub_core.columns import Int64Array
    from hub_core.model.steps import StepTable

CAP = 8
"""Maximum number of listed findings per code; further ones are only counted."""


# Scripts rely on these numbers; 70 is the internal error of sysexits.h.
class ExitCode(IntEnum):
    """Exit statuses of the `collhub` program."""

    DONE = 0
    INVALID = 1
    USAGE = 2
    PLUGIN = 3
    LOSSY = 4
    BUG = 70


class Severity(StrEnum):
    """Severity of a finding. With an ERROR the subject cannot be used as it claims."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Location:
    """Location of a finding. Every part is optional.

    `line` is 1-based; `byte` is a 0-based offset in the file; `step` is the 0-based row of the step
    among the steps of `rank`. `path`: JSON path, of which reports for CI find the line; it is not a
    part of the text.
    """

    file: str | None = None
    line: int | None = None
    byte: int | None = None
    rank: int | None = None
    step: int | None = None
    path: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        text = self.file or ""
        # Readers use -1 for an unknown line.
        if self.line is not None and self.line >= 0:
            text = f"{text}:{self.line}" if text else f"line {self.line}"
        byte = f"byte {self.byte}" if self.byte is not None else ""
        within = []
        if self.rank is not None:
            within.append(f"rank {self.rank}")
        if self.step is not None:
            within.append(f"step {self.step}")
        return ": ".join(part for part in (text, byte, ", ".join(within)) if part)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: a stable kebab-case `code`, the problem, its location and its remedy, `cure`."""

    code: str
    message: str
    severity: Severity = Severity.ERROR
    location: Location = field(default_factory=Location)
    cure: str = ""

    def __str__(self) -> str:
        lead = str(self.location)
        text = f"{lead}: {self.message}" if lead else self.message
        return f"{text}; {self.cure}" if self.cure else text


class HubError(Exception):
    """Base class of all expected errors. The first of its `diagnostics` is the message."""

    exit_code = ExitCode.INVALID
    default_code = "invalid-input"

    def __init__(
        self,
        message: str | Diagnostic | Iterable[Diagnostic],
        *,
        location: Location | None = None,
        cure: str = "",
        code: str = "",
    ) -> None:
        if isinstance(message, str):
            # Without a code, that of the class is used.
            code, known_location = code or self.default_code, location or Location()
            message = Diagnostic(code, message, location=known_location, cure=cure)
        diagnostics = (message,) if isinstance(message, Diagnostic) else tuple(message)
        self.diagnostics: tuple[Diagnostic, ...] = diagnostics
        super().__init__(str(diagnostics[0]))

    # By default, an exception is pickled as its message, from which it cannot be created again.
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.diagnostics,)


class InputError(HubError):
    """An input is invalid, or verification failed (exit 1)."""


class UsageError(HubError):
    """The request is wrong: an unknown format, option, size or topology text (exit 2)."""

    exit_code = ExitCode.USAGE
    default_code = "usage"


class PluginError(HubError):
    """A plugin is missing, broken or incompatible (exit 3)."""

    exit_code = ExitCode.PLUGIN
    default_code = "plugin"


class LossyError(HubError):
    """A conversion would lose data, and the loss policy refuses this (exit 4)."""

    exit_code = ExitCode.LOSSY
    default_code = "lossy"


def closest(name: str, known: Iterable[str], min_similarity: float = 0.6) -> str:
    """Return the cure `did you mean 'x'?` with the most similar known name, or "".

    The result is "" if no name has a similarity (the ratio of `difflib`, 0 to 1; case matters)
    of at least `min_similarity`. Of equally similar names, the alphabetically last one is used.
    """
    # Imported here, because it is rarely needed.
    import difflib

    close = difflib.get_close_matches(name, sorted(set(known)), 1, min_similarity)
    return f"did you mean {close[0]!r}?" if close else ""


@dataclass(frozen=True, slots=True)
class Loss:
    """A feature that the target format cannot express, where it is used, and the consequence.

    `feature`: the part that differs when the output is read back: a column of the step table in
    words (`lane`, `control dependencies`), `steps`, `extensions`, ... The conformance kit compares
    losses with such differences.
    """

    feature: str
    where: str
    consequence: str

    def __str__(self) -> str:
        """Return one line of text."""
        return f"{self.feature} ({self.where}): {self.consequence}"


class LossPolicy(StrEnum):
    """Policy for losses; `--strict` on the command line is REFUSE."""

    IGNORE = "ignore"
    WARN = "warn"
    REFUSE = "refuse"


def apply_policy(losses: Sequence[Loss], policy: LossPolicy) -> None:
    """Raise `LossyError` with all losses if `policy` is REFUSE and there are any."""
    if losses and policy is LossPolicy.REFUSE:
        refusals = [f"refused, the conversion loses: {loss}" for loss in losses]
        raise LossyError([Diagnostic("lossy", refusal) for refusal in refusals])


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
        """Count one finding, and list it unless `CAP` findings of its code are already listed.

        `location`: the place of the fault. `cure`: the remedy, "" for none.
        """
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
        """Add one finding per row of the step table, in the order of `rows`, at the row's location.

        `say(row)` returns the message. It is called for the first `CAP` rows only; the remaining
        rows are only counted. Without rows, no finding is added.
        """
        for row in rows[:CAP].tolist():
            self.add(code, say(row), steps.location(row, self.file), cure)
        self.count(code, len(rows) - CAP)

    def count(self, code: str, number: int) -> None:
        """Count further findings of a code of which one is listed; `number` <= 0 has no effect."""
        if number > 0:
            self._count[code] += number

    def copy(self) -> Findings:
        """Return an independent copy: later additions to one do not change the other.

        The listed diagnostics themselves are shared; they cannot be changed.
        """
        listed = {code: list(items) for code, items in self._by_code.items()}
        return Findings(self.file, listed, dict(self._count))

    def note(self, code: str, message: str) -> None:
        """Add a note (severity NOTE) that is located at the entire file; notes are not errors.

        Of a code, at most `CAP` findings are listed; further ones are only counted.
        """
        location = Location(self.file)
        self.add(code, message, location, severity=Severity.NOTE)

    def has(self, code: str) -> bool:
        """Whether there is a finding of this code."""
        return code in self._count

    def has_errors(self, besides: str = "") -> bool:
        """Return whether any finding of severity ERROR was added, except with the code `besides`.

        By default all codes count. Only listed findings are examined; this suffices because all
        findings of a code have the same severity.
        """
        # Every counted finding has a listed one with its code and severity.
        codes = self._by_code.keys() - {besides}
        listed = [item for code in codes for item in self._by_code[code]]
        return any(item.severity is Severity.ERROR for item in listed)

    def __iter__(self) -> Iterator[Diagnostic]:
        """Yield the listed diagnostics code by code, in the order of the codes' first findings.

        After the diagnostics of a code, a note states how many more there are, if not all are
        listed.
        """
        for code, listed in self._by_code.items():
            yield from listed
            rest = self._count[code] - len(listed)
            if rest:
                message = f"and {rest} more findings of this kind"
                yield Diagnostic(code, message, Severity.NOTE, Location(self.file))
