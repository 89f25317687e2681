"""Tables of a folder of Parquet files (`nsys export --type parquetdir`): one file `TABLE.parquet`.

Columns and values are those of the SQLite export. Files are read in batches of rows; only the
columns that are needed are decoded. Needs pyarrow (extra `parquet`).
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from collhub_pytorch.nsys.database import Condition
from hub_core.columns import Int64Array
from hub_core.model import InputError, Location, UsageError
from hub_core.plugin_api import SourcePart

if TYPE_CHECKING:
    from pyarrow import RecordBatch

SUFFIX = ".parquet"
MARKER = "StringIds.parquet"
_BATCH_ROWS = 1 << 15
_MAX_ROWS = 1 << 28
_MAX_METADATA_BYTES = 1 << 26
_SEPARATOR = re.compile(r"[/\\]")


class ParquetTables:
    """Tables of one folder, see `Tables`. Errors name the file of the table."""

    def __init__(self, name: str, files: Mapping[str, Callable[[], BinaryIO]]) -> None:
        self.name = name
        self._files = files
        self._columns: dict[str, frozenset[str]] = {}

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the columns of a table; empty if it has no file.

        They are read once and cached. A name that occurs more than once is ambiguous and left out.
        Raises `InputError` (`parquet`) for a damaged file, and `UsageError` without pyarrow.
        """
        if table not in self._columns:
            names: frozenset[str] = frozenset()
            if table in self._files:
                with self._open(table) as file:
                    listed = file.schema_arrow.names
                    # A name that occurs twice is ambiguous.
                    names = frozenset(name for name in listed if listed.count(name) == 1)
            self._columns[table] = names
        return self._columns[table]

    def count(self, table: str) -> int:
        """Return the number of rows of a table, from the metadata of its file; 0 without a file.

        Raises `InputError` (`parquet`) for a damaged file, and `UsageError` without pyarrow.
        """
        if table not in self._files:
            return 0
        with self._open(table) as file:
            return int(file.metadata.num_rows)

    def rows(
        self,
        table: str,
        columns: Sequence[str],
        integers: Sequence[str] = (),
        where: Sequence[Condition] | None = None,
    ) -> Iterator[list[tuple[object, ...]]]:
        """Yield lists of rows of a table, each a tuple of values in the order of `columns`.

        - A row is left out unless each of the columns `integers` has an integer in it.
        - With `where`, a row must fulfil at least one of the conditions. A condition with numbers
          needs one of them in its column; a condition without numbers needs a text with one of its
          prefixes. None means no condition; an empty list selects no rows.

        A null is None, and a column that the table lacks is None in all rows. Names that occur more
        than once in the file count as missing. Rows keep their order. A list is from one batch of
        at most 2^15 rows of the file; batches without selected rows are skipped.

        Nothing is yielded if the table has no file, or lacks a column of `integers`. Errors are
        raised at the first or a later step: `InputError` for a damaged file (`parquet`) or more
        than 2^28 rows in the file (`too-large`), and `UsageError` without pyarrow, unless the table
        has no file.
        """
        present = self.columns(table)
        needed = {*columns, *integers, *(one.column for one in where or ())} & present
        for batch in self._batches(table, sorted(needed), integers):
            selected = _select(batch, integers, where)
            if not selected.num_rows:
                continue
            values = [
                _to_values(selected.column(column))
                if column in present
                else [None] * selected.num_rows
                for column in columns
            ]
            yield list(zip(*values, strict=True))

    def numbers(
        self, table: str, columns: Sequence[str], integers: Sequence[str]
    ) -> Iterator[Int64Array]:
        """Yield chunks of integers, int64[rows, columns]; see `Tables`.

        -1 in columns that are missing, and for values that are no integers. Rows in which one of
        `integers` is no integer are dropped; there are no chunks if one of these columns is
        missing. A chunk may have no rows. Raises `InputError` for a damaged file (`parquet`) and
        for too many rows (`too-large`), and `UsageError` without pyarrow.
        """
        present = self.columns(table)
        needed = sorted({*columns, *integers} & present)
        for batch in self._batches(table, needed, integers):
            selected = _select(batch, integers, None)
            numbers = np.full((selected.num_rows, len(columns)), -1, np.int64)
            for position, column in enumerate(columns):
                if column in present:
                    numbers[:, position] = _to_integers(selected.column(column))
            yield numbers

    def _batches(
        self, table: str, columns: Sequence[str], integers: Sequence[str]
    ) -> Iterator[RecordBatch]:
        if table not in self._files or not set(integers) <= self.columns(table):
            return
        with self._open(table) as file:
            if file.metadata.num_rows > _MAX_ROWS:
                message = f"the table {table} has more than {_MAX_ROWS} rows"
                raise InputError(message, location=Location(self._file(table)), code="too-large")
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=[*columns])

    @contextmanager
    def _open(self, table: str) -> Iterator[Any]:
        """Open the Parquet file of a table, and yield it as `ParquetFile` to the body of a `with`.

        The file is closed after the body. Texts and lists in its metadata are limited to 2^26 bytes
        or entries. Arrow errors, `OSError`, `ValueError`, `OverflowError` and `KeyError`, also from
        the body, become `InputError` (`parquet`) with the path of the file. So does a table without
        a file. Raises `UsageError` without pyarrow.
        """
        pyarrow, parquet = _import_pyarrow()
        try:
            with self._files[table]() as stream:
                yield parquet.ParquetFile(
                    stream,
                    thrift_string_size_limit=_MAX_METADATA_BYTES,
                    thrift_container_size_limit=_MAX_METADATA_BYTES,
                )
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
            message = f"the Parquet file is damaged: {str(error).splitlines()[0][:120]}"
            cure = "copy it again, or export the report again with nsys export --type parquetdir"
            location = Location(self._file(table))
            raise InputError(message, location=location, cure=cure, code="parquet") from None

    def _file(self, table: str) -> str:
        return posixpath.join(self.name, table + SUFFIX)


def group_exports(parts: Sequence[SourcePart]) -> list[ParquetTables]:
    r"""Return the tables of each folder that contains `StringIds.parquet`, sorted by folder.

    `parts`: files with their paths, at least one. The folder is the path before the last `/` or
    `\`, "" if there is none. Its name in the result has `/` as separator; folders are sorted as
    text. A table is a file that ends in `.parquet`, without this suffix. Other files and other
    folders are ignored; of equal paths the last one counts. No file is opened.

    Raises `InputError` (`format`), with the path of the first part, if no folder has the file.
    """
    files: dict[str, dict[str, Callable[[], BinaryIO]]] = defaultdict(dict)
    for part in parts:
        *folder, file = _SEPARATOR.split(part.name)
        if file.endswith(SUFFIX):
            files["/".join(folder)][file.removesuffix(SUFFIX)] = part.stream
    exports = [
        ParquetTables(folder, tables)
        for folder, tables in sorted(files.items())
        if MARKER.removesuffix(SUFFIX) in tables
    ]
    if not exports:
        message = f"the folder has no {MARKER}"
        cure = "name the folder that nsys export --type parquetdir writes"
        raise InputError(message, location=Location(parts[0].name), cure=cure, code="format")
    return exports


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        # Imported here: an optional library, which only this format needs.
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        message = "Parquet files need the library pyarrow"
        cure = "python -m pip install 'collhub-jobs[parquet]', or export with --type sqlite"
        raise UsageError(message, cure=cure) from None
    return pyarrow, pyarrow.parquet


def _select(
    batch: RecordBatch, integers: Sequence[str], where: Sequence[Condition] | None
) -> RecordBatch:
    """Return the rows of a batch that have integers in some columns and fulfil a condition.

    `integers`: columns that the batch must have (else `KeyError`). A row remains only if all of
    them have an integer type and no null in the row. `where`: conditions of which the row must
    fulfil at least one; None for no conditions, while an empty list selects no rows.

    A condition with `numbers` is fulfilled by an integer among them. A condition without `numbers`
    is fulfilled by a text that begins with one of `prefixes`. A condition on a missing column is
    never fulfilled. Rows keep their order. If all rows remain, the batch itself is returned. Raises
    `UsageError` without pyarrow.
    """
    mask = np.ones(batch.num_rows, np.bool_)
    for column in integers:
        values = batch.column(column)
        mask &= ~values.is_null().to_numpy(zero_copy_only=False) & _is_integer(values)
    if where is not None:
        fulfilled = np.zeros(batch.num_rows, np.bool_)
        for condition in where:
            if condition.column in batch.schema.names:
                fulfilled |= _fulfils(batch.column(condition.column), condition)
        mask &= fulfilled
    pyarrow, _ = _import_pyarrow()
    return batch if mask.all() else batch.filter(pyarrow.array(mask))


def _fulfils(values: Any, condition: Condition) -> Any:
    if condition.numbers:
        numbers = _to_integers(values)
        return np.isin(numbers, np.array(condition.numbers, np.int64)) & _is_integer(values)
    return np.array(
        [
            isinstance(text, str) and text.startswith(tuple(condition.prefixes))
            for text in _to_values(values)
        ],
        np.bool_,
    )


def _to_values(values: Any) -> list[object]:
    """Convert a column to a list of Python values; null becomes None.

    Bytes of text that are not UTF-8 become replacement characters. Columns of a dictionary
    type are decoded first.
    """
    pyarrow, _ = _import_pyarrow()
    if pyarrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type):
        contents = values.cast(pyarrow.large_binary()).to_pylist()
        return [None if one is None else one.decode("utf-8", "replace") for one in contents]
    listed: list[object] = values.to_pylist()
    return listed


def _is_integer(values: Any) -> bool:
    pyarrow, _ = _import_pyarrow()
    return bool(pyarrow.types.is_integer(values.type))


def _to_integers(values: Any) -> Int64Array:
    """Convert a column of a Parquet file to int64, one entry per row.

    The entry is -1 for null and for integers above the range of int64. If the column's type
    is no integer type, such as float, bool or text, all entries are -1.
    """
    if not _is_integer(values):
        return np.full(len(values), -1, np.int64)
    filled = values.fill_null(0).to_numpy(zero_copy_only=False)
    is_valid = ~values.is_null().to_numpy(zero_copy_only=False)
    if filled.dtype == np.uint64:
        is_valid &= filled <= np.iinfo(np.int64).max
    numbers: Int64Array = np.where(is_valid, filled.astype(np.int64), -1)
    return numbers
