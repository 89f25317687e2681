"""Calls for which a runtime uses a file of a folder, and what the runtimes' folder rules add."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_msccl.runtimes.known_runtimes import RUNTIMES, Runtime
from collhub_msccl.runtimes.load_check import check_executor, check_msccl, check_rccl
from collhub_msccl.runtimes.raw_xml import RawElement, parse_raw
from collhub_msccl.runtimes.refusals import number
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
# The upper end of a file without one, for a runtime that must have one.
_NO_LIMIT = 1 << 62


def judged(source: Source, runtime: Runtime) -> tuple[LoadableCall, ...]:
    """The calls that get a file, at least one. Raises `InputError` with why there is none."""
    report = _CHECKS[runtime.name](CheckRequest(source.name, source=source), NoOptions())
    # What loads and then cannot run as meant is a warning of the check, and no program of a folder.
    wrong = [one for one in report.diagnostics if one.severity is not Severity.NOTE]
    if not report.ok or wrong:
        raise InputError(report.diagnostics)
    return report.calls


def read(source: Source) -> Sequence[ServedCalls]:
    """What every file of the folder serves, as the runtime after which its folder is called has it.

    A file that is not loaded, or is wrong, serves nothing.
    """
    found: list[ServedCalls] = []
    for part in source.parts:
        folder, _, file = part.name.partition("/")
        try:
            if folder not in RUNTIMES or not file:
                known = ", ".join(RUNTIMES)
                raise InputError(f"lies in no folder of a runtime ({known})", code="unknown-file")
            found.append(_served(part, file, RUNTIMES[folder]))
        except InputError as error:
            for one in error.diagnostics:
                place = Location(part.name, one.location.line)
                severity = Severity.ERROR
                source.report(Diagnostic(one.code, one.message, severity, place, one.cure))
    return found


def _served(part: SourcePart, file: str, runtime: Runtime) -> ServedCalls:
    """The calls of one file. Raises `InputError`."""
    # Imported here: a check of the header alone reads no steps.
    from collhub_msccl.options import ReadOptions
    from collhub_msccl.reading.read_xml import read as read_xml

    content = part.load()
    whole = Source(part.name, (part,), lambda _: None)
    calls = judged(whole, runtime)
    # A source is read once.
    again = Source(part.name, (part,), lambda _: None)
    algorithm = read_xml(again, ReadOptions())
    verdict = verify(algorithm)
    if not verdict.ok:
        raise InputError(verdict.diagnostics)
    algo = parse_raw(content.decode("latin-1"), part.name)
    # All calls of a file share its window.
    largest = calls[0].max_bytes
    return ServedCalls(
        algorithm.collective.kind,
        in_place=any(call.in_place for call in calls),
        out_of_place=any(not call.in_place for call in calls),
        min_bytes=calls[0].min_bytes,
        max_bytes=None if largest is None or largest >= _NO_LIMIT else largest,
        by=f"{file}: {_name(algo)} of {calls[0].num_ranks} ranks",
        element_multiple=number(algo.attributes["nchunksperloop"]),
    )


def _name(algo: RawElement) -> str:
    return algo.attributes.get("name", "a program")
