"""Read an MSCCLang program by executing it: the operations that it records become the algorithm."""

from __future__ import annotations

import ast
from dataclasses import replace

from collhub_source_programs import (
    ProcessLimits,
    Report,
    imports_any,
    parsed_source,
    run_program,
    shell_words,
    warn_at,
    warn_of_output,
)

from collhub_msccl.language.lowering import lower
from collhub_msccl.language.trace import Trace
from collhub_msccl.options import ProgramOptions
from collhub_msccl.provenance import provenance_of
from hub_core.model import (
    Algorithm,
    Diagnostic,
    InputError,
    Location,
    Provenance,
    Severity,
    UsageError,
)
from hub_core.plugin_api import Source

_PACKAGES = ("msccl", "collhub_msccl")
_CHILD = "collhub_msccl.language.child:main"


def read(source: Source, options: ProgramOptions) -> Algorithm:
    """Execute the program in a process of its own and return what it describes.

    What is odd but has a meaning goes to `source.report`: output of the program, a failed
    `Check()`. Raises `InputError` with the program's line for a program that fails, and for a file
    that is no program of the language, which is not executed.
    """
    content = source.content()
    # Any file may be named *.py: what is not of the language must not run.
    _check_program(source.name, content)
    limits = ProcessLimits(options.time_limit, options.memory_limit, options.sandbox)
    arguments, program = _chosen(shell_words(options.arguments), options.program, content)
    report = run_program(_CHILD, source.name, content, arguments, limits, program)
    _warn_of_checks(source, report)
    warn_of_output(source, report)
    trace = _in_mode(_trace(source.name, report), options.mode)
    _warn_of_two_buffers(source, trace)
    return lower(trace, source.name, _provenance(source.name, content, options))


def _check_program(name: str, content: bytes) -> None:
    """Refuse what cannot be a program of the language, without executing it."""
    tree = parsed_source(name, content)
    _refuse_mscclpp(name, tree)
    if not any(_is_of_language(node) for node in ast.walk(tree)):
        message = (
            "is no MSCCLang program: it neither imports msccl nor makes an MSCCLProgram;"
            " it was not executed"
        )
        raise InputError(message, location=Location(name), code="not-a-program")


def _refuse_mscclpp(name: str, tree: ast.Module) -> None:
    """Refuse a program of the other language, which has much the same names."""
    for node in ast.walk(tree):
        is_import = imports_any(node, ("mscclpp",))
        if is_import or (isinstance(node, ast.Name) and node.id == "MSCCLPPProgram"):
            raise InputError(
                "is a program of MSCCL++, not of MSCCLang; it was not executed",
                location=Location(name, getattr(node, "lineno", None)),
                cure="run it with the package mscclpp, and convert the plan (JSON) that it writes",
                code="mscclpp-program",
            )


def _is_of_language(node: ast.AST) -> bool:
    """Whether a node imports the language, under either name, or makes a program."""
    is_maker = isinstance(node, ast.Name) and node.id == "MSCCLProgram"
    return is_maker or imports_any(node, _PACKAGES)


def _chosen(
    arguments: list[str],
    stated: str | None,
    content: bytes,
) -> tuple[list[str], str | None]:
    """Arguments of the program, and which one of the file's programs is meant.

    `--program` at the beginning of the arguments says it too, unless the file has such an argument
    of its own.
    """
    is_ours = arguments[:1] == ["--program"] and b"--program" not in content
    if not is_ours or len(arguments) == 1:
        return arguments, stated
    if stated is not None:
        raise UsageError("the program is chosen twice: by -O program and by --program")
    return arguments[2:], arguments[1]


def _warn_of_checks(source: Source, report: Report) -> None:
    """Report calls of `Check()` that found the program wrong."""
    for check in report.get("checks", ()):
        more = f" (and {check['count'] - 1} more)" if check["count"] > 1 else ""
        message = f"Check() finds the program wrong: {check['lines'][0]}{more}"
        warn_at(source, "check-failed", message, check["line"])


def _warn_of_two_buffers(source: Source, trace: Trace) -> None:
    """Report buffers that cannot be what the program means."""
    if not (trace.is_in_place and trace.has_two_buffers):
        return
    message = (
        "the collective is in place, but init_buffers gives input and output of a rank as two lists"
    )
    cure = (
        "the runtime has one buffer there: give one list for both, or state inplace=False"
        " or -O mode=out-of-place"
    )
    place = Location(source.name, trace.line)
    source.report(Diagnostic("two-buffers", message, Severity.WARNING, place, cure))


def _trace(name: str, report: Report) -> Trace:
    """The operations in a report; the process may have sent anything."""
    try:
        return Trace.from_json(report["trace"])
    except (KeyError, TypeError) as error:
        message = f"the program's process sent no trace: {error!r}"
        raise InputError(message, location=Location(name)) from None


def _in_mode(trace: Trace, mode: str | None) -> Trace:
    """The trace of a collective that is in place or not as the user says, not as it says itself."""
    return trace if mode is None else replace(trace, is_in_place=mode == "in-place")


def _provenance(
    name: str,
    content: bytes,
    options: ProgramOptions,
) -> Provenance:
    """Provenance: this plugin, the file, and the arguments that the program got."""
    given: dict[str, str] = {}
    if options.arguments is not None:
        given["arguments"] = options.arguments
    if options.program is not None:
        given["program"] = options.program
    if options.mode is not None:
        given["mode"] = options.mode
    return provenance_of(name, content, given)
