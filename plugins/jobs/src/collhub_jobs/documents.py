"""Read and write a job as a JSON document, `collhub/workload-1`: one line per column, lossless.

Samples for the conformance checks of the readers are at the end.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np
from collhub_job_traces import algorithm_of_texts, algorithm_texts

from hub_core import (
    Algorithm,
    InputError,
    Location,
    Provenance,
    Workload,
    json_document,
    parse_json_object,
    schema_violations,
)
from hub_core.chakra import encoded_record
from hub_core.columns import Int64Array
from hub_core.model import (
    NODE_DEFAULTS,
    NODE_DTYPES,
    JobCollective,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    UnitCounts,
)
from hub_core.plugin_api import Artifact, NoOptions, Source, WriteResult

SCHEMA = "collhub/workload-1"
NAMED_COLUMNS: Mapping[str, type[IntEnum]] = {"kind": NodeKind, "collective": JobCollective}
"""Columns written as names; -1 is null."""


def write(workload: Workload, options: NoOptions) -> WriteResult:
    """Write the workload as one JSON document `collhub/workload-1`; nothing is lost."""
    return WriteResult((Artifact("", lambda: _text(workload).encode("ascii")),))


def name_of(code: IntEnum) -> str:
    """Return the name of a node kind or a collective in the document, such as all-reduce."""
    return code.name.lower().replace("_", "-")


def _text(workload: Workload) -> str:
    header = {
        "schema": SCHEMA,
        "num_ranks": workload.num_ranks,
        "provenance": workload.provenance.as_json(),
        "groups": [{"name": group.name, "ranks": list(group.ranks)} for group in workload.groups],
        "names": list(workload.names),
        "extras": list(workload.extras),
        "algorithms": [algorithm_texts(algorithm) for algorithm in workload.algorithms],
        "extensions": dict(workload.extensions),
    }
    if workload.counts:
        header["counts"] = [counts.table.tolist() for counts in workload.counts]
    return json_document(header, "nodes", _columns(workload.nodes))


def _columns(nodes: NodeColumns) -> Iterator[tuple[str, object]]:
    """Yield (name, values as a list) of the columns that a document stores.

    The order is that of `NODE_DTYPES`: rank, kind, identity, name, duration_ns and so on. Rank
    and kind are always included. Any other column is included only if some value differs from
    its default. The default of `identity` is the position of the node within its rank. Kinds
    and collectives are words such as `all-reduce`, and None for -1; all other columns are
    numbers, or booleans for `on_host`.

    Then come `data` and `control`, each only if there are such dependencies: a list of parent
    rows for every node. Without nodes, only empty lists for rank and kind are yielded.
    """
    # A document without identities has positions as identities.
    position = np.arange(len(nodes)) - nodes.rank_indptr[nodes.rank]
    for name in NODE_DTYPES:
        column = getattr(nodes, name)
        default = position if name == "identity" else NODE_DEFAULTS[name]
        if name not in ("rank", "kind") and not np.any(column != default):
            continue
        if name in NAMED_COLUMNS:
            words = {**{int(member): name_of(member) for member in NAMED_COLUMNS[name]}, -1: None}
            yield name, [words[value] for value in column.tolist()]
        else:
            yield name, column.tolist()
    yield from nodes.parent_lists()


_SCHEMA_FILE = "workload-1.json"
# Checked by the schema without their entries, which are checked faster as columns.
_LONG = ("nodes", "names", "extras", "algorithms", "extensions", "counts")


def read(source: Source, options: NoOptions) -> Workload:
    """Build the workload of a document. Raises `InputError` for the first defect.

    No memory is allocated from numbers in the document: list lengths are checked first.
    """
    return _JobDocument(source).workload()


class _JobDocument:
    """Parsed document, and its file name for errors."""

    def __init__(self, source: Source) -> None:
        self._file = source.name
        self._root = parse_json_object(source.content(), source.name)
        name = self._root.get("schema")
        # The schema refuses other versions.
        if not str(name).startswith("collhub/workload-"):
            self._fail("$.schema", f"expected {SCHEMA!r}, got {str(name)[:80]!r}")
        short = {key: value for key, value in self._root.items() if key not in _LONG}
        emptied = {key: type(self._root[key])() for key in _LONG if key in self._root}
        violations = schema_violations({**short, **emptied}, _SCHEMA_FILE)
        if violations:
            location = Location(self._file)
            raise InputError(
                [violation.finding(location, "invalid-json") for violation in violations]
            )

    def workload(self) -> Workload:
        """Build the workload from the parsed JSON document.

        The constructor has checked all members against the schema, except for the contents of
        nodes, names, extras, algorithms, extensions and counts. Extensions may have any content.
        The contents of the remaining ones are checked here. Raises `InputError` for the first
        defect. Its message is:

        - for wrong types or lengths, an unknown or a missing column: the JSON path, then the defect
        - for values of nodes out of range, dependencies between ranks: the defect, located at the
          file
        - for other defects, such as a group with a repeated rank: `$: ` and the first message of
          the model
        """
        root = self._root
        for key in ("names", "extras"):
            self._check_types(root[key], f"$.{key}", str)
        try:
            return Workload(
                self._nodes(root["nodes"], root["num_ranks"]),
                tuple(root["names"]),
                tuple(
                    ProcessGroup(group["name"], tuple(group["ranks"])) for group in root["groups"]
                ),
                tuple(map(self._algorithm, range(len(root["algorithms"])), root["algorithms"])),
                tuple(root["extras"]),
                Provenance(**root["provenance"]),
                root["extensions"],
                tuple(map(self._counts, itertools.count(), root.get("counts", ()))),
            )
        except InputError as error:
            if error.diagnostics[0].location.file:
                raise
            # Errors of the model have no location.
            self._fail("$", error.diagnostics[0].message)

    def _fail(self, path: str, message: str) -> NoReturn:
        location = Location(self._file)
        raise InputError(f"{path}: {message}", location=location, code="invalid-json")

    def _check_types(self, values: object, path: str, expected: type) -> None:
        """Raise `InputError` unless the value at `path` is a list of elements of this type only.

        Types are compared exactly: a bool is not an int, and int is not a float. An empty list is
        accepted. `path`: JSON path for the error, which names the first wrong element.
        """
        if not isinstance(values, list):
            self._fail(path, "a list was expected")
        if not set(map(type, values)) <= {expected}:
            index = next(at for at, value in enumerate(values) if type(value) is not expected)
            self._fail(f"{path}[{index}]", f"{expected.__name__} was expected")

    def _algorithm(self, index: int, traces: Any) -> Algorithm:
        """Decode algorithm `index` of the document from base64 traces, one text per rank.

        Raises `InputError` with the JSON path for another value and for invalid traces.
        """
        path = f"$.algorithms[{index}]"
        self._check_types(traces, path, str)
        return algorithm_of_texts(traces, self._file, f"{path}: a text")

    def _counts(self, index: int, table: object) -> UnitCounts:
        """Convert table `index` of counts: a list of rows per sender, or one count per rank.

        The first element decides which. Raises `InputError` with the JSON path for an invalid
        table.
        """
        is_per_pair = isinstance(table, list) and isinstance(next(iter(table), None), list)
        try:
            return UnitCounts.from_table(table, is_per_pair, f"$.counts[{index}]")
        except InputError as error:
            self._fail(f"$.counts[{index}]", error.diagnostics[0].message)

    def _nodes(self, columns_object: dict[str, Any], num_ranks: int) -> NodeColumns:
        unknown = set(columns_object) - {*NODE_DTYPES, "data", "control"}
        missing = {"rank", "kind"} - set(columns_object)
        if unknown or missing:
            name_at_fault = min(unknown | missing)
            problem = "is missing" if name_at_fault in missing else "is no column"
            self._fail(f"$.nodes.{name_at_fault}", problem)
        rows = len(columns_object["rank"]) if isinstance(columns_object["rank"], list) else 0
        columns = {
            name: self._column(name, columns_object[name], rows)
            for name in NODE_DTYPES
            if name in columns_object
        }
        edges = [self._edges(name, columns_object.get(name), rows) for name in ("data", "control")]
        return NodeColumns.from_columns(num_ranks, columns, edges[0], edges[1], self._file)

    def _column(self, name: str, values: list[Any], rows: int) -> Any:
        """Convert a column of a document to an array; `NodeColumns` checks its range later.

        `kind` and `collective` list names such as `all-reduce`; each becomes the number of its
        member, null becomes -1. `on_host` lists booleans, every other column lists integers (a
        boolean is no integer). The array has the dtype that numpy chooses; that of `identity`
        is uint64. An empty list gives an empty array.

        Raises `InputError` with the JSON path in these cases:

        - `values` is no list, or has other than `rows` entries: `$.nodes.<name>`
        - an unknown name or a wrong type: the path of the first such entry,
          `$.nodes.<name>[<row>]`
        - `identity` has a number below 0 or above 2^64 - 1: `$.nodes.identity`
        """
        path = f"$.nodes.{name}"
        if name in NAMED_COLUMNS:
            codes = {name_of(member): int(member) for member in NAMED_COLUMNS[name] if member >= 0}
            # null: no known collective. `NodeColumns` refuses nodes without a kind.
            codes[None] = -1  # type: ignore[index]
            if not isinstance(values, list):
                self._fail(path, f"a list was expected, got {values!r:.40}")
            try:
                values = [codes[value] for value in values]
            except (KeyError, TypeError):
                row, value = next(
                    (row, value)
                    for row, value in enumerate(values)
                    if not isinstance(value, str | None) or value not in codes
                )
                known = ", ".join(filter(None, codes))
                self._fail(f"{path}[{row}]", f"{value!r:.40} is not one of {known}")
        dtype = NODE_DTYPES[name]
        self._check_types(values, path, bool if dtype is np.bool_ else int)
        if len(values) != rows:
            self._fail(path, f"{rows} entries were expected, there are {len(values)}")
        try:
            return np.asarray(values, np.uint64 if dtype is np.uint64 else None)
        except OverflowError:
            self._fail(path, "an entry is below 0, or above 64 bits")

    def _edges(self, name: str, lists: object, rows: int) -> tuple[Int64Array, Int64Array]:
        """Convert lists of parents per row to (parent rows, child rows), two int64 arrays.

        The pairs are in the order of the child rows; the parents of a child keep the given
        order. So `[[], [0], [1, 0]]` gives ([0, 1, 0], [1, 2, 2]). None means no dependencies:
        both arrays are empty. Cycles are not checked.

        Raises `InputError` with the JSON path in these cases:

        - `lists` is no list, or has other than `rows` entries: `$.nodes.<name>`
        - an entry is no list: `$.nodes.<name>[<row>]`
        - a parent is no integer: `$.nodes.<name>[<row>][<position>]`
        - a parent is not in 0..`rows` - 1: `$.nodes.<name>[<row>]` of the first such list
        """
        if lists is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        path = f"$.nodes.{name}"
        self._check_types(lists, path, list)
        assert isinstance(lists, list)
        if len(lists) != rows:
            self._fail(path, f"{rows} entries were expected, there are {len(lists)}")
        flat = list(itertools.chain.from_iterable(lists))
        if not set(map(type, flat)) <= {int}:
            for row, parents in enumerate(lists):
                self._check_types(parents, f"{path}[{row}]", int)
        if flat and not 0 <= min(flat) <= max(flat) < rows:
            row = next(
                row
                for row, parents in enumerate(lists)
                for parent in parents
                if not 0 <= parent < rows
            )
            self._fail(f"{path}[{row}]", f"a parent is not in 0..{rows - 1}")
        return np.asarray(flat, np.int64), np.repeat(np.arange(rows), list(map(len, lists)))


def samples() -> Sequence[Source]:
    """Return a list with one trace file, `job.0.et`, for the conformance kit.

    Its only rank has a computation of 7 us, then an all-reduce of 1 MiB that depends on it.
    """
    size = {"name": "comm_size", "int64_val": 1 << 20}
    kind = {"name": "comm_type", "int64_val": 0}
    content = encoded_record("GlobalMetadata", version="0.0.4")
    content += encoded_record("Node", id=0, name="forward", type=4, duration_micros=7)
    content += encoded_record("Node", id=1, type=7, data_deps=[0], attr=[kind, size])
    return [Source.of_bytes("job.0.et", content)]


def json_samples() -> Sequence[Source]:
    """Return a list with one file, `job.0.json`, in the JSON form of chakra_jsonizer.

    Its all-reduce of 1 MiB depends on its computation of 7 us.
    """
    size = {"name": "comm_size", "int64Val": str(1 << 20)}
    kind = {"name": "comm_type", "int64Val": "0"}
    messages = [
        {"version": "0.0.4"},
        {"name": "forward", "type": "COMP_NODE", "durationMicros": "7"},
        {"id": "1", "type": "COMM_COLL_NODE", "dataDeps": ["0"], "attr": [kind, size]},
    ]
    content = "".join(json.dumps(message, indent=2) for message in messages).encode()
    return [Source.of_bytes("job.0.json", content)]


def documents() -> Sequence[Source]:
    """Return a list with one document, `job.json`: one rank with one computation of 7000 ns."""
    nodes = {"rank": [0], "kind": ["compute"], "duration_ns": [7000]}
    document = {
        "schema": "collhub/workload-1",
        "num_ranks": 1,
        "provenance": Provenance().as_json(),
        **{key: [] for key in ("groups", "names", "extras", "algorithms")},
        "extensions": {},
        "nodes": nodes,
    }
    return [Source.of_bytes("job.json", json.dumps(document).encode())]
