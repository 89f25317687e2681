"""The canonical JSON document of an algorithm, `collhub/algorithm-1`.

One line per column, lossless, byte-stable. Source: schemas/algorithm-1.json.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array
from hub_core.documents.strict_json import (
    MAX_DEPTH,
    TYPE_NAMES,
    JsonObject,
    describe_other_version,
    empty_arrays,
    is_too_deep,
    json_document,
    parse_json_object,
    schema_violations,
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
    UnitCounts,
)
from hub_core.plugin_api import Artifact, NoOptions, Source, WriteResult

SCHEMA = "collhub/algorithm-1"
_SCHEMA_FILE = "algorithm-1.json"

_KIND_NAMES = {kind.name.lower().replace("_", "-"): int(kind) for kind in StepKind}
_BUFFER_NAMES = {buffer.name.lower(): int(buffer) for buffer in Buffer}
_NAMED_COLUMNS = {"kind": _KIND_NAMES, "src_buffer": _BUFFER_NAMES, "dst_buffer": _BUFFER_NAMES}
_REQUIRED_COLUMNS = ("rank", "kind")
# Offsets outside the buffers are allowed, so that verification can report them.
_MIN_VALUES = {
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
# Arrays that are checked as columns, which is a thousand times faster than by the schema.
_ARRAYS = {
    "$.scratch_units",
    "$.steps.data",
    "$.steps.control",
    "$.collective.counts",
    *(f"$.steps.{name}" for name in COLUMN_DTYPES),
    *(f"$.collective.contract.{name}" for name in (*_CONTRACT_SIZES, "defined")),
    *(f"$.collective.contract.expected.{name}" for name in _CONTRACT_ROWS),
}


_Edges = tuple[Int64Array, Int64Array]


def read(source: Source, options: NoOptions) -> Algorithm:
    """Build the algorithm of a document in the format `algorithm-json`.

    Rows may be in any order: `StepTable.from_columns` groups them by rank and orders them
    by dependencies. Raise `InputError` for the first of these groups of defects:

    1. invalid JSON, with its line
    2. another schema or version
    3. violations of the schema, at most 20, each with its `$.path`
    4. invalid arrays, the first defect of each, with its `$.path`
    5. the first defect that the model finds, such as cyclic dependencies
    """
    del options
    return _Document(source.name, source.content()).algorithm()


def write(algorithm: Algorithm, options: NoOptions) -> WriteResult:
    """Return the document as one artifact, which is formatted when its content is read.

    Optional columns with only default values are omitted. Reading the content raises
    `InputError` (`not-json`) if an extension cannot be represented in JSON.
    """
    del options
    artifact = Artifact("", lambda: _format_document(algorithm).encode("ascii"))
    return WriteResult((artifact,))


def _format_document(algorithm: Algorithm) -> str:
    """Return the JSON document of an algorithm as ASCII text, with a final line break.

    The order of members is fixed, with the columns of steps last; extensions keep their order. The
    member `collective` has `kind`, the `_PLAIN_FIELDS` (null for a missing root), `reduce_op`, and:

    - `contract`, only for a custom collective with a contract (its required results): the lists by
      rank `input_units`, `output_units` and `defined`; and `expected`, null if no result is
      required, else an object of the lists `rank`, `offset`, `source_rank` and `source_unit`.
    - `counts`, only for an uneven collective: a list of units by rank, or a list of such lists for
      counts per pair of ranks.

    Raises `InputError` (`not-json`) for extensions that JSON cannot represent, such as a NaN.
    """
    collective = algorithm.collective
    described: dict[str, JsonValue] = {"kind": str(collective.kind)}
    described |= {name: getattr(collective, name) for name in _PLAIN_FIELDS}
    described["reduce_op"] = str(collective.reduce_op)
    if (contract := collective.contract) is not None:
        rows = contract.expected
        sizes = _to_lists(contract, (*_CONTRACT_SIZES, "defined"))
        expected = None if rows is None else _to_lists(rows, _CONTRACT_ROWS)
        described["contract"] = {**sizes, "expected": expected}
    if collective.counts is not None:
        described["counts"] = collective.counts.table.tolist()
    header = {
        "schema": SCHEMA,
        "collective": described,
        "collective_bytes": algorithm.collective_bytes,
        "scratch_units": algorithm.scratch_units.tolist(),
        "provenance": algorithm.provenance.as_json(),
        "extensions": dict(algorithm.extensions),
    }
    return json_document(header, "steps", _columns(algorithm.steps))


def _to_lists(record: object, columns: Sequence[str]) -> dict[str, JsonValue]:
    """Convert columns of a record of arrays to lists, by name."""
    return {name: getattr(record, name).tolist() for name in columns}


def _columns(steps: StepTable) -> Iterable[tuple[str, Sequence[object]]]:
    """Yield (name, values) of the columns that the document contains, ordered as `COLUMN_DTYPES`.

    These are `rank`, `kind`, and columns with a value other than the default. Kinds and buffers are
    given by name. The lists of parents follow, one list of rows per step: `data`, then `control`,
    each only if such dependencies occur.
    """
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
    """A parsed document, with the name of its file for errors."""

    def __init__(self, file: str, content: bytes) -> None:
        self._file = file
        self._findings: list[Diagnostic] = []
        self._root = parse_json_object(content, file)
        # The schema is checked first, so that another format is reported as such.
        name = self._root.get("schema")
        if name != SCHEMA:
            if isinstance(name, str) and name.startswith("collhub/algorithm-"):
                message, cure = describe_other_version(name, SCHEMA)
                self._fail(message, "$.schema", cure=cure)
            actual = "there is none" if name is None else f"got {str(name)[:80]!r}"
            cure = "name the format with --from; 'collhub formats' lists them"
            self._fail(f"expected {SCHEMA!r}, {actual}", "$.schema", cure=cure)
        extensions = self._root.get("extensions")
        if is_too_deep(extensions):
            self._fail(f"values are nested deeper than {MAX_DEPTH} levels", "$.extensions")
        location = Location(file)
        violations = schema_violations(empty_arrays(self._root, _ARRAYS), _SCHEMA_FILE)
        if violations:
            raise InputError(
                [violation.finding(location, "invalid-json") for violation in violations]
            )

    def algorithm(self) -> Algorithm:
        """Build the algorithm of a document whose members already satisfy the schema.

        Raises `InputError` that names the file: for the first defects of all arrays together, else
        for the first defect that the model finds, such as cyclic dependencies.
        """
        root = self._root
        collective = root["collective"]
        num_ranks: int = collective["num_ranks"]
        scratch = self._build_integers(root["scratch_units"], "$.scratch_units", num_ranks)
        contract = self._build_contract(collective.get("contract"), num_ranks)
        kind, counts = CollectiveKind(collective["kind"]), None
        if "counts" in collective:
            table, is_per_pair = collective["counts"], kind.traits.has_counts_per_pair
            try:
                counts = UnitCounts.from_table(table, is_per_pair, "$.collective.counts")
            except InputError as error:
                finding = replace(error.diagnostics[0], location=Location(self._file))
                self._findings.append(finding)
        columns, data, control = self._build_step_arrays(root["steps"], num_ranks)
        if self._findings:
            raise InputError(self._findings)
        try:
            return Algorithm(
                Collective(
                    kind,
                    reduce_op=ReduceOp(collective["reduce_op"]),
                    contract=contract,
                    counts=counts,
                    **{name: collective[name] for name in _PLAIN_FIELDS},
                ),
                StepTable.from_columns(num_ranks, columns, data, control, self._file),
                scratch,
                Provenance(**root["provenance"]),
                root["collective_bytes"],
                root["extensions"],
            )
        except InputError as error:
            finding = error.diagnostics[0]
            if finding.location.file:
                raise
            # The model does not know the file.
            raise InputError(replace(finding, location=Location(self._file))) from None

    def _add_fault(self, message: str, path: str) -> None:
        """Record an error (`invalid-json`) at a JSON path; `algorithm` raises all errors."""
        location = Location(self._file)
        self._findings.append(Diagnostic("invalid-json", f"{path}: {message}", location=location))

    def _fail(self, message: str, path: str, cure: str = "") -> NoReturn:
        location = Location(self._file)
        raise InputError(f"{path}: {message}", location=location, cure=cure, code="invalid-json")

    def _build_contract(self, document: JsonObject | None, num_ranks: int) -> CustomContract | None:
        """Build the contract of a custom collective; None without `document` or with any defect.

        Defects are recorded, not raised; one that was recorded before the call counts, too:

        - `input_units`, `output_units` and `defined` must have one entry per rank.
        - The four columns of `expected` must have equal lengths.
        - The entries of `defined` must be booleans, all others integers from 0 to `MAX_UNITS`.
        - Ranks must be below `num_ranks`. A source rank may be -1, which means all ranks.

        If `expected` is null, the contract requires no result.
        """
        if document is None:
            return None
        path = "$.collective.contract"
        sizes = {
            name: self._build_integers(document[name], f"{path}.{name}", num_ranks)
            for name in _CONTRACT_SIZES
        }
        has_types = self._check_types(document["defined"], f"{path}.defined", num_ranks, bool)
        rows = document["expected"]
        columns = {}
        limits = {"rank": (0, num_ranks - 1), "source_rank": (-1, num_ranks - 1)}
        for name in _CONTRACT_ROWS if rows is not None else ():
            minimum, maximum = limits.get(name, (0, MAX_UNITS))
            at = f"{path}.expected.{name}"
            columns[name] = self._build_integers(
                rows[name], at, len(rows["rank"]), minimum, maximum
            )
        if self._findings or not has_types:
            return None
        defined = np.asarray(document["defined"], np.bool_)
        expected = None if rows is None else Contributions(**columns)
        return CustomContract(**sizes, defined=defined, expected=expected)

    def _build_step_arrays(
        self, document: JsonObject, num_ranks: int
    ) -> tuple[dict[str, npt.ArrayLike], _Edges, _Edges]:
        """Return (columns by name, data dependencies, control dependencies) of the step table.

        Columns that the document omits are missing in the result. Names of kinds and buffers become
        codes. Each column must be as long as `rank`. Ranks must be below `num_ranks`, other numbers
        between `_MIN_VALUES` (default 0) and the maximum of the dtype. Defects are recorded, not
        raised. After a defect, a column of names has zeros; a column of numbers and dependencies
        are empty.
        """
        rows = len(document["rank"])
        columns: dict[str, npt.ArrayLike] = {}
        for name in [name for name in COLUMN_DTYPES if name in document]:
            path = f"$.steps.{name}"
            if name in _NAMED_COLUMNS:
                columns[name] = self._encode_names(document[name], path, rows, _NAMED_COLUMNS[name])
                continue
            limits = np.iinfo(COLUMN_DTYPES[name])  # type: ignore[type-var]
            maximum = num_ranks - 1 if name == "rank" else int(limits.max)
            columns[name] = self._build_integers(
                document[name], path, rows, _MIN_VALUES.get(name, 0), maximum
            )
        data = self._build_edges(document.get("data"), "$.steps.data", rows)
        control = self._build_edges(document.get("control"), "$.steps.control", rows)
        return columns, data, control

    def _build_edges(self, lists: list[list[int]] | None, path: str, rows: int) -> _Edges:
        """Convert lists of parents per row to int64 arrays (parent rows, child rows).

        Edges are ordered by child row, then as listed, repetitions included. Without `lists` both
        are empty. Both are also empty after a defect, of which the first is recorded: not `rows`
        lists, an entry that is no list, a parent that is no integer in 0..rows-1.
        """
        if lists is None or not self._check_types(lists, path, rows, list):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        flat = list(itertools.chain.from_iterable(lists))
        if flat and not (set(map(type, flat)) == {int} and min(flat) >= 0 and max(flat) < rows):
            for row, parents in enumerate(lists):
                before = len(self._findings)
                self._build_integers(parents, f"{path}[{row}]", len(parents), 0, rows - 1)
                if len(self._findings) > before:
                    # The first row with the defect is sufficient: thousands of rows may have it.
                    break
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.asarray(flat, np.int64), np.repeat(np.arange(rows), list(map(len, lists)))

    def _encode_names(
        self, values: list[Any], path: str, rows: int, names: Mapping[str, int]
    ) -> npt.NDArray[np.uint8]:
        """Return the codes of a column of names, uint8[rows], in the order of `values`.

        `names`: code by name. If the number of entries is not `rows`, or an entry is no text or
        an unknown name, all codes are 0, and one defect with the path of the first wrong entry
        is recorded, not raised. Types are checked before names.
        """
        if not self._check_types(values, path, rows, str):
            return np.zeros(rows, np.uint8)
        try:
            return np.fromiter(map(names.__getitem__, values), np.uint8, rows)
        except KeyError:
            row = next(row for row, value in enumerate(values) if value not in names)
            message = f"{values[row][:40]!r} is not one of {', '.join(names)}"
            self._add_fault(message, f"{path}[{row}]")
            return np.zeros(rows, np.uint8)

    def _build_integers(
        self, values: list[Any], path: str, length: int, minimum: int = 0, maximum: int = MAX_UNITS
    ) -> Int64Array:
        """Build an int64 column of `length` integers in `minimum`..`maximum`, inclusive.

        If `values` has a defect, the result is an empty column, and one defect is
        recorded. These are checked in order: the number of entries (located at `path`),
        the type of each entry, the range of each entry (both located at the first wrong
        entry). Booleans and 1.0 are no integers.
        """
        if not self._check_types(values, path, length, int):
            return np.zeros(0, np.int64)
        if length and not (minimum <= min(values) and max(values) <= maximum):
            row = next(row for row, value in enumerate(values) if not minimum <= value <= maximum)
            self._add_fault(
                f"{str(values[row])[:40]} is not in {minimum}..{maximum}", f"{path}[{row}]"
            )
            return np.zeros(0, np.int64)
        return np.asarray(values, np.int64)

    def _check_types(self, values: list[Any], path: str, length: int, expected: type) -> bool:
        """Return whether a list has `length` entries, all of exactly the type `expected`.

        A bool does not count as an int. If False, one defect is recorded: the wrong number of
        entries, or the first entry of another type.
        """
        if len(values) != length:
            self._add_fault(f"{length} entries were expected, there are {len(values)}", path)
            return False
        if not set(map(type, values)) <= {expected}:
            row = next(row for row, value in enumerate(values) if type(value) is not expected)
            actual = TYPE_NAMES[type(values[row])]
            self._add_fault(f"expected {TYPE_NAMES[expected]}, got {actual}", f"{path}[{row}]")
            return False
        return True
