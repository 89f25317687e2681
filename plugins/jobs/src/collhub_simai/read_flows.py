"""Read the flows of a collective of SimCCL as a timing-only algorithm of sends and receives.

A flow is one message. `parent_flow_ids`: flows whose data it forwards; `prev_flow_ids`: flows that
its source sends before. Source: the documentation of a fork of SimAI; the separator of ids is not
documented, so that every text between numbers is one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, NoReturn

import numpy as np

from collhub_simai.plugin import SIMCCL, SimcclOptions
from hub_core.model import (
    MAX_UNITS,
    Algorithm,
    Collective,
    CollectiveKind,
    CustomContract,
    Diagnostic,
    InputError,
    Location,
    Provenance,
    Severity,
    StepKind,
    StepTable,
    StepTableBuilder,
    standard_kind,
)
from hub_core.plugin_api import Source, decompressed

COLUMNS = (
    "collective", "op", "data_size", "algorithm", "protocol", "channel_id", "flow_id", "src",
    "dest", "flow_size", "chunk_id", "chunk_count", "conn_type", "parent_flow_ids",
    "prev_flow_ids",
)  # fmt: skip
_NUMBER = re.compile(r"-?[0-9]{1,18}\Z")
_IDS = re.compile(r"[0-9]{1,18}(?![0-9])")
_MAX_FLOWS = 1 << 20
_MAX_RANKS = 1 << 20
_MAX_FIELD = 1 << 16


def read(source: Source, options: SimcclOptions) -> Algorithm:
    """Read the flows of one collective as an algorithm whose units are bytes.

    The options choose the collective (`_select_flows`); a note reports the number of flows of other
    collectives. The algorithm has the kind CUSTOM. Its unit count, its size in bytes, and the
    length of the buffers of every rank are the bytes that the busiest rank sends or receives. The
    extension `SIMCCL` has the columns `collective`, `op` and `data_size` of the first flow. Raises
    `InputError` for several files (`several-files`), without a flow that fits the options
    (`empty`), and with the line for invalid rows, repeated or unknown flows, and cyclic
    dependencies.
    """
    if len(source.parts) != 1:
        message = f"{len(source.parts)} files; the flows of a job are one file"
        raise InputError(
            message, location=Location(source.name), cure="name one file", code="several-files"
        )
    part = source.parts[0]
    with decompressed(part.stream(), part.name) as stream:
        flows, skipped_count = _select_flows(_rows(stream, part.name), options, part.name)
    if skipped_count:
        message = (
            f"{skipped_count} flows of other collectives are not read; see -O collective, operation"
        )
        source.report(Diagnostic(SIMCCL, message, Severity.NOTE, Location(part.name)))
    steps, units = _build_steps(flows, part.name)
    num_ranks = steps.num_ranks
    buffers = np.full(num_ranks, units, np.int64)
    contract = CustomContract(buffers, buffers, np.ones(num_ranks, np.bool_))
    collective = Collective(CollectiveKind.CUSTOM, num_ranks, units, contract=contract)
    provenance = Provenance(SIMCCL, "", source.name, source.sha256())
    facts = {name: flows[0][1][name] for name in ("collective", "op", "data_size")}
    return Algorithm(
        collective, steps, np.zeros(num_ranks, np.int64), provenance, units, {SIMCCL: {**facts}}
    )


_Row = tuple[int, Mapping[str, str]]


def _rows(stream: BinaryIO, file: str) -> Iterator[_Row]:
    """Yield (line number, fields by name) of the rows; empty rows are skipped.

    Bytes that are not UTF-8 are replaced. Raises `InputError` with the line for another header than
    `COLUMNS`, rows with another number of fields, and fields of more than 2^16 characters. While
    rows are read, the global field limit of the module `csv` is changed.
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
    raise InputError(message, location=Location(file, max(1, line)), cure=cure, code=SIMCCL)


def _select_flows(
    rows: Iterator[_Row], options: SimcclOptions, file: str
) -> tuple[list[_Row], int]:
    """Return the flows of the chosen collective, and the number of the other flows.

    It is the collective and operation (columns `collective` and `op`) of the first flow that
    fits the options; options that are None fit every flow. The flows keep their order and line
    numbers. Raises `InputError` if none fits (`empty`), and for more than 2^20 chosen flows.
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
        if len(flows) == _MAX_FLOWS:
            _refuse(file, line, f"more than {_MAX_FLOWS} flows", "read a smaller collective")
        flows.append((line, row))
    if not flows:
        message = f"the file has no flows of this collective, and {skipped_count} others"
        cure = "give -O collective=, -O operation=, or a file with flows"
        raise InputError(message, location=Location(file, 1), cure=cure, code="empty")
    return flows, skipped_count


def _build_steps(flows: Sequence[_Row], file: str) -> tuple[StepTable, int]:
    """Build a send and a receive for each flow; return the steps and the bytes of the busiest rank.

    Steps of a rank are in the order of the flows; units are bytes, and the channel is that of the
    flow. A send has a data dependency on the receives of the flows in `parent_flow_ids`, and a
    control dependency on the sends of those flows in `prev_flow_ids` that its rank sends; other
    known ids in `prev_flow_ids` have no effect. Receives have no dependencies. The busiest rank
    sends or receives the most bytes. The number of ranks is the highest rank plus 1, at least 2.
    There must be at least one flow. Raises `InputError` with the line for an invalid number, a
    repeated flow id, an unknown id in either column, and a parent that does not end at the sender;
    also if a rank sends or receives more than `MAX_UNITS` (2^62) bytes.
    """
    numbers = [_numbers(line, row, file) for line, row in flows]
    by_id: dict[int, int] = {}
    for position, (line, _) in enumerate(flows):
        flow = numbers[position]["flow_id"]
        if flow in by_id:
            first = flows[by_id[flow]][0]
            _refuse(file, line, f"flow {flow} is also on line {first}", "number flows differently")
        by_id[flow] = position
    ranks = max(max(fields["src"], fields["dest"]) for fields in numbers) + 1
    builder = StepTableBuilder(max(ranks, 2))
    sent, received = np.zeros((2, max(ranks, 2)), np.int64)
    # The send of a flow is step 2 x position, its receive the next one.
    for position, (line, row) in enumerate(flows):
        fields = numbers[position]
        parents = _places(row["parent_flow_ids"], by_id, line, file)
        previous = _places(row["prev_flow_ids"], by_id, line, file)
        data = [2 * p + 1 for p in parents if numbers[p]["dest"] == fields["src"]]
        control = [2 * p for p in previous if numbers[p]["src"] == fields["src"]]
        if len(data) < len(parents):
            message = f"a parent of flow {fields['flow_id']} does not end at rank {fields['src']}"
            _refuse(file, line, message, "correct parent_flow_ids")
        for rank, peer, kind in (
            (fields["src"], fields["dest"], StepKind.SEND),
            (fields["dest"], fields["src"], StepKind.RECV),
        ):
            is_send = kind is StepKind.SEND
            builder.add(
                rank, kind, data=data if is_send else (), control=control if is_send else (),
                peer=peer, channel=fields["channel_id"], count=fields["flow_size"],
                source_line=line,
            )  # fmt: skip
        sent[fields["src"]] += fields["flow_size"]
        received[fields["dest"]] += fields["flow_size"]
    units = int(max(sent.max(), received.max()))
    if units > MAX_UNITS:
        _refuse(file, 1, f"a rank moves {units} bytes; at most {MAX_UNITS}", "read a smaller size")
    return builder.build(file), units


def _numbers(line: int, row: Mapping[str, str], file: str) -> dict[str, int]:
    """Return channel_id, flow_id, src, dest and flow_size of a row as integers by name.

    Raises `InputError` with the line for a value that is no decimal number of at least 0 (at
    most 18 digits), for a flow from a rank to itself, for ranks of 2^20 or more, for a
    `channel_id` above 2^30, and for a `flow_size` of 0 or above `MAX_UNITS`. The first mistake
    counts.
    """
    numbers = {}
    for name in ("channel_id", "flow_id", "src", "dest", "flow_size"):
        text = row[name].strip()
        if not _NUMBER.match(text) or int(text) < 0:
            _refuse(file, line, f"{name} is {text[:40]!r}, no number", "write a decimal number")
        numbers[name] = int(text)
    if numbers["src"] == numbers["dest"]:
        message = f"flow {numbers['flow_id']} goes from rank {numbers['src']} to itself"
        _refuse(file, line, message, "leave it out")
    if max(numbers["src"], numbers["dest"]) >= _MAX_RANKS:
        _refuse(file, line, f"a rank above {_MAX_RANKS - 1}", "use smaller ranks")
    if numbers["channel_id"] > 1 << 30 or not 0 < numbers["flow_size"] <= MAX_UNITS:
        _refuse(file, line, "channel_id or flow_size is out of range", "correct the row")
    return numbers


def _places(text: str, by_id: Mapping[int, int], line: int, file: str) -> list[int]:
    """Return the positions of the flows with the ids in a text, in order; -1 is ignored.

    Ids are separated by any characters other than digits and minus. Raises `InputError` with the
    line for an id that is not in `by_id`.
    """
    places = []
    for word in re.split(r"[^0-9-]+", text):
        if not word or word == "-1":
            continue
        if not _IDS.fullmatch(word) or int(word) not in by_id:
            _refuse(file, line, f"flow {word[:20]} is not in the file", "correct the ids")
        places.append(by_id[int(word)])
    return places
