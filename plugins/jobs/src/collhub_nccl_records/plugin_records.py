"""Read the records of NCCL's profiler plugins: Inspector and the example profiler.

JSON lines of the Inspector (`plugins/profiler/inspector`, format v4.0): one line is one call of one
rank. The lines of all communicators of a process are in one file, and files of several processes
may be concatenated. From format v4.3 on, a line `dump_stats` has the communicator of the lines that
follow it, and their number.

Events of the example plugin (`plugins/profiler/example/print_event.cc`): a file is an array of
Chrome trace events, one a line, with a comma after the last one and often without the closing
bracket. Begin and end of an event have `ph` b and e, and one `cat`, `id` and `pid`. Some versions
write types and streams without quotes. Events of kernels and proxies are between the begin and the
end of their call.

Source of both: NVIDIA/nccl 2.30.7 (Apache-2.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from collhub_nccl_records.calls import CallRecord, Member, SkippedLine, type_of_name
from hub_core import is_finite_number, parse_json_object
from hub_core.model import InputError

_MAX_TEXT = 200
_MAX_OPEN_CALLS = 1 << 16
_CALLS = ("COLL", "P2P")
# Members of `dump_stats`: lines that follow, and calls that were lost since the previous dump.
_COUNTS = ("coll_records", "p2p_records", "proxy_records")
_LOST_CALLS = ("coll_dropped_since_last_dump", "p2p_dropped_since_last_dump")
# Values without quotes: pointers and names of types.
_BARE_VALUE = re.compile(rb"(:\s*)(0[xX][0-9a-fA-F]{1,16}|nccl\w{1,20})(?=\s*[,}])")
# A hash as text: decimal, or hexadecimal with a prefix.
_HASH = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}")
# `FILE-host-42.txt`: the number is a thread, so that it does not identify a process.
_THREAD = re.compile(r"[-_.]\d+(?:\.[A-Za-z]+)*\Z")


def read_inspector_lines(
    lines: Iterable[tuple[int, bytes | None]], file: str
) -> Iterator[CallRecord | SkippedLine]:
    """Yield the calls in lines of NCCL's Inspector, and a `SkippedLine` per unreadable line.

    `lines`: (number, content), None for a line that is too long. `file`: its name. First rule:

    1. Empty: nothing. Too long or no JSON object: `SkippedLine`.
    2. Non-empty object `dump_stats`: `SkippedLine` only if calls were overwritten. N is set to
       `coll_records` + `p2p_records` + `proxy_records`. The next N lines without `header` get
       its `header`, and its `metadata` unless they have it.
    3. `proxy_trace`: nothing. Without `header` it is one of the N lines.
    4. No `header`, or `coll_perf` (`p2p_perf` if it is absent) is empty: `SkippedLine`.
    5. Else `CallRecord`. Bad numbers are -1, texts "". Process: `HOST:PID`, else host, else
       `file`. Communicator `unknown` becomes "". Start: latest kernel stop minus duration, else
       earliest kernel start. Root: `p2p_peer`.
    """
    members: dict[tuple[object, ...], Member] = {}
    marker: dict[str, Any] = {}
    announced = 0
    for number, line in lines:
        if line is not None and not line.strip():
            continue
        try:
            if line is None:
                raise InputError("the line is too long", code="not-json")
            entry = parse_json_object(line, file)
        except InputError:
            yield SkippedLine(number, "the line is not a JSON object", "it may be truncated")
            continue
        stats = _object(entry.get("dump_stats"))
        if stats:
            marker, announced = entry, sum(max(whole_number(stats.get(key)), 0) for key in _COUNTS)
            lost = sum(max(whole_number(stats.get(key)), 0) for key in _LOST_CALLS)
            if lost:
                message = f"{lost} calls were overwritten before they were written"
                yield SkippedLine(number, message, "set a shorter interval of dumps")
            continue
        if "header" not in entry and announced > 0:
            announced -= 1
            entry = {key: marker.get(key) for key in ("header", "metadata")} | entry
        if "proxy_trace" not in entry:
            yield _record(entry, number, file, members)


def _record(
    entry: dict[str, Any], line: int, file: str, members: dict[tuple[object, ...], Member]
) -> CallRecord | SkippedLine:
    header, metadata = _object(entry.get("header")), _object(entry.get("metadata"))
    prefix = "coll" if "coll_perf" in entry else "p2p"
    values = _object(entry.get(f"{prefix}_perf"))
    if not header or not values:
        message = "the line has no header, or neither coll_perf nor p2p_perf"
        return SkippedLine(line, message, "give lines that NCCL's Inspector writes")
    host, pid = _text(metadata.get("hostname")), whole_number(metadata.get("pid"))
    # The README's example has no process: then a file is one.
    process = f"{host}:{pid}" if pid >= 0 else host or file
    name = _text(header.get("comm_name"))
    key = (
        process,
        _text(header.get("id")),
        whole_number(header.get("rank")),
        whole_number(header.get("n_ranks")),
        "" if name == "unknown" else name,
        whole_number(header.get("nnodes")),
    )
    # Kernel times on the clock of the GPU. Invalid ones are -1; 0 is no time either.
    events = _object(entry.get("event_trace_ts")).get("kernel_events")
    kernels = [_object(kernel) for kernel in events] if isinstance(events, list) else []
    starts = [_number(kernel.get("kernel_start_ts")) for kernel in kernels]
    stops = [_number(kernel.get("kernel_stop_ts")) for kernel in kernels]
    start_us = min((time for time in starts if time > 0), default=-1.0)
    stop_us = max((time for time in stops if time > 0), default=-1.0)
    duration_us = _number(values.get(f"{prefix}_exec_time_us"))
    return CallRecord(
        members.setdefault(key, Member(*key)),
        line,
        _text(values.get(prefix)),
        whole_number(values.get(f"{prefix}_sn")),
        whole_number(values.get(f"{prefix}_msg_size_bytes")),
        root=whole_number(values.get("p2p_peer")),
        duration_us=duration_us,
        start_us=start_us if stop_us < 0 or duration_us < 0 else stop_us - duration_us,
        timing_source=_text(values.get(f"{prefix}_timing_source")),
    )


def whole_number(value: object) -> int:
    """Return an integer from 0 to 2^62; -1 for any other value, such as a bool."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and 0 <= value <= 1 << 62 else -1  # type: ignore[operator,return-value]


def _number(value: object) -> float:
    """Return a number from 0 to 1e18 as a float; -1 for any other value, such as a bool or nan."""
    return float(value) if is_finite_number(value) and 0 <= value <= 1e18 else -1.0


def _text(value: object) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


@dataclass(slots=True)
class _OpenCall:
    """A call whose end is still missing; times of its kernels in us, -1 without one."""

    record: CallRecord
    begin_us: float
    kernel_start_us: float = -1
    kernel_stop_us: float = -1


def read_profiler_events(
    lines: Iterable[tuple[int, bytes | None]], file: str
) -> Iterator[CallRecord | SkippedLine]:
    """Yield the calls in a file of NCCL's profiler in the order of their ends, and skipped lines.

    `lines`: (line number, content), None as content for a line that is too long. Brackets of the
    list and empty lines are ignored. A call is a pair of events b and e of category COLL or P2P
    with equal category, `id` and process. The process is `pid` on a host; the host is the file name
    without a final number (of a thread) and the extension after it. A kernel event (category GPU)
    belongs to the last call that its process began.

    Start and end of a call in us:

    1. The earliest begin and latest end of its kernel events before the line of the call's end
       (`timing_source` kernel_cpu), if both are known and the end is not before the begin.
    2. Otherwise the times of the events b and e of the call (collective_cpu).
    3. If these are unknown or the end is before the begin: no times (-1), `timing_source` unknown.

    A `SkippedLine` is yielded, at its line, for a line that is no JSON object or too long, and for
    the begin of a call without a valid `CommHash` or `Rank`. So is one for a begin while
    `_MAX_OPEN_CALLS` (2^16) calls are open, and for an open call whose key begins again (the new
    begin replaces it), at the line of the replaced begin. At the end there is one for each call
    without an end, at the line of its begin, in the order of the begins. An end without an open
    call is ignored. No exception is raised for invalid lines.
    """
    host = _THREAD.sub("", PurePath(file).name)
    open_calls: dict[tuple[str, str, str], _OpenCall] = {}
    members: dict[tuple[str, str, int], Member] = {}
    last: dict[str, _OpenCall] = {}
    for number, line in lines:
        event = _event(line, file)
        if event is None:
            yield SkippedLine(number, "the line is not an event in JSON", "it may be truncated")
            continue
        category, phase = event.get("cat"), event.get("ph")
        process = f"{host}:{event.get('pid')}"
        key = (str(category), str(event.get("id")), process)
        moment = _number(event.get("ts"))
        if category == "GPU" and process in last:
            if phase == "b" and moment >= 0:
                start_us = last[process].kernel_start_us
                last[process].kernel_start_us = moment if start_us < 0 else min(moment, start_us)
            elif phase == "e":
                last[process].kernel_stop_us = max(last[process].kernel_stop_us, moment)
        if category not in _CALLS:
            continue
        if phase == "b":
            record = _call(event, process, number, members)
            if isinstance(record, SkippedLine):
                yield record
                continue
            # Removed first, so that the calls remain in the order of their begins.
            replaced = open_calls.pop(key, None)
            if replaced is not None:
                yield _skip_unfinished(replaced)
            if len(open_calls) == _MAX_OPEN_CALLS:
                message = f"{_MAX_OPEN_CALLS} calls before the event have no end yet"
                yield SkippedLine(number, message, "give a file in which calls have ends")
                continue
            open_calls[key] = last[process] = _OpenCall(record, moment)
        elif phase == "e" and key in open_calls:
            yield _finished(open_calls.pop(key), moment)
    for call in open_calls.values():
        yield _skip_unfinished(call)


def _skip_unfinished(call: _OpenCall) -> SkippedLine:
    return SkippedLine(call.record.line, f"{call.record.operation} has no end in the file")


def _event(line: bytes | None, file: str) -> dict[str, Any] | None:
    """Parse a line of an event list; {} for brackets and empty lines, None for invalid lines.

    A comma after the object, and brackets of the list before or after it, are dropped.
    Values without quotes that are hexadecimal numbers (`0x...`) or names `nccl...` are
    quoted first. `line` is None for a line that is too long. Lines that are no JSON object
    are invalid.
    """
    text = b"?" if line is None else line.strip().removesuffix(b",").rstrip()
    text = text.removeprefix(b"[").lstrip() if text.startswith(b"[") else text
    if text in (b"", b"]"):
        return {}
    if text.endswith(b"}]"):
        text = text[:-1]
    try:
        return parse_json_object(_BARE_VALUE.sub(rb'\1"\2"', text), file)
    except InputError:
        return None


def _call(
    event: dict[str, Any], process: str, line: int, members: dict[tuple[str, str, int], Member]
) -> CallRecord | SkippedLine:
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    recorded = number = args.get("CommHash")
    if isinstance(recorded, str) and _HASH.fullmatch(recorded):
        number = int(recorded, 16 if recorded[:2].lower() == "0x" else 10)
    identity, rank = whole_number(number), whole_number(args.get("Rank"))
    if identity < 0 and isinstance(recorded, int):
        identity = recorded & 0xFFFFFFFFFFFFFFFF
    if identity < 0 or rank < 0:
        name = str(event.get("name"))[:40]
        return SkippedLine(line, f"the event {name!r} has no CommHash or no Rank")
    key = (process, hex(identity), rank)
    member = members.setdefault(key, Member(*key))
    dtype, element_bytes = type_of_name(str(args.get("Datatype", "")))
    count = whole_number(args.get("Count"))
    is_sized = count >= 0 and element_bytes > 0
    target = args.get("Peer", args.get("Root", -1))
    return CallRecord(
        member,
        line,
        str(event.get("name"))[:40],
        whole_number(args.get("SeqNum")),
        count * element_bytes if is_sized else -1,
        dtype,
        whole_number(target),
    )


def _finished(call: _OpenCall, end_us: float) -> CallRecord:
    start, stop, source = call.begin_us, end_us, "collective_cpu"
    if 0 <= call.kernel_start_us <= call.kernel_stop_us:
        start, stop, source = call.kernel_start_us, call.kernel_stop_us, "kernel_cpu"
    if start < 0 or stop < start:
        return replace(call.record, timing_source="unknown")
    return replace(call.record, start_us=start, duration_us=stop - start, timing_source=source)
