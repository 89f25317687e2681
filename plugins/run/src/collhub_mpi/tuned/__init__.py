"""Files with which MPICH, Open MPI and UCC select among their algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from hub_core.model import Diagnostic, InputError
from hub_core.plugin_api import ServedCalls, Source, SourcePart

PartReader = Callable[[SourcePart, list[Diagnostic]], Sequence[ServedCalls]]
"""Returns the calls of a file, and appends notes on it to the list."""


def read_files(source: Source, readers: Mapping[str, PartReader]) -> list[ServedCalls]:
    """Return the calls that all files of a source serve, file by file in the order of the source.

    `readers`: for each known file name the function that reads it; not empty. The folder of a file
    does not matter. A source that is just one file may have another name, because the user gives it
    to the library. If its content begins with `{` (after blanks), the first function is used whose
    key ends with `.json`, otherwise the first one of another key. Without such a key it is the
    first function of all.

    A file for which the function raises `InputError`, or whose name is not a key (`unknown-file`),
    serves no calls, because MPI libraries use either an entire file or none of it. Its first error
    is reported to the source, with the file as location, and the next file is read. At the end, the
    notes on all files without an error are reported. Without files the list is empty.
    """
    calls: list[ServedCalls] = []
    notes: list[Diagnostic] = []
    is_single = len(source.parts) == 1 and source.parts[0].name == source.name
    for part in source.parts:
        reader = readers.get(PurePath(part.name).name)
        if reader is None and is_single:
            # Content in braces is JSON. Without a fitting reader, the first one reports the defect.
            is_json = part.load().lstrip().startswith(b"{")
            fitting = [readers[name] for name in readers if name.endswith(".json") == is_json]
            reader = (fitting or list(readers.values()))[0]
        try:
            if reader is None:
                raise InputError(
                    f"no file of this format: the name is not {' or '.join(readers)}",
                    cure=f"name the file {next(iter(readers))}",
                    code="unknown-file",
                )
            found: list[Diagnostic] = []
            calls += reader(part, found)
            notes += found
        except InputError as error:
            first = error.diagnostics[0]
            location = replace(first.location, file=part.name)
            source.report(replace(first, location=location))
    for note in notes:
        source.report(note)
    return calls
