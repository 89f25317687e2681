"""Read the flows of a collective of SimCCL as a timing-only algorithm of sends and receives.

A flow is one message. `parent_flow_ids`: flows whose data it forwards; `prev_flow_ids`: flows that
its source sends before. Source: the documentation of a fork of SimAI; the separator of ids is not
documented, so that every text between numbers is one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NoReturn

from collhub_simai.flows import MAX_FLOWS, FlowMessage, build_algorithm, check_flow, refuse
from collhub_simai.plugin import SIMCCL, SimcclOptions
from hub_core.model import Algorithm, Diagnostic, InputError, Location, Severity, standard_kind
from hub_core.plugin_api import Source, decompressed

COLUMNS = (
    "collective", "op", "data_size", "algorithm", "protocol", "channel_id", "flow_id", "src",
    "dest", "flow_size", "chunk_id", "chunk_count", "conn_type", "parent_flow_ids",
    "prev_flow_ids",
)  # fmt: skip
_NUMBER = re.compile(r"-?[0-9]{1,18}\Z")
_IDS = re.compile(r"[0-9]{1,18}(?![0-9])")
_MAX_FIELD = 1 << 16


def read(source: Source, options: SimcclOptions) -> Algorithm:
    """Return the flows of one collective as a timing-only algorithm in bytes (`build_algorithm`).

    The first flow that fits `options.collective` and `options.operation` (None fits all) chooses
    the collective: all flows with the same `collective` and `op` are read. If others exist, a note
    with their number is reported to `source`. The extension `SIMCCL` has the columns `collective`,
    `op` and `data_size` of the first chosen flow, as texts; `data_size` is not compared with the
    flows. A compressed file is decompressed.

    Raises `InputError`: `several-files` unless there is one file, `empty` if no flow fits, and
    `SIMCCL` with the line for an invalid header, row, number or flow, more than 2^20 chosen flows,
    repeated or unknown flow ids, and cycles of dependencies.
    """
    part = source.get_only_part("the text of the flows of a job")
    with decompressed(part.stream(), part.name) as stream:
        rows, skipped_count = _select_flows(_rows(stream, part.name), options, part.name)
    if skipped_count:
        message = (
            f"{skipped_count} flows of other collectives are not read; see -O collective, operation"
        )
        source.report(Diagnostic(SIMCCL, message, Severity.NOTE, Location(part.name)))
    flows = [_parse_flow(line, row, part.name) for line, row in rows]
    facts = {name: rows[0][1][name] for name in ("collective", "op", "data_size")}
    return build_algorithm(source, flows, part.name, facts, SIMCCL)


_Row = tuple[int, Mapping[str, str]]


def _rows(stream: BinaryIO, file: str) -> Iterator[_Row]:
    """Yield (line number from 1, fields by name) of each row after the header.

    The number is that of the last line of the row. Rows of blank fields only are skipped. Fields
    keep their blanks. Bytes that are not UTF-8 are replaced.

    Raises `InputError` (`SIMCCL`), with the line, in these cases:

    - The first row is not `COLUMNS` in this order (blanks around names are ignored), also for an
      empty file.
    - A row has another number of fields.
    - A field has more than 2^16 characters, or the text is no CSV.

    Until the iterator ends, the global field limit of the module `csv` is 2^16; then it is
    restored.
    """
    reader = csv.reader(line.decode("utf-8", "replace") for line in stream)
    previous = csv.field_size_limit(_MAX_FIELD)
    try:
        header = [name.strip() for name in next(reader, [])]
        if header != list(COLUMNS):
            message = "the first line is not the header of flows"
            _refuse(file, 1, message, f"write {','.join(COLUMNS)}")
        for row in reader:
            if not any(field.strip() for field in row):
                continue
            if len(row) != len(COLUMNS):
                message = f"the row has {len(row)} of {len(COLUMNS)} fields"
                _refuse(file, reader.line_num, message, "complete the row")
            yield reader.line_num, dict(zip(COLUMNS, row, strict=True))
    except csv.Error as error:
        _refuse(file, reader.line_num, f"this is no CSV: {error}", "write the file again")
    finally:
        csv.field_size_limit(previous)


def _refuse(file: str, line: int, message: str, cure: str) -> NoReturn:
    refuse(file, line, message, cure, SIMCCL)


def _select_flows(
    rows: Iterator[_Row], options: SimcclOptions, file: str
) -> tuple[list[_Row], int]:
    """Return the flows of the chosen collective, and the number of all other flows.

    The first flow that fits the options chooses the collective. Then every flow is chosen whose
    columns `collective` and `op` are the same texts, apart from surrounding blanks. Flows before
    the first fitting one are counted as others. A flow fits if both hold:

    - `options.collective` is None, or is the standard name (such as `all-reduce`) of the column
      `collective`. The column may have any spelling that `standard_kind` knows, as `AllReduce`.
    - `options.operation` is None, or its decimal text equals the column `op` (so `07` is not 7).

    The chosen flows keep their order, line numbers and fields; all rows are consumed. Raises
    `InputError`: `empty` if no flow fits, `SIMCCL` at chosen flow 2^20 + 1, and the errors of
    `rows`.
    """
    flows: list[_Row] = []
    skipped_count = 0
    chosen: tuple[str, str] | None = None
    for line, row in rows:
        key = (row["collective"].strip(), row["op"].strip())
        kind = standard_kind(key[0])
        is_kind = options.collective is None or str(kind) == options.collective
        is_operation = options.operation is None or key[1] == str(options.operation)
        if chosen is None and is_kind and is_operation:
            chosen = key
        if key != chosen:
            skipped_count += 1
            continue
        if len(flows) == MAX_FLOWS:
            _refuse(file, line, f"more than {MAX_FLOWS} flows", "read a smaller collective")
        flows.append((line, row))
    if not flows:
        message = f"the file has no flows of this collective, and {skipped_count} others"
        cure = "give -O collective=, -O operation=, or a file with flows"
        raise InputError(message, location=Location(file, 1), cure=cure, code="empty")
    return flows, skipped_count


def _parse_flow(line: int, row: Mapping[str, str], file: str) -> FlowMessage:
    """Return the flow of a row, with its line, ids, ranks, channel and size.

    Raises `InputError` (`SIMCCL`) with the line for the first of these defects:

    1. In the order `flow_id`, `src`, `dest`, `channel_id`, `flow_size`: a value that is not a
       decimal number of 1 to 18 digits from 0 on. Blanks around it are ignored.
    2. In `parent_flow_ids`, then in `prev_flow_ids`: an id other than -1 that is not 1 to 18
       digits. -1 is ignored. Whether a flow has the id is not checked.
    3. Source and destination are one rank, or a rank is 2^20 or more.
    4. The channel is above 2^30, or the size is not from 1 to `MAX_UNITS`.
    """
    numbers = []
    for name in ("flow_id", "src", "dest", "channel_id", "flow_size"):
        text = row[name].strip()
        if not _NUMBER.match(text) or int(text) < 0:
            _refuse(file, line, f"{name} is {text[:40]!r}, no number", "write a decimal number")
        numbers.append(int(text))
    parents = _ids(row["parent_flow_ids"], line, file)
    previous = _ids(row["prev_flow_ids"], line, file)
    flow_id, rank, peer, channel, size = numbers
    return check_flow(
        FlowMessage(line, flow_id, rank, peer, channel, size, parents, previous), file, SIMCCL
    )


def _ids(text: str, line: int, file: str) -> tuple[int, ...]:
    """Return the ids of flows in a text, in order; -1 is ignored.

    Words are separated by any characters other than digits and minus. A text without words gives
    (). Raises `InputError` with the line for any word but -1 that is not 1 to 18 digits, such as
    another negative number.
    """
    ids = []
    for word in re.split(r"[^0-9-]+", text):
        if not word or word == "-1":
            continue
        if not _IDS.fullmatch(word):
            _refuse(file, line, f"flow {word[:20]} is not in the file", "correct the ids")
        ids.append(int(word))
    return tuple(ids)
