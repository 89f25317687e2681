"""Read measured points, and refuse files that users confuse with measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from collhub_machine_profiles.calls import merge_calls

from collhub_machines.reading import refuse
from hub_core import Registry, read_measurements
from hub_core.model import InputError
from hub_core.plugin_api import MeasurementSet, OptionValue

_SEARCHED_BYTES = 2**20
_TUNER_FILE = "a tuner file has choices, not measured times"
_TUNER_CURE = "check it with 'collhub tune --check'; calibrate needs results of a run"
# Files that users confuse with measurements, with the reason and the cure.
_NOT_MEASURED = (
    (
        rb"\bBytes -> (?:Algo|Kernel)\b",
        "the log has NCCL's predicted times, not measured times",
        "give the output of nccl-tests",
    ),
    (
        rb"^#?\s*collective(?:_type)?,(?:min_bytes|bytesPerRank)|\"rules\"\s*:",
        _TUNER_FILE,
        _TUNER_CURE,
    ),
    (
        rb"^\s*(?:allreduce|allgather|reducescatter|alltoall|broadcast)\s*,\s*\d+\s*,",
        _TUNER_FILE,
        _TUNER_CURE,
    ),
)


def read_points(
    files: Sequence[str],
    *,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    format: str | None = None,
    options: Mapping[str, OptionValue] | None = None,
    registry: Registry | None = None,
) -> MeasurementSet:
    """Read files as `read_measurements` does, and combine the records of the ranks of a call.

    Files of predicted times and of tuner rules are refused with the reason.
    """
    try:
        read = read_measurements(
            files,
            collective=collective,
            ranks=ranks,
            nodes=nodes,
            format=format,
            options=options,
            registry=registry,
        )
    except InputError as error:
        finding = error.diagnostics[0]
        if finding.code == "unknown-measurements" and finding.location.file is not None:
            _refuse_unmeasured(finding.location.file)
        raise
    return MeasurementSet(merge_calls(read.points), read.skipped, read.sources)


def _refuse_unmeasured(file: str) -> None:
    """Raise `InputError` if a file that no reader recognises is one of `_NOT_MEASURED`."""
    path = Path(file)
    if not path.is_file():
        return
    with path.open("rb") as opened:
        content = opened.read(_SEARCHED_BYTES)
    for pattern, message, cure in _NOT_MEASURED:
        match = re.search(pattern, content, re.MULTILINE)
        if match:
            line = content.count(b"\n", 0, match.start()) + 1
            raise refuse(file, line, message, cure)
