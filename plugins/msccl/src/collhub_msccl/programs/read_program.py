"""Read an MSCCLang program by executing it: the operations that it records become the algorithm."""

from __future__ import annotations

import ast
import shlex
from hashlib import sha256
from importlib.metadata import version

from collhub_msccl.language.lowering import lower
from collhub_msccl.language.trace import Trace
from collhub_msccl.programs.process import ProcessLimits, Report, run_program
from hub_core.algorithm import Algorithm, Provenance
from hub_core.diagnostics import Diagnostic, InputError, Location, Severity, UsageError
from hub_core.plugins.contract import Options, Source

_PACKAGES = ("msccl", "collhub_msccl")
_MOST_BYTES = 16 << 20


def read(source: Source, options: Options) -> Algorithm:
    """Execute the program in a process of its own and return what it describes.

    What is odd but has a meaning goes to `source.report`: output of the program, a failed `Check()`. Raises
    `InputError` with the program's line for a program that fails, and for a file that is no program of the language,
    which is not executed.
    """
    content = source.content()
    _check_program(source.name, content)
    limits = ProcessLimits(_positive(options, "time_limit"), _positive(options, "memory_limit"))
    report = run_program(source.name, content, _arguments(options), limits)
    _warn(source, report)
    trace = _trace(source.name, report)
    if trace.is_in_place and trace.has_two_buffers:
        message = "the collective is in place, but init_buffers gives input and output of a rank as two lists"
        cure = "the runtime has one buffer there: give one list for both, or state inplace=False"
        source.report(
            Diagnostic(
                "two-buffers", message, Severity.WARNING, Location(source.name, trace.line), cure
            )
        )
    digest = sha256(content).hexdigest()
    return lower(
        trace,
        source.name,
        Provenance("collhub-msccl", version("collhub-msccl"), source.name, digest, _given(options)),
    )


def _check_program(name: str, content: bytes) -> None:
    """Refuse what cannot be a program of the language, without executing it."""
    if len(content) > _MOST_BYTES:
        raise InputError(
            f"{len(content)} bytes are too long for a program",
            location=Location(name),
            code="too-large",
        )
    try:
        tree = ast.parse(content, name)
    except SyntaxError as error:
        raise InputError(
            f"is no Python program: {error.msg}",
            location=Location(name, error.lineno),
            code="syntax",
        ) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise InputError(
            f"is no Python program: {error}", location=Location(name), code="syntax"
        ) from None
    if not any(_is_of_language(node) for node in ast.walk(tree)):
        message = "is no MSCCLang program: it neither imports msccl nor makes an MSCCLProgram; it was not executed"
        raise InputError(message, location=Location(name), code="not-a-program")


def _is_of_language(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in _PACKAGES for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] in _PACKAGES
    return isinstance(node, ast.Name) and node.id == "MSCCLProgram"


def _positive(options: Options, name: str) -> int:
    value = options.get(name)
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"option {name}: {value} is not positive")
    return value


def _arguments(options: Options) -> list[str]:
    text = options.get("arguments")
    try:
        return shlex.split(str(text)) if text is not None else []
    except ValueError as error:
        raise UsageError(f"option arguments: {error}", cure="quote as in a shell") from None


def _warn(source: Source, report: Report) -> None:
    for check in report.get("checks", ()):
        more = f" (and {check['count'] - 1} more)" if check["count"] > 1 else ""
        message = f"Check() finds the program wrong: {check['lines'][0]}{more}"
        source.report(
            Diagnostic(
                "check-failed", message, Severity.WARNING, _place(source.name, check["line"])
            )
        )
    if printed := report.get("printed"):
        message = f"the program prints, and nobody reads it here: {printed['text']!r}"
        source.report(
            Diagnostic(
                "program-prints", message, Severity.WARNING, _place(source.name, printed["line"])
            )
        )


def _place(name: str, line: int) -> Location:
    return Location(name, line if line > 0 else None)


def _trace(name: str, report: Report) -> Trace:
    try:
        return Trace.from_json(report["trace"])
    except (KeyError, TypeError) as error:
        raise InputError(
            f"the program's process sent no trace: {error!r}", location=Location(name)
        ) from None


def _given(options: Options) -> dict[str, str]:
    return {"arguments": str(options["arguments"])} if options.get("arguments") is not None else {}
