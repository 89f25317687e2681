"""Conformance rules for readers of measured times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from hub_core.plugin_api.measurements import (
    MeasurementReader,
    MeasurementRequest,
    MeasurementSet,
)
from hub_core.plugin_api.options import resolve
from hub_core.plugin_api.sources import Source
from hub_core.testing.checked_plugin import CheckedPlugin, Skip, call, title
from hub_core.testing.format_checks import (
    damage_source,
    find_refusal_problems,
    generate_nonsense,
)


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
            yield from (f"{place}: {problem}" for problem in _find_defects(request, result))


def measurement_readers_refuse_bad_input(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Readers of measurements refuse random content with a `HubError` that names the file.

    Damaged samples give valid points or such an error.
    """
    for reader in subject.offers(MeasurementReader):
        for description, content in generate_nonsense():
            bad_request = MeasurementRequest(Source.of_bytes("bad-input", content))
            read = partial(call, reader, bad_request)
            yield from find_refusal_problems(
                read, f"{title(reader)}, {description}", must_refuse=True
            )
        for sample in _samples(reader):
            for damage, source in damage_source(sample.source):
                request = replace(sample, source=source)
                yield from find_refusal_problems(
                    partial(call, reader, request),
                    f"{title(reader)}, {source.name}, {damage}",
                    must_refuse=False,
                    find_defects=partial(_find_defects, request),
                )


def _samples(reader: MeasurementReader) -> Sequence[MeasurementRequest]:
    """Return the declared samples; empty without any."""
    samples = resolve(reader.samples)() if reader.samples else []
    message = f"{reader.samples} returned {type(samples).__name__}, expected requests"
    assert isinstance(samples, list | tuple), message
    return samples


def _find_defects(request: MeasurementRequest, result: object) -> Iterator[str]:
    """Yield the first point that is not valid or does not name its file."""
    for point in result.points if isinstance(result, MeasurementSet) else ():
        reason = point.defect()
        if reason is None and point.file != request.source.name:
            reason = f"the file of a point is {point.file!r}, expected {request.source.name!r}"
        if reason is not None:
            yield reason
            return
