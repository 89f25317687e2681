"""Choose the reader of a file by its content, and read several files as one set of points."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collhub_machine_profiles.measurement import (
    Measurement,
    ReadMeasurements,
    ReadOptions,
    merge_calls,
    refuse,
)

from collhub_machines.perf_output import read_perf_output
from collhub_machines.structured_results import (
    OWN_SCHEMA,
    read_inspector,
    read_mscclpp_lines,
    read_mscclpp_tuned,
    read_nccl_tests_json,
    read_own_points,
)
from collhub_machines.tabular_results import read_aiconfigurator, read_osu, read_sweep
from hub_core.model import Diagnostic, InputError

MAX_FILE_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class MeasurementReader:
    """A format of measurements: `pattern` is searched in the text; the first match wins."""

    name: str
    description: str
    pattern: re.Pattern[str]
    read: Callable[[str, str, ReadOptions], ReadMeasurements]


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.MULTILINE)


READERS = (
    MeasurementReader(
        "measured-json",
        "points in the hub's own form",
        _pattern(rf'\A\s*\{{(?s:.){{0,4000}}?"{re.escape(OWN_SCHEMA)}"'),
        read_own_points,
    ),
    MeasurementReader(
        "inspector",
        "JSON lines of NCCL's or RCCL's Inspector",
        _pattern(r'\A\s*\{.*"(?:coll_perf|p2p_perf)"\s*:'),
        read_inspector,
    ),
    MeasurementReader(
        "mscclpp-tuned",
        "tuned configuration of MSCCL++",
        _pattern(r'\A\s*\{(?s:.){0,4000}?"profiles"\s*:\s*\['),
        read_mscclpp_tuned,
    ),
    MeasurementReader(
        "mscclpp-lines",
        "JSON lines of mscclpp-test",
        _pattern(r'\A\s*\{(?=.*"name"\s*:)(?=.*"ranksPerNode"\s*:)'),
        read_mscclpp_lines,
    ),
    MeasurementReader(
        "nccl-tests-json",
        "JSON of nccl-tests (-J)",
        _pattern(r'\A\s*\{(?s:.){0,4000}?"args"\s*:\s*\['),
        read_nccl_tests_json,
    ),
    MeasurementReader(
        "sweep",
        "measurements of a tuner sweep, CSV",
        _pattern(r"\A\s*collective,size_bytes,.*latency_us"),
        read_sweep,
    ),
    MeasurementReader(
        "nccl-tests",
        "text of nccl-tests, rccl-tests and mscclpp-test",
        _pattern(
            r"^(?:\[\d+,\d+\]<std\w+>:|\d+: ?)?#\s*(?:nThread\b|minBytes\b|\w*-tests version\b"
            r"|Collective test\b|\s*size\s+count\b)"
        ),
        read_perf_output,
    ),
    MeasurementReader(
        "osu",
        "OSU micro-benchmarks",
        _pattern(r"^(?:#?\s*OSU .*Test\b|#?\s*Size\s{2,}.*(?:Latency|Bandwidth))"),
        read_osu,
    ),
)

# Files that users confuse with measurements, with the reason and the cure.
_NOT_MEASURED = (
    (
        _pattern(r"\bBytes -> (?:Algo|Kernel)\b"),
        "the log has NCCL's predicted times, not measured times",
        "give the output of nccl-tests",
    ),
    (
        _pattern(r"^#?\s*collective(?:_type)?,(?:min_bytes|bytesPerRank)|\"rules\"\s*:"),
        "a tuner file has choices, not measured times",
        "check it with 'collhub tune --check'; calibrate needs results of a run",
    ),
    (
        _pattern(r"^\s*(?:allreduce|allgather|reducescatter|alltoall|broadcast)\s*,\s*\d+\s*,"),
        "a tuner file has choices, not measured times",
        "check it with 'collhub tune --check'; calibrate needs results of a run",
    ),
)


def detect(text: str) -> MeasurementReader | None:
    """Return the reader of a text, or None if no reader claims it."""
    return next((reader for reader in READERS if reader.pattern.search(text)), None)


def read_content(content: bytes, file: str, options: ReadOptions) -> ReadMeasurements:
    """Read one file. Raises `InputError` with file, line and cure if nothing in it is usable."""
    if content[:4] == b"PAR1":
        return read_aiconfigurator(content, file, options)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte {error.start} is not UTF-8"
        raise refuse(file, line, message, "give the text or JSON that a test wrote") from None
    if not text.strip():
        raise refuse(file, 1, "the file is empty", "give the output of a run")
    reader = detect(text)
    if reader is None:
        raise _unknown(text, file)
    try:
        return reader.read(text, file, options)
    except ValueError as error:
        # Only the JSON parser raises it here; readers of lines report their lines themselves.
        line = getattr(error, "lineno", 1)
        raise refuse(file, line, f"not JSON: {error}", "repair or repeat the run") from None


def _unknown(text: str, file: str) -> InputError:
    for pattern, message, cure in _NOT_MEASURED:
        found = pattern.search(text)
        if found:
            return refuse(file, text.count("\n", 0, found.start()) + 1, message, cure)
    names = "; ".join(reader.description for reader in READERS)
    return refuse(file, 1, "no reader knows this file", f"known are: {names}")


def read_files(files: Sequence[str], options: ReadOptions) -> ReadMeasurements:
    """Read several files. Raises `InputError` for the first file that cannot be used."""
    points: list[Measurement] = []
    skipped: list[Diagnostic] = []
    sources: dict[str, dict[str, str]] = {}
    for file in files:
        one = read_content(_content(file), file, options)
        points += one.points
        skipped += one.skipped
        sources.update(one.sources)
    return ReadMeasurements(merge_calls(points), skipped, sources)


def _content(file: str) -> bytes:
    try:
        path = Path(file)
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            raise refuse(file, None, "the file exceeds 256 MiB", "split it by collective")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise refuse(file, None, f"{reason}", "name a file that can be read") from None
