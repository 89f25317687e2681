"""Open and read the input of a command: warnings to stderr, progress on a terminal, `-O` options to the reader."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from hub_core.cli.arguments import Assignments, assign
from hub_core.cli.output import print_diagnostic, progress
from hub_core.cli.session import Session
from hub_core.model.diagnostics import UsageError

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm
    from hub_core.model.diagnostics import Diagnostic
    from hub_core.pipeline.work import OpenedAlgorithm


def open_source(session: Session, source: str, source_format: str | None) -> OpenedAlgorithm:
    """Open IN and find its reader; nothing but the first bytes is read yet."""
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline import work as pipeline

    return pipeline.open_algorithm(
        source, format=source_format, registry=session.registry(), report=print_diagnostic
    )


def source_options(session: Session, opened: OpenedAlgorithm, options: Assignments) -> Assignments:
    """Options of the reader, with what follows IN on the command line as its option `arguments`."""
    if not session.source_arguments:
        return options
    if "arguments" not in (option.name for option in opened.reader.offer.options):
        first = session.source_arguments[0]
        raise UsageError(
            f"{opened.name} is read as {opened.reader.name}, which takes no arguments, but {first!r} follows it"
        )
    if "arguments" in options:
        raise UsageError("arguments of the program are given twice: by -O arguments and behind IN")
    return {**options, "arguments": shlex.join(session.source_arguments)}


def read_opened(opened: OpenedAlgorithm, options: Assignments) -> Algorithm:
    """Read what was opened."""
    with progress(f"reading {opened.name}"):
        return opened.read(options)


def load(
    session: Session, source: str, source_format: str | None, assignments: Assignments
) -> tuple[Algorithm, OpenedAlgorithm]:
    """Read IN with a reader to which all options belong; return the algorithm and what it was read from."""
    opened = open_source(session, source, source_format)
    options = assign(assignments, {"reader": opened.reader.offer.options})["reader"]
    return read_opened(opened, source_options(session, opened, options)), opened


def with_path(found: Iterable[Diagnostic], algorithm: Algorithm, source: str) -> list[Diagnostic]:
    """Findings that name the file as the user named it, where the algorithm was read from that very file."""
    name = algorithm.provenance.source_name
    if not name or PurePath(source).name != name:
        return list(found)
    return [
        replace(one, location=replace(one.location, file=source))
        if one.location.file == name
        else one
        for one in found
    ]
