"""Tell what a configuration of NCCL's example tuner serves, and what the tuner misreads in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collhub_nccl.tuner.tuner_names import (
    ALGORITHMS,
    ANY,
    COLLECTIVES,
    FILE,
    LARGEST,
    LONGEST_LINE,
    PROTOCOLS,
)
from hub_core.model import Diagnostic, Location
from hub_core.plugin_api import ServedCalls, Source, SourcePart

_FIELDS = "collective,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks"


def read(source: Source) -> Sequence[ServedCalls]:
    """A row a line; lines that the tuner skips or misreads are errors, and serve nothing."""
    found: list[ServedCalls] = []
    for part in source.parts:
        if part.name == FILE:
            found += _served(part, source)
        else:
            place = Location(part.name)
            source.report(Diagnostic("unknown-file", "no file of this format", location=place))
    return found


def _served(part: SourcePart, source: Source) -> Iterator[ServedCalls]:
    for number, line in enumerate(part.load().decode("latin-1").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(",")]
        defect = _defect(line, fields)
        if defect:
            place = Location(part.name, number)
            source.report(Diagnostic("not-a-rule", defect, location=place, cure=_FIELDS))
            continue
        last = int(fields[2])
        by = " ".join((*fields[3:5], fields[5], "channels"))
        yield ServedCalls(
            COLLECTIVES[fields[0]],
            in_place=True,
            out_of_place=True,
            min_bytes=int(fields[1]),
            max_bytes=None if last == LARGEST else last,
            by=by,
        )


def _defect(line: str, fields: Sequence[str]) -> str:
    """Why the tuner does not take a line as it is meant; empty where it does."""
    if len(line) > LONGEST_LINE:
        return f"the line has more than {LONGEST_LINE} characters, of which the tuner reads so many"
    if len(fields) < len(_FIELDS.split(",")):
        return f"{len(fields)} fields, so that the tuner skips the line"
    for field, known in ((0, tuple(COLLECTIVES)), (3, ALGORITHMS), (4, PROTOCOLS)):
        if fields[field] not in known:
            # It falls back to allreduce, ring and simple without a word.
            return f"{fields[field]!r:.40} is not one of {', '.join(known)}"
    if not all(field.isdecimal() for field in (*fields[1:3], fields[5])) or int(fields[5]) < 1:
        return "sizes and channels are not all whole numbers, with at least one channel"
    if int(fields[1]) > int(fields[2]):
        return f"no size is at least {fields[1]} and at most {fields[2]}"
    if not all(field == ANY or field.isdecimal() for field in fields[6:8]):
        return "nodes and ranks are not whole numbers, or -1 for any"
    return ""
