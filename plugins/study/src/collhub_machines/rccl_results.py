"""Read the files of results that rccl-tests writes with `-x FILE -Z json` and `-Z csv`.

All versions write bytes, us and GB/s, with six decimals. They differ in three points:

- JSON is one object per line, later a list of objects; CSV first had blanks after its commas.
- Builds with MPI count processes, others GPUs. Their header of CSV first lacked the column `nodes`.
- `size` is the buffer that a rank receives, later the larger one of its two buffers: the size of a
  reduce-scatter or scatter of n ranks is first 1/n of the full buffer. `algBw` tells which.

`ranksPerNode` is the processes of a communicator on all nodes, and `nodes` the number of
communicators (`NCCL_TESTS_SPLIT`), so no file names the nodes of its machine.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from collhub_machines.reading import (
    MAX_WHOLE,
    PlaceOptions,
    bus_factor,
    collective_name,
    finite_number,
    note,
    refuse,
    refuse_without_results,
    text_of,
    whole_number,
)
from hub_core import is_finite_number, parse_json_object
from hub_core.model import Diagnostic, InputError
from hub_core.plugin_api import Library, Measurement, MeasurementRequest, MeasurementSet

_RECORD = re.compile(r"\{[^{}]*\}")
_FOREIGN = re.compile(r"[^\s\[\],]")
# Names of JSON and of CSV that mean the same; both are compared in lower case.
_SAME_NAMES = {"collective": "name", "#wrong": "wrong"}
_NEEDED = ("name", "size", "inplace", "time", "algbw", "busbw", "wrong")
_OF_MPI = ("ranks", "rankspernode", "gpusperrank")
_PRINTED_NAMES = {
    "inplace": "inPlace",
    "algbw": "algBw",
    "busbw": "busBw",
    "rankspernode": "ranksPerNode",
    "gpusperrank": "gpusPerRank",
}
_SHARES = frozenset({"reduce-scatter", "scatter"})
_CHECKED_RANKS = frozenset({"all-reduce", "all-gather", "reduce-scatter"})
_REDUCTIONS = frozenset({"all-reduce", "reduce-scatter", "reduce"})
_ROUNDING = 1e-6  # GB/s; bandwidths have six decimals
_MAX_TOLERANCE = 0.3
_CURE = "give the file as rccl-tests wrote it"

# A line, and the values of a time by their names in lower case, those of JSON.
_Record = tuple[int, dict[str, object]]


def read_rccl_tests_json(facts: MeasurementRequest, options: PlaceOptions) -> MeasurementSet:
    """Read the JSON of rccl-tests (`-Z json`), one point per record, in file order.

    A record is an object without inner objects. Records are on lines of their own, or in lists.
    `_convert` makes the points, or warnings instead of them. These also give a warning, with the
    line: a record that is no JSON, other text between records, and a file that ends within a
    record or list.

    Raises `InputError`: `measurements` for a file that is empty or not UTF-8; `no-results`, with
    the warnings, if no time of the place that `options` selects remains.
    """
    text, file = text_of(facts.source), facts.source.name
    skipped: list[Diagnostic] = []
    records: list[_Record] = []
    line, end, num_open = 1, 0, 0
    for match in _RECORD.finditer(text):
        between = text[end : match.start()]
        _note_foreign(between, line, file, skipped)
        num_open += between.count("[") - between.count("]")
        line, end = line + between.count("\n"), match.end()
        try:
            members = parse_json_object(match[0].encode(), file)
        except InputError as error:
            skipped.append(note(file, line, error.diagnostics[0].message, _CURE))
        else:
            values = {name.lower(): value for name, value in members.items()}
            records.append(
                (line, {_SAME_NAMES.get(name, name): value for name, value in values.items()})
            )
        line += match[0].count("\n")
    rest = text[end:]
    is_cut = "{" in rest or num_open > rest.count("]")
    if is_cut:
        message = "the file ends before its JSON does"
        skipped.append(note(file, line + rest.rstrip().count("\n"), message, _CURE))
    else:
        _note_foreign(rest, line, file, skipped)
    return _convert(records, facts, options, skipped)


def _note_foreign(text: str, line: int, file: str, skipped: list[Diagnostic]) -> None:
    """Append a warning to `skipped` if `text`, from line `line` on, is not only JSON's signs."""
    foreign = _FOREIGN.search(text)
    if foreign:
        number = line + text.count("\n", 0, foreign.start())
        skipped.append(note(file, number, "text between the records is skipped", _CURE))


def read_rccl_tests_csv(facts: MeasurementRequest, options: PlaceOptions) -> MeasurementSet:
    """Read the CSV of rccl-tests (`-Z csv`), one point per row, in file order.

    A line that begins with `numCycle` or `collective` is a header for the rows after it, so files
    may be concatenated. Blanks around values are ignored. If a header has `ranks` and no `nodes`,
    its rows have the column `nodes` before `ranks`. `_convert` makes the points, or warnings
    instead of them. A row with another number of values than columns also gives a warning.

    Raises `InputError`: `measurements` for a file that is empty or not UTF-8, a line that is not
    CSV, and a header without a needed column or with a column twice; `no-results`, with the
    warnings, if no time of the place that `options` selects remains.
    """
    text, file = text_of(facts.source), facts.source.name
    skipped: list[Diagnostic] = []
    records: list[_Record] = []
    columns: list[str] = []
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    try:
        for values in rows:
            number, fields = rows.line_num, [value.strip() for value in values]
            if not any(fields):
                continue
            if not columns or fields[0].lower() in {"numcycle", "collective"}:
                columns = _columns(fields, number, file)
            elif len(fields) != len(columns):
                message = f"{len(fields)} values do not fit the {len(columns)} columns"
                if text[-1] not in "\r\n" and number > text.count("\n"):
                    message = "the file ends within this line"
                skipped.append(note(file, number, message, _CURE))
            else:
                records.append((number, dict(zip(columns, fields, strict=True))))
    except csv.Error as error:
        raise refuse(file, rows.line_num, f"not a CSV line: {error}", "repair it") from None
    return _convert(records, facts, options, skipped)


def _columns(fields: list[str], number: int, file: str) -> list[str]:
    """Return the columns of the rows below a header, by the names of `_convert`.

    `fields`: header at line `number`. The column `nodes` is added before `ranks` if a header with
    `ranks` lacks it. Raises `InputError` (`measurements`) for missing and repeated columns.
    """
    columns = [_SAME_NAMES.get(name, name) for name in map(str.lower, fields)]
    if "ranks" in columns and "nodes" not in columns:
        columns.insert(columns.index("ranks"), "nodes")
    cure = "keep the header of the file as rccl-tests wrote it"
    if missing := _missing(columns):
        raise refuse(file, number, f"the header has no column {missing}", cure)
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise refuse(file, number, f"the header has the column {repeated[0][:40]} twice", cure)
    return columns


def _missing(names: Collection[str]) -> str:
    """Return the needed names that `names` lacks, separated by commas; "" if none is missing.

    Without any number of processes, `gpus` is needed, otherwise all three of builds with MPI.
    """
    is_of_mpi = any(name in names for name in _OF_MPI)
    needed = [*_NEEDED, *(_OF_MPI if is_of_mpi else ("gpus",))]
    return ", ".join(_PRINTED_NAMES.get(name, name) for name in needed if name not in names)


def _convert(
    records: list[_Record],
    facts: MeasurementRequest,
    options: PlaceOptions,
    skipped: list[Diagnostic],
) -> MeasurementSet:
    """Return the points of records, each with its line, and the warnings (`skipped` is extended).

    A point has the library RCCL without a version, no machine, the place of `inPlace`, and the
    full buffer as size. Ranks are `gpus`, or `ranksPerNode` times `gpusPerRank` of a build with
    MPI. Nodes are 1 for `gpus`, otherwise those of the request. If it has none, they are 1 too,
    with a warning (`missing-facts`). Repeated cycles (`-N`) give points of equal calls.

    A record gives a warning instead by `_point`. Raises `InputError` (`no-results`) without points.
    """
    file = facts.source.name
    points: list[Measurement] = []
    assumed_line = 0
    for line, record in records:
        point = _point(record, line, facts)
        if isinstance(point, Diagnostic):
            skipped.append(point)
        elif options.accepts(point):
            points.append(point)
            if "gpus" not in record and facts.nodes is None:
                assumed_line = assumed_line or line
    if not points:
        if skipped:
            raise refuse_without_results(file, skipped)
        raise options.refuse(file, records[0][0] if records else 1)
    if assumed_line:
        message = "the file does not name its nodes: one node is assumed"
        cure = "give --nodes M if the run had several"
        skipped.append(note(file, assumed_line, message, cure, "missing-facts"))
    return MeasurementSet(points, skipped, {})


def _point(
    record: Mapping[str, object], line: int, facts: MeasurementRequest
) -> Measurement | Diagnostic:
    """Return the point of a record (values by lower-case names), or a warning at its line.

    The first rule that applies gives the warning:

    1. A needed value is missing, or the name is no collective with a model, such as `AlltoAllv`.
    2. A number is invalid, or `inPlace` is neither 0 nor 1.
    3. The result is wrong (`wrong` above 0). `N/A`, of a run without checks, is allowed.
    4. The point is invalid (`Measurement.defect`).
    5. Bandwidths are those of other ranks (`_has_ranks`), or contradict the time (`_full_size`).
    """
    file = facts.source.name

    def warn(message: str, cure: str = "") -> Diagnostic:
        return note(file, line, message, cure)

    if missing := _missing(record):
        return warn(f"the record has no {missing}", _CURE)
    collective = collective_name(str(record["name"]))
    if collective is None:
        return warn(f"{str(record['name'])[:40]!r} is not a collective with a model")
    counts = ("gpus",) if "gpus" in record else ("rankspernode", "gpusperrank")
    integers = {name: _integer(record[name]) for name in (*counts, "size", "inplace")}
    numbers = {name: _number(record[name]) for name in ("time", "algbw", "busbw")}
    for name, value in (*integers.items(), *numbers.items()):
        if value is None or (name == "inplace" and value > 1):
            shown = _PRINTED_NAMES.get(name, name)
            expected = "0 or 1" if name == "inplace" else "a number of at least 0"
            return warn(f"{shown} {str(record[name])[:20]!r} is not {expected}")
    wrong = "0" if record["wrong"] == "N/A" else record["wrong"]
    if _integer(wrong) is None:
        return warn(f"wrong {str(wrong)[:20]!r} is neither a number nor N/A: time skipped")
    if _integer(wrong):
        cure = "repair the installation before its times are used"
        return warn(f"the result is wrong (#wrong {str(wrong)[:20]}): time skipped", cure)
    ranks = 1
    for name in counts:
        ranks *= integers[name] or 0
    size, time_us = integers["size"] or 0, numbers["time"] or 0.0
    bandwidth, bus = numbers["algbw"] or 0.0, numbers["busbw"] or 0.0
    nodes = 1 if "gpus" in record else facts.nodes or 1
    dtype = str(record.get("type", ""))
    point = Measurement(
        collective, ranks, nodes, size, time_us, Library("RCCL"),
        place="in" if integers["inplace"] else "out",
        dtype="int8" if dtype in {"int8", "uint8"} and collective in _REDUCTIONS else "",
        source="rccl-tests", file=file, line=line,
    )  # fmt: skip
    if reason := point.defect():
        return warn(reason)
    if not _has_ranks(collective, ranks, bandwidth, bus):
        return warn(
            f"the bandwidths are not those of {ranks} ranks", "give the text output of the run"
        )
    full = _full_size(point, bandwidth)
    if full is None:
        message = f"time {time_us:g} us and size contradict algBw {bandwidth:g} GB/s: time skipped"
        return warn(message, "run the test without -C 1, which reports CPU times")
    return replace(point, size_bytes=full)


def _has_ranks(collective: str, ranks: int, bandwidth: float, bus: float) -> bool:
    """Return whether bus / algorithm bandwidth (GB/s) is that of `ranks` ranks (`bus_factor`).

    It is for an all-reduce, all-gather or reduce-scatter if they agree within 0.01 % and the
    rounding of both bandwidths. Other collectives are not checked: always True.
    """
    if collective not in _CHECKED_RANKS:
        return True
    expected = bandwidth * bus_factor(collective, ranks)
    return abs(bus - expected) <= 1e-4 * expected + 2 * _ROUNDING


def _full_size(point: Measurement, bandwidth: float) -> int | None:
    """Return the bytes of the full buffer: the size, or n times the size for n ranks.

    The algorithm bandwidth (GB/s) is that of the full buffer: its product with the time decides,
    within 1 % and its rounding. Only a reduce-scatter and a scatter have sizes of a share. None if
    no size fits, or if the rounding exceeds 30 % and the size may be that of a share.
    """
    sizes = [point.size_bytes]
    if point.collective in _SHARES:
        sizes.append(point.size_bytes * point.ranks)
    tolerance = 0.01 + _ROUNDING / bandwidth if bandwidth > 0 else 1.0
    if tolerance > _MAX_TOLERANCE:
        return point.size_bytes if len(sizes) == 1 else None
    carried = bandwidth * point.time_us * 1e3
    return next((size for size in sizes if abs(carried / size - 1) <= tolerance), None)


def _integer(value: object) -> int | None:
    """Return an integer, or a text of digits, as an integer from 0 to 2^62; None for others."""
    if isinstance(value, str):
        return whole_number(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= MAX_WHOLE else None


def _number(value: object) -> float | None:
    """Return a finite number of at least 0, or its text, as a float; else None."""
    number = finite_number(value) if isinstance(value, str) else None
    if number is None and is_finite_number(value):
        number = float(value)
    return number if number is not None and number >= 0 else None
