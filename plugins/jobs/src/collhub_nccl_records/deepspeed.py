"""Read the lines and the summary of DeepSpeed's communication logger (`comms_logger`).

Only rank 0 writes them. Source: deepspeedai/DeepSpeed `deepspeed/utils/comms_logging.py`
(Apache-2.0): `comm op: NAME | time (ms): 9.46 | msg size: 678.86 MB | algbw (Gbps): ... | busbw
(Gbps): ...`, and a table with a row per operation and size. Times include the wait for the other
ranks, because the logger synchronizes the device after each call. Groups are not recorded. With
`show_straggler`, a second table has the minimum over the ranks of each call, and what it exceeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from collhub_nccl_records.calls import CallRecord, Member, SkippedLine
from hub_core.model import InputError, Location

COMMUNICATOR = "world"
_NUMBER = rb"(\d{1,15}(?:\.\d{1,6})?)"
_SIZE = rb"(0 ?B|\d{1,5}(?:\.\d{1,2})? [KMGTPEZY]?B)"
_LINE = re.compile(
    rb"comm op: (.{1,200}?)\s*\| time \(ms\): " + _NUMBER + rb"\s*\| msg size: " + _SIZE
    + rb"\s*\| algbw \(Gbps\): " + _NUMBER + rb"\s*\| busbw \(Gbps\): " + _NUMBER
)  # fmt: skip
_TABLE = re.compile(rb"Comm\. Op\s+Message Size\s+Count\s+Total Latency\(ms\)\s")
_STRAGGLERS = re.compile(rb"Comm\. Op\s+Message Size\s+Count\s+Total comm lat\(ms\)\s")
_ROW = re.compile(
    rb"\s+" + _SIZE + rb"\s+(\d{1,12})\s+" + _NUMBER + rb"\s+" + _NUMBER + rb"\s+" + _NUMBER
    + rb"\s+" + _NUMBER + rb"\s*\Z"
)  # fmt: skip
_OPERATION = re.compile(rb"\w[\w .|\[\]:]{0,199}\Z")
_UNITS = {b"": 0, b"K": 1, b"M": 2, b"G": 3, b"T": 4, b"P": 5, b"E": 6, b"Z": 7, b"Y": 8}
_OPERATIONS = {
    "all_reduce": "AllReduce", "all_reduce_coalesced": "AllReduce",
    "inference_all_reduce": "AllReduce",
    "all_gather": "AllGather", "all_gather_into_tensor": "AllGather",
    "all_gather_base": "AllGather", "all_gather_coalesced": "AllGather",
    "reduce_scatter": "ReduceScatter", "reduce_scatter_tensor": "ReduceScatter",
    "reduce_scatter_base": "ReduceScatter",
    "all_to_all": "AlltoAll", "all_to_all_single": "AlltoAll",
    "broadcast": "Broadcast", "broadcast_object_list": "Broadcast",
    "reduce": "Reduce", "gather": "Gather", "scatter": "Scatter",
    "send": "Send", "isend": "Send", "recv": "Recv", "irecv": "Recv",
}  # fmt: skip
# Operations whose bus bandwidth is (n - 1) / n of the algorithm bandwidth, n being all ranks.
_SCALED = frozenset(("AllReduce", "AllGather", "ReduceScatter", "AlltoAll"))
# The logger gives the size of the whole input; records have the segment of one rank.
_LOGGED_WHOLE = frozenset(("ReduceScatter", "AlltoAll"))
_MEASURED = _SCALED | {"Broadcast", "Reduce"}
_ROUNDING_GBPS = 0.005
_MAX_RANKS = 1 << 14
# Of all ranks together: readers of jobs repeat the calls for each rank.
_MAX_CALLS = 1 << 22


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line, or one row of a table with `count` calls of `duration_ms` in all.

    `bandwidths`: of algorithm and bus; zeros in the table of minima.
    """

    line: int
    operation: str
    bytes: int
    duration_ms: float
    average_ms: float
    bandwidths: tuple[float, float]
    count: int = 1


class _Log(NamedTuple):
    """Contents of a log: single calls, and the rows of the last summary and of its minima."""

    calls: list[_Entry]
    table: list[_Entry]
    minima: list[_Entry]
    skipped: list[SkippedLine]


@dataclass(frozen=True, slots=True)
class DeepSpeedTime:
    """Time of an operation of one size, in the order of the log.

    `bytes`: those of the full buffer of the collective. `count`: calls, of which `duration_us` is
    the average. `is_minimum`: of each call, the minimum over the ranks counts; otherwise it is the
    time of rank 0, which includes the wait for the other ranks.
    """

    line: int
    operation: str
    bytes: int
    duration_us: float
    count: int
    is_minimum: bool


def read_deepspeed_times(
    lines: Iterable[tuple[int, bytes | None]], file: str, rank_count: int | None
) -> tuple[int, list[DeepSpeedTime], list[SkippedLine]]:
    """Return the number of ranks, the times by operation and size, and the skipped lines of a log.

    The entries come from the first source that is not empty: the minima over the ranks in the
    last summary, the last summary, the single calls (one time each). Entries of other operations
    than AllReduce, AllGather, ReduceScatter, AlltoAll, Broadcast and Reduce are then dropped.
    Times are averages in us. Bytes are those of the full buffer. Without entries in any source,
    the result is (`rank_count` or 0, [], skipped lines).

    `rank_count`: ranks of the job; it is not checked. None derives the number from the bandwidths
    of the last summary and the single calls. If several numbers fit, the one divisible by the
    highest power of two is assumed, and a note with this number is added to the skipped lines.
    Raises `InputError` (`ranks`, `rank-range`) if no number fits or no line has usable bandwidths.
    """
    log = _parse(lines)
    skipped = list(log.skipped)
    entries = log.minima or log.table or log.calls
    if not entries:
        return rank_count or 0, [], skipped
    if rank_count is None:
        rank_count, note = _find_rank_count([*log.table, *log.calls], file)
        if note:
            skipped.append(SkippedLine(entries[0].line, note, is_assumption=True))
    times = [
        DeepSpeedTime(
            entry.line,
            entry.operation,
            entry.bytes * rank_count if entry.operation == "AllGather" else entry.bytes,
            entry.average_ms * 1000,
            entry.count,
            bool(log.minima),
        )
        for entry in entries
        if entry.operation in _MEASURED
    ]
    return rank_count, times, skipped


def read_deepspeed_lines(
    lines: Iterable[tuple[int, bytes | None]], file: str
) -> Iterator[CallRecord | SkippedLine]:
    """Yield the calls of rank 0 in a log of DeepSpeed's communication logger.

    `lines`: (line number, content), None for a line that is too long. The order is:

    1. `SkippedLine`s in log order: too long lines, records of unknown operations, rows without
       calls.
    2. Assumptions (`SkippedLine`): a number of ranks if several fit; the order if from a summary.
    3. Lines of single calls, or without any the rows of the last summary. A row of n calls gives n
       calls with 1/n of its time each.

    A call has the logged duration (in us) and no start, sequence number or root. Bytes of
    reduce-scatter and all-to-all are divided by the number of ranks (`_find_rank_count`), rounded
    down. Without calls, nothing follows step 1. Raises `InputError` after step 1: `ranks`,
    `rank-range` of `_find_rank_count`, `too-large` for calls x ranks above 2^22.
    """
    calls, table, _, skipped = _parse(lines)
    entries = calls or table
    yield from skipped
    if not entries:
        return
    rank_count, note = _find_rank_count(entries, file)
    count = rank_count * sum(entry.count for entry in entries)
    if count > _MAX_CALLS:
        message = f"{count} calls of {rank_count} ranks together; at most {_MAX_CALLS} are read"
        raise InputError(message, location=Location(file), cure="log fewer steps", code="too-large")
    if note:
        yield SkippedLine(entries[0].line, note, is_assumption=True)
    if not calls:
        message = "a summary has no order: its calls follow each other by operation and size"
        yield SkippedLine(entries[0].line, message, is_assumption=True)
    member = Member(file, COMMUNICATOR, 0, rank_count)
    for entry in entries:
        size = entry.bytes
        if entry.operation in _LOGGED_WHOLE:
            size //= rank_count
        for _ in range(entry.count):
            duration_us = entry.duration_ms * 1000 / entry.count
            yield CallRecord(member, entry.line, entry.operation, -1, size, duration_us=duration_us)


def _parse(lines: Iterable[tuple[int, bytes | None]]) -> _Log:
    """Return the single calls, the last summary, its minima and the skipped lines of a log.

    `lines`: (line number, content), None for a line that is too long. A call is a line that
    logs it, also within a table. A summary is a table of calls, and its minima are a second
    table:

    - The heading of either table begins it, and the heading of a summary discards the rows of both.
      Text before a heading, such as a host, is removed from all lines of the table.
    - A line with the name of an operation applies to the rows after it. A row has the size, the
      number of calls and their times.
    - Any other line, and a row before the first operation, ends the table and is ignored.

    Skipped lines are too long lines, calls and rows of an operation that is not in
    `_OPERATIONS`, and rows without calls. Such rows of minima are dropped instead. Sizes are
    in bytes (1 KB is 1024), at most 2^62. Raises nothing.
    """
    log = _Log([], [], [], [])
    operation: bytes | None = None
    rows: list[_Entry] | None = None
    prefix = b""
    for number, raw in lines:
        if raw is None:
            log.skipped.append(SkippedLine(number, "the line is too long"))
            continue
        line = raw if rows is None else raw.removeprefix(prefix)
        if match := _LINE.search(line):
            entry = _to_entry(number, match[1], match[3], match[2], match[2], (match[4], match[5]))
            _add(log, log.calls, entry)
        elif match := _TABLE.search(raw):
            rows, operation, prefix = log.table, None, raw[: match.start()]
            log.table.clear()
            log.minima.clear()
        elif match := _STRAGGLERS.search(raw):
            rows, operation, prefix = log.minima, None, raw[: match.start()]
        elif rows is not None and operation is not None and (match := _ROW.match(line)):
            if rows is log.table:
                _add(log, rows, _to_entry(number, operation, match[1], match[3], match[4],
                                          (match[5], match[6]), match[2]))  # fmt: skip
            else:
                # Columns: total and average of the minima alternate with those of the excess.
                entry = _to_entry(number, operation, match[1], match[3], match[5], (), match[2])
                if isinstance(entry, _Entry):
                    rows.append(entry)
        elif rows is not None and _OPERATION.match(line.rstrip()):
            operation = line.rstrip()
        else:
            rows = None
    return log


def _add(log: _Log, entries: list[_Entry], entry: _Entry | SkippedLine) -> None:
    if isinstance(entry, _Entry):
        entries.append(entry)
    else:
        log.skipped.append(entry)


def _to_entry(
    line: int, name: bytes, size: bytes, time: bytes, average: bytes,
    bandwidths: tuple[bytes, ...], count: bytes = b"1",
) -> _Entry | SkippedLine:  # fmt: skip
    # With `debug`, the name is followed by the calling function.
    text = name.partition(b" | ")[0].decode("ascii", "replace").strip()
    operation = _OPERATIONS.get(text)
    if operation is None:
        return SkippedLine(
            line, f"{text[:40]!r} is no collective", "log collectives by their names"
        )
    if not int(count):
        return SkippedLine(line, "the row has no calls")
    amount, _, unit = size.partition(b" ")
    exponent = _UNITS[unit.removesuffix(b"B")] if unit else 0
    algorithm, bus = map(float, bandwidths or (b"0", b"0"))
    total = min(round(float(amount.removesuffix(b"B")) * 1024**exponent), 1 << 62)
    return _Entry(line, operation, total, float(time), float(average), (algorithm, bus), int(count))


def _find_rank_count(entries: Iterable[_Entry], file: str) -> tuple[int, str]:
    """Derive the number n of ranks from bandwidths; return it, and a note if several numbers fit.

    The ratio of bus and algorithm bandwidth is (n - 1) / n. Both have a rounding error of at most
    0.005 Gbit/s. Only entries of the operations in `_SCALED` are used, and only those with an
    algorithm bandwidth of at least 0.5 Gbit/s. Each one limits n from below and above, within 1 to
    2^14. If several numbers fit all entries, the result is the one that is divisible by the highest
    power of two: 96 of 90 to 100. The note names the range; it is "" if only one number fits.

    Raises `InputError`. Except for the last, it is at the line of the first such entry:

    - `ranks`: the ratio is at least 1 even with the rounding errors
    - `rank-range`: more than 2^14 ranks are needed
    - `ranks`: the entry contradicts the earlier ones
    - `ranks`, without a line: no entry can be used
    """
    lowest, highest = 1.0, float(_MAX_RANKS)
    line = 0
    for entry in entries:
        algorithm, bus = entry.bandwidths
        if entry.operation not in _SCALED or algorithm < 100 * _ROUNDING_GBPS:
            continue
        line = line or entry.line
        smallest = (bus - _ROUNDING_GBPS) / (algorithm + _ROUNDING_GBPS)
        largest = (bus + _ROUNDING_GBPS) / (algorithm - _ROUNDING_GBPS)
        if smallest >= 1:
            message = f"the bus bandwidth {bus} is not below the algorithm bandwidth {algorithm}"
            cure = "correct the line: on n ranks their ratio is (n - 1) / n"
            location = Location(file, entry.line)
            raise InputError(message, location=location, cure=cure, code="ranks")
        lowest = max(lowest, 1 / (1 - smallest))
        if largest < 1:
            highest = min(highest, 1 / (1 - largest))
        if lowest > _MAX_RANKS:
            message = f"the bandwidths belong to more than {_MAX_RANKS} ranks"
            cure = "correct the line, or give the log of a smaller job"
            location = Location(file, entry.line)
            raise InputError(message, location=location, cure=cure, code="rank-range")
        if math.ceil(lowest) > math.floor(highest) + 1e-9:
            message = "the bandwidths of these lines belong to different numbers of ranks"
            cure = "give the log of one job"
            raise InputError(message, location=Location(file, entry.line), cure=cure, code="ranks")
    if not line:
        message = "the number of ranks cannot be derived"
        cure = "log an all-reduce, all-gather, reduce-scatter or all-to-all of some KB"
        raise InputError(message, location=Location(file), cure=cure, code="ranks")
    first, last = math.ceil(lowest), math.floor(highest)
    if first == last:
        return first, ""
    power = 1 << _MAX_RANKS.bit_length()
    while last // power * power < first:
        power //= 2
    count = last // power * power
    return count, f"{count} ranks are assumed; the rounded bandwidths fit {first} to {last}"
