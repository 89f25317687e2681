"""Read a program in Python by executing it, in a process of its own."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from collhub_coconet.documents.json_document import bound_from_json
from collhub_coconet.lowering.workload import lowered
from collhub_coconet.options import PythonOptions
from collhub_coconet.program.tensors import parsed_ranges, smallest
from hub_core.model import InputError, Location, Workload
from hub_core.plugin_api import Source
from hub_core.sandbox import (
    ProcessLimits,
    imports_any,
    parsed_source,
    run_program,
    shell_words,
    warn_of_output,
)

_CHILD = "collhub_coconet.documents.python_child:main"
_PACKAGE = "collhub_coconet"


def read(source: Source, options: PythonOptions) -> Workload:
    """Execute the file and return the workload of the program that it makes.

    Raises `InputError` with the file's line for one that fails, that makes no program or an
    ill-typed one, and for a file that does not import the language, which is not executed.
    """
    content = source.content()
    # Any file may be named *.py: what is not of the language must not run.
    tree = parsed_source(source.name, content)
    if not any(imports_any(node, (_PACKAGE,)) for node in ast.walk(tree)):
        message = f"is no program of tensors: it does not import {_PACKAGE}; it was not executed"
        raise InputError(message, location=Location(source.name), code="not-a-program")
    limits = ProcessLimits(options.time_limit, options.memory_limit, options.sandbox)
    arguments = shell_words(options.arguments)
    report = run_program(_CHILD, source.name, content, arguments, limits, options.program)
    warn_of_output(source, report)
    document = str(report.get("document", "")).encode()
    sizes = smallest(parsed_ranges(options.sizes))
    return lowered(bound_from_json(document, source.name, options.num_ranks, sizes), source)


def samples() -> Sequence[Source]:
    """A gradient step of 16 elements."""
    return [Source.of_bytes("step.py", _SAMPLE)]


_SAMPLE = b"""\
from collhub_coconet import LOCAL, ProgramBuilder, all_reduce, update

build = ProgramBuilder("step", N=16)
g = build.argument("g", "float32", "N", layout=LOCAL)
w = build.state("w", "float32", "N")
program = build.program(update(w, w - 0.5 * all_reduce(g)))
"""
