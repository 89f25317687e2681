"""Read a program from a Python file by executing it in a separate process."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from collhub_coconet.documents.json_document import bound_from_json
from collhub_coconet.lowering.workload import lower_source
from collhub_coconet.options import PythonOptions
from collhub_coconet.program.tensors import parse_ranges, take_minimum_sizes
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
    """Execute the file, and return the workload of its program.

    Raises `InputError` with the line for a file that fails or that defines no program or an
    ill-typed one. A file that does not import the language is refused without execution.
    """
    content = source.content()
    # Any Python file has the suffix; one that is not a tensor program must not be executed.
    tree = parsed_source(source.name, content)
    if not any(imports_any(node, (_PACKAGE,)) for node in ast.walk(tree)):
        message = f"is no program of tensors: it does not import {_PACKAGE}; it was not executed"
        raise InputError(message, location=Location(source.name), code="not-a-program")
    limits = ProcessLimits(options.time_limit, options.memory_limit, options.sandbox)
    arguments = shell_words(options.arguments)
    report = run_program(_CHILD, source.name, content, arguments, limits, options.program)
    warn_of_output(source, report)
    document = str(report.get("document", "")).encode()
    sizes = take_minimum_sizes(parse_ranges(options.sizes))
    return lower_source(bound_from_json(document, source.name, options.num_ranks, sizes), source)


def samples() -> Sequence[Source]:
    """Return an example: a gradient step of 16 elements."""
    return [Source.of_bytes("step.py", _SAMPLE)]


_SAMPLE = b"""\
from collhub_coconet import LOCAL, ProgramBuilder, all_reduce, update

build = ProgramBuilder("step", N=16)
g = build.argument("g", "float32", "N", layout=LOCAL)
w = build.state("w", "float32", "N")
program = build.program(update(w, w - 0.5 * all_reduce(g)))
"""
