"""Read a program from a Python file by executing it in a separate process.

`read` starts the process, in which `main` runs the file and returns the chosen program.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from collhub_coconet.documents.json_document import bound_from_json, program_to_json
from collhub_coconet.plugin import PythonOptions
from collhub_coconet.program.operations import parse_ranges, take_minimum_sizes
from collhub_coconet.program.program import Program
from hub_core.model import InputError, Location, Workload, format_count
from hub_core.plugin_api import Source
from hub_core.sandbox import (
    ProcessLimits,
    Report,
    chosen_places,
    error_report,
    imports_any,
    parsed_source,
    run_job,
    run_program,
    shell_words,
    warn_of_output,
)

_CHILD = "collhub_coconet.documents.python_reader:main"
_PACKAGE = "collhub_coconet"


def read(source: Source, options: PythonOptions) -> Workload:
    """Execute a Python file in a child process, and return the workload of its program.

    `options.program` (name, or number from 1) chooses one of several programs. `options` also give
    sizes, mesh, ranks, arguments, limits of time and memory, and the sandbox. Of a range of sizes
    or of ranks along an axis, the minimum is taken. Text that the file prints is reported to
    `source` as a warning.

    Raises `InputError`, with the line if known:

    - before execution: `too-large` above 16 MiB, `syntax`, and `not-a-program` if no import
      statement names `collhub_coconet`
    - for a file that fails, exceeds a limit, or defines no program (also if it only prints an
      answer, such as a help text)
    - for an invalid program, and for sizes or ranks that are missing or do not fit

    Raises `UsageError` if the file has programs, but the choice selects none or several of them.
    """
    # Imported here, because the child process, which imports this module too, does not need it.
    from collhub_coconet.lowering.workload import lower_source

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
    mesh = take_minimum_sizes(parse_ranges(options.mesh))
    bound = bound_from_json(document, source.name, options.num_ranks, sizes, mesh)
    return lower_source(bound, source)


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


_MAX_LISTED = 40
ProgramFunction = Callable[[], Program]


class _TensorLanguage:
    """Callbacks of `run_job` for tensor programs.

    A program of a file is a global `Program`, or the result of a function of the file that is
    annotated with `-> Program` and needs no arguments.
    """

    folder = str(Path(__file__).parent.parent)

    def prepare(self, file: str) -> None:
        """Do nothing: the package is imported under its usual name."""

    def has_result(self) -> bool:
        """Return False: programs are found in the global names at the end."""
        return False

    def report(self, namespace: Mapping[str, object], chosen: str | None, end: Report) -> Report:
        """Return the document of the chosen program as the child's report, or an error report.

        `namespace`: the global variables of the executed file. Its programs are those of
        `_find_program_functions`. `chosen`: a number from 1 or else a name; None if the file
        has only one program. The rules, in this order:

        1. Not exactly one program matches: the error `several-programs` lists the programs. If
           the file has none, the error is `no-program` and explains why each function is none.
        2. The function of the program is called; its exceptions are raised.
        3. It returns no `Program`: the error `no-program`.
        4. The result is {"document": JSON of the program}.

        `end`, the child's report of the end of the file, is not used.
        """
        functions = _find_program_functions(namespace)
        positions = chosen_places(list(functions), chosen)
        if len(positions) != 1:
            return _report_no_choice(namespace, list(functions), chosen)
        name = list(functions)[positions[0]]
        program = functions[name]()
        if not isinstance(program, Program):
            message = f"{name}() returns {type(program).__name__}, not a Program"
            return error_report(message, -1, "no-program")
        return {"document": program_to_json(program)}

    def message(self, error: BaseException) -> str:
        """Return "": errors are shown without a prefix."""
        return ""


def main() -> None:
    """Run the job on standard input."""
    run_job(_TensorLanguage())


def _find_program_functions(namespace: Mapping[str, object]) -> dict[str, ProgramFunction]:
    """Map names of global variables to functions that return a program, in the order of the file.

    If some global variables are programs, the result has only these, each with a function that
    returns it. Names that begin with `_` and imported programs are included; a program with two
    names is listed twice.

    Otherwise the result has the functions that the file itself defines, whose name does not
    begin with `_`, that are annotated to return a `Program`, and that have no required
    arguments. Nothing is called. The result is empty if there are none.
    """
    functions: dict[str, ProgramFunction] = {}
    for name, value in namespace.items():
        if isinstance(value, Program):
            functions[name] = lambda value=value: value  # type: ignore[misc]
    # Global programs have priority; functions then serve files that import this one.
    if functions:
        return functions
    for name, value in _find_functions(namespace).items():
        if _explain_exclusion(value) is None:
            functions[name] = cast(ProgramFunction, value)
    return functions


def _find_functions(namespace: Mapping[str, object]) -> dict[str, Callable[..., object]]:
    """Find the public functions that the file itself defines, by name in the order of definition.

    Names that begin with `_`, classes, and functions imported from other modules are left out.
    """
    return {
        name: value
        for name, value in namespace.items()
        if inspect.isfunction(value) and value.__module__ == "__main__" and name[0] != "_"
    }


def _explain_exclusion(function: Callable[..., object]) -> str | None:
    """Explain, with a cure, why a function does not build a program; None if it does.

    The first reason that applies is returned: its signature is not readable; it is not annotated
    with `-> Program` (the class, or text whose last dotted part is `Program`); it has parameters
    without default values, other than `*args` and `**kwargs`.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "has no readable signature"
    returns = signature.return_annotation
    if returns is not Program and str(returns).rpartition(".")[2].strip("'\"") != "Program":
        return "is not annotated with '-> Program': add the annotation"
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in kinds
    ]
    if needed:
        return f"needs the arguments {', '.join(needed)}: give them default values"
    return None


def _report_no_choice(
    namespace: Mapping[str, object], names: list[str], chosen: str | None
) -> Report:
    """Build the error report for no or several matching programs, which lists the programs.

    With `names`, the code is `several-programs`, also for a single name. The message has the
    count of all names, and the first 40 of them, numbered from 1. If `chosen` (the requested
    program) is not None, it also says that none of them is `chosen`. The line is -1 (none).

    Without names, the code is `no-program`. The message has the reasons (`_explain_exclusion`)
    why the first 40 functions of the file do not build a program, in the order of the file.
    The line is that of the first function, or -1 if the file has no functions.
    """
    if not names:
        message = "defines no program: neither a global Program nor a function that returns one"
        functions = _find_functions(namespace)
        if not functions:
            return error_report(message, -1, "no-program")
        reasons = [
            f"function {name!r} {_explain_exclusion(value)}" for name, value in functions.items()
        ]
        line = next(iter(functions.values())).__code__.co_firstlineno
        return error_report(f"{message}; {'; '.join(reasons[:_MAX_LISTED])}", line, "no-program")
    numbered = [f"{number} {name!r}" for number, name in enumerate(names[:_MAX_LISTED], 1)]
    which = "" if chosen is None else f", none of which is {chosen!r}"
    programs = format_count(len(names), "program")
    message = f"defines {programs}{which}: {', '.join(numbered)}"
    return error_report(message, -1, "several-programs")
