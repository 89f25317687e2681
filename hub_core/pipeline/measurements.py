"""Read files of measured times: choose the reader of each by its content, join their points."""

from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace

from hub_core.model.diagnostics import Diagnostic, InputError, Location, UsageError, closest
from hub_core.pipeline.calls import bound_options, call, misfit
from hub_core.pipeline.sources import content_of, open_input
from hub_core.plugin_api.formats import Format, Source
from hub_core.plugin_api.measurements import (
    Measurement,
    MeasurementReader,
    MeasurementRequest,
    MeasurementSet,
)
from hub_core.plugin_api.options import declared_options
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Provided, Registry

MAX_MEASUREMENT_FILE_BYTES = 2**28
_UNCOMPRESSED = Format("this kind of file", "", ())


def read_measurements(
    paths: Sequence[str],
    *,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> MeasurementSet:
    """Read measured times from files (`-`: standard input), in the order of the files.

    `collective`, `ranks`, `nodes`: values for files that lack them; those of a file take
    precedence. `format`: name of the reader for all files. With None it is the only reader whose
    signature is in the content. UTF-16 with a byte order mark is converted to UTF-8 first. An
    option is passed to every reader that declares it. `registry` None: the installed plugins.

    The result has the points of all files, findings on files as diagnostics (`skipped`), and the
    sources by name; of sources with equal names the last one. Without paths it has no points, and
    every option is an error. Errors, at the first file that has one:

    - `InputError`: a file that is missing, unreadable, compressed or above 256 MiB, that no reader
      recognizes, or in which the reader has no usable point.
    - `UsageError`: a file that several readers recognize (`undecided-format`), an unknown
      `format`, an invalid value of an option; after all files, an option that none of the used
      readers declares (`unknown-option`).
    - `PluginError`: a reader that fails, returns another type or an invalid point, or is
      unavailable.
    """
    registry = registry or run_registry()
    points: list[Measurement] = []
    skipped: list[Diagnostic] = []
    sources: dict[str, dict[str, str]] = {}
    readers: dict[str, Provided[MeasurementReader]] = {}
    for path in paths:
        source = _read_content(path, skipped)
        reader = _choose_reader(source, format, registry)
        readers[reader.name] = reader
        request = MeasurementRequest(source, collective, ranks, nodes)
        accepted = {option.name for option in declared_options(reader.offer.options)}
        accepted_options = {
            name: value
            for name, value in (options or {}).items()
            if name.replace("-", "_") in accepted
        }
        result = call(reader, MeasurementSet, request, bound_options(reader, accepted_options))
        for point in result.points:
            if defect := point.defect():
                raise misfit(reader, f"returned a point that is not valid: {defect}")
        points += result.points
        skipped += result.skipped
        sources.update({name: dict(described) for name, described in result.sources.items()})
    known = sorted(
        {
            option.name
            for reader in readers.values()
            for option in declared_options(reader.offer.options)
        }
    )
    unknown = [name for name in sorted(options or {}) if name.replace("-", "_") not in known]
    if unknown:
        cure = closest(unknown[0], known) or (
            f"known: {', '.join(known)}" if known else "it takes none"
        )
        message = f"reader {', '.join(sorted(readers))} has no option {unknown[0]!r}"
        raise UsageError(message, cure=cure, code="unknown-option")
    return MeasurementSet(points, skipped, sources)


def detect_measurements(content: bytes, registry: Registry) -> list[Provided[MeasurementReader]]:
    """Return all readers whose signature is in a content, by name."""
    return [
        provided
        for provided in registry.all(MeasurementReader)
        if re.search(provided.offer.format.signature, content, re.MULTILINE)
    ]


def _read_content(path: str, skipped: list[Diagnostic]) -> Source:
    """Read a file or standard input completely, and return it as a source with one part.

    Text in UTF-16 is converted to UTF-8. Findings on the file, now and when it is parsed,
    are appended to `skipped`. Raises `InputError` if the file cannot be read, is
    compressed, or has more than 256 MiB (`too-large`), before or after the conversion.
    """
    opened = open_input(path, (), skipped.append)
    source = content_of(opened, _UNCOMPRESSED)
    _refuse_large(source.name, source.parts[0].size or 0)
    content = source.content()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # PowerShell writes redirected output in UTF-16. Invalid UTF-16 stays as it is.
        with contextlib.suppress(UnicodeDecodeError):
            content = content.decode("utf-16").encode()
    _refuse_large(source.name, len(content))
    return replace(Source.of_bytes(source.name, content), report=skipped.append)


def _refuse_large(name: str, size_bytes: int) -> None:
    if size_bytes > MAX_MEASUREMENT_FILE_BYTES:
        message = f"the file exceeds {MAX_MEASUREMENT_FILE_BYTES >> 20} MiB"
        cure = "split it by collective"
        raise InputError(message, location=Location(name), cure=cure, code="too-large")


def _choose_reader(
    source: Source, format: str | None, registry: Registry
) -> Provided[MeasurementReader]:
    if format is not None:
        return registry.find(MeasurementReader, format)
    candidates = detect_measurements(source.content(), registry)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = " or ".join(f"{candidate.name} ({candidate.plugin})" for candidate in candidates)
        message = f"{source.name} may be {names}"
        raise UsageError(message, cure="name the format with --from", code="undecided-format")
    known = "; ".join(
        candidate.offer.format.description for candidate in registry.all(MeasurementReader)
    )
    cure = registry.unavailable_hint() or f"known are: {known or 'none'}"
    raise InputError(
        "no reader of measurements recognises the file",
        location=Location(source.name, 1),
        cure=cure,
        code="unknown-measurements",
    )
