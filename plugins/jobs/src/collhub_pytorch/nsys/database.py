"""Tables of an export, read in chunks: of an untrusted SQLite file, without running its content.

The file is opened read-only and as immutable; views, virtual tables and generated columns are not
read, functions of the schema are not trusted, and no temporary file is written.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol
from urllib.parse import quote

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import InputError, Location

HEADER = b"SQLite format 3\x00"
_CHUNK_ROWS = 1 << 15
_MAX_LOADED_BYTES = 1 << 28
_MAX_ROWS = 1 << 28
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
_MAX_VALUE_BYTES = 1 << 24
_SETTINGS = (
    "query_only = ON", "trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0",
    "cache_size = -8192", "temp_store = MEMORY",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """Rows whose number in `column` is one of `numbers`, or whose text begins with a prefix."""

    column: str
    numbers: Sequence[int] = ()
    prefixes: Sequence[str] = ()


class ExportTables(Protocol):
    """Tables of one export: SQLite, or a folder of Parquet files. Errors are `InputError`."""

    name: str

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the stored columns of a table; empty without such a table."""

    def rows(
        self,
        table: str,
        columns: Sequence[str],
        integers: Sequence[str] = (),
        where: Sequence[Condition] | None = None,
    ) -> Iterator[list[tuple[object, ...]]]:
        """Yield chunks of rows with these columns; None for values of columns that are missing.

        Rows in which one of `integers` is no whole number are left out, and rows that fulfil none
        of the conditions `where` (None: all rows). Yields nothing without the table, or without
        one of `integers`.
        """

    def numbers(
        self, table: str, columns: Sequence[str], integers: Sequence[str]
    ) -> Iterator[Int64Array]:
        """Yield chunks of whole numbers: int64[rows, columns], -1 for other values."""

    def count(self, table: str) -> int:
        """Return the number of rows of a table; 0 without such a table."""


def read_texts(tables: ExportTables, numbers: Sequence[int]) -> dict[int, str]:
    """Return the texts of the table `StringIds` with these ids, by id; missing ids are left out.

    Empty without this table, and for no ids. Ids are read in groups of 500. Raises `InputError` for
    a damaged file.
    """
    texts: dict[int, str] = {}
    for first in range(0, len(numbers), 500):
        listed = Condition("id", [int(number) for number in numbers[first : first + 500]])
        for chunk in tables.rows("StringIds", ("id", "value"), ("id",), [listed]):
            texts |= {int(str(number)): str(text) for number, text in chunk}
    return texts


class Database:
    """Tables of one SQLite file, see `ExportTables`. Errors name the file."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self.name = name
        self._columns: dict[str, frozenset[str]] = {}

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the stored columns of a table; empty if the file lacks the table.

        Hidden and generated columns are left out. Other names count only if they consist of at most
        100 ASCII letters, digits and `_`, and do not begin with a digit. The names are read once
        and cached. Raise `InputError`: `view` if the name is that of a view or a virtual table,
        `sqlite` for a damaged file.
        """
        if table not in self._columns:
            self._columns[table] = self._read_columns(table)
        return self._columns[table]

    def rows(
        self,
        table: str,
        columns: Sequence[str],
        integers: Sequence[str] = (),
        where: Sequence[Condition] | None = None,
    ) -> Iterator[list[tuple[object, ...]]]:
        """Yield the selected rows of a table in chunks: lists of at most 32768 tuples.

        A tuple has the values of `columns` in this order, None for columns that the table
        lacks. Rows are in the order of SQLite, usually that of the table. Rows in which one of
        `integers` has no integer are left out; these columns need not be in `columns`. Nothing
        is yielded if the table or one of `integers` is missing, or if no row is selected.

        `where` None selects all rows, an empty list none. Otherwise a row must fulfil at least
        one condition: its value is one of the numbers, or begins with one of the prefixes. A
        condition on a missing column, or without numbers and prefixes, is never fulfilled.
        Prefixes are compared with GLOB: case matters, and `*`, `?` and `[` in a prefix are
        wildcards.

        Raises `InputError`, when chunks are requested: `sqlite` for a damaged database, `view`
        if the name is that of a view or a virtual table, and `too-large` instead of the chunk
        that exceeds `_MAX_ROWS` (2^28) selected rows.
        """
        present = self.columns(table)
        selected = ", ".join(column if column in present else "NULL" for column in columns)
        if where is None:
            yield from self._select(table, selected, integers, "")
            return
        alternatives = []
        for condition in where:
            column = condition.column
            if column not in present:
                continue
            if condition.numbers:
                alternatives.append(f"{column} IN ({','.join(map(str, condition.numbers))})")
            alternatives += [f"{column} GLOB '{prefix}*'" for prefix in condition.prefixes]
        text = f"({' OR '.join(alternatives)})" if alternatives else "0"
        yield from self._select(table, selected, integers, text)

    def numbers(
        self, table: str, columns: Sequence[str], integers: Sequence[str]
    ) -> Iterator[Int64Array]:
        """Yield chunks of integers, int64[rows, columns], in the order of the table.

        The value is -1 in columns that are missing, and for values that are no integers. Rows
        in which one of the columns `integers` has no integer are dropped. No chunk is yielded
        if the table or one of `integers` is missing, or if no row remains. Raises `InputError`
        as `rows` does: `sqlite`, `view` or `too-large` (more than 2^28 rows).
        """
        present = self.columns(table)
        selected = ", ".join(
            f"CASE typeof({column}) WHEN 'integer' THEN {column} ELSE -1 END"
            if column in present
            else "-1"
            for column in columns
        )
        for chunk in self._select(table, selected, integers, ""):
            yield np.array(chunk, np.int64)

    def _select(
        self, table: str, selected: str, integers: Sequence[str], where: str
    ) -> Iterator[list[tuple[object, ...]]]:
        present = self.columns(table)
        if not present or not set(integers) <= present:
            return
        conditions = [f"typeof({column}) = 'integer'" for column in integers] + (
            [where] if where else []
        )
        text = f"SELECT {selected} FROM {table}"
        if conditions:
            text += f" WHERE {' AND '.join(conditions)}"
        with self._errors():
            cursor = self._connection.execute(text)
            count = 0
            while chunk := cursor.fetchmany(_CHUNK_ROWS):
                count += len(chunk)
                if count > _MAX_ROWS:
                    message = f"the table {table} has more than {_MAX_ROWS} rows"
                    raise InputError(message, location=Location(self.name), code="too-large")
                yield chunk

    def count(self, table: str) -> int:
        """Return the number of rows of a table; 0 if the file lacks it.

        Raise `InputError` as `columns`: `view` for a view or a virtual table, `sqlite` for a
        damaged file.
        """
        if not self.columns(table):
            return 0
        with self._errors():
            return int(self._connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])

    def _read_columns(self, table: str) -> frozenset[str]:
        with self._errors():
            entry = self._connection.execute(
                "SELECT type, sql FROM sqlite_master WHERE name = ?", (table,)
            ).fetchone()
            if entry is None:
                return frozenset()
            if entry[0] != "table" or "VIRTUAL" in str(entry[1])[:100].upper():
                message = f"{table} is a {str(entry[0])[:20]}, not a stored table"
                cure = "export the report again with nsys export --type sqlite"
                raise InputError(message, location=Location(self.name), cure=cure, code="view")
            described = self._connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
        # The last value marks hidden and generated columns.
        names = {str(row[1]) for row in described if row[6] == 0}
        return frozenset(name for name in names if _NAME.match(name))

    def _errors(self) -> AbstractContextManager[None]:
        return _translate_errors(self.name)


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Raise `InputError` for errors of SQLite, which may have text in no encoding."""
    try:
        yield
    except (sqlite3.Error, OverflowError, UnicodeError, ValueError) as error:
        reason = str(error)[:120] if isinstance(error, sqlite3.Error) else type(error).__name__
        message = f"the SQLite file is damaged: {reason}"
        cure = "copy it again, or export the report again with nsys export --type sqlite"
        raise InputError(message, location=Location(name), cure=cure, code="sqlite") from None


@contextmanager
def open_database(stream: BinaryIO, name: str) -> Iterator[Database]:
    """Yield the SQLite database of a stream, open for reading while the body runs.

    `name`: file in messages. A regular file on disk is read in place; the content of any
    other stream is loaded into memory. Text that is not UTF-8 gets replacement characters.
    The database is closed after the body. Raises `InputError`: `format` if the stream does
    not begin with the header of SQLite, `sqlite` for a damaged file, and `too-large` for an
    archive or pipe above 256 MiB.
    """
    connection = _connect(stream, name)
    try:
        with _translate_errors(name):
            for setting in _SETTINGS:
                connection.execute(f"PRAGMA {setting}")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        connection.text_factory = lambda content: content.decode("utf-8", "replace")
        yield Database(connection, name)
    finally:
        connection.close()


def _connect(stream: BinaryIO, name: str) -> sqlite3.Connection:
    head = stream.read(len(HEADER))
    if head != HEADER:
        message = "this is no SQLite file"
        cure = "export the report with nsys export --type sqlite"
        raise InputError(message, location=Location(name), cure=cure, code="format")
    path = getattr(stream, "name", None)
    if isinstance(path, str) and _is_same_file(stream, path):
        location = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
        with _translate_errors(name):
            return sqlite3.connect(location, uri=True)
    content = head + stream.read(_MAX_LOADED_BYTES)
    if len(content) > _MAX_LOADED_BYTES:
        message = f"an archive or pipe of more than {_MAX_LOADED_BYTES >> 20} MiB"
        raise InputError(
            message,
            location=Location(name),
            cure="save it as a file and name that",
            code="too-large",
        )
    connection = sqlite3.connect(":memory:")
    with _translate_errors(name):
        connection.deserialize(content)
    return connection


def _is_same_file(stream: BinaryIO, path: str) -> bool:
    """Return whether a path still names the regular file that `stream` has open.

    False also for a path that does not exist, and for a stream without a file.
    """
    try:
        opened, named = os.fstat(stream.fileno()), os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, named)
