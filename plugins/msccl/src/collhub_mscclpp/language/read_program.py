"""Read MSCCL++ programs, executed in a sandboxed process, and samples of them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from collhub_mscclpp.reading.read import read as read_plan
from hub_core.model import Algorithm, InputError, Location
from hub_core.plugin_api import NoOptions, Source, SourcePart
from hub_core.sandbox import (
    ProcessLimits,
    SourceProgramOptions,
    imports_any,
    parsed_source,
    run_program,
    shell_words,
    warn_at,
)

_PROGRAM = b"""\
from mscclpp.language.channel import *
from mscclpp.language.collectives import *
from mscclpp.language.general import *
from mscclpp.language.program import *
from mscclpp.language.rank import *

size = 3
with CollectiveProgram("all_pairs", AllGather(size, 1, True), size):
    channels = {}
    for source in range(size):
        for target in range(size):
            if source != target:
                channels[target, source] = MemoryChannel(target, source)
    for source in range(size):
        peers = [target for target in range(size) if target != source]
        part = Rank(source).get_output_buffer()[source : source + 1]
        for target in peers:
            channels[target, source].signal(tb=0, relaxed=True)
        for target in peers:
            channels[target, source].wait(tb=0, relaxed=True)
        for target in peers:
            there = Rank(target).get_output_buffer()[source : source + 1]
            channels[target, source].put(there, part, tb=0)
            channels[target, source].signal(tb=0)
        for target in peers:
            channels[target, source].wait(tb=0)
    print(JSON())
"""


def samples() -> Sequence[Source]:
    """Return an all-gather in place of 3 ranks, in which each rank puts its part to its peers."""
    return [Source.of_bytes("all_pairs.py", _PROGRAM)]


_CHILD = "collhub_mscclpp.language.child:main"
_PACKAGES = ("mscclpp", "collhub_mscclpp")


def read(source: Source, options: SourceProgramOptions) -> Algorithm:
    """Execute a program of MSCCL++ in a separate process and read its plan as an algorithm.

    It runs with the package `mscclpp` if that is installed, else with our implementation. Warnings
    about the plan go to `source.report`; without the package, so do the package's known defects in
    this program. Raises `InputError` with the program's line if the program fails, if its plan
    deadlocks or races, or if the file does not import the language, in which case it is not
    executed.
    """
    content = source.content()
    # Any file may be named *.py; only programs of the language may be executed.
    tree = parsed_source(source.name, content)
    is_of_language = any(imports_any(node, _PACKAGES) for node in ast.walk(tree))
    if not is_of_language:
        message = "is no program of MSCCL++: it does not import mscclpp; it was not executed"
        raise InputError(message, location=Location(source.name), code="not-a-program")
    limits = ProcessLimits(options.time_limit, options.memory_limit, options.sandbox)
    arguments = shell_words(options.arguments)
    report = run_program(_CHILD, source.name, content, arguments, limits, options.program)
    for defect in report["defects"]:
        message = f"the package mscclpp makes another plan of it: {defect}"
        warn_at(source, "package-defect", message, int(report["line"]))
    plan = str(report["plan"]).encode()
    part = SourcePart(source.name, lambda: plan)
    algorithm = read_plan(Source(source.name, (part,), source.report), NoOptions())
    language = "mscclpp" if report["package"] else "collhub-mscclpp"
    run_options = {"language": language, "arguments": options.arguments or ""}
    provenance = replace(algorithm.provenance, source_sha256=source.sha256(), options=run_options)
    return replace(algorithm, provenance=provenance)
