"""Read measured times from text: a title, then `RANKS BYTES MICROSECONDS` a line."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core import Diagnostic, InputError, Location, Severity
from hub_core.plugin_api import (
    Library,
    Measurement,
    MeasurementRequest,
    MeasurementSet,
    NoOptions,
    Source,
)

TITLE = "example-times 1"


def read(request: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read the times of all-reduces on one node. Raises `InputError` if no line has a time."""
    source = request.source
    lines = source.content().decode("ascii", "replace").splitlines()
    points: list[Measurement] = []
    skipped: list[Diagnostic] = []
    for number, line in enumerate(lines, 1):
        point = _point(line, source.name, number)
        if point is not None:
            points.append(point)
        elif line.strip() and line.strip() != TITLE:
            message = f"{line!r:.40} is not ranks, bytes and microseconds"
            place = Location(source.name, number)
            skipped.append(Diagnostic("skipped", message, Severity.WARNING, place))
    if not points:
        cure = "write a line such as '8 1024 15.6'"
        raise InputError("no line has a time", location=Location(source.name, 1), cure=cure)
    return MeasurementSet(points, skipped)


def samples() -> Sequence[MeasurementRequest]:
    """Small correct files, by which the conformance checks try the reader."""
    return [MeasurementRequest(Source.of_bytes("run.txt", f"{TITLE}\n8 1024 15.6\n".encode()))]


def _point(line: str, file: str, number: int) -> Measurement | None:
    words = line.split()
    if len(words) != 3 or not all(word.isdecimal() and len(word) < 18 for word in words[:2]):
        return None
    try:
        time_us = float(words[2])
    except ValueError:
        return None
    point = Measurement(
        "all-reduce", int(words[0]), 1, int(words[1]), time_us, Library("example"),
        file=file, line=number,
    )  # fmt: skip
    return None if point.defect() else point
