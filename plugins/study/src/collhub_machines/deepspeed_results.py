"""Read measured times of DeepSpeed's communication logger: its log, and its summary as JSON.

Source: deepspeedai/DeepSpeed `deepspeed/utils/comms_logging.py` (Apache-2.0). `log_all` prints a
summary; with `return_dict` it returns `summary`, `straggler_analysis` and `metadata`, which have
exact bytes as keys.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from collhub_nccl_records import DeepSpeedTime, read_deepspeed_times

from collhub_machines.reading import (
    collective_name,
    note,
    refuse,
    refuse_without_results,
    text_of,
    whole_number,
)
from hub_core import is_finite_number, parse_json_object
from hub_core.model import Diagnostic
from hub_core.plugin_api import Library, Measurement, MeasurementRequest, MeasurementSet, NoOptions

LIBRARY = "DeepSpeed"
# Of the log, in us; averages have two decimals of ms.
_RESOLUTION_US = 10.0
_MIN_TIME_US = 10 * _RESOLUTION_US
# Operations whose logged size is the input of a rank and not the full buffer.
_PER_RANK = frozenset({"all-gather"})


def read_deepspeed(facts: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read the times by collective and size of DeepSpeed from a log or a JSON summary.

    A text that begins with `{` after white space is JSON. A log without a summary gives the times
    of single calls. Several times of one operation and size become their median, at the place and
    line of the first. The size in bytes is that of the full buffer: the size in the file, for an
    all-gather times ranks.

    - Ranks: JSON, `metadata.world_size`, otherwise (missing or 0) `facts.ranks`. Log:
      `facts.ranks`, otherwise derived from the bandwidths in the log.
    - Nodes: `facts.nodes`, otherwise 1.
    - Omitted with a warning in the result: operations unknown to `collective_name`, times of a log
      below 100 us (its resolution is 10 us), and points out of range.
    - If the first time is not a minimum over the ranks (`show_straggler`), the times are those of
      rank 0 with its waits. A warning `waits` says so.

    Raises `InputError` if no time remains, for invalid JSON, for JSON without ranks
    (`missing-facts`), and for a log whose ranks cannot be derived (`ranks`, `rank-range`).
    """
    del options
    text, file = text_of(facts.source), facts.source.name
    is_json = text.lstrip().startswith("{")
    skipped: list[Diagnostic] = []
    if is_json:
        ranks, times = _parse_json(facts, text)
    else:
        numbered = enumerate(text.encode().split(b"\n"), 1)
        ranks, times, lines = read_deepspeed_times(numbered, file, facts.ranks)
        skipped += [note(file, line.line, line.message, line.cure) for line in lines]
    groups: dict[tuple[str, int], list[DeepSpeedTime]] = {}
    for time in times:
        groups.setdefault((time.operation, time.bytes), []).append(time)
    points: list[Measurement] = []
    nodes = facts.nodes or 1
    for (operation, num_bytes), group in groups.items():
        line, time_us = group[0].line, median(time.duration_us for time in group)
        name = collective_name(operation)
        if name is None:
            skipped.append(note(file, line, f"{operation[:40]!r} is no collective"))
            continue
        if not is_json and time_us < _MIN_TIME_US:
            message = f"{time_us / 1000:.2f} ms is too short for two decimals of ms"
            skipped.append(note(file, line, message, "write the summary as JSON"))
            continue
        point = Measurement(
            name, ranks, nodes, num_bytes, time_us, Library(LIBRARY),
            source="deepspeed", file=file, line=line,
        )  # fmt: skip
        reason = point.defect()
        if reason is None:
            points.append(point)
        else:
            skipped.append(note(file, line, reason))
    if not points:
        raise refuse_without_results(file, skipped)
    if not times[0].is_minimum:
        message = "the times are those of rank 0, which include the wait for other ranks"
        cure = "log with show_straggler=True for the minima over the ranks"
        skipped.append(note(file, times[0].line or None, message, cure, "waits"))
    return MeasurementSet(points, skipped, {})


def _parse_json(facts: MeasurementRequest, text: str) -> tuple[int, list[DeepSpeedTime]]:
    """Return (ranks, times) of a DeepSpeed summary in JSON, in the order of the file.

    Ranks are `metadata.world_size`, otherwise (missing or 0) those of `facts`. The times are the
    averages by operation and size: from `straggler_analysis` if it has entries, otherwise from
    `summary`. A missing table gives no times. The operation is the hub's name of the collective,
    or the name in the file if it is none; the prefix `inference_`, text after ` | ` and suffixes of
    torch are ignored.

    Each average becomes a `DeepSpeedTime` with line 0 and the time converted from ms to us. Its
    bytes are the size of the file, for an all-gather times the ranks. It also has the number of
    calls (`count`, 0 if missing). It is marked as a minimum over ranks if it is from
    `straggler_analysis`.

    Raises `InputError` for invalid JSON, without ranks (`missing-facts`), and for an entry without
    an integer size or a finite time.
    """
    file = facts.source.name
    document = parse_json_object(text.encode(), file)
    ranks = _integer(_object(document.get("metadata")).get("world_size")) or facts.ranks
    if not ranks:
        message = "metadata.world_size is missing"
        raise refuse(file, None, message, "give --ranks N and --nodes M", "missing-facts")
    minima = _object(document.get("straggler_analysis"))
    table, key = (
        (minima, "avg_comm_lat_ms") if minima else (document.get("summary"), "avg_latency_ms")
    )
    times = []
    for operation, sizes in _object(table).items():
        # Names are those of torch, as in the log: `all_gather_into_tensor` is an all-gather.
        plain_name = operation.partition(" | ")[0].strip().removeprefix("inference_")
        for suffix in ("_into_tensor", "_tensor", "_base", "_coalesced", "_single", "_object_list"):
            plain_name = plain_name.removesuffix(suffix)
        name = collective_name(plain_name) or operation
        for size, entry in _object(sizes).items():
            value = _object(entry).get(key)
            bytes_ = whole_number(size)
            if bytes_ is None or not is_finite_number(value):
                message = f"{operation[:40]}.{size[:40]}: a size in bytes with {key} was expected"
                raise refuse(file, None, message, "write what log_all(return_dict=True) returns")
            total = bytes_ * ranks if name in _PER_RANK else bytes_
            count = _integer(_object(entry).get("count"))
            times.append(DeepSpeedTime(0, name, total, float(value) * 1000, count, bool(minima)))
    return ranks, times


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: Any) -> int:
    """Return an integer; 0 for other values and booleans."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
