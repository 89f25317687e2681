"""Read the loads of links from the output of `collhub simulate --json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub_core.model import InputError, Location
from hub_core.plugin_api import LinkLoad

SCHEMA = "collhub/report-simulate-1"
MAX_BYTES = 1 << 28
_MAX_COUNT = 1 << 62
_DEFAULT_CURE = "give the output of collhub simulate --json"
_COLUMNS = ("source", "destination", "bytes", "busy_ns")


@dataclass(frozen=True, slots=True)
class SimulatedLoads:
    """Loads of links during a run of `time_ns` nanoseconds, None if the run did not finish."""

    loads: Sequence[LinkLoad]
    time_ns: int | None


def read_loads(path: str) -> SimulatedLoads:
    """Read the loads of links and the time from the output of `collhub simulate --json`.

    Raises `InputError` (code `loads`) for a file that cannot be read or is larger than 256 MiB,
    another schema, results of several sizes, missing or empty loads, and values that are no
    integers from 0 to below 2^62. A missing time gives None.
    """
    report = _read_report(path)
    if report.get("schema") != SCHEMA:
        raise _build_error(path, "this is not the output of 'collhub simulate --json'")
    if "results" in report:
        raise _build_error(path, "several sizes were simulated", "simulate one: --size 1MiB")
    rows = report.get("link_loads")
    if not isinstance(rows, list) or not rows:
        cure = "use a --backend that does, such as analytical"
        raise _build_error(path, "the simulation does not report loads of links", cure)
    time_ns = report.get("time_ns")
    if time_ns is not None and not _is_count(time_ns):
        raise _build_error(path, "time_ns is not a number of nanoseconds")
    return SimulatedLoads(
        [_parse_load(path, number, row) for number, row in enumerate(rows)], time_ns
    )


def _read_report(path: str) -> dict[str, Any]:
    """Return the JSON object in a file of at most 256 MiB; {} for any other JSON value.

    Raises `InputError` for a file that cannot be read, is larger, or is no JSON.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _build_error(path, f"cannot be read: {error.strerror}", "check the path") from None
    if len(content) > MAX_BYTES:
        raise _build_error(path, f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        report = json.loads(content)
    except (ValueError, RecursionError):
        raise _build_error(path, "this is not JSON") from None
    return report if isinstance(report, dict) else {}


def _parse_load(path: str, number: int, row: object) -> LinkLoad:
    """Return the load of row `number`: source, destination, bytes and busy ns.

    Raises `InputError` unless the row is an object in which these are integers from 0 to below
    2^62.
    """
    values = [row.get(name) for name in _COLUMNS] if isinstance(row, dict) else [None]
    if not all(_is_count(value) for value in values):
        raise _build_error(path, f"link_loads[{number}] lacks a number: {', '.join(_COLUMNS)}")
    return LinkLoad(*values)


def _is_count(value: object) -> bool:
    """Whether a JSON value is an integer from 0 to below 2^62."""
    # In Python, True and False are integers.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT


def _build_error(path: str, message: str, cure: str = _DEFAULT_CURE) -> InputError:
    """Build the `InputError` (code `loads`) for the file `path`; the caller raises it."""
    return InputError(message, location=Location(path), cure=cure, code="loads")
