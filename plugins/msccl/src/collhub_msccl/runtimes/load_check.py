"""Tell whether, and for which calls and sizes, a runtime picks a file up, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from collhub_msccl.reading.read_xml import read
from collhub_msccl.runtimes.known_runtimes import (
    DEFAULT_MAX_BYTES,
    FIFO_CAPACITY,
    RUNTIMES,
    Runtime,
)
from collhub_msccl.runtimes.load_rules import Refusals, check_algo, check_gpu, number
from collhub_msccl.runtimes.raw_xml import RawElement, parse_raw
from hub_core.diagnostics import Diagnostic, HubError, Location, Severity
from hub_core.plugins.contract import LoadableCall, LoadReport, Options, Source
from hub_core.verification import fifo_safety

_REDUCING = frozenset({"allreduce", "reduce", "reduce_scatter", "reducescatter"})
_TOTAL_SIZES = frozenset({"allgather", "reduce_scatter", "reducescatter", "alltoall"})
_OPERATORS = "operators sum, prod, min, max"


def check_msccl(source: Source, _options: Options) -> LoadReport:
    """For microsoft/msccl."""
    return _check(source, RUNTIMES["msccl"])


def check_executor(source: Source, _options: Options) -> LoadReport:
    """For Azure/msccl-executor-nccl in its default build."""
    return _check(source, RUNTIMES["executor"])


def check_rccl(source: Source, _options: Options) -> LoadReport:
    """For ROCm/rccl."""
    return _check(source, RUNTIMES["rccl"])


def _check(source: Source, runtime: Runtime) -> LoadReport:
    found = Refusals(source.name, runtime)
    try:
        algo = parse_raw(source.content().decode("latin-1"), source.name)
    except HubError as error:
        return LoadReport(False, (), error.diagnostics)
    check_algo(algo, found)
    for gpu in algo.children:
        check_gpu(gpu, algo, found)
    if found.is_any:
        return LoadReport(False, (), tuple(found))
    calls = tuple(_calls(algo, runtime))
    return LoadReport(True, calls, (*found, *_doubts(source, algo, runtime, calls)))


def _calls(algo: RawElement, runtime: Runtime) -> Iterator[LoadableCall]:
    attributes = algo.attributes
    collective, ranks = attributes["coll"], number(attributes["ngpus"])
    sizes = _sizes(algo, runtime)
    if sizes is None:
        return
    for is_in_place in _modes(algo, runtime):
        yield LoadableCall(
            collective, ranks, is_in_place, *sizes, tuple(_conditions(collective, algo))
        )


def _modes(algo: RawElement, runtime: Runtime) -> list[bool]:
    if not runtime.has_both_modes:
        # Its all-to-all refuses calls in place and does not look at the attribute.
        return [
            False
            if algo.attributes["coll"] == "alltoall"
            else number(algo.attributes["inplace"]) == 1
        ]
    flags = (("inplace", True), ("outofplace", False))
    return [is_in_place for name, is_in_place in flags if number(algo.attributes[name]) == 1]


def _sizes(algo: RawElement, runtime: Runtime) -> tuple[int, int | None] | None:
    """The smallest and the largest size, both included; no largest for no limit; None where no size is served."""
    smallest = number(algo.attributes.get("minBytes", "0"))
    largest = number(algo.attributes.get("maxBytes", str(DEFAULT_MAX_BYTES)))
    if not runtime.has_both_modes:
        return (smallest, largest - 1) if largest > smallest else None
    if largest == 0:
        return smallest, None
    return (smallest, largest) if largest >= smallest else None


def _conditions(collective: str, algo: RawElement) -> Iterator[str]:
    chunks = number(algo.attributes["nchunksperloop"])
    if chunks > 1:
        count = "elements of all ranks" if collective in _TOTAL_SIZES else "elements"
        yield f"number of {count} divisible by {chunks}"
    if collective in _REDUCING:
        yield _OPERATORS


def _doubts(
    source: Source, algo: RawElement, runtime: Runtime, calls: tuple[LoadableCall, ...]
) -> Iterator[Diagnostic]:
    """Why no call, or not every call that gets the file, is served by it."""
    note = partial(Diagnostic, location=Location(source.name, algo.line))
    if _sizes(algo, runtime) is None:
        highest = algo.attributes.get("maxBytes", "")
        cure = f"state a maxBytes above 0, or convert it with -O runtime={runtime.name}"
        message = f"{runtime.title} takes the file but never uses it: no size is below maxBytes={highest!r}"
        yield note("never-selected", message, cure=cure)
    elif not calls:
        message = (
            f"{runtime.title} takes the file but never uses it: inplace and outofplace are both 0"
        )
        yield note("never-selected", message, cure='write outofplace="1" or inplace="1"')
    try:
        parts = Source.of_bytes(source.name, source.content()).parts
        algorithm = read(Source(source.name, parts, lambda _: None), {})
        safety = fifo_safety(algorithm, FIFO_CAPACITY[algo.attributes["proto"]])
    except HubError as error:
        # A file that its reader refuses, or that lacks half of a message, loads and then hangs or gives wrong results.
        for found in error.diagnostics:
            message = f"loads, but cannot run as meant: {found.message}"
            yield Diagnostic(found.code, message, Severity.WARNING, found.location, found.cure)
        return
    if safety.min_units == 1:
        return
    chunks = number(algo.attributes["nchunksperloop"])
    safe = (
        chunks * (runtime.slice_bytes[algo.attributes["proto"]] // safety.min_units)
        if safety.min_units
        else 0
    )
    if any(call.max_bytes is None or call.max_bytes > safe for call in calls):
        message = (
            f"above {safe} bytes the FIFOs of connections can fill up and the file can deadlock"
        )
        cure = f"lower maxBytes, as 'collhub convert -O runtime={runtime.name}' does"
        yield note("fifo-deadlock", message, Severity.WARNING, cure=cure)
