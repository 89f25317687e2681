"""Read the JSON lines of NCCL's Inspector (`plugins/profiler/inspector`, format v4.0).

One line is one call of one rank. The lines of all communicators of a process are in one file, and
files of several processes may be concatenated. Source: NVIDIA/nccl 2.30.7 (Apache-2.0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from collhub_nccl_records.calls import CallRecord, Member, SkippedLine
from hub_core import parse_json_object
from hub_core.model import InputError

_MAX_TEXT = 200


def read_inspector_lines(
    lines: Iterable[tuple[int, bytes | None]], file: str
) -> Iterator[CallRecord | SkippedLine]:
    """Yield a record per line, and a finding per line that holds none; empty lines are ignored.

    `lines`: line numbers and contents. Numbers that are missing or invalid are -1.
    """
    members: dict[tuple[object, ...], Member] = {}
    for number, line in lines:
        if line is not None and not line.strip():
            continue
        try:
            if line is None:
                raise InputError("the line is too long")
            entry = parse_json_object(line, file)
        except InputError:
            yield SkippedLine(number, "the line is not a JSON object", "it may be truncated")
            continue
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
    start_us, stop_us = _gpu_times(_object(entry.get("event_trace_ts")))
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


def _gpu_times(trace: dict[str, Any]) -> tuple[float, float]:
    """Return first start and last stop of the kernels of a call in us; -1 without a trace."""
    kernels = [_object(kernel) for kernel in _list(trace.get("kernel_events"))]
    starts = [_number(kernel.get("kernel_start_ts")) for kernel in kernels]
    stops = [_number(kernel.get("kernel_stop_ts")) for kernel in kernels]
    starts, stops = [time for time in starts if time > 0], [time for time in stops if time > 0]
    return min(starts, default=-1.0), max(stops, default=-1.0)


def whole_number(value: object) -> int:
    """Return a number from 0 to 2^62, or -1 for any other value."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and 0 <= value <= 1 << 62 else -1  # type: ignore[operator,return-value]


def _number(value: object) -> float:
    """Return a finite number from 0 to 1e18, or -1 for any other value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1e18 or math.isnan(value):  # type: ignore[operator,arg-type]
        return -1.0
    return float(value)  # type: ignore[arg-type]


def _text(value: object) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
