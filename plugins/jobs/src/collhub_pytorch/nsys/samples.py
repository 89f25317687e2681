"""Small exports for the conformance kit and for tests, with the tables that nsys writes."""

from __future__ import annotations

import importlib.util
import io
import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from collhub_pytorch.samples import file_part
from hub_core.plugin_api import Source, SourcePart

COMMUNICATOR = 0xFEDCBA9876543210
# Small pages keep small exports small.
_SCHEMA = """
PRAGMA page_size = 512;
CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER NOT NULL, end INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  bytes INTEGER, copyKind INTEGER);
CREATE TABLE NVTX_EVENTS(start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER, binaryData BLOB);
CREATE TABLE NVTX_PAYLOAD_SCHEMAS(domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER,
  flags INTEGER, numEntries INTEGER, payloadSize INTEGER, alignTo INTEGER);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES(domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL,
  idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, description TEXT,
  arrayOrUnionDetail INTEGER, offset INTEGER);
"""
_U64, _SIZE, _INT, _OPERATOR = 18, 22, 5, 16777240
_SCHEMAS: Mapping[int, tuple[int, tuple[tuple[int, str, int | None], ...]]] = {
    16777221: (24, (
        (_U64, "NCCL communicator ID", None), (_SIZE, "Message size [bytes]", 8),
        (_OPERATOR, "Reduction operation", 16),
    )),
    16777225: (24, (
        (_U64, "NCCL communicator ID", None), (_SIZE, "Message size [bytes]", 8),
        (_INT, "Peer rank", 16),
    )),
    16777227: (24, (
        (_U64, "NCCL communicator ID", None), (_INT, "No. of ranks", 8), (_INT, "Rank", 12),
        (_INT, "CUDA device", 16),
    )),
}  # fmt: skip


@dataclass(slots=True)
class Export:
    """Export of one process that is filled step by step. Times in ns."""

    pid: int = 4096
    device: int = 0
    connection: sqlite3.Connection = field(init=False)
    _correlation: int = 0

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.executescript(_SCHEMA)
        for schema, (size, entries) in _SCHEMAS.items():
            self._insert("NVTX_PAYLOAD_SCHEMAS", (1, schema, None, 1, None, 3, size, None))
            for index, (code, name, offset) in enumerate(entries):
                row = (1, schema, index, None, code, name, None, None, offset)
                self._insert("NVTX_PAYLOAD_SCHEMA_ENTRIES", row)

    def initialise(self, rank: int, ranks: int, communicator: int = COMMUNICATOR) -> None:
        """Add the NVTX range of `ncclCommInitRankConfig`, from 1000 to 5000 ns.

        `rank`: this process in a communicator of `ranks` ranks.
        """
        content = struct.pack("<QiiiI", communicator, ranks, rank, self.device, 0)
        self._range("ncclCommInitRankConfig", 1000, 5000, 16777227, content)

    def launch(self, name: str, start: int, end: int, *, stream: int, called: int) -> None:
        """Add a kernel that runs from `start` to `end` on a stream (ns), and its launch.

        The launch begins at `called` and takes 200 ns; both have the next correlation id.
        """
        self._correlation += 1
        number = self._correlation
        row = (start, end, self.device, 1, stream, number, self.pid << 24, *[self._text(name)] * 2)
        self._insert("CUPTI_ACTIVITY_KIND_KERNEL", row)
        self.runtime("cudaLaunchKernelExC", called, called + 200, number)

    def runtime(self, name: str, start: int, end: int, correlation: int = 0) -> None:
        """Add a call of the CUDA runtime from `start` to `end` (ns) in the thread of the export.

        `correlation` 0: it launches no activity.
        """
        row = (start, end, self._thread, correlation, self._text(name), 0)
        self._insert("CUPTI_ACTIVITY_KIND_RUNTIME", row)

    def call(
        self,
        name: str,
        start: int,
        end: int,
        size: int,
        *,
        peer: int | None = None,
        communicator: int = COMMUNICATOR,
    ) -> None:
        """Add the NVTX range of a collective with the operator sum, or with `peer` of a message.

        `start`, `end`: ns. `peer`: number of the other process in the communicator. `size`:
        bytes as NCCL's API counts them, which is one segment of the buffer for reduce-scatter,
        all-to-all and scatter.
        """
        schema = 16777221 if peer is None else 16777225
        content = struct.pack("<QQiI", communicator, size, peer or 0, 0)
        self._range(name, start, end, schema, content)

    def mark(self, name: str, start: int, end: int) -> None:
        """Add an NVTX range (ns) without a payload, such as that of `ncclGroupStart`."""
        row = (start, end, 59, None, self._thread, self._text(name), 1, None)
        self._insert("NVTX_EVENTS", row)

    def content(self) -> bytes:
        """Return the bytes of the SQLite file with everything that was added so far.

        Commits the connection; more may be added afterwards.
        """
        self.connection.commit()
        return self.connection.serialize()

    @property
    def _thread(self) -> int:
        return self.pid << 24 | 100

    def _range(self, name: str, start: int, end: int, schema: int, fields: bytes) -> None:
        content = struct.pack("<QQQQ", 1, schema, len(fields), 32) + fields
        row = (start, end, 59, None, self._thread, self._text(name), 1, content)
        self._insert("NVTX_EVENTS", row)

    def _text(self, text: str) -> int:
        cursor = self.connection.execute("SELECT id FROM StringIds WHERE value = ?", (text,))
        if (row := cursor.fetchone()) is not None:
            return int(row[0])
        number = self.connection.execute("SELECT COUNT(*) FROM StringIds").fetchone()[0] + 1
        self._insert("StringIds", (number, text))
        return int(number)

    def _insert(self, table: str, row: Sequence[object]) -> None:
        marks = ",".join("?" * len(row))
        self.connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)


def exports() -> Sequence[Source]:
    """Return one source, `report`, with the SQLite exports of two ranks, in a list.

    Each rank runs a computation, an all-reduce of both ranks and a computation. Rank 0
    reaches the all-reduce 40 us before rank 1, and waits. The source ignores findings that
    are reported to it.
    """
    parts = [
        file_part(f"report.{rank}.sqlite", step_of(rank, start).content(), rank)
        for rank, start in enumerate((100_000, 140_000))
    ]
    return [Source("report", tuple(parts), report=lambda finding: None)]


def parquet_exports() -> Sequence[Source]:
    """Return one source with the exports of `exports` as a folder of Parquet files per rank.

    The files are in memory. The list is empty if pyarrow is not installed; otherwise it has
    this one source, named `report`, which ignores findings.
    """
    if importlib.util.find_spec("pyarrow") is None:
        return []
    parts = [
        part
        for export in exports()[0].parts
        for part in parquet_parts(export.load(), export.name.removesuffix(".sqlite"))
    ]
    return [Source("report", tuple(parts), report=lambda finding: None)]


def parquet_parts(content: bytes, folder: str) -> Iterator[SourcePart]:
    """Yield the tables of a SQLite export as Parquet files in memory, as nsys writes them.

    `content`: the bytes of the database. A file is `FOLDER/TABLE.parquet` in the format of `nsys
    export --type parquetdir`. Tables are in the order in which the database lists them, also
    without rows. Rows and columns keep their order; NULL becomes null.

    Raises `KeyError` for a column whose declared type is not INTEGER, TEXT or BLOB in capital
    letters, an error of `sqlite3` for other content, and `ImportError` without pyarrow. Errors are
    raised when the files are requested.
    """
    # Imported here: an optional library, which only this format needs.
    import pyarrow
    import pyarrow.parquet

    connection = sqlite3.connect(":memory:")
    connection.deserialize(content)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    types = {"INTEGER": pyarrow.int64(), "TEXT": pyarrow.string(), "BLOB": pyarrow.binary()}
    for (name,) in tables:
        described = connection.execute(f"PRAGMA table_info({name})").fetchall()
        rows = connection.execute(f"SELECT * FROM {name}").fetchall()
        columns = {
            column[1]: pyarrow.array([row[position] for row in rows], types[column[2]])
            for position, column in enumerate(described)
        }
        written = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), written)
        yield file_part(f"{folder}/{name}.parquet", written.getvalue())


def step_of(rank: int, start: int) -> Export:
    """Build the export of a rank: compute, all-reduce from `start` (ns) to 200 us, compute.

    `start`: below 200 000. The all-reduce of ranks 0 and 1 has 4 MiB. The first computation
    lasts 70 us and ends 10 us before `start`. The second one waits for the all-reduce,
    starts at 201 us and lasts 30 us. The process is 4096 + `rank`, the device is `rank`.
    """
    export = Export(pid=4096 + rank, device=rank)
    export.initialise(rank, 2)
    export.launch("gemm", start - 80_000, start - 10_000, stream=7, called=start - 90_000)
    export.call("ncclAllReduce", start - 61_000, start - 59_000, 4 << 20)
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    export.launch(name, start, 200_000, stream=20, called=start - 60_000)
    export.runtime("cudaStreamWaitEvent", start - 50_000, start - 49_000)
    export.launch("relu", 201_000, 231_000, stream=7, called=start - 40_000)
    return export
