"""Algorithms and tables of counts embedded in the traces of a job.

The metadata of the file of rank r contains the canonical trace of rank r, in base64, of every
algorithm with more than r ranks, and row r of every table of counts with more than r ranks, in
JSON: the bytes for every rank, or one number if the table has one count per rank. Collectives refer
to their algorithm and their counts by number.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence

from hub_core import InputError, Location
from hub_core.chakra import AttributeKind, Metadata, MetadataEntry
from hub_core.model import Algorithm, UnitCounts
from hub_core.plugin_api import Artifact, Source, SourcePart

ALGORITHM = "collhub_algorithm"
"""Attribute of collective nodes: the number of their algorithm."""

COUNTS = "collhub_counts"
"""Attribute of collective nodes: the number of their table of counts."""

_PREFIX = "algorithm."
_ENTRY = re.compile(r"algorithm\.(0|[1-9][0-9]{0,6})")
_COUNTS_ENTRY = re.compile(r"counts\.(0|[1-9][0-9]{0,6})")
Traces = Sequence[Sequence[Artifact]]


def algorithm_texts(algorithm: Algorithm) -> list[str]:
    """Encode an algorithm as its canonical traces, one base64 text per rank."""
    return [_text(trace) for trace in _traces(algorithm)]


def algorithm_of_texts(texts: Sequence[str], file: str, what: str) -> Algorithm:
    """Decode an algorithm from its canonical Chakra traces, given as base64 texts.

    `texts`: one per rank, in order. `file` and `what` (a description of the texts) name the
    origin in errors. Raises `InputError` for no texts, for a text that is no base64
    (`algorithm`), and for contents that are not the traces of one algorithm.
    """
    contents: list[bytes] = []
    for rank, text in enumerate(texts):
        try:
            # Without validation, invalid characters would be skipped.
            contents.append(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            message = f"{what} is not base64"
            location = Location(file, rank=rank)
            raise InputError(message, location=location, code="algorithm") from None
    # Lazy imports, here and below: most jobs contain no algorithms.
    from hub_core import ChakraReadOptions, chakra_algorithm

    # Each trace is a source part, so that errors name the rank.
    parts = [
        SourcePart(f"{file} {what}", content.__bytes__, rank, len(content))
        for rank, content in enumerate(contents)
    ]
    return chakra_algorithm(Source(f"{file} {what}", tuple(parts)), ChakraReadOptions())


def embedded_traces(algorithms: Sequence[Algorithm]) -> Traces:
    """Return the traces of every algorithm by rank, encoded on demand."""
    return [_traces(algorithm) for algorithm in algorithms]


def entries(traces: Traces, rank: int) -> list[MetadataEntry]:
    """Build the metadata entries with the algorithms in the file of a rank."""
    return [
        MetadataEntry(f"{_PREFIX}{number}", AttributeKind.STRING, _text(of_ranks[rank]))
        for number, of_ranks in enumerate(traces)
        if rank < len(of_ranks)
    ]


def counts_entries(tables: Sequence[UnitCounts], rank: int) -> list[MetadataEntry]:
    """Build the metadata entries with the rows of the tables of counts in the file of a rank."""
    return [
        MetadataEntry(
            f"counts.{number}", AttributeKind.STRING, json.dumps(counts.table[rank].tolist())
        )
        for number, counts in enumerate(tables)
        if rank < counts.num_ranks
    ]


def counts_of(files: Sequence[Metadata], name: str) -> tuple[UnitCounts, ...]:
    """Decode the tables of unequal counts in the metadata of a job's files.

    `files`: metadata by rank; `name`: of the job, for errors. The attribute `counts.k` of rank r is
    row r of table k. A row is one count, or a JSON list of counts if the table has a count per pair
    of ranks. A table for n ranks has the rows of ranks 0 to n - 1; higher ranks lack the attribute.
    Other attributes are ignored. Returns the tables by number, from 0; () without tables.

    Raises `InputError` (`invalid-counts`) for the first of:

    - a row that is no JSON, in the order of ranks
    - a number of a table that is missing below the highest one
    - in the order of tables, a table that `_counts_of_rows` refuses
    """
    tables: dict[int, dict[int, object]] = {}
    for rank, metadata in enumerate(files):
        for attribute in metadata.attributes:
            match = _COUNTS_ENTRY.fullmatch(attribute)
            if match is None:
                continue
            try:
                row = json.loads(metadata.text(attribute))
            except (ValueError, RecursionError):
                message = f"the metadata {attribute!r} is no JSON list of integers"
                location = Location(name, rank=rank)
                raise InputError(message, location=location, code="invalid-counts") from None
            tables.setdefault(int(match[1]), {})[rank] = row
    if sorted(tables) != list(range(len(tables))):
        message = f"of its {len(tables)} tables of counts the highest is {max(tables)}"
        raise InputError(message, location=Location(name), code="invalid-counts")
    return tuple(_counts_of_rows(rows, number, name) for number, rows in sorted(tables.items()))


def _counts_of_rows(rows: Mapping[int, object], number: int, name: str) -> UnitCounts:
    """Return the counts of table `number`, of which the file of each rank has one row.

    `rows`: rows by rank, ascending, at least one. If the first row is a list, the table is per pair
    of ranks and each row a list of counts. Otherwise each row is one count. Ranks above the last
    row have no part in the table. `name`: of the job, for errors.

    Raises `InputError` (`invalid-counts`) for the first of:

    - The lowest rank without a row is below the number of counts in the first row (per pair), or
      below the last rank with a row (otherwise).
    - Per pair: a row is no list, or has another number of counts than there are rows.
    - `UnitCounts.from_table` refuses the counts, such as negative ones or a sum of 0.
    """
    first = next(iter(rows.values()))
    is_per_pair = isinstance(first, list)
    missing = next((rank for rank in range(len(rows)) if rank not in rows), len(rows))
    if missing < (len(first) if isinstance(first, list) else max(rows)):
        message = f"the file has no metadata 'counts.{number}', which other ranks have"
        raise InputError(message, location=Location(name, rank=missing), code="invalid-counts")
    for rank, row in rows.items() if is_per_pair else ():
        if not isinstance(row, list) or len(row) != len(rows):
            length = f"{len(row)} counts" if isinstance(row, list) else "no list"
            message = f"the metadata 'counts.{number}' has {length}, expected {len(rows)} counts"
            cure = "state one count per rank of the group in the file of each of its ranks"
            location = Location(name, rank=rank)
            raise InputError(message, location=location, cure=cure, code="invalid-counts")
    return UnitCounts.from_table(list(rows.values()), is_per_pair, f"{name}: counts.{number}")


def _traces(algorithm: Algorithm) -> tuple[Artifact, ...]:
    from hub_core import TraceOptions, chakra_traces

    return tuple(chakra_traces(algorithm, TraceOptions()).artifacts)


def _text(trace: Artifact) -> str:
    return base64.b64encode(trace.content()).decode("ascii")


def algorithms_of(files: Sequence[Metadata], name: str) -> tuple[Algorithm, ...]:
    """Decode the algorithms in the metadata of a job's files, in the order of their numbers.

    `files`: metadata by rank. The attribute `algorithm.k` of the file of rank r is the trace of
    rank r of algorithm k, in base64. A file without the attribute has no rank of algorithm k: the
    texts of the other files count as ranks 0, 1, ... in the order of the files. An attribute that
    is no text counts as "". Attributes with other names are ignored. Returns () if no file has such
    an attribute. `name`: of the job, for errors.

    Raises `InputError` (`algorithm`) if the numbers k are not 0, 1, 2, ... without a gap, or if a
    text is not base64. Raises the `InputError` of the reader of traces if the texts are not the
    traces of one algorithm.
    """
    texts: dict[int, list[str]] = {}
    for metadata in files:
        for attribute in metadata.attributes:
            match = _ENTRY.fullmatch(attribute)
            if match is not None:
                texts.setdefault(int(match[1]), []).append(metadata.text(attribute))
    if sorted(texts) != list(range(len(texts))):
        message = f"of its {len(texts)} algorithms the highest is {max(texts)}"
        raise InputError(message, location=Location(name), code="algorithm")
    return tuple(
        algorithm_of_texts(texts[index], name, f"the metadata {_PREFIX + str(index)!r}")
        for index in sorted(texts)
    )
