"""The canonical JSON document of an algorithm, `collhub/algorithm-1`: one line a column, lossless, byte-stable."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hub_core.documents.schema_check import TYPE_NAMES, first_violation
from hub_core.documents.strict_json import MAX_DEPTH, JsonObject, is_too_deep, parse_object
from hub_core.model.algorithm import Algorithm, JsonValue, Provenance
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.kinds import Buffer, CollectiveKind, ReduceOp, StepKind
from hub_core.model.steps import COLUMN_DEFAULTS, COLUMN_DTYPES, StepTable
from hub_core.plugin_api.artifacts import Artifact, WriteResult
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.sources import Source

SCHEMA = "collhub/algorithm-1"
_SCHEMA_FILE = "algorithm-1.json"

Int64Array = npt.NDArray[np.int64]

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
_CONTRACT_ROWS = ("rank", "offset", "source_rank", "source_unit")


def read(source: Source, options: NoOptions) -> Algorithm:
    """Build the algorithm of a document. Raises `InputError` naming the line, or the `$.path`, of the first defect.

    Rows may come in any order: they are grouped by rank and ordered by their dependencies, as
    `StepTable.from_columns` does. Every array is held against the document itself, never against a stated size.
    """
    del options
    document = _Document(source.name, source.content())
    return document.algorithm()


def write(algorithm: Algorithm, options: NoOptions) -> WriteResult:
    """Return the document as one artifact. Columns that hold only their default are left out; nothing is lost."""
    del options
    return WriteResult((Artifact("", lambda: _document_text(algorithm).encode("ascii")),))


def _document_text(algorithm: Algorithm) -> str:
    header = {
        "schema": SCHEMA,
        "collective": _collective_object(algorithm.collective),
        "collective_bytes": algorithm.collective_bytes,
        "scratch_units": algorithm.scratch_units.tolist(),
        "provenance": algorithm.provenance.as_json(),
        "extensions": dict(algorithm.extensions),
    }
    lines = [f'  "{name}": {_json(name, value)},' for name, value in header.items()]
    columns = [
        f'    "{name}": {json.dumps(value, separators=(",", ":"))}'
        for name, value in _columns(algorithm.steps)
    ]
    return "\n".join(["{", *lines, '  "steps": {', ",\n".join(columns), "  }", "}", ""])


def _json(name: str, value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the algorithm's {name} cannot be written as JSON: {error}", code="not-json"
        ) from None


def _collective_object(collective: Collective) -> dict[str, JsonValue]:
    contract = collective.contract
    stated: dict[str, JsonValue] = (
        {} if contract is None else {"contract": _contract_object(contract)}
    )
    return {
        "kind": str(collective.kind),
        "num_ranks": collective.num_ranks,
        "unit_count": collective.unit_count,
        "root": collective.root,
        "in_place": collective.in_place,
        "out_of_place": collective.out_of_place,
        "reduce_op": str(collective.reduce_op),
        **stated,
    }


def _contract_object(contract: CustomContract) -> dict[str, JsonValue]:
    expected = contract.expected
    rows = (
        None
        if expected is None
        else {name: getattr(expected, name).tolist() for name in _CONTRACT_ROWS}
    )
    return {
        "input_units": contract.input_units.tolist(),
        "output_units": contract.output_units.tolist(),
        "defined": contract.defined.tolist(),
        "expected": rows,
    }


def _columns(steps: StepTable) -> Iterable[tuple[str, Sequence[object]]]:
    """Name and values of every column that says something."""
    for name in COLUMN_DTYPES:
        column = getattr(steps, name)
        if name not in _REQUIRED_COLUMNS and bool(np.all(column == COLUMN_DEFAULTS[name])):
            continue
        values: list[object] = column.tolist()
        if name in _NAMED_COLUMNS:
            values = list(map(list(_NAMED_COLUMNS[name]).__getitem__, column.tolist()))
        yield name, values
    for name, indptr, indices in (
        ("data", steps.data_indptr, steps.data_indices),
        ("control", steps.control_indptr, steps.control_indices),
    ):
        if len(indices):
            flat, ends = indices.tolist(), indptr.tolist()
            yield name, [flat[start:stop] for start, stop in itertools.pairwise(ends)]


class _Document:
    """One parsed document and the name that its errors carry."""

    def __init__(self, file: str, content: bytes) -> None:
        self._file = file
        self._root = parse_object(content, file)
        self._check_schema()

    def algorithm(self) -> Algorithm:
        """The algorithm that the document states."""
        root = self._root
        num_ranks: int = root["collective"]["num_ranks"]
        scratch = self._integers(root["scratch_units"], "$.scratch_units", num_ranks, 0, 2**62)
        provenance = Provenance(**root["provenance"])
        try:
            collective = self._collective(root["collective"])
            steps = self._steps(root["steps"], num_ranks)
            return Algorithm(
                collective, steps, scratch, provenance, root["collective_bytes"], root["extensions"]
            )
        except InputError as error:
            finding = error.diagnostics[0]
            if finding.location.file:
                raise
            raise InputError(
                finding.message, location=Location(self._file), cure=finding.cure, code=finding.code
            ) from None

    def _fail(self, message: str, path: str, cure: str = "") -> NoReturn:
        raise InputError(
            f"{path}: {message}", location=Location(self._file), cure=cure, code="invalid-json"
        )

    def _check_schema(self) -> None:
        """Hold everything but the long arrays against the schema; those are checked as columns, a thousand times faster."""
        self._check_name()
        if is_too_deep(self._root.get("extensions")):
            self._fail(f"values are nested deeper than {MAX_DEPTH} levels", "$.extensions")
        if violation := first_violation(_without_arrays(self._root, "$"), _SCHEMA_FILE):
            path, message = violation
            self._fail(message, path)

    def _check_name(self) -> None:
        name = self._root.get("schema")
        if name == SCHEMA:
            return
        if isinstance(name, str) and name.startswith("collhub/algorithm-"):
            self._fail(
                f"the schema is {name[:80]!r}, this version reads {SCHEMA!r}",
                "$.schema",
                cure="upgrade collhub",
            )
        found = "there is none" if name is None else f"got {str(name)[:80]!r}"
        self._fail(
            f"expected {SCHEMA!r}, {found}",
            "$.schema",
            cure="name the format with --from; 'collhub formats' lists them",
        )

    def _collective(self, stated: JsonObject) -> Collective:
        contract = stated.get("contract")
        return Collective(
            CollectiveKind(stated["kind"]),
            stated["num_ranks"],
            stated["unit_count"],
            stated["root"],
            stated["in_place"],
            stated["out_of_place"],
            ReduceOp(stated["reduce_op"]),
            None if contract is None else self._contract(contract, stated["num_ranks"]),
        )

    def _contract(self, stated: JsonObject, num_ranks: int) -> CustomContract:
        path = "$.collective.contract"
        sizes = [
            self._integers(stated[name], f"{path}.{name}", num_ranks, 0, 2**62)
            for name in ("input_units", "output_units")
        ]
        defined = self._typed(stated["defined"], f"{path}.defined", num_ranks, bool)
        expected = None
        if (rows := stated["expected"]) is not None:
            length = len(rows["rank"])
            limits = {"rank": (0, num_ranks - 1), "source_rank": (-1, num_ranks - 1)}
            columns = [
                self._integers(
                    rows[name], f"{path}.expected.{name}", length, *limits.get(name, (0, 2**62))
                )
                for name in _CONTRACT_ROWS
            ]
            expected = Contributions(*columns)
        return CustomContract(sizes[0], sizes[1], np.asarray(defined, np.bool_), expected)

    def _steps(self, stated: JsonObject, num_ranks: int) -> StepTable:
        rows = len(stated["rank"])
        columns: dict[str, npt.ArrayLike] = {}
        for name, dtype in COLUMN_DTYPES.items():
            if name not in stated:
                continue
            path = f"$.steps.{name}"
            if name in _NAMED_COLUMNS:
                columns[name] = self._names(stated[name], path, rows, _NAMED_COLUMNS[name])
                continue
            most = num_ranks - 1 if name == "rank" else int(np.iinfo(dtype).max)  # type: ignore[type-var]
            columns[name] = self._integers(stated[name], path, rows, _LEAST.get(name, 0), most)
        edges = [
            self._edges(stated.get(name), f"$.steps.{name}", rows) for name in ("data", "control")
        ]
        return StepTable.from_columns(num_ranks, columns, edges[0], edges[1], self._file)

    def _edges(
        self, lists: list[list[int]] | None, path: str, rows: int
    ) -> tuple[Int64Array, Int64Array]:
        """(parent rows, child rows) of the list of parents that every row has."""
        if lists is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._typed(lists, path, rows, list)
        flat = list(itertools.chain.from_iterable(lists))
        if flat and not (set(map(type, flat)) == {int} and min(flat) >= 0 and max(flat) < rows):
            for row, parents in enumerate(lists):
                self._integers(parents, f"{path}[{row}]", len(parents), 0, rows - 1)
        return np.asarray(flat, np.int64), np.repeat(
            np.arange(rows), np.fromiter(map(len, lists), np.int64, rows)
        )

    def _names(
        self, values: list[object], path: str, rows: int, names: Mapping[str, int]
    ) -> npt.NDArray[np.uint8]:
        self._typed(values, path, rows, str)
        try:
            return np.fromiter(map(names.__getitem__, values), np.uint8, rows)  # type: ignore[arg-type]
        except KeyError:
            row = next(row for row, value in enumerate(values) if value not in names)
            self._fail(
                f"{str(values[row])[:40]!r} is not one of {', '.join(names)}", f"{path}[{row}]"
            )

    def _integers(
        self, values: list[Any], path: str, length: int, least: int, most: int
    ) -> Int64Array:
        self._typed(values, path, length, int)
        if length and not (least <= min(values) and max(values) <= most):
            row = next(row for row, value in enumerate(values) if not least <= value <= most)
            self._fail(f"{str(values[row])[:40]} is not in {least}..{most}", f"{path}[{row}]")
        return np.asarray(values, np.int64)

    def _typed(self, values: list[Any], path: str, length: int, expected: type) -> list[Any]:
        """Check length and the exact type of every entry (a bool is no int)."""
        if len(values) != length:
            self._fail(f"{length} entries were expected, there are {len(values)}", path)
        if not set(map(type, values)) <= {expected}:
            row = next(row for row, value in enumerate(values) if type(value) is not expected)
            self._fail(
                f"expected {TYPE_NAMES[expected]}, got {TYPE_NAMES[type(values[row])]}",
                f"{path}[{row}]",
            )
        return values


_ARRAYS = {
    "$.scratch_units",
    "$.steps.data",
    "$.steps.control",
    *(f"$.steps.{name}" for name in COLUMN_DTYPES),
    *(f"$.collective.contract.{name}" for name in ("input_units", "output_units", "defined")),
    *(f"$.collective.contract.expected.{name}" for name in _CONTRACT_ROWS),
}


def _without_arrays(value: object, path: str) -> object:
    """The document with the arrays that have their own checks, and extensions, which may hold anything, emptied."""
    if isinstance(value, list):
        return [] if path in _ARRAYS else value
    if not isinstance(value, dict):
        return value
    return (
        {}
        if path == "$.extensions"
        else {key: _without_arrays(inner, f"{path}.{key}") for key, inner in value.items()}
    )
