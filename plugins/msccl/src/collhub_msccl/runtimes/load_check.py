"""Report whether a runtime loads a file, for which calls and sizes it uses the file, or why not.

Also the transfer size from which on the bounded FIFOs of connections cannot deadlock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from collhub_msccl.plugin import ReadOptions
from collhub_msccl.reading.read_xml import read
from collhub_msccl.runtimes.known_runtimes import (
    DEFAULT_MAX_BYTES,
    FIFO_CAPACITY,
    RUNTIMES,
    RuntimeRules,
)
from collhub_msccl.runtimes.load_rules import check_algo, check_gpu
from collhub_msccl.runtimes.raw_xml import RawElement, Refusals, parse_raw, read_number
from hub_core.model import (
    Algorithm,
    Diagnostic,
    Findings,
    HubError,
    InputError,
    Location,
    UsageError,
    match_messages,
)
from hub_core.plugin_api import CheckReport, CheckRequest, LoadableCall, NoOptions, Source
from hub_core.verification import FifoBuffers

_REDUCING = frozenset({"allreduce", "reduce", "reduce_scatter", "reducescatter"})
# Collectives whose size is the total of all ranks.
_TOTAL_SIZES = frozenset({"allgather", "reduce_scatter", "reducescatter", "alltoall"})
_OPERATORS = "operators sum, prod, min, max"


def check_msccl(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check whether microsoft/msccl loads the file of the request, and which calls use it."""
    return _check_runtime(request, RUNTIMES["msccl"])


def check_executor(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check whether the default build of Azure/msccl-executor-nccl loads the file, and which calls
    use it.
    """
    return _check_runtime(request, RUNTIMES["executor"])


def check_rccl(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check whether ROCm/rccl loads the file of the request, and which calls use it."""
    return _check_runtime(request, RUNTIMES["rccl"])


def _check_runtime(request: CheckRequest, runtime: RuntimeRules) -> CheckReport:
    """Check whether a runtime loads a file, and report the calls that use it.

    - A file that cannot be read or parsed, or that violates a rule of the runtime, is refused.
      The report is not `ok`, has no calls, and the fact "is_accepted" is False.
    - Any other file is loaded, and "is_accepted" is True. The diagnostics include warnings
      about faults of the program and deadlocks (`_add_doubts_of_program`). The report is `ok`
      if at least one call uses the file. Otherwise the last diagnostic is an error
      `never-selected` with the reason.

    Raises `UsageError` if the request has no file.
    """
    source = request.source
    if source is None:
        raise UsageError("a file is needed: the check is of the subject 'runtime'")
    refusals = Refusals(source.name, runtime)
    try:
        # The runtimes' parser works on bytes: latin-1 maps each byte to one character.
        algo = parse_raw(source.content().decode("latin-1"), source.name)
    except HubError as error:
        return _report_refused(runtime, error.diagnostics)
    check_algo(algo, refusals)
    for gpu in algo.children:
        check_gpu(gpu, algo, refusals)
    # A refused file serves no calls.
    if refusals.is_any:
        return _report_refused(runtime, refusals)
    calls = tuple(_find_calls(algo, runtime))
    _add_doubts_of_program(source, algo, calls, refusals)
    doubts = [] if calls else [_explain_unused_file(source, algo, runtime)]
    uses = "uses it for these calls" if calls else "loads it, but uses it for no call"
    return CheckReport(
        ok=bool(calls),
        verdict=f"{runtime.name} {uses}",
        diagnostics=(*refusals, *doubts),
        calls=calls,
        facts={"is_accepted": True},
    )


def _report_refused(runtime: RuntimeRules, findings: Iterable[Diagnostic]) -> CheckReport:
    """Build the report for a file that the runtime refuses: not `ok`, and without calls.

    The fact "is_accepted" is False; `findings` become its diagnostics in their order.
    """
    return CheckReport(
        ok=False,
        verdict=f"{runtime.name} refuses it",
        diagnostics=tuple(findings),
        facts={"is_accepted": False},
    )


def _find_calls(algo: RawElement, runtime: RuntimeRules) -> Iterator[LoadableCall]:
    """Yield the calls that use the file, one per mode (in place, out of place).

    Yields nothing if no size or no mode uses the file. All calls have the same sizes (bytes) and
    conditions. One condition, only if the file has more than one chunk, is that the number of
    elements is divisible by the number of chunks; for all-gather, reduce-scatter and all-to-all,
    the elements of all ranks count. Reducing collectives also have a condition on operators.
    """
    sizes = _read_sizes(algo, runtime)
    if sizes is None:
        return
    collective = algo.attributes["coll"]
    ranks = read_number(algo.attributes["ngpus"])
    conditions: list[str] = []
    chunks = read_number(algo.attributes["nchunksperloop"])
    if chunks > 1:
        count = "elements of all ranks" if collective in _TOTAL_SIZES else "elements"
        conditions.append(f"number of {count} divisible by {chunks}")
    if collective in _REDUCING:
        conditions.append(_OPERATORS)
    # The runtimes treat every number except 1 as 0.
    modes = [True] if read_number(algo.attributes["inplace"]) == 1 else []
    if not runtime.has_both_modes:
        # The file serves exactly the mode of the attribute; microsoft/msccl refuses all-to-all
        # calls in place.
        modes = [bool(modes) and collective != "alltoall"]
    elif read_number(algo.attributes["outofplace"]) == 1:
        modes.append(False)
    for is_in_place in modes:
        yield LoadableCall(collective, ranks, is_in_place, *sizes, tuple(conditions))


def _read_sizes(algo: RawElement, runtime: RuntimeRules) -> tuple[int, int | None] | None:
    """Return the minimum and maximum call size in bytes, both inclusive; None if no size fits.

    A maximum of None means no limit. A missing minBytes is 0, and a missing maxBytes is the
    runtimes' default. microsoft/msccl excludes maxBytes itself, so 0 means that no size fits. For
    the other runtimes maxBytes is included, and 0 means no limit.
    """
    smallest = read_number(algo.attributes.get("minBytes", "0"))
    largest = read_number(algo.attributes.get("maxBytes", str(DEFAULT_MAX_BYTES)))
    if not runtime.has_both_modes:
        return (smallest, largest - 1) if largest > smallest else None
    if largest == 0:
        return smallest, None
    return (smallest, largest) if largest >= smallest else None


def _explain_unused_file(source: Source, algo: RawElement, runtime: RuntimeRules) -> Diagnostic:
    """Return an error `never-selected` with the reason why no call uses a file, and a cure.

    The runtime loads the file. The error is at the line of `<algo>`. The first rule that
    applies gives the reason:

    1. No size fits minBytes and maxBytes for this runtime, also if both modes are 0.
    2. Otherwise: inplace and outofplace are both 0.

    The caller must have checked that no call uses the file; rule 2 is not checked here.
    """
    location = Location(source.name, algo.line)
    reason = f"{runtime.title} loads the file but never uses it"
    if _read_sizes(algo, runtime) is None:
        highest = algo.attributes.get("maxBytes", "")
        message = f"{reason}: no size is below maxBytes={highest!r}"
        cure = f"write a maxBytes above 0, or convert it with -O runtime={runtime.name}"
    else:
        message = f"{reason}: inplace and outofplace are both 0"
        cure = 'write outofplace="1" or inplace="1"'
    return Diagnostic("never-selected", message, location=location, cure=cure)


def _add_doubts_of_program(
    source: Source,
    algo: RawElement,
    calls: tuple[LoadableCall, ...],
    refusals: Refusals,
) -> None:
    """Add warnings to `refusals` if the program is invalid or can deadlock for some of `calls`.

    If the reader refuses the file, or messages do not match, these errors are added as warnings,
    and deadlocks are not checked. A connection can hold only a limited number of transfers, given
    by the protocol; a transfer moves at most `slice_bytes` of the runtime. `compute_fifo_safety`
    finds the smallest number u of chunks per transfer without a deadlock. If u is 1, there is no
    warning. Otherwise the largest safe call has `nchunksperloop` times (`slice_bytes` // u) bytes,
    or 0 if every number can deadlock. One warning `fifo-deadlock` is added if some call has no
    maximum size or a maximum above this.
    """
    protocol, runtime = algo.attributes["proto"], refusals.runtime
    try:
        parts = Source.of_bytes(source.name, source.content()).parts
        algorithm = read(Source(source.name, parts, lambda _: None), ReadOptions())
        safety = compute_fifo_safety(algorithm, FIFO_CAPACITY[protocol])
    except HubError as error:
        # A file that its reader refuses, or with an unmatched message, loads and then hangs or
        # computes wrong results.
        _add_errors(error.diagnostics, algo, refusals)
        return
    # Safe even if every transfer moves a single chunk: safe at every size.
    if safety.min_units == 1:
        return
    # Maximum size in bytes at which no FIFO can fill up; 0 if every size can deadlock.
    if not safety.min_units:
        largest = 0
    else:
        slice_bytes = runtime.slice_bytes[algo.attributes["proto"]]
        chunks = read_number(algo.attributes["nchunksperloop"])
        largest = chunks * (slice_bytes // safety.min_units)
    if any(call.max_bytes is None or call.max_bytes > largest for call in calls):
        refusals.warn(
            "fifo-deadlock",
            f"above {largest} bytes the FIFOs of connections can fill up and the file can deadlock",
            algo.line,
            f"lower maxBytes, as 'collhub convert -O runtime={runtime.name}' does",
        )


def _add_errors(errors: Iterable[Diagnostic], algo: RawElement, refusals: Refusals) -> None:
    """Add errors of the reader to `refusals`, as warnings about a file that is loaded.

    Each warning has the code, cure and line of the error. Without a line, it has that of `<algo>`.
    The message is "loads, but cannot run as intended:" and the message of the error. If the line
    is that of a thread block or step, the rank, thread block and step come first. Errors with
    equal codes are shown as one warning: the first one, with the number of further ones.
    """
    # By line: rank, thread block and, for a step, its `s`.
    names: dict[int, str] = {}
    for gpu in algo.children:
        for block in gpu.children:
            rank, number_of_block = gpu.attributes.get("id"), block.attributes.get("id")
            name = f"rank {rank}, thread block {number_of_block}"
            names[block.line] = name
            names |= {
                step.line: f"{name}, step {step.attributes.get('s')}" for step in block.children
            }
    for error in errors:
        line = error.location.line or algo.line
        where = f"{names[line]}: " if line in names else ""
        # Remove the step's name from the reader's message, because `where` contains it.
        reason = error.message.removeprefix(where.partition(", ")[2])
        message = f"{where}loads, but cannot run as intended: {reason}"
        refusals.warn(error.code, message, line, error.cure, cause=error.code)


# Total number of transfers that the search examines.
MAX_TRANSFERS = 1 << 24


@dataclass(frozen=True, slots=True)
class FifoSafety:
    """Transfer sizes for which bounded FIFOs cannot deadlock.

    `min_units`: no deadlock if every transfer moves at least this many units (1: safe at every
    size); None if there is a deadlock even with one transfer per step. `capacity`: transfers that a
    connection holds. `is_exact`: False if the search stopped after `MAX_TRANSFERS` transfers;
    `min_units` is then safe, but possibly not the minimum.
    """

    min_units: int | None
    capacity: int
    is_exact: bool = True


def compute_fifo_safety(algorithm: Algorithm, capacity: int) -> FifoSafety:
    """Find how few units per transfer are possible without a deadlock on full connections.

    `capacity`: transfers that a connection can hold. With u units per transfer, a message of c
    units takes ceil(c / u) transfers. Of all u with the same numbers of transfers, only the
    smallest is tried. The tries are from the largest u down, until one deadlocks. The result is:

    - The first try deadlocks: None. There are no messages: 1.
    - A later try deadlocks: the u before it. No try deadlocks: 1.
    - All tries, including the next one, would have more than `MAX_TRANSFERS` (2^24) transfers: the
      last u that was tried, and `is_exact` is False. The first try is made in any case.

    Raises `InputError` if the algorithm has unmatched messages.
    """
    findings = Findings()
    messages = match_messages(algorithm.steps, findings)
    if findings.has_errors():
        raise InputError(list(findings))
    buffers = FifoBuffers(algorithm.steps, messages)
    safe: int | None = None
    examined = 0
    counts = np.maximum(algorithm.steps.count[messages.send], 1)
    for units in _iterate_distinct_splits(np.unique(counts).tolist()):
        examined += int((-(-counts // units)).sum())
        # The first partition is always tried, so that there is a result.
        if safe is not None and examined > MAX_TRANSFERS:
            return FifoSafety(safe, capacity, is_exact=False)
        if buffers.cycle(capacity, units):
            return FifoSafety(safe, capacity)
        safe = units
    return FifoSafety(1 if safe is None else safe, capacity)


def _iterate_distinct_splits(counts: list[int]) -> Iterator[int]:
    """Yield the numbers of units per transfer that give different numbers of transfers, descending.

    With u units per transfer, a count c is split into ceil(c / u) transfers. Of all u that give the
    same numbers of transfers for all `counts`, only the smallest is yielded; the last is 1. Counts
    are at least 1; without any, no number is yielded. A generator, because a count near 2^62 has
    about 2^32 such numbers.
    """
    latest = 0
    partitions = [_iterate_splits(count) for count in counts]
    for units in heapq.merge(*partitions, reverse=True):
        if units != latest:
            latest = units
            yield units


def _iterate_splits(count: int) -> Iterator[int]:
    """Yield the smallest u for every value of ceil(`count` / u), descending from `count` to 1.

    For count 5, yields 5, 3, 2, 1 (for 1, 2, 3 and 5 transfers). Yields nothing for a count below
    1.
    """
    units = count
    while units >= 1:
        transfer_count = -(-count // units)
        units = -(-count // transfer_count)
        yield units
        units -= 1
