"""Diagnostics with their locations, the exceptions of the hub, and the exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


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
    among the steps of `rank`.
    """

    file: str | None = None
    line: int | None = None
    byte: int | None = None
    rank: int | None = None
    step: int | None = None

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
    def __reduce__(self) -> tuple[type[HubError], tuple[tuple[Diagnostic, ...]]]:
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


def closest(name: str, known: Iterable[str]) -> str:
    """Return the cure `did you mean 'x'?` for a misspelt name, or "" if no name is similar."""
    # Imported here, because it is rarely needed.
    import difflib

    close = difflib.get_close_matches(name, sorted(set(known)), 1, 0.6)
    return f"did you mean {close[0]!r}?" if close else ""
