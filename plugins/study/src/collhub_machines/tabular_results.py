"""Read tables of other programs: OSU benchmarks, sweeps of a tuner, aiconfigurator."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from collhub_machines.reading import (
    collective_name,
    contradicts_bandwidth,
    finite_number,
    note,
    refuse,
    refuse_without_results,
    text_of,
    whole_number,
    without_rank,
)
from hub_core.model import Diagnostic
from hub_core.plugin_api import Library, Measurement, MeasurementRequest, MeasurementSet, NoOptions

# A web page may write `\\#` for the sign of a comment.
_OSU_TITLE = re.compile(
    r"\\?#?\s*OSU (MPI\S*|\w*CCL\S*) (.*?) ?(?:Latency |Bandwidth )?Test(?:\s+v\S+)?"
)
_OSU_HEADER = re.compile(r"\\?#?\s*Size(?:\s{2,}|\t)")
# Title of a test between two ranks, before "Test".
_OSU_PAIRS = re.compile(
    r"(?:|Multi|Multi-\w+|Multiple .*|Bi-Directional|Persistent)\Z", re.IGNORECASE
)
_OSU_NAMES = {
    "all-to-all personalized exchange": "all-to-all",
    "reduce_scatter": "reduce-scatter",
}
_PER_PEER = frozenset({"all-gather", "all-to-all", "gather", "scatter"})
_OSU_UNIT = re.compile(r"\((?:[mn]?s|m?sec)\)", re.IGNORECASE)
_ELEMENT_BYTES = {"half": 2, "float16": 2, "bfloat16": 2, "int8": 1, "float": 4, "fp8": 1}
_SWEEP_COLUMNS = ("collective", "size_bytes", "latency_us")
_AICONFIGURATOR_COLUMNS = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")


def _finish(points: list[Measurement], skipped: list[Diagnostic], file: str) -> MeasurementSet:
    if points:
        return MeasurementSet(points, skipped, {})
    raise refuse_without_results(file, skipped)


def read_osu(facts: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read the output of an OSU latency test of a collective, line by line.

    The rank that a launcher writes before a line is ignored. The first rule that fits decides:

    - A title (`# OSU MPI Allreduce Latency Test`) gives library and collective of the next rows.
    - A header (`# Size  Avg Latency(us)`) gives the columns of the next rows.
    - A line that begins with a digit is a row: a size in bytes and a time in us (`_osu_point`).
      Ranks and nodes (default 1) are those of `facts`.
    - Any other line is ignored.

    Before a title the library is MPI. The collective is that of `facts` before a title and after
    one of an unknown collective. Invalid rows, rows that failed validation and a last line that
    is cut become notes in `skipped`.

    Raises `InputError` for a title of a test between two ranks, at a row if the columns are not
    those of a latency test, or if ranks or collective are unknown, and at the end without points.
    """
    text, file = text_of(facts.source), facts.source.name
    lines = text.splitlines()
    collective, library, header, header_line = facts.collective, "MPI", [""], 1
    points: list[Measurement] = []
    skipped: list[Diagnostic] = []
    previous_row = ""
    for number, raw in enumerate(lines, 1):
        line = without_rank(raw).strip()
        title = _OSU_TITLE.match(line)
        if title:
            library = title[1]
            if _OSU_PAIRS.match(title[2]):
                message = "the test measures messages between two ranks, not a collective"
                raise refuse(file, number, message, "give an OSU collective latency test")
            named = _OSU_NAMES.get(title[2].lower()) or collective_name(title[2])
            # The rows of an unknown test do not belong to the test before it.
            collective, header_line = named or facts.collective, number
        elif _OSU_HEADER.match(line):
            header = re.split(r"\s{2,}|\t", line.lstrip("\\# "))
            header_line, previous_row = number, ""
        elif line and line[0].isdigit():
            is_last = number == len(lines) and text[-1] not in "\r\n"
            if is_last and _is_cut(line, previous_row, header):
                cure = "repeat the run if this size is missing"
                skipped.append(note(file, number, "the file ends within this line", cure))
                continue
            previous_row = line
            point = _osu_point(
                line.split(), header, number, header_line, file, facts, collective, library
            )
            reason = point if isinstance(point, str) else point.defect()
            if reason is None and isinstance(point, Measurement):
                points.append(point)
            else:
                skipped.append(note(file, number, str(reason)))
    return _finish(points, skipped, file)


def _is_cut(line: str, previous_row: str, header: list[str]) -> bool:
    """Return whether the last row of a file of OSU was cut within its fields or decimals.

    `line`: the last row. `previous_row`: the row before it in its table, "" for the first
    one. `header`: names of the columns. The row is cut in each of these cases:

    - It has fewer fields than the previous row or the header.
    - Its last field has fewer decimals than that of the previous row. Without a previous row,
      2 are expected if the last column's name contains `Lat`, otherwise 0.

    A row that was cut after all its expected decimals is not recognized.
    """
    fields, complete = line.split(), previous_row.split()
    if len(fields) < max(len(complete), len(header)):
        return True
    expected = 2 if "Lat" in header[-1] else 0
    if complete:
        expected = len(complete[-1].partition(".")[2])
    return len(fields[-1].partition(".")[2]) < expected


def _osu_point(
    fields: list[str],
    header: list[str],
    number: int,
    header_line: int,
    file: str,
    facts: MeasurementRequest,
    collective: str | None,
    library: str,
) -> Measurement | str:
    """Return the measurement of one row of an OSU table, or a text why it has none.

    `fields`: words of the row, at least one; `header`: names of the columns (line `header_line`).
    The first field is the size in bytes. It is multiplied by the ranks for all-gather, all-to-all,
    gather and scatter (bytes per peer). The time in us is in the first column with `Latency` and
    `Avg` in its name, otherwise the first with `Latency`; names that begin with `Min` or `Max` do
    not count. Ranks and nodes are those of `facts`; nodes are 1 by default.

    - Raises `InputError` (`measurements`) at `header_line`, checked before the row: a column with
      `MB/s`; one that begins with `Overall`; no time column; a unit of time that is not us;
      `collective` is None; no ranks.
    - Returns a text if the size is no integer without sign, if the time is missing or not finite,
      or if there is a column `Validation` and any field is `Fail`.

    `Measurement.defect` has further limits, which are not checked.
    """
    if any("MB/s" in name for name in header):
        message = "the test measures bandwidth, not the time of a collective"
        raise refuse(file, header_line, message, "give an OSU collective latency test")
    columns = [
        index
        for index, name in enumerate(header)
        if "Latency" in name and not name.startswith(("Min", "Max"))
    ]
    average = [index for index in columns if "Avg" in header[index]] or columns
    if any(name.startswith("Overall") for name in header):
        message = "the test overlaps a non-blocking collective with computation"
        cure = "give the test of the blocking collective, such as osu_allgather for osu_iallgather"
        raise refuse(file, header_line, message, cure)
    if not average:
        message = "no column is a latency"
        if any("Latency" in name for name in header):
            message = "the columns have minimum and maximum latencies only, no average"
        raise refuse(file, header_line, message, "keep the header of the test")
    if unit := _OSU_UNIT.search(header[average[0]]):
        message = f"the unit {unit[0]} of {header[average[0]][:40]!r} is not the (us) of OSU"
        raise refuse(file, header_line, message, "give the output of OSU as it was printed")
    if collective is None:
        raise refuse(file, header_line, "the collective is not named", "give --collective")
    if facts.ranks is None:
        message = "OSU prints neither ranks nor nodes"
        raise refuse(file, header_line, message, "give --ranks N and --nodes M")
    size = whole_number(fields[0])
    time_us = finite_number(fields[average[0]]) if average[0] < len(fields) else None
    if size is None or time_us is None:
        return f"{len(fields)} fields do not fit the columns of the table"
    if any(name.startswith("Validation") for name in header) and "Fail" in fields:
        return "the result of this size is wrong (Validation: Fail)"
    total = size * facts.ranks if collective in _PER_PEER else size
    return Measurement(
        collective, facts.ranks, facts.nodes or 1, total, time_us, Library(library),
        source="osu", file=file, line=number,
    )  # fmt: skip


def read_sweep(facts: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read the measurements of a tuner sweep (CSV); each row is the time of one forced choice.

    Lines that are empty or begin with `#` are ignored. The first other line names the columns:

    - `collective` (any usual spelling), `size_bytes` (whole number), `latency_us` (number)
    - `ranks`, `nodes`: if missing, empty, 0 or -1, those of the request; without these nodes are 1
    - `algorithm`, `protocol`, `channels`: variant of the library NCCL, such as `ring simple 8
      channels`, without empty values and -1 channels

    Points are in row order. A row becomes a note instead if a value is invalid or the number of
    ranks is unknown, if `Measurement.defect` refuses it (such as below two ranks), or if it is the
    last line, without line end, and its time is cut (`_is_cut_time`).

    Raises `InputError`: `measurements` for an empty file, other bytes than UTF-8, a line that is
    not CSV, a required column that does not occur exactly once; `no-results` without points.
    """
    text, file = text_of(facts.source), facts.source.name
    rows = csv.reader(io.StringIO(text))
    points: list[Measurement] = []
    skipped: list[Diagnostic] = []
    try:
        header: list[str] = []
        has_decimals = False
        for fields in rows:
            number = rows.line_num
            if not fields or fields[0].lstrip().startswith("#"):
                continue
            if not header:
                header = [name.strip() for name in fields]
                _check_sweep_header(header, number, file)
                continue
            row = dict(zip(header, (field.strip() for field in fields), strict=False))
            point = _sweep_point(row, number, file, facts)
            reason = point if isinstance(point, str) else point.defect()
            is_last = number == text.count("\n") + 1
            if reason is None and isinstance(point, Measurement):
                if is_last and _is_cut_time(row, point, has_decimals):
                    reason = "the file ends within this line"
                else:
                    points.append(point)
            has_decimals |= "." in row.get("latency_us", "")
            if reason is not None:
                skipped.append(note(file, number, str(reason)))
    except csv.Error as error:
        raise refuse(file, rows.line_num, f"not a CSV line: {error}", "repair it") from None
    return _finish(points, skipped, file)


def _check_sweep_header(header: list[str], number: int, file: str) -> None:
    """Raise `InputError` at line `number` if columns of a sweep are missing or occur twice."""
    for name in _SWEEP_COLUMNS:
        if header.count(name) != 1:
            message = f"the sweep has {header.count(name)} columns {name}, not one"
            cure = "give the times in us as latency_us and the sizes in bytes as size_bytes"
            raise refuse(file, number, message, cure)


def _is_cut_time(row: dict[str, str], point: Measurement, has_decimals: bool) -> bool:
    """Whether the time of the last row of a sweep lacks digits.

    That is, if it ends in its decimal point, or has none although earlier times have decimals
    (`has_decimals`), or if the bandwidth in GB/s contradicts it (`contradicts_bandwidth`).
    Bandwidths below 0.1 GB/s are rounded and not checked.
    """
    whole, point_sign, decimals = row.get("latency_us", "").partition(".")
    if not decimals and (point_sign or has_decimals):
        return True
    bandwidth = finite_number(row.get("bandwidth_gbps", ""))
    if bandwidth is None or bandwidth < 0.1 or not whole:
        return False
    return contradicts_bandwidth(bandwidth, point.size_bytes, point.time_us)


def _sweep_point(
    row: dict[str, str], number: int, file: str, facts: MeasurementRequest
) -> Measurement | str:
    collective = collective_name(row.get("collective", ""))
    if collective is None:
        return f"collective {row.get('collective', '')[:40]!r} is unknown"
    size = whole_number(row.get("size_bytes", ""))
    time_us = finite_number(row.get("latency_us", ""))
    if size is None or time_us is None:
        return "size_bytes or latency_us is not a number"
    for key in ("ranks", "nodes"):
        if row.get(key, "") not in {"", "-1"} and whole_number(row[key]) is None:
            return f"{key} {row[key][:20]!r} is not a whole number"
    ranks = whole_number(row.get("ranks", "")) or facts.ranks
    nodes = whole_number(row.get("nodes", "")) or facts.nodes or 1
    if ranks is None:
        return "ranks is -1 (any): give --ranks N"
    parts = [row.get(key, "")[:20] for key in ("algorithm", "protocol")]
    channels = row.get("channels", "")[:10]
    if channels not in {"", "-1"}:
        parts.append(f"{channels} channels")
    library = Library("NCCL", "", " ".join(part for part in parts if part))
    return Measurement(
        collective, ranks, nodes, size, time_us, library, source="sweep", file=file, line=number
    )


def read_aiconfigurator(facts: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read `nccl_perf.parquet` of aiconfigurator as measurements of NCCL, in the order of its rows.

    The rows are converted as in `aiconfigurator_points`; ranks, nodes and collective of the request
    are ignored. Raises `InputError`: `measurements` if pyarrow is not installed, if the file is not
    Parquet, or if required columns are missing; `no-results` if no point remains.
    """
    file = facts.source.name
    try:
        # Imported here: pyarrow is an extra, and only this format needs it.
        import pyarrow.parquet as parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        message = "the file is Parquet, and pyarrow is not installed"
        raise refuse(file, None, message, "install collhub-study[parquet]") from None
    try:
        table = parquet.read_table(io.BytesIO(facts.source.content()))
        columns: dict[str, list[Any]] = table.to_pydict()
    except Exception as error:  # pyarrow has no common base class of its errors
        message = f"not a Parquet file: {str(error)[:80]}"
        raise refuse(file, None, message, "download the file again") from None
    return aiconfigurator_points(columns, file)


def aiconfigurator_points(columns: dict[str, list[Any]], file: str) -> MeasurementSet:
    """Convert a table of aiconfigurator, given as lists by column, to measurements.

    Points are in the order of the rows. Each row gives a point of NCCL on one node, out of place:

    - collective: `op_name` in any usual spelling; ranks: `num_gpus`
    - size: `message_size` (elements) times the bytes of `nccl_dtype`, for every collective
    - time: `latency` (ms) times 1000, in us
    - version of NCCL: `version`, machine: `device`; both empty if the column is missing
    - data type: `int8` for an all-reduce or reduce-scatter of int8, otherwise empty

    A row gives a note instead if its operation or data type is unknown, or if a value is no number.
    So does a point beyond the limits of `Measurement.defect`. The line of a note is the row,
    counted from 1. Data types are half, float16, bfloat16, int8, float and fp8.

    Raises `InputError`: `measurements` if a column other than `version` and `device` is missing;
    `no-results`, with the notes, if no point remains.
    """
    missing = [name for name in _AICONFIGURATOR_COLUMNS if name not in columns]
    if missing:
        message = f"no column {', '.join(missing)}"
        raise refuse(file, None, message, "give nccl_perf.parquet of aiconfigurator")
    points: list[Measurement] = []
    skipped: list[Diagnostic] = []
    count = len(columns["op_name"])
    versions, devices = columns.get("version"), columns.get("device")
    for row in range(count):
        collective = collective_name(str(columns["op_name"][row]))
        width = _ELEMENT_BYTES.get(str(columns["nccl_dtype"][row]))
        try:
            if collective is None or width is None:
                raise ValueError("unknown operation or data type")
            is_sum = collective in {"all-reduce", "reduce-scatter"}
            point = Measurement(
                collective, int(columns["num_gpus"][row]), 1,
                int(columns["message_size"][row]) * width, float(columns["latency"][row]) * 1e3,
                Library("NCCL", str(versions[row])[:20] if versions else ""),
                str(devices[row])[:100] if devices else "", "out",
                "int8" if is_sum and str(columns["nccl_dtype"][row]) == "int8" else "",
                source="aiconfigurator", file=file, line=row + 1,
            )  # fmt: skip
            reason = point.defect()
        except (TypeError, ValueError, OverflowError) as error:
            reason = str(error)[:80]
        if reason is None:
            points.append(point)
        else:
            skipped.append(note(file, row + 1, f"row skipped: {reason}"))
    return _finish(points, skipped, file)
