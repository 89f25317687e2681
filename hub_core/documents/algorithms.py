"""The canonical JSON document of an algorithm, `collhub/algorithm-1`.

One line a column, lossless, byte-stable. Source: schemas/algorithm-1.json.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array
from hub_core.documents.schema_check import TYPE_NAMES, schema_violations
from hub_core.documents.strict_json import (
    MAX_DEPTH,
    JsonObject,
    is_too_deep,
    json_document,
    parse_json_object,
)
from hub_core.model import (
    COLUMN_DEFAULTS,
    COLUMN_DTYPES,
    MAX_UNITS,
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    Contributions,
    CustomContract,
    Diagnostic,
    InputError,
    JsonValue,
    Location,
    Provenance,
    ReduceOp,
    StepKind,
    StepTable,
)
from hub_core.plugin_api import Artifact, NoOptions, Source, WriteResult

SCHEMA = "collhub/algorithm-1"
_SCHEMA_FILE = "algorithm-1.json"

_KIND_NAMES = {kind.name.lower().replace("_", "-"): int(kind) for kind in StepKind}
_BUFFER_NAMES = {buffer.name.lower(): int(buffer) for buffer in Buffer}
_NAMED_COLUMNS = {"kind": _KIND_NAMES, "src_buffer": _BUFFER_NAMES, "dst_buffer": _BUFFER_NAMES}
_REQUIRED_COLUMNS = ("rank", "kind")
# Offsets outside the buffers can be written down, so that verification can say where they are.
_LEAST = {
    "peer": -1,
    "src_offset": -(2**63),
    "dst_offset": -(2**63),
    "lane": -1,
    "duration_ns": -1,
    "source_line": -1,
}
_PLAIN_FIELDS = ("num_ranks", "unit_count", "root", "in_place", "out_of_place")
_CONTRACT_SIZES = ("input_units", "output_units")
_CONTRACT_ROWS = ("rank", "offset", "source_rank", "source_unit")
# Arrays with checks of their own: as columns they are checked a thousand times faster.
_ARRAYS = {
    "$.scratch_units",
    "$.steps.data",
    "$.steps.control",
    *(f"$.steps.{name}" for name in COLUMN_DTYPES),
    *(f"$.collective.contract.{name}" for name in (*_CONTRACT_SIZES, "defined")),
    *(f"$.collective.contract.expected.{name}" for name in _CONTRACT_ROWS),
}


_Edges = tuple[Int64Array, Int64Array]


def read(source: Source, options: NoOptions) -> Algorithm:
    """Build the algorithm of a document.

    Rows may come in any order: they are grouped by rank and ordered by their dependencies, as
    `StepTable.from_columns` does. Every array is held against the document itself, never against a
    stated size. Raises `InputError`: the line of text that is not JSON, or the `$.path` of every
    violation of the schema, or of every array that is wrong.
    """
    del options
    return _Document(source.name, source.content()).algorithm()


def write(algorithm: Algorithm, options: NoOptions) -> WriteResult:
    """Return the document as one artifact; columns that hold only their default are left out."""
    del options
    artifact = Artifact("", lambda: _document_text(algorithm).encode("ascii"))
    return WriteResult((artifact,))


def _document_text(algorithm: Algorithm) -> str:
    """The parts in a fixed order, so that equal algorithms give equal bytes."""
    header = {
        "schema": SCHEMA,
        "collective": _collective_object(algorithm.collective),
        "collective_bytes": algorithm.collective_bytes,
        "scratch_units": algorithm.scratch_units.tolist(),
        "provenance": algorithm.provenance.as_json(),
        "extensions": dict(algorithm.extensions),
    }
    return json_document(header, "steps", _columns(algorithm.steps))


def _collective_object(collective: Collective) -> dict[str, JsonValue]:
    """The collective; a contract is there for custom ones only."""
    found: dict[str, JsonValue] = {"kind": str(collective.kind)}
    found |= {name: getattr(collective, name) for name in _PLAIN_FIELDS}
    found["reduce_op"] = str(collective.reduce_op)
    if (contract := collective.contract) is not None:
        rows = contract.expected
        stated = _lists(contract, (*_CONTRACT_SIZES, "defined"))
        expected = None if rows is None else _lists(rows, _CONTRACT_ROWS)
        found["contract"] = {**stated, "expected": expected}
    return found


def _lists(record: object, columns: Sequence[str]) -> dict[str, JsonValue]:
    """Columns of a record of arrays by name."""
    return {name: getattr(record, name).tolist() for name in columns}


def _columns(steps: StepTable) -> Iterable[tuple[str, Sequence[object]]]:
    """Name and values of every column that says something."""
    for name in COLUMN_DTYPES:
        column = getattr(steps, name)
        is_needed = name in _REQUIRED_COLUMNS or bool(np.any(column != COLUMN_DEFAULTS[name]))
        if is_needed and name in _NAMED_COLUMNS:
            names = list(_NAMED_COLUMNS[name])
            yield name, [names[value] for value in column.tolist()]
        elif is_needed:
            yield name, column.tolist()
    yield from steps.parent_lists()


class _Document:
    """One parsed document and the name that its errors carry."""

    def __init__(self, file: str, content: bytes) -> None:
        self._file = file
        self._findings: list[Diagnostic] = []
        self._root = parse_json_object(content, file)
        # Another format is named as such, before its differences are.
        self._check_name()
        extensions = self._root.get("extensions")
        if is_too_deep(extensions):
            self._fail(f"values are nested deeper than {MAX_DEPTH} levels", "$.extensions")
        place = Location(file)
        violations = schema_violations(_without_arrays(self._root, "$"), _SCHEMA_FILE)
        if violations:
            raise InputError([one.finding(place, "invalid-json") for one in violations])

    def algorithm(self) -> Algorithm:
        """Build the algorithm. Raises `InputError` with all faults of the document's arrays."""
        root = self._root
        stated = root["collective"]
        num_ranks: int = stated["num_ranks"]
        scratch = self._integers(root["scratch_units"], "$.scratch_units", num_ranks)
        contract = self._contract_arrays(stated.get("contract"), num_ranks)
        columns, data, control = self._step_arrays(root["steps"], num_ranks)
        if self._findings:
            raise InputError(self._findings)
        try:
            return Algorithm(
                self._collective(stated, contract),
                StepTable.from_columns(num_ranks, columns, data, control, self._file),
                scratch,
                Provenance(**root["provenance"]),
                root["collective_bytes"],
                root["extensions"],
            )
        except InputError as error:
            found = error.diagnostics[0]
            if found.location.file:
                raise
            # The model complains without a place.
            raise InputError(replace(found, location=Location(self._file))) from None

    def _add_fault(self, message: str, path: str) -> None:
        """Record a fault of an array; all of them are reported together."""
        place = Location(self._file)
        self._findings.append(Diagnostic("invalid-json", f"{path}: {message}", location=place))

    def _fail(self, message: str, path: str, cure: str = "") -> NoReturn:
        place = Location(self._file)
        raise InputError(f"{path}: {message}", location=place, cure=cure, code="invalid-json")

    def _check_name(self) -> None:
        """Refuse documents of other schemas, and of later ones of this."""
        name = self._root.get("schema")
        if name == SCHEMA:
            return
        if isinstance(name, str) and name.startswith("collhub/algorithm-"):
            message = f"the schema is {name[:80]!r}, this version reads {SCHEMA!r}"
            self._fail(message, "$.schema", cure="upgrade collhub")
        found = "there is none" if name is None else f"got {str(name)[:80]!r}"
        cure = "name the format with --from; 'collhub formats' lists them"
        self._fail(f"expected {SCHEMA!r}, {found}", "$.schema", cure=cure)

    def _collective(self, stated: JsonObject, contract: CustomContract | None) -> Collective:
        return Collective(
            CollectiveKind(stated["kind"]),
            reduce_op=ReduceOp(stated["reduce_op"]),
            contract=contract,
            **{name: stated[name] for name in _PLAIN_FIELDS},
        )

    def _contract_arrays(self, stated: JsonObject | None, num_ranks: int) -> CustomContract | None:
        """The contract of a custom collective; None if there is none or an array is wrong."""
        if stated is None:
            return None
        path = "$.collective.contract"
        sizes = {
            name: self._integers(stated[name], f"{path}.{name}", num_ranks)
            for name in _CONTRACT_SIZES
        }
        has_types = self._has_types(stated["defined"], f"{path}.defined", num_ranks, bool)
        rows = stated["expected"]
        columns = {}
        limits = {"rank": (0, num_ranks - 1), "source_rank": (-1, num_ranks - 1)}
        for name in _CONTRACT_ROWS if rows is not None else ():
            least, most = limits.get(name, (0, MAX_UNITS))
            at = f"{path}.expected.{name}"
            columns[name] = self._integers(rows[name], at, len(rows["rank"]), least, most)
        if self._findings or not has_types:
            return None
        defined = np.asarray(stated["defined"], np.bool_)
        expected = None if rows is None else Contributions(**columns)
        return CustomContract(**sizes, defined=defined, expected=expected)

    def _step_arrays(
        self, stated: JsonObject, num_ranks: int
    ) -> tuple[dict[str, npt.ArrayLike], _Edges, _Edges]:
        """(columns, data dependencies, control dependencies); faults are recorded."""
        rows = len(stated["rank"])
        columns: dict[str, npt.ArrayLike] = {}
        for name in [name for name in COLUMN_DTYPES if name in stated]:
            path = f"$.steps.{name}"
            if name in _NAMED_COLUMNS:
                columns[name] = self._names(stated[name], path, rows, _NAMED_COLUMNS[name])
                continue
            limits = np.iinfo(COLUMN_DTYPES[name])  # type: ignore[type-var]
            most = num_ranks - 1 if name == "rank" else int(limits.max)
            columns[name] = self._integers(stated[name], path, rows, _LEAST.get(name, 0), most)
        data = self._edges(stated.get("data"), "$.steps.data", rows)
        control = self._edges(stated.get("control"), "$.steps.control", rows)
        return columns, data, control

    def _edges(self, lists: list[list[int]] | None, path: str, rows: int) -> _Edges:
        """(parent rows, child rows) of the list of parents that every row has."""
        if lists is None or not self._has_types(lists, path, rows, list):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        flat = list(itertools.chain.from_iterable(lists))
        if flat and not (set(map(type, flat)) == {int} and min(flat) >= 0 and max(flat) < rows):
            for row, parents in enumerate(lists):
                before = len(self._findings)
                self._integers(parents, f"{path}[{row}]", len(parents), 0, rows - 1)
                if len(self._findings) > before:
                    # One row shows the fault; thousands of rows may have it.
                    break
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.asarray(flat, np.int64), np.repeat(np.arange(rows), list(map(len, lists)))

    def _names(
        self, values: list[Any], path: str, rows: int, names: Mapping[str, int]
    ) -> npt.NDArray[np.uint8]:
        """Codes of a column of names; zeros, and a recorded fault, if one of them is wrong."""
        if not self._has_types(values, path, rows, str):
            return np.zeros(rows, np.uint8)
        try:
            return np.fromiter(map(names.__getitem__, values), np.uint8, rows)
        except KeyError:
            row = next(row for row, value in enumerate(values) if value not in names)
            message = f"{values[row][:40]!r} is not one of {', '.join(names)}"
            self._add_fault(message, f"{path}[{row}]")
            return np.zeros(rows, np.uint8)

    def _integers(
        self, values: list[Any], path: str, length: int, least: int = 0, most: int = MAX_UNITS
    ) -> Int64Array:
        """A column of integers in a range; zeros, and a recorded fault, if one of them is wrong."""
        if not self._has_types(values, path, length, int):
            return np.zeros(0, np.int64)
        if length and not (least <= min(values) and max(values) <= most):
            row = next(row for row, value in enumerate(values) if not least <= value <= most)
            self._add_fault(f"{str(values[row])[:40]} is not in {least}..{most}", f"{path}[{row}]")
            return np.zeros(0, np.int64)
        return np.asarray(values, np.int64)

    def _has_types(self, values: list[Any], path: str, length: int, expected: type) -> bool:
        """Check length and the exact type of every entry (a bool is no int); record a fault."""
        if len(values) != length:
            self._add_fault(f"{length} entries were expected, there are {len(values)}", path)
            return False
        if not set(map(type, values)) <= {expected}:
            row = next(row for row, value in enumerate(values) if type(value) is not expected)
            found = TYPE_NAMES[type(values[row])]
            self._add_fault(f"expected {TYPE_NAMES[expected]}, got {found}", f"{path}[{row}]")
            return False
        return True


def _without_arrays(value: object, path: str) -> object:
    """The document with the long arrays, and extensions, which may hold anything, emptied."""
    if isinstance(value, list):
        # Lists that are not ours stay: the schema names what is wrong with them.
        return [] if path in _ARRAYS else value
    if not isinstance(value, dict):
        return value
    if path == "$.extensions":
        return {}
    return {key: _without_arrays(inner, f"{path}.{key}") for key, inner in value.items()}
