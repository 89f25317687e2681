"""Read an MSCCLang program: execute it and convert the operations that it records to an
algorithm.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from collhub_msccl.findings import build_provenance
from collhub_msccl.language.lowering import lower
from collhub_msccl.language.trace import Trace
from collhub_msccl.plugin import LanguageOptions
from hub_core.model import (
    Algorithm,
    Diagnostic,
    InputError,
    Location,
    Severity,
    UsageError,
)
from hub_core.plugin_api import Source
from hub_core.sandbox import (
    ProcessLimits,
    imports_any,
    parsed_source,
    run_program,
    shell_words,
    warn_at,
    warn_of_output,
)

_START = b"""\
from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

"""
_RING = b"""\
with MSCCLProgram("ring", fully_connected(3), AllReduce(3, 3, True), 1):
    for start in range(3):
        c = chunk(start, Buffer.input, start)
        for step in (1, 2):
            c = chunk((start + step) % 3, Buffer.input, start).reduce(c)
        for step in (3, 4):
            c = c.copy((start + step) % 3, Buffer.input, start)
    XML()
    Check()
"""
_STAGED = (
    b'with MSCCLProgram("staged", fully_connected(4), AllToAll(4, 1, False), 2,'
    b" threadblock_policy=ThreadblockPolicy.manual):\n"
    b"    for source in range(4):\n"
    b"        for target in range(4):\n"
    b'            c = chunk(source, Buffer.input, target).copy(target, "staged", source,'
    b" sendtb=target, recvtb=source)\n"
    b"            (c or chunk(source, Buffer.input, target))"
    b".copy(target, Buffer.output, source, sendtb=4)\n"
    b"    XML()\n"
    b"    Check()\n"
)


def samples() -> Sequence[Source]:
    """Return two programs for the conformance kit.

    An in-place ring all-reduce of 3 ranks, and an all-to-all of 4 ranks in two instances, through
    scratch and with explicit thread blocks.
    """
    ring = Source.of_bytes("ring.py", _START + _RING)
    staged = Source.of_bytes("staged.py", _START + _STAGED)
    return [ring, staged]


# `sccl` and `SCCLProgram` are the names of the language until 2022.
_PACKAGES = ("msccl", "sccl", "collhub_msccl")
_PROGRAM_NAMES = ("MSCCLProgram", "SCCLProgram")
_CHILD = "collhub_msccl.language.child:main"


def read(source: Source, options: LanguageOptions) -> Algorithm:
    """Execute an MSCCLang program in a separate process and return its algorithm.

    `options.mode`, if not None, replaces the program's declaration whether it is in place.
    Reports warnings to the source: failed calls of `Check()` (`check-failed`), printed text, and
    an in-place custom collective with separate lists for input and output (`two-buffers`).

    Errors before the execution: `InputError` for a file that is no Python, that imports `mscclpp`
    or uses `MSCCLPPProgram` (`mscclpp-program`), or that neither imports `msccl`, `sccl` or
    `collhub_msccl` nor uses `MSCCLProgram` or `SCCLProgram` (`not-a-program`). `UsageError` if
    both `options.program` and `--program` in the arguments select a program.

    Errors after it: `InputError` if the program fails, exceeds a limit of time or memory, or
    gives no valid trace (`program-answer`). `UsageError` unless exactly one program of the file
    is selected. `ProgramAnswerError` if the program only prints an answer.
    """
    content = source.content()
    # Any file may be named *.py: a file that is not written in the language must not run.
    tree = parsed_source(source.name, content)
    # The language of MSCCL++ has similar names.
    for node in ast.walk(tree):
        is_import = imports_any(node, ("mscclpp",))
        if is_import or (isinstance(node, ast.Name) and node.id == "MSCCLPPProgram"):
            message = "is a program of MSCCL++, not of MSCCLang; it was not executed"
            cure = "read it with --from mscclpp-program"
            if not is_import:
                message = (
                    "is a program of MSCCL++ for msccl-tools, whose plans no release since July"
                    " 2025 loads; it was not executed"
                )
                cure = "write it with mscclpp.language, the language of MSCCL++"
            location = Location(source.name, getattr(node, "lineno", None))
            raise InputError(message, location=location, cure=cure, code="mscclpp-program")
    if not any(
        imports_any(node, _PACKAGES) or (isinstance(node, ast.Name) and node.id in _PROGRAM_NAMES)
        for node in ast.walk(tree)
    ):
        message = (
            "is no MSCCLang program: it neither imports msccl nor creates an MSCCLProgram;"
            " it was not executed"
        )
        raise InputError(message, location=Location(source.name), code="not-a-program")
    limits = ProcessLimits(options.time_limit, options.memory_limit, options.sandbox)
    arguments, program = _select_program(shell_words(options.arguments), options.program, content)
    report = run_program(_CHILD, source.name, content, arguments, limits, program)
    for check in report.get("checks", ()):
        more = f" (and {check['count'] - 1} more)" if check["count"] > 1 else ""
        message = f"Check() finds the program wrong: {check['lines'][0]}{more}"
        warn_at(source, "check-failed", message, check["line"])
    warn_of_output(source, report)
    # The child process is not trusted.
    try:
        trace = Trace.from_json(report["trace"])
    except (KeyError, TypeError) as error:
        message = f"the program's process sent no trace: {error!r}"
        raise InputError(message, location=Location(source.name), code="program-answer") from None
    if options.mode is not None:
        trace = replace(trace, is_in_place=options.mode == "in-place")
    _warn_of_two_buffers(source, trace)
    recorded_options = {
        "arguments": options.arguments,
        "program": options.program,
        "mode": options.mode,
    }
    used_options = {name: value for name, value in recorded_options.items() if value is not None}
    return lower(trace, source.name, build_provenance(source.name, content, used_options))


def _select_program(
    arguments: list[str],
    program_option: str | None,
    content: bytes,
) -> tuple[list[str], str | None]:
    """Return the arguments for the file, and the name or number of the program to run.

    If the arguments begin with `--program NAME` and the text of the file does not contain
    `--program`, NAME selects the program, and both arguments are removed. Otherwise, also without a
    NAME, the arguments are unchanged and `program_option` selects it; None means the only program
    of the file. Raises `UsageError` if both select a program.
    """
    selects_program = arguments[:1] == ["--program"] and b"--program" not in content
    if not selects_program or len(arguments) == 1:
        return arguments, program_option
    if program_option is not None:
        raise UsageError("the program is selected twice: by -O program and by --program")
    return arguments[2:], arguments[1]


def _warn_of_two_buffers(source: Source, trace: Trace) -> None:
    """Warn if a custom collective is in place, but a rank has separate input and output lists.

    The warning `two-buffers` is reported to `source`, at the line of the program. Lists are
    compared by identity, not by content.
    """
    if not (trace.is_in_place and trace.has_two_buffers):
        return
    message = (
        "the collective is in place, but init_buffers gives input and output of a rank as two lists"
    )
    cure = (
        "the runtime has one buffer for both: give one list for both, or set inplace=False"
        " or -O mode=out-of-place"
    )
    location = Location(source.name, trace.line)
    source.report(Diagnostic("two-buffers", message, Severity.WARNING, location, cure))
