"""Read the loads of links from what `collhub simulate --json` has printed."""

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
_MOST = 1 << 62
_CURE = "give the output of collhub simulate --json"
_COLUMNS = ("source", "destination", "bytes", "busy_ns")


@dataclass(frozen=True, slots=True)
class SimulatedLoads:
    """Loads of links over a run of `time_ns`, None where it never ended."""

    loads: Sequence[LinkLoad]
    time_ns: int | None


def read_loads(path: str) -> SimulatedLoads:
    """The loads of a simulation of one size. Raises `InputError` for anything else."""
    report = _report(path)
    if report.get("schema") != SCHEMA:
        raise _error(path, "this is not what 'collhub simulate --json' prints")
    if "results" in report:
        raise _error(path, "several sizes were simulated", "simulate one: --size 1MiB")
    rows = report.get("link_loads")
    if not isinstance(rows, list) or not rows:
        cure = "use a --backend that does, such as analytical"
        raise _error(path, "the simulation does not tell loads of links", cure)
    time_ns = report.get("time_ns")
    if time_ns is not None and not _is_count(time_ns):
        raise _error(path, "time_ns is not a number of nanoseconds")
    return SimulatedLoads([_load(path, number, row) for number, row in enumerate(rows)], time_ns)


def _report(path: str) -> dict[str, Any]:
    """The JSON object of a file of bounded size."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}", "check the path") from None
    if len(content) > MAX_BYTES:
        raise _error(path, f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        report = json.loads(content)
    except (ValueError, RecursionError):
        raise _error(path, "this is not JSON") from None
    return report if isinstance(report, dict) else {}


def _load(path: str, number: int, row: object) -> LinkLoad:
    values = [row.get(name) for name in _COLUMNS] if isinstance(row, dict) else [None]
    if not all(_is_count(value) for value in values):
        raise _error(path, f"link_loads[{number}] lacks a number: {', '.join(_COLUMNS)}")
    return LinkLoad(*values)


def _is_count(value: object) -> bool:
    """Whether a value of JSON is an integer from 0 to below 2^62."""
    # True and False are integers of Python.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _error(path: str, what: str, cure: str = _CURE) -> InputError:
    return InputError(what, location=Location(path), cure=cure, code="loads")
