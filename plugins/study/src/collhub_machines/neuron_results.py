"""Read the results of nccom-test of AWS Neuron: its table, and the JSON of --report-to-json-file.

Source: the documentation of AWS Neuron (tools/neuron-sys-tools/nccom-test). `size(B)` is the full
buffer: the vector of an all-reduce, the gathered buffer of an all-gather, the input of a
reduce-scatter or all-to-all. Neither collective nor ranks are in the results; a command line
before the table has them.
"""

from __future__ import annotations

import re
from typing import Any

from collhub_machines.reading import (
    collective_name,
    finite_number,
    note,
    refuse,
    refuse_without_results,
    text_of,
    whole_number,
    without_rank,
)
from hub_core import is_finite_number, parse_json_object
from hub_core.model import Diagnostic
from hub_core.plugin_api import Library, Measurement, MeasurementRequest, MeasurementSet, NoOptions

LIBRARY = MACHINE = "AWS Neuron"
"""Library and machine of the times; the results do not name the type of instance."""
_NAMES = {"allr": "all-reduce", "allg": "all-gather", "redsct": "reduce-scatter",
          "alltoall": "all-to-all"}  # fmt: skip
# Tests of messages between two ranks.
_PAIRS = frozenset({"sendrecv", "permute"})
_HEADER = re.compile(r"\s*size\(B\)\s+count\(elems\)\s")
_COMMAND = re.compile(r"\bnccom-test\s+(-.*|\w.*)")
_RANKS = re.compile(r"(?:^|\s)(?:-r|--nworkers)[\s=]+(\d{1,7})\b")
_NODES = re.compile(r"(?:^|\s)(?:-N|--nnodes)[\s=]+(\d{1,7})\b")
_WORD = re.compile(r"(?<![\w/.=-])([a-z]+(?:_[a-z]+)*)(?![\w/.=-])")
_SUMS = frozenset({"all-reduce", "reduce-scatter"})
_BYTE_TYPES = frozenset({"int8", "uint8"})
_SIZE = "size(B)"


class _Facts:
    """Collective, ranks and nodes of a table: of its command line, otherwise of the request."""

    def __init__(self, request: MeasurementRequest) -> None:
        self._request = request
        self.collective = request.collective
        self.ranks, self.nodes = request.ranks, request.nodes or 1
        self.is_pairs = False

    def read_command(self, arguments: str) -> None:
        """Set the facts of a test from the arguments of its command line of nccom-test.

        The facts of an earlier command line are replaced. What the arguments lack is that of the
        request: `ranks` and `collective` (None if it lacks them too), and `nodes` (then 1). The
        collective is the first word that names one. `is_pairs`: any word is in `_PAIRS`.
        """
        ranks, nodes = _RANKS.search(arguments), _NODES.search(arguments)
        self.ranks = int(ranks[1]) if ranks else self._request.ranks
        self.nodes = int(nodes[1]) if nodes else self._request.nodes or 1
        words = _WORD.findall(arguments)
        self.is_pairs = any(word in _PAIRS for word in words)
        names = (_NAMES.get(word) or collective_name(word) for word in words)
        self.collective = next(filter(None, names), self._request.collective)


def read_nccom_test(facts: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read the tables of nccom-test, or its JSON, as measurements.

    A text that begins with `{` after white space is JSON; its rows are the list `results`.
    Collective, ranks and nodes come from the last command line before the row, in JSON and without
    a command line from the request. Nodes default to 1. `size(B)` is the size in bytes. The time in
    us is the first column that exists of `time(us)`, `time:p50(us)`, `time:avg(us)` and any other
    `time...(us)`.

    The result has a note for each failed run, row that does not fit the columns, and row with an
    invalid or impossible number. Raises `InputError` for a row without known collective or ranks
    (`missing-facts`), a test of messages between two ranks, a table or JSON row without a column of
    times, and a file without any usable row (`no-results`).
    """
    del options
    text, file = text_of(facts.source), facts.source.name
    skipped: list[Diagnostic] = []
    points: list[Measurement] = []
    test = _Facts(facts)
    if text.lstrip().startswith("{"):
        document = parse_json_object(text.encode(), file)
        results = document.get("results")
        for index, entry in enumerate(results if isinstance(results, list) else []):
            row = entry if isinstance(entry, dict) else {}
            time = row.get(_time_column(list(row), file, None)) if row else None
            point = _point(test, file, None, row.get(_SIZE), time, str(row.get("type", "")))
            _add(point, points, skipped, file, None, f"results[{index}]: ")
    else:
        _read_tables(text, file, test, points, skipped)
    if not points:
        raise refuse_without_results(file, skipped)
    return MeasurementSet(points, skipped, {})


def _read_tables(
    text: str, file: str, test: _Facts, points: list[Measurement], skipped: list[Diagnostic]
) -> None:
    """Append the measurements of all tables of a text, and notes on rows that are not used.

    Ranks printed before a line are removed. By kind of line:

    - Command line of nccom-test: ends a table. `test` gets the collective and ranks from it.
    - Header (`size(B)`, `count(elems)`): begins a table.
    - Line of a table that begins with a digit: a row. It ends the table if it has "errors found".
    - Any other line is ignored, also rows outside of a table.

    A row gives a note in `skipped` instead of a measurement in `points` if its run failed
    ("Failure"), if its number of fields is wrong, or if the measurement is invalid. Raises
    `InputError` for a header without a column of times, a row without known collective and ranks,
    and a row of a test of messages between two ranks.
    """
    columns: list[str] = []
    time_column = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = without_rank(raw).strip()
        command = _COMMAND.search(line)
        if command:
            test.read_command(command[1])
            columns = []
        elif _HEADER.match(line + " "):
            columns = line.split()
            time_column = _time_column(columns, file, number)
        elif columns and line[:1].isdigit():
            fields = line.split()
            if "errors found" in line:
                columns = []
                continue
            if "Failure" in line or len(fields) != len(columns):
                message = f"the row has {len(fields)} fields, the table {len(columns)} columns"
                if "Failure" in line:
                    message = "the run of this size failed"
                skipped.append(note(file, number, message, "repeat the test of this size"))
                continue
            row = dict(zip(columns, fields, strict=True))
            size, time = whole_number(row[_SIZE]), finite_number(row[time_column])
            point = _point(test, file, number, size, time, row.get("type", ""))
            _add(point, points, skipped, file, number, "")


def _time_column(columns: list[str], file: str, line: int | None) -> str:
    """Return the name of the column with the time in us.

    It is the first of these that exists:

    1. `time(us)`
    2. `time:p50(us)`
    3. `time:avg(us)`
    4. the first column whose name begins with `time` and ends with `(us)`

    Raises `InputError`, at `line` of `file`, if there is none.
    """
    times = [name for name in columns if name.startswith("time") and name.endswith("(us)")]
    for name in ("time(us)", "time:p50(us)", "time:avg(us)", *times[:1]):
        if name in times:
            return name
    raise refuse(file, line, "no column has times (time(us))", "keep the header of nccom-test")


def _point(
    test: _Facts, file: str, line: int | None, size: Any, time: Any, dtype: str
) -> Measurement | str:
    """Return the measurement of a row of nccom-test, or the reason why it has none as text.

    Two cases raise `InputError` first: a test of messages between two ranks (`measurements`), and a
    test without collective or without ranks (`missing-facts`).

    `size`: bytes; `time`: us. The reason is that the size is no integer (`bool` is none) or the
    time no finite number. Other limits are not checked. Collective, ranks and nodes are those of
    `test`. The data type is `int8` if the collective adds and `dtype` has one byte, otherwise "".
    `line`: line in the file; None is stored as 0.
    """
    if test.is_pairs:
        message = "the test measures messages between two ranks, not a collective"
        raise refuse(file, line, message, "give a test such as allr or allg")
    if test.collective is None or test.ranks is None:
        message = "nccom-test prints neither the collective nor the ranks"
        cure = "give --collective C, --ranks N and --nodes M, or keep the command line in the file"
        raise refuse(file, line, message, cure, "missing-facts")
    is_size = isinstance(size, int) and not isinstance(size, bool)
    if not is_size or not is_finite_number(time):
        return f"{_SIZE} or the time is no number"
    is_sum = test.collective in _SUMS and dtype in _BYTE_TYPES
    return Measurement(
        test.collective, test.ranks, test.nodes, size, float(time), Library(LIBRARY), MACHINE,
        dtype="int8" if is_sum else "", source="nccom-test", file=file, line=line or 0,
    )  # fmt: skip


def _add(
    point: Measurement | str, points: list[Measurement], skipped: list[Diagnostic], file: str,
    line: int | None, where: str,
) -> None:  # fmt: skip
    """Append a measurement to `points`, or a note to `skipped` if it cannot be used.

    `point`: the measurement, or a text with the reason why there is none. A measurement with a
    defect (`defect`) is not used either; the defect is then the reason. The note is at `line` of
    `file`; its message is `where` followed by the reason.
    """
    reason = point if isinstance(point, str) else point.defect()
    if reason is None and isinstance(point, Measurement):
        points.append(point)
    else:
        skipped.append(note(file, line, f"{where}{reason}"))
