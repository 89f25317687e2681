"""Tell whether, and for which calls and sizes, a runtime picks a file up, and if not, why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from collhub_msccl.options import ReadOptions
from collhub_msccl.reading.read_xml import read
from collhub_msccl.runtimes.fifo_safety import FifoSafety, fifo_safety
from collhub_msccl.runtimes.known_runtimes import (
    DEFAULT_MAX_BYTES,
    FIFO_CAPACITY,
    RUNTIMES,
    Runtime,
)
from collhub_msccl.runtimes.load_rules import check_algo, check_gpu
from collhub_msccl.runtimes.raw_xml import RawElement, parse_raw
from collhub_msccl.runtimes.refusals import Refusals, number
from hub_core.model import Diagnostic, HubError, Location, UsageError
from hub_core.plugin_api import CheckReport, CheckRequest, LoadableCall, NoOptions, Source

_REDUCING = frozenset({"allreduce", "reduce", "reduce_scatter", "reducescatter"})
# Collectives whose size is that of all ranks together.
_TOTAL_SIZES = frozenset({"allgather", "reduce_scatter", "reducescatter", "alltoall"})
_OPERATORS = "operators sum, prod, min, max"


def check_msccl(request: CheckRequest, options: NoOptions) -> CheckReport:
    """For microsoft/msccl."""
    return _check(request, RUNTIMES["msccl"])


def check_executor(request: CheckRequest, options: NoOptions) -> CheckReport:
    """For Azure/msccl-executor-nccl in its default build."""
    return _check(request, RUNTIMES["executor"])


def check_rccl(request: CheckRequest, options: NoOptions) -> CheckReport:
    """For ROCm/rccl."""
    return _check(request, RUNTIMES["rccl"])


def _check(request: CheckRequest, runtime: Runtime) -> CheckReport:
    """Whether one runtime takes a file, the calls that use it, and doubts about them."""
    source = request.source
    if source is None:
        raise UsageError("a file is needed: the check is of the subject 'runtime'")
    found = Refusals(source.name, runtime)
    try:
        # The parser works on bytes: latin-1 keeps each of them one character.
        algo = parse_raw(source.content().decode("latin-1"), source.name)
    except HubError as error:
        return _refused(runtime, error.diagnostics)
    check_algo(algo, found)
    for gpu in algo.children:
        check_gpu(gpu, algo, found)
    # A file that is refused serves no call.
    if found.is_any:
        return _refused(runtime, found)
    calls = tuple(_calls(algo, runtime))
    _add_doubts_of_program(source, algo, calls, found)
    doubts = _doubts_of_selection(source, algo, runtime, calls)
    return _accepted(runtime, calls, (*found, *doubts))


def _refused(runtime: Runtime, findings: Iterable[Diagnostic]) -> CheckReport:
    """The report of a file that the runtime does not take."""
    return CheckReport(
        ok=False,
        verdict=f"{runtime.name} refuses it",
        diagnostics=tuple(findings),
        facts={"is_accepted": False},
    )


def _accepted(
    runtime: Runtime,
    calls: tuple[LoadableCall, ...],
    findings: tuple[Diagnostic, ...],
) -> CheckReport:
    """The report of a file that the runtime takes, which is right where some call uses it."""
    uses = "uses it for these calls" if calls else "takes it, but uses it for no call"
    return CheckReport(
        ok=bool(calls),
        verdict=f"{runtime.name} {uses}",
        diagnostics=findings,
        calls=calls,
        facts={"is_accepted": True},
    )


def _calls(algo: RawElement, runtime: Runtime) -> Iterator[LoadableCall]:
    """The calls that get the file, one for each mode."""
    sizes = _sizes(algo, runtime)
    if sizes is None:
        return
    collective = algo.attributes["coll"]
    ranks = number(algo.attributes["ngpus"])
    for is_in_place in _modes(algo, runtime):
        conditions = tuple(_conditions(collective, algo))
        yield LoadableCall(collective, ranks, is_in_place, *sizes, conditions)


def _modes(algo: RawElement, runtime: Runtime) -> list[bool]:
    """Modes of calls that get the file: True for in place."""
    # Any other number than 1 counts as 0 here.
    in_place = number(algo.attributes["inplace"]) == 1
    if not runtime.has_both_modes:
        # Its all-to-all refuses calls in place and does not look at the attribute.
        is_all_to_all = algo.attributes["coll"] == "alltoall"
        return [in_place and not is_all_to_all]
    modes = [True] if in_place else []
    if number(algo.attributes["outofplace"]) == 1:
        modes.append(False)
    return modes


def _sizes(algo: RawElement, runtime: Runtime) -> tuple[int, int | None] | None:
    """The smallest and the largest size in bytes, both included; None where no size is served.

    No largest for no limit. A maxBytes of 0 means "no limit" to two runtimes, and "never" to
    microsoft/msccl, which compares with "less than".
    """
    smallest = number(algo.attributes.get("minBytes", "0"))
    largest = number(algo.attributes.get("maxBytes", str(DEFAULT_MAX_BYTES)))
    if not runtime.has_both_modes:
        return (smallest, largest - 1) if largest > smallest else None
    if largest == 0:
        return smallest, None
    return (smallest, largest) if largest >= smallest else None


def _conditions(collective: str, algo: RawElement) -> Iterator[str]:
    """Further conditions on a call, in words."""
    chunks = number(algo.attributes["nchunksperloop"])
    if chunks > 1:
        count = "elements of all ranks" if collective in _TOTAL_SIZES else "elements"
        yield f"number of {count} divisible by {chunks}"
    if collective in _REDUCING:
        yield _OPERATORS


def _doubts_of_selection(
    source: Source,
    algo: RawElement,
    runtime: Runtime,
    calls: tuple[LoadableCall, ...],
) -> Iterator[Diagnostic]:
    """The reason why no call gets a file that loads."""
    if calls:
        return
    place = Location(source.name, algo.line)
    reason = f"{runtime.title} takes the file but never uses it"
    if _sizes(algo, runtime) is None:
        highest = algo.attributes.get("maxBytes", "")
        message = f"{reason}: no size is below maxBytes={highest!r}"
        cure = f"state a maxBytes above 0, or convert it with -O runtime={runtime.name}"
    else:
        message = f"{reason}: inplace and outofplace are both 0"
        cure = 'write outofplace="1" or inplace="1"'
    yield Diagnostic("never-selected", message, location=place, cure=cure)


def _add_doubts_of_program(
    source: Source,
    algo: RawElement,
    calls: tuple[LoadableCall, ...],
    found: Refusals,
) -> None:
    """Reasons why the file serves not every call that gets it."""
    protocol, runtime = algo.attributes["proto"], found.runtime
    try:
        parts = Source.of_bytes(source.name, source.content()).parts
        algorithm = read(Source(source.name, parts, lambda _: None), ReadOptions())
        safety = fifo_safety(algorithm, FIFO_CAPACITY[protocol])
    except HubError as error:
        # A file that its reader refuses, or that lacks half of a message, loads and then hangs or
        # gives wrong results.
        _add_errors(error.diagnostics, algo, found)
        return
    # Safe even where every transfer moves a single chunk, so at every size.
    if safety.min_units == 1:
        return
    largest = _safe_bytes(algo, runtime, safety)
    if any(call.max_bytes is None or call.max_bytes > largest for call in calls):
        found.warn(
            "fifo-deadlock",
            f"above {largest} bytes the FIFOs of connections can fill up and the file can deadlock",
            algo.line,
            f"lower maxBytes, as 'collhub convert -O runtime={runtime.name}' does",
        )


def _add_errors(errors: Iterable[Diagnostic], algo: RawElement, found: Refusals) -> None:
    """Add errors of the reader as doubts about a file that loads, with their place in the file."""
    names = _names_by_line(algo)
    for error in errors:
        line = error.location.line or algo.line
        where = f"{names[line]}: " if line in names else ""
        # The place stands before; the reader's own words for it would repeat it.
        reason = error.message.removeprefix(where.partition(", ")[2])
        message = f"{where}loads, but cannot run as meant: {reason}"
        found.warn(error.code, message, line, error.cure, cause=error.code)


def _names_by_line(algo: RawElement) -> dict[int, str]:
    """Rank, thread block and, where the line has one, step of the lines of a file."""
    names: dict[int, str] = {}
    for gpu in algo.children:
        for block in gpu.children:
            rank, number_of_block = gpu.attributes.get("id"), block.attributes.get("id")
            name = f"rank {rank}, thread block {number_of_block}"
            names[block.line] = name
            names |= {
                step.line: f"{name}, step {step.attributes.get('s')}" for step in block.children
            }
    return names


def _safe_bytes(
    algo: RawElement,
    runtime: Runtime,
    safety: FifoSafety,
) -> int:
    """The largest size in bytes at which no connection fills up; 0 for none.

    A transfer moves as many chunks as fit a slice, so the fewer the larger the call.
    """
    if not safety.min_units:
        return 0
    slice_bytes = runtime.slice_bytes[algo.attributes["proto"]]
    chunks = number(algo.attributes["nchunksperloop"])
    return chunks * (slice_bytes // safety.min_units)
