"""Find the calls for which a runtime uses the files of a folder."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_msccl.runtimes.known_runtimes import RUNTIMES, Runtime
from collhub_msccl.runtimes.load_check import check_executor, check_msccl, check_rccl
from collhub_msccl.runtimes.raw_xml import RawElement, parse_raw
from collhub_msccl.runtimes.refusals import read_number
from hub_core import verify
from hub_core.model import Diagnostic, InputError, Location, Severity
from hub_core.plugin_api import (
    CheckRequest,
    LoadableCall,
    NoOptions,
    ServedCalls,
    Source,
    SourcePart,
)

_CHECKS = {"msccl": check_msccl, "executor": check_executor, "rccl": check_rccl}
# Size limit of a file without one, for a runtime that requires a limit.
_NO_LIMIT = 1 << 62


def judge_file(source: Source, runtime: Runtime) -> tuple[LoadableCall, ...]:
    """Calls for which the runtime uses a file; at least one.

    Raises `InputError` with the findings if the runtime refuses it, uses it for no call, or warns
    of it.
    """
    report = _CHECKS[runtime.name](CheckRequest(source.name, source=source), NoOptions())
    # A program that loads but cannot run as intended causes a warning, and does not belong in a
    # folder.
    defects = [
        diagnostic for diagnostic in report.diagnostics if diagnostic.severity is not Severity.NOTE
    ]
    if not report.ok or defects:
        raise InputError(report.diagnostics)
    return report.calls


def read(source: Source) -> Sequence[ServedCalls]:
    """Calls served by every file of a folder; each subfolder is named after its runtime.

    A file that is not loaded, or is incorrect, is reported as an error and serves no calls.
    """
    served_calls: list[ServedCalls] = []
    for part in source.parts:
        folder, _, file = part.name.partition("/")
        try:
            if folder not in RUNTIMES or not file:
                known = ", ".join(RUNTIMES)
                raise InputError(f"is in no folder of a runtime ({known})", code="unknown-file")
            served_calls.append(_read_served_calls(part, file, RUNTIMES[folder]))
        except InputError as error:
            for diagnostic in error.diagnostics:
                location = Location(part.name, diagnostic.location.line)
                severity = Severity.ERROR
                source.report(
                    Diagnostic(
                        diagnostic.code, diagnostic.message, severity, location, diagnostic.cure
                    )
                )
    return served_calls


def _read_served_calls(part: SourcePart, file: str, runtime: Runtime) -> ServedCalls:
    """Calls served by one file, whose steps are verified. Raises `InputError` if it is unusable."""
    # Imported lazily: a check of the header reads no steps.
    from collhub_msccl.options import ReadOptions
    from collhub_msccl.reading.read_xml import read as read_xml

    content = part.load()
    checked_source = Source(part.name, (part,), lambda _: None)
    calls = judge_file(checked_source, runtime)
    # A source can be read only once.
    read_source = Source(part.name, (part,), lambda _: None)
    algorithm = read_xml(read_source, ReadOptions())
    verdict = verify(algorithm)
    if not verdict.ok:
        raise InputError(verdict.diagnostics)
    algo = parse_raw(content.decode("latin-1"), part.name)
    # All calls of a file have the same size window.
    largest = calls[0].max_bytes
    return ServedCalls(
        algorithm.collective.kind,
        in_place=any(call.in_place for call in calls),
        out_of_place=any(not call.in_place for call in calls),
        min_bytes=calls[0].min_bytes,
        max_bytes=None if largest is None or largest >= _NO_LIMIT else largest,
        by=f"{file}: {_get_name(algo)} of {calls[0].num_ranks} ranks",
        element_multiple=read_number(algo.attributes["nchunksperloop"]),
    )


def _get_name(algo: RawElement) -> str:
    """Name of the algorithm, or `a program`."""
    return algo.attributes.get("name", "a program")
