"""Conformance rules for readers of measured times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hub_core.model.diagnostics import HubError
from hub_core.plugin_api.measurements import (
    MeasurementReader,
    MeasurementRequest,
    MeasurementSet,
)
from hub_core.plugin_api.options import resolve
from hub_core.plugin_api.sources import Source
from hub_core.registry.border import reason_of
from hub_core.testing.checked_plugin import CheckedPlugin, Skip, call, title
from hub_core.testing.format_checks import damage_source, generate_nonsense


def measurement_readers_read_samples(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """The signature of a reader of measurements is in its samples; they give equal, valid points.

    A sample gives at least one point. Every point is within its limits and names its file.
    """
    for reader in subject.offers(MeasurementReader):
        samples = _samples(reader)
        if not samples:
            yield Skip(f"{title(reader)}: it declares no samples, or cannot make them here")
        for request in samples:
            place = f"{title(reader)}, {request.source.name}"
            content = request.source.content()
            if not re.search(reader.format.signature, content, re.MULTILINE):
                yield f"{place}: the signature of the format is not in the sample"
            result, repetition = call(reader, request), call(reader, request)
            if not isinstance(result, MeasurementSet):
                yield f"{place}: returned {type(result).__name__}, expected MeasurementSet"
                continue
            if result != repetition:
                yield f"{place}: two readings differ"
            if not result.points:
                yield f"{place}: no point is read"
            yield from (f"{place}: {problem}" for problem in _point_problems(result, request))


def measurement_readers_refuse_bad_input(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Readers of measurements refuse random content with a `HubError` that names the file.

    Damaged samples give valid points or such an error.
    """
    for reader in subject.offers(MeasurementReader):
        nonsense = [
            (description, MeasurementRequest(Source.of_bytes("bad-input", content)))
            for description, content in generate_nonsense()
        ]
        damaged = [
            (f"{request.source.name}, {damage}", replace(request, source=source))
            for request in _samples(reader)
            for damage, source in damage_source(request.source)
        ]
        for description, request in nonsense:
            yield from _find_problems(reader, request, description, must_refuse=True)
        for description, request in damaged:
            yield from _find_problems(reader, request, description, must_refuse=False)


def _samples(reader: MeasurementReader) -> Sequence[MeasurementRequest]:
    """Return the declared samples; empty without any."""
    samples = resolve(reader.samples)() if reader.samples else []
    message = f"{reader.samples} returned {type(samples).__name__}, expected requests"
    assert isinstance(samples, list | tuple), message
    return samples


def _find_problems(
    reader: MeasurementReader, request: MeasurementRequest, description: str, *, must_refuse: bool
) -> Iterator[str]:
    """Read a bad input and yield a problem if it is neither refused nor read correctly."""
    place = f"{title(reader)}, {description}"
    try:
        result = call(reader, request)
    except HubError as error:
        if error.diagnostics[0].location.file is None:
            yield f"{place}: the error names no file: {error}"
    except Exception as error:
        yield f"{place}: {reason_of(error)}, expected a HubError"
    else:
        if must_refuse:
            yield f"{place}: accepted as {type(result).__name__}"
        elif isinstance(result, MeasurementSet):
            yield from (f"{place}: {problem}" for problem in _point_problems(result, request))


def _point_problems(result: MeasurementSet, request: MeasurementRequest) -> Iterator[str]:
    """Yield the first point that is not valid or does not name its file."""
    for point in result.points:
        reason = point.defect()
        if reason is None and point.file != request.source.name:
            reason = f"the file of a point is {point.file!r}, expected {request.source.name!r}"
        if reason is not None:
            yield reason
            return
