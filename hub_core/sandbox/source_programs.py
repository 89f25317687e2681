"""Readers of programs: their common options, and checks of programs before and after execution.

This module imports nothing heavy, because the options are listed with every format.
"""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.model import Diagnostic, InputError, Location, Severity, UsageError
from hub_core.plugin_api import OptionType, Source, option, optional

if TYPE_CHECKING:
    from hub_core.sandbox.running import Report


@dataclass(frozen=True, slots=True)
class SourceProgramOptions:
    """Arguments and limits of a program."""

    arguments: str | None = optional(
        "command line arguments of the program, quoted as in a shell; or after --"
    )
    program: str | None = optional(
        "number (from 1) or name of the program to read, if the file defines several"
    )
    time_limit: int = option(
        OptionType.INT,
        60,
        "limit of CPU time in seconds; the limit of elapsed time is twice this and 5 s",
        minimum=1,
    )
    memory_limit: int = option(
        OptionType.SIZE, 4 << 30, "limit of memory of the program and all processes it starts"
    )
    sandbox: bool = option(
        OptionType.BOOL,
        True,
        "let the program write no files, open no connections and signal no other processes, as far "
        "as the kernel supports it; see 'collhub doctor'",
    )


_MAX_BYTES = 16 << 20


def parsed_source(name: str, content: bytes) -> ast.Module:
    """Parse a program without executing it.

    `name`: the program in messages. Raises `InputError`: code `too-large` for more than 16 MiB,
    `syntax` with the line for a syntax error, and `syntax` without a line for null bytes and
    expressions that are nested too deeply.
    """
    place = Location(name)
    if len(content) > _MAX_BYTES:
        message = f"{len(content)} bytes are too long for a program"
        raise InputError(message, location=place, code="too-large")
    try:
        return ast.parse(content, name)
    except SyntaxError as error:
        message = f"is no Python program: {error.msg}"
        at_line = Location(name, error.lineno)
        raise InputError(message, location=at_line, code="syntax") from None
    except (ValueError, MemoryError, RecursionError) as error:
        # Null bytes, and expressions too deep for the parser.
        message = f"is no Python program: {error}"
        raise InputError(message, location=place, code="syntax") from None


def imports_any(node: ast.AST, packages: tuple[str, ...]) -> bool:
    """Return whether a node is an import statement of one of these packages or their modules.

    Only the part of a name before the first `.` is compared; one matching name is sufficient. For
    `from`, the dots that begin a relative name are ignored: `from .torch import x` is an import of
    `torch`, and `from . import x` is one of nothing. False for other nodes.
    """
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    return any(name.partition(".")[0] in packages for name in names)


def shell_words(text: str | None) -> list[str]:
    """Split command line arguments like a shell; [] for None and for an empty text.

    Quotes and backslashes have their meaning, but nothing is expanded. Raises `UsageError` for
    unbalanced quotes.
    """
    if text is None:
        return []
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"option arguments: {error}", cure="quote as in a shell") from None


def warn_of_output(source: Source, report: Report) -> None:
    """Report a warning (code `program-prints`) if the program printed; its output is ignored.

    The warning quotes the first printed line and is located at the line of the program that printed
    it. Nothing is reported for a program without output.
    """
    printed = report.get("printed")
    if printed:
        message = f"the output of the program is ignored: {printed['text']!r}"
        warn_at(source, "program-prints", message, printed["line"])


def warn_at(source: Source, code: str, message: str, line: int) -> None:
    """Report a warning to the receiver of `source`.

    `line`: line of the program; 0 or less means that the warning has no line.
    """
    place = Location(source.name, line if line > 0 else None)
    source.report(Diagnostic(code, message, Severity.WARNING, place))
